"""Reads the headers of GGUF files: metadata and the index of tensors. Standard library and NumPy only, so that the serving
process and the executors may both import it."""
