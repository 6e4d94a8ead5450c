"""Kernels of our own: C++ compiled where it runs, loaded through ctypes."""
