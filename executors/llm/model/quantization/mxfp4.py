"""`quant_method` "mxfp4": the experts of gpt-oss in FP4, with a power of two for each 32 columns. The tensors show which modules
are so; `checkpoint/fused_tensors.py` says how they lie."""

from __future__ import annotations

from typing import Any

from executors.llm.model.quantization.keys import KERNELS, OF_TENSORS, ORIGIN, check_keys, keys
from executors.llm.model.quantization.schemes import IntScheme, IntSchemes, Quantization

KEYS = keys(("quant_method", "method"), OF_TENSORS, ORIGIN, KERNELS)


def read_mxfp4(value: dict[str, Any], where: str) -> Quantization:
    """Read the scheme. Raises ConfigError."""
    check_keys(value, KEYS, where)
    return Quantization(
        "mxfp4", where, integers=IntSchemes(IntScheme("mxfp4-pack-quantized"), by_tensors=True)
    )
