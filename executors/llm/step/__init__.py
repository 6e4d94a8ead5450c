"""How a step runs: by torch or the CPU kernels, in the order of submission."""
