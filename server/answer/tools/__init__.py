"""Tool calls: how models write them, how they are read as they are generated, and how they are forced.

parser.py     what all parsers share: text that waits until it is certain, and call objects read piece by piece
hermes.py     llama3_json.py     mistral.py     one notation each: its parser and its grammar
registry.py   the notations by name
detect.py     which of them a chat template speaks

What a request asks for is in server/schemas/tool_choice.py, the grammar that forces calls in server/prepare/chat_grammar.py.
"""
