"""Structured output: what a request's answer must follow, and the check of it before anything is generated.

forms.py      the request's `response_format` or `structured_outputs` -> Constraint, within caps
schemas.py    what of a JSON schema cannot be kept is refused; the rest is made ready for the compiler
compose.py    constraints -> the grammar text that executors take
lark.py       pieces of the compiler's grammar language
validator.py  asks the validating process, for how long, and remembers what is already known
client.py     one life of that process; messages.py has what is said to it
validator_process.py   the process: a hostile grammar ends there, and nowhere else; gbnf.py is a form that it translates
"""
