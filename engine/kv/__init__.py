"""KV blocks: the pool, the prefix cache, and who holds which block."""
