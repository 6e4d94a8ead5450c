"""A GGUF file's tokenizer metadata, made into the files of a Hugging Face directory (`engine/text/gguf_tokenizer.py`)."""
