"""`quant_method` "gptq": weights of 4 or 8 bits, as AutoGPTQ and GPTQModel pack them."""

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
from executors.llm.model.quantization.refusals import refuse_set, refused
from executors.llm.model.quantization.schemes import IntSchemes, Quantization, ZeroRule
from executors.llm.model.quantization.settings import CHANGING, dynamic_rules, gptq_scheme

_NUMBERS = ("data_type", "act_bits", "super_bits", "pack_dtype")
KEYS = keys(
    (
        "quant_method", "method", "bits", "w_bit", "wbits", "sym", "checkpoint_format", "format", "is_marlin_format", "dynamic",
        "rotation", "adapter", *_NUMBERS,
    ),
    OF_TENSORS,
    ORIGIN,
    KERNELS,
    CALIBRATION,
    {"which kernels other programs take, or how they load": ("backend",)},
    without(ACTIVATIONS, "act_bits"),
)  # fmt: skip
OVERRIDES = keys(("bits", "sym", "pack_dtype", "adapter"), OF_TENSORS, CALIBRATION)
"""Keys of the settings of one expression of `dynamic`."""
_FORMS = ("gptq", "gptq_v2")


def read_gptq(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    check_keys(value, KEYS, where)
    refuse_set(value, CHANGING, where)
    forms = {value[key].lower() for key in ("checkpoint_format", "format") if isinstance(value.get(key), str)}
    form = "marlin" if value.get("is_marlin_format") else " and ".join(sorted(forms)) or "gptq"
    if form not in _FORMS:
        raise refused(where, f"gptq with checkpoint_format {form!r}", ", ".join(_FORMS))
    zeros: ZeroRule = "plus_one" if form == "gptq" else "stored"
    bits = next((value[key] for key in ("bits", "w_bit", "wbits") if value.get(key) is not None), None)
    base = {**value, "bits": bits}
    schemes = IntSchemes(
        gptq_scheme(base, zeros, "gptq", where),
        dynamic_rules(base, OVERRIDES, lambda one, at: gptq_scheme(one, zeros, "gptq", at), where),
    )
    return Quantization("gptq", where, integers=schemes)
