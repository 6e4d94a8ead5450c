"""LoRA adapters in the LLM executor.

loaded.py   one adapter as it was read, fitted to the model's linear layers
table.py    those that are loaded, by name, and which of them the rows of a step have
host.py     their memory on a CPU                device.py   their memory on a GPU
gguf_modules.py   names of GGUF files         value_heads.py    orders of linear attention's heads
"""
