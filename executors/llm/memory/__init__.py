"""How much memory there is, what a model and its KV take of it, and the paged KV cache."""
