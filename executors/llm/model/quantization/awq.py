"""`quant_method` "awq": weights of 4 bits, as AutoAWQ packs them for its kernel "gemm". Zeros are the stored ones, also of
weights that are symmetric (`zero_point` false)."""

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
    without,
)
from executors.llm.model.quantization.refusals import refuse_set, refused, whole_bits
from executors.llm.model.quantization.schemes import IntScheme, IntSchemes, Quantization
from executors.llm.model.quantization.settings import CHANGING, dynamic_rules, refuse_other_numbers

_FORMAT_KEYS = ("version", "format", "checkpoint_format")
_ZEROS = {"zeros are read as they are stored": ("sym", "zero_point")}
KEYS = keys(
    (
        "quant_method", "method", "bits", "w_bit", *_FORMAT_KEYS, "backend", "dynamic", "rotation", "krot", "adapter",
        "data_type", "act_bits", "super_bits", "pack_dtype",
    ),
    OF_TENSORS,
    without(ORIGIN, "version"),
    KERNELS,
    CALIBRATION,
    _ZEROS,
    without(ACTIVATIONS, "act_bits"),
)  # fmt: skip
OVERRIDES = keys(("bits", "pack_dtype", "adapter"), OF_TENSORS, CALIBRATION, _ZEROS)
"""Keys of the settings of one expression of `dynamic`."""


def read_awq(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    check_keys(value, KEYS, where)
    refuse_set(value, CHANGING, where)
    for key in _FORMAT_KEYS:
        if (form := str(value.get(key) or "gemm").lower()) != "gemm":
            raise refused(where, f"awq with {key} {form!r}", "gemm")
    if value.get("backend") == "llm-awq":
        raise refused(where, "awq with backend 'llm-awq', which packs its words otherwise,", "autoawq")
    base = {**value, "bits": value.get("bits") if value.get("bits") is not None else value.get("w_bit")}
    schemes = IntSchemes(awq_scheme(base, "awq", where), dynamic_rules(base, OVERRIDES, _scheme, where))
    return Quantization("awq", where, integers=schemes)


def _scheme(settings: dict[str, Any], where: str) -> IntScheme:
    return awq_scheme(settings, "awq", where)


def awq_scheme(settings: dict[str, Any], method: str, where: str) -> IntScheme:
    """Return the scheme of settings with `bits`. Raises ConfigError."""
    if whole_bits(settings.get("bits")) != 4:
        raise refused(where, f"{method} with bits {settings.get('bits')!r}", "4")
    refuse_other_numbers(settings, method, where)
    return IntScheme("awq", 4)
