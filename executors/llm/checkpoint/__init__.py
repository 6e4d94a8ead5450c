"""Loads a model from files: safetensors, names, dtypes, FP8 scales."""
