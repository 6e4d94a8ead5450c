"""Kernels of our own: C++ compiled where it runs, loaded through ctypes."""

CPU_ISAS = ("avx512_bf16", "avx512_vnni", "avx512", "avx2")
"""Instruction sets that the CPU kernels are built for, best first."""

ATTENTION_BACKENDS = ("auto", "flash-attn", "varlen", "triton", "torch")
"""What computes attention: see `llm/attention/`."""
