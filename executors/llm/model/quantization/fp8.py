"""`quant_method` "fp8": weights in e4m3, with a scale for each block of 128 x 128, each row or all."""

from __future__ import annotations

from typing import Any

from executors.llm.model.quantization.refusals import refused
from executors.llm.model.quantization.schemes import Fp8Scheme, Quantization

_BLOCK = [128, 128]


def read_fp8(value: dict[str, Any], where: str) -> Quantization:
    """Read the scheme. Raises ConfigError."""
    for field in ("fmt", "weight_format"):
        if value.get(field, "e4m3") not in ("e4m3", "float8_e4m3fn"):
            raise refused(where, f"{field} {value[field]!r}", "e4m3")
    blocks = is_block(value.get("weight_block_size"), where, "weight_block_size")
    return Quantization("fp8", where, fp8=Fp8Scheme(blocks))


def is_block(value: Any, where: str, field: str) -> bool:
    """Return whether the field names blocks of 128 x 128; None: it names none. Raises ConfigError for others."""
    if value is None:
        return False
    if value != _BLOCK and value != "x".join(map(str, _BLOCK)):
        raise refused(where, f"{field} {value!r}", str(_BLOCK))
    return True
