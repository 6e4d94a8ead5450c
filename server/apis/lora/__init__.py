"""LoRA adapters that come and go while the server runs, in vLLM's form."""
