"""Defaults from a model's own files: sampling settings, pooling."""
