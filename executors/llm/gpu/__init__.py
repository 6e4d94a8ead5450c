"""How a step is run on a GPU: packed inputs, captured graphs, kernels checked before they serve."""
