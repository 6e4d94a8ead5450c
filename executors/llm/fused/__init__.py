"""Whole decoder layers by kernels of our own: one C++ call on a CPU, a few Triton kernels on a GPU."""
