"""Attention over paged KV: the interface between steps and kernels, and every backend that implements it."""
