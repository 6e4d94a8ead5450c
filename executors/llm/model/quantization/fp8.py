"""`quant_method` "fp8", or "fbgemm_fp8": weights in e4m3, with a scale for each block of 128 x 128, each row or all."""

from __future__ import annotations

from typing import Any

from executors.llm.model.quantization.keys import (
    ACTIVATIONS,
    CALIBRATION,
    KERNELS,
    OF_TENSORS,
    ORIGIN,
    check_keys,
    keys,
)
from executors.llm.model.quantization.refusals import kv_note, refused, whole_bits
from executors.llm.model.quantization.schemes import Fp8Scheme, Quantization

KEYS = keys(
    (
        "quant_method", "method", "fmt", "weight_format", "format", "checkpoint_format", "weight_block_size", "scale_fmt",
        "expert_dtype", "store_dtype", "bits", "rotation", "adapter", "dynamic", "weight_scale_semantics",
        "kv_cache_scheme", "kv_cache_quant_method", "data_type", "static_kv_dtype",
        "activation_scale_ub",
    ),
    OF_TENSORS,
    ORIGIN,
    KERNELS,
    CALIBRATION,
    ACTIVATIONS,
    {"the shapes of the scales show it": ("weight_scale_method", "sym", "linear_class", "weight_per_tensor")},
    {"the tensors show which modules are quantized": ("extra_config",)},
    {"numbers in e4m3 are not packed": ("pack_dtype",)},
)  # fmt: skip
_BLOCK = [128, 128]
_E4M3 = ("e4m3", "float8_e4m3fn")
FLOATS = ("fp", "fp8", "fp8_e4m3", "fp8_dynamic", "float")
"""What AutoRound calls numbers in e4m3."""
_ONLY: dict[str, tuple[Any, ...]] = {
    "fmt": _E4M3, "weight_format": _E4M3, "format": (*_E4M3, "fp8", "float-quantized"), "checkpoint_format": (*_E4M3, "fp8"),
    "scale_fmt": ("float", "ue8m0"), "expert_dtype": ("fp8",), "store_dtype": ("fp8", "e4m3"),
    "weight_scale_semantics": ("inverse",), "data_type": FLOATS, "rotation": (), "adapter": (), "dynamic": (),
}  # fmt: skip
"""Values of keys that other values of would mean another computation; null and empty ones are fine."""


def read_fp8(value: dict[str, Any], where: str) -> Quantization:
    """Read the scheme. Raises ConfigError."""
    check_keys(value, KEYS, where)
    for field, allowed in _ONLY.items():
        if value.get(field) and value[field] not in allowed:
            raise refused(where, f"{field} {value[field]!r}", ", ".join(allowed) or "none")
    if "bits" in value and whole_bits(value["bits"]) != 8:
        raise refused(where, f"fp8 with bits {value['bits']!r}", "8")
    blocks = is_block(value.get("weight_block_size"), where, "weight_block_size")
    notes = tuple(
        kv_note(key)
        for key in ("kv_cache_scheme", "kv_cache_quant_method", "static_kv_dtype")
        if value.get(key)
    )
    if value.get("activation_scale_ub"):
        notes = (
            *notes,
            "activation_scale_ub is not applied: larger values are not cut off, which is more exact",
        )
    return Quantization("fp8", where, fp8=Fp8Scheme(blocks), notes=notes)


def is_block(value: Any, where: str, field: str) -> bool:
    """Return whether the field names blocks of 128 x 128; None: it names none. Raises ConfigError for others."""
    if value is None:
        return False
    if value != _BLOCK and value != "x".join(map(str, _BLOCK)):
        raise refused(where, f"{field} {value!r}", str(_BLOCK))
    return True
