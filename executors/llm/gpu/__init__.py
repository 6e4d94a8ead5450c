"""How a step runs on a GPU: packed inputs, captured graphs, kernels that are checked before use."""
