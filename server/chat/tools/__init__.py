"""Tool calls: how models write them, how they are read as they are generated, and how they are forced.

parser.py     what all parsers share: text that waits until it is certain, and call objects read piece by piece
hermes.py     llama3_json.py     mistral.py     one notation each: its parser and its grammar
registry.py   the notations by name, and which of them a chat template speaks
choice.py     what a request's `tools`, `tool_choice` and `parallel_tool_calls` ask for
grammar.py    the grammar that makes a model keep to it
"""
