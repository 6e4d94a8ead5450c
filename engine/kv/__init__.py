"""KV blocks: the pool, the prefix cache, and the block tables of sequences."""
