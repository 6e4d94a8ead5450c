"""LoRA adapters in the LLM executor.

loaded.py   one adapter in memory, fitted to the model's linear layers
table.py    those that are loaded, by name, and which of them the rows of a step have
"""
