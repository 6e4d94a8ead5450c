"""The model's tokenizer, in vLLM's form."""
