"""Structured output: the constraints of a request's answer, and their validation before generation.

forms.py      the request's `response_format`, `structured_outputs` or `guided_*` -> Constraint, within caps
schemas.py    JSON schemas: parts that cannot be enforced are refused; the rest is prepared for the compiler
compose.py    constraints -> the grammar text that executors take
lark.py       pieces of the compiler's grammar language
validator.py  queues grammars for the validating process, with a deadline, and caches the results
client.py     one life of that process; messages.py defines its messages
validator_process.py   the process: a hostile grammar can end this process only; gbnf.py translates GBNF for it
"""
