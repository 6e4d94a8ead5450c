"""Triton kernels: attention over paged KV, norms, rotary positions, activations. They run on GPUs. If `TRITON_INTERPRET=1` is
set before they are imported, they run interpreted on a CPU, which is how they are tested without a GPU."""
