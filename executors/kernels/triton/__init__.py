"""Triton kernels: attention over paged KV, norms, rotary positions, activations. They run on CUDA; where `TRITON_INTERPRET=1`
is set before they are imported they run on a CPU, interpreted, which is how they are tested without a GPU."""
