"""`quant_method` "awq": weights of 4 bits with zeros, as AutoAWQ packs them for its kernel "gemm"."""

from __future__ import annotations

from typing import Any

from executors.llm.model.quantization.refusals import refused
from executors.llm.model.quantization.schemes import IntScheme, IntSchemes, Quantization


def read_awq(value: dict[str, Any], where: str) -> Quantization:
    """Read the scheme. Raises ConfigError."""
    bits = value.get("bits", value.get("w_bit"))
    for field, found, needed in (
        ("bits", bits, 4),
        ("version", str(value.get("version", "gemm")).lower(), "gemm"),
        ("zero_point", value.get("zero_point", True), True),
    ):
        if found != needed:
            raise refused(where, f"awq with {field} {found!r}", str(needed).lower())
    return Quantization("awq", where, integers=IntSchemes(IntScheme("awq", 4)))
