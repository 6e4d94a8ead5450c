"""Tool calls: the formats of models, the parsers that read them as they are generated, and the grammars that force them.

parser.py     the base of all parsers: it holds text back until it is certain, and reads call objects piece by piece
hermes.py     llama3_json.py     mistral.py     one notation each: its parser and its grammar
registry.py   the notations by name
detect.py     detection of a chat template's notation

The tool choice of a request is in server/schemas/tool_choice.py, the grammar that forces calls in
server/prepare/chat_grammar.py.
"""
