"""`quant_method` "awq": weights of 4 bits with zeros, as AutoAWQ packs them for its kernel "gemm"."""

from __future__ import annotations

from typing import Any

from executors.llm.model.quantization.keys import CALIBRATION, KERNELS, OF_TENSORS, ORIGIN, check_keys, keys
from executors.llm.model.quantization.refusals import refuse_set, refused, whole_bits
from executors.llm.model.quantization.schemes import IntScheme, IntSchemes, Quantization

KEYS = keys(
    (
        "quant_method", "method", "bits", "w_bit", "version", "format", "checkpoint_format", "zero_point", "backend",
        "pack_dtype", "dynamic", "rotation", "adapter", "krot",
    ),
    OF_TENSORS,
    {one: tuple(name for name in names if name != "version") for one, names in ORIGIN.items()},
    KERNELS,
    CALIBRATION,
    {"zeros are read as they are stored": ("sym",)},
)  # fmt: skip
CHANGING = {
    "dynamic": "layers of other bits in AWQ", "rotation": "inputs would have to be rotated",
    "adapter": "it would have to be added to each layer", "krot": "inputs would have to be rotated",
}  # fmt: skip
"""Keys that change the computation, and how."""
_FORMAT_KEYS = ("version", "format", "checkpoint_format")


def read_awq(value: dict[str, Any], where: str) -> Quantization:
    """Read the scheme. Raises ConfigError."""
    check_keys(value, KEYS, where)
    refuse_set(value, CHANGING, where)
    forms = [(key, str(value[key]).lower()) for key in _FORMAT_KEYS if value.get(key) is not None]
    zeros = value.get("zero_point")
    for field, found, needed in (
        ("bits", whole_bits(value.get("bits", value.get("w_bit"))), 4),
        *((key, form, "gemm") for key, form in forms),
        ("zero_point", True if zeros is None else zeros, True),
    ):
        if found != needed:
            shown = value.get("bits", value.get("w_bit")) if field == "bits" else found
            raise refused(where, f"awq with {field} {shown!r}", str(needed).lower())
    if value.get("backend") == "llm-awq":
        raise refused(where, "awq with backend 'llm-awq', which packs its words otherwise,", "autoawq")
    if (packed := value.get("pack_dtype") or "int32") != "int32":
        raise refused(where, f"awq with pack_dtype {packed!r}", "int32")
    return Quantization("awq", where, integers=IntSchemes(IntScheme("awq", 4)))
