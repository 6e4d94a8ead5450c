"""Cohort's own kernels: C++ compiled on the machine that runs it and loaded through ctypes."""

CPU_ISAS = ("avx512_bf16", "avx512_vnni", "avx512", "avx2")
"""Instruction sets that the CPU kernels are built for, best first."""

ATTENTION_BACKENDS = ("auto", "flash-attn", "varlen", "triton", "torch")
"""Names of attention backends: see `llm/attention/`."""
