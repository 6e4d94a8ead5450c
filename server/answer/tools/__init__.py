"""Tool calls: the formats of models, the parsers that read them as they are generated, and the grammars that force them.

parser.py     the base of all parsers: it holds text back until it is certain, and reads call objects piece by piece
notation.py   the interface of a format: parser, grammar of forced calls, calls as text
registry.py   the formats by name
detect.py     detection of a chat template's format
typed.py      types of arguments that stand in the text without any
events.py     what a parser yields

A file each, or one for variants of a format:

JSON objects       hermes.py  llama3_json.py  mistral.py  json_lists.py  deepseek.py  kimi_k2.py  harmony.py
text between tags  qwen3_coder.py  seed_oss.py  minimax_m2.py  glm45.py  deepseek_v32.py  (base: tagged.py)
other values       pythonic.py (with python_literals.py)  gemma.py  (base of their grammars: values_grammar.py)

Answers in Harmony are read as a whole by harmony_parser.py: reasoning, text and calls (server/answer/harmony/).

A new format is a new file, a row in registry.py, and its calls in tests/server/answer/tools/formats.py. The tool choice of a
request is in server/schemas/tool_choice.py, the grammar that forces calls in server/prepare/chat_grammar.py.
"""
