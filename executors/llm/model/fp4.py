"""Weights in FP4 (e2m1) as a `quantization_config` describes them. No torch here.

    compressed-tensors   format "nvfp4-pack-quantized": groups of 16 with scales in e4m3 and one for all
                         format "mxfp4-pack-quantized": groups of 32 with scales in e8m0
    modelopt             quant_algo NVFP4: as the first, under other names

`checkpoint/fp4_weights.py` says what tensors they are. Activations are not quantized to FP4: they keep more bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

Fp4Form = Literal["nvfp4-pack-quantized", "mxfp4-pack-quantized", "modelopt-nvfp4"]
COMPRESSED_FP4: dict[Fp4Form, tuple[int, str]] = {
    "nvfp4-pack-quantized": (16, "tensor_group"),
    "mxfp4-pack-quantized": (32, "group"),
}
"""Columns of a group, and the strategy of its scales, by the format of compressed-tensors."""
MODELOPT_FP4 = ("NVFP4", "W4A16_NVFP4")
"""Algorithms of Model Optimizer with these weights."""


def fp4_form(name: object) -> Fp4Form | None:
    """Return the format of compressed-tensors that has this name, None if it is another."""
    return next((form for form in COMPRESSED_FP4 if form == name), None)


def unsupported_fp4(weights: dict[str, Any], form: Fp4Form) -> Iterator[tuple[str, str]]:
    """Yield what of the `weights` of a group in one of COMPRESSED_FP4 is not supported, and what is."""
    size, strategy = COMPRESSED_FP4[form]
    needed = {
        "num_bits": 4, "type": "float", "symmetric": True, "dynamic": False, "group_size": size, "strategy": strategy,
    }  # fmt: skip
    for field, value in needed.items():
        stored = weights.get(field)
        if stored is not None and stored != value:
            yield f"{form} weights with {field} {stored!r}", str(value).lower()
