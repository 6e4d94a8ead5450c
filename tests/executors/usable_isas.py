"""Instruction sets of the CPU kernels that this machine has."""

from __future__ import annotations

from executors.kernels.compiler import usable_isas

USABLE_ISAS = tuple(isa.name for isa in usable_isas())
"""Names, best first."""
