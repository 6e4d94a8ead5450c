"""How a step is run: by torch or the CPU kernels, in the order of submission."""
