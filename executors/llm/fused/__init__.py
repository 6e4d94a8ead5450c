"""Whole decoder layers by Cohort's own kernels: one C++ call on a CPU, a few Triton kernels on a GPU."""
