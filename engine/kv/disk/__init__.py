"""KV blocks on disk: files of chains, the directory that holds them, and the index of what they hold."""
