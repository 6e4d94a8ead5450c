"""GGUF files on this disk: which one is meant, and the directory that it is served from.

candidates.py     which of several files is served
prepared.py       the directory of one file: its tokenizer, and where its weights are
private_cache.py  where such directories lie
ollama.py         files in Ollama's store, by name
default_model.py  the model that is served where none is named
"""
