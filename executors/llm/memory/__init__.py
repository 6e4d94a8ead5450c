"""How much memory there is, how much a model and its KV take, and the paged KV cache."""
