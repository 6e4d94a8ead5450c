"""Attention over paged KV: the seam between steps and kernels, and every backend behind it."""
