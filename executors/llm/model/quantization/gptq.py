"""`quant_method` "gptq": weights of 4 or 8 bits, as AutoGPTQ and GPTQModel pack them.

`dynamic` gives modules bits of their own: its keys are regular expressions that match from the beginning of a module's name,
after "+:" (or nothing) to change settings, after "-:" to leave the module wide. The first one that matches counts.
"""

from __future__ import annotations

import re
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.quantization.keys import (
    ACTIVATIONS,
    CALIBRATION,
    KERNELS,
    OF_TENSORS,
    ORIGIN,
    check_keys,
    keys,
    short,
)
from executors.llm.model.quantization.refusals import refuse_set, refused, whole_bits
from executors.llm.model.quantization.schemes import IntScheme, IntSchemes, Quantization, Rule, ZeroRule

KEYS = keys(
    (
        "quant_method", "method", "bits", "w_bit", "wbits", "sym", "checkpoint_format", "format", "is_marlin_format",
        "pack_dtype", "dynamic", "rotation", "adapter", "data_type", "super_bits", "act_bits",
    ),
    OF_TENSORS,
    ORIGIN,
    KERNELS,
    CALIBRATION,
    {"which kernels other programs take, or how they load": ("backend",)},
    {one: tuple(name for name in names if name != "act_bits") for one, names in ACTIVATIONS.items()},
)  # fmt: skip
OVERRIDES = keys(("bits", "sym", "pack_dtype", "adapter"), OF_TENSORS, CALIBRATION)
"""Keys of the settings of one expression of `dynamic`."""
CHANGING = {
    "rotation": "inputs would have to be rotated", "adapter": "it would have to be added to each layer",
    "super_bits": "scales would have to be dequantized",
}  # fmt: skip
"""Keys that change the computation, and how."""
_FORMS = ("gptq", "gptq_v2")


def read_gptq(value: dict[str, Any], where: str) -> Quantization:
    """Read the schemes. Raises ConfigError."""
    check_keys(value, KEYS, where)
    refuse_set(value, CHANGING, where)
    forms = {value[key].lower() for key in ("checkpoint_format", "format") if isinstance(value.get(key), str)}
    form = "marlin" if value.get("is_marlin_format") else " and ".join(sorted(forms)) or "gptq"
    if form not in _FORMS:
        raise refused(where, f"gptq with checkpoint_format {form!r}", ", ".join(_FORMS))
    refuse_other_numbers(value, "gptq", where)
    unsaid: ZeroRule = "plus_one" if form == "gptq" else "stored"
    base = {**value, "bits": value.get("bits", value.get("w_bit", value.get("wbits")))}
    return Quantization(
        "gptq",
        where,
        integers=IntSchemes(gptq_scheme(base, unsaid, "gptq", where), tuple(_dynamic(base, unsaid, where))),
    )


def gptq_scheme(settings: dict[str, Any], unsaid: ZeroRule, method: str, where: str) -> IntScheme:
    """Return the scheme of settings with `bits` and `sym`; `unsaid`: what zeros are unless weights are symmetric.

    Kernels for symmetric weights read no zeros, and files whose stored ones are wrong have been published: then they are half of
    the range. Raises ConfigError.
    """
    if (bits := whole_bits(settings.get("bits"))) not in (4, 8):
        raise refused(where, f"{method} with bits {settings.get('bits')!r}", "4, 8")
    if (packed := settings.get("pack_dtype") or "int32") != "int32":
        raise refused(where, f"{method} with pack_dtype {packed!r}", "int32")
    if (sym := settings.get("sym")) not in (None, True, False):
        raise refused(where, f"{method} with sym {sym!r}", "true, false")
    return IntScheme("gptq", bits, "half" if sym else unsaid)


def refuse_other_numbers(value: dict[str, Any], method: str, where: str) -> None:
    """Raise ConfigError unless weights are whole numbers and activations are wide, as far as the settings say it."""
    if (kind := value.get("data_type") or "int") != "int":
        raise refused(where, f"{method} with data_type {kind!r}", "int")
    bits = value.get("act_bits")
    if bits is not None and (whole_bits(bits) or 0) < 16:
        raise refused(where, f"{method} with act_bits {bits!r}", "16")


def _dynamic(base: dict[str, Any], unsaid: ZeroRule, where: str) -> list[Rule]:
    dynamic = base.get("dynamic") or {}
    if not isinstance(dynamic, dict):
        raise ConfigError(
            f"{where}: dynamic {short(dynamic)} is not a map from regular expressions to settings"
        )
    rules = []
    for written, settings in dynamic.items():
        at = f"{where}: dynamic {short(written)}"
        pattern = checked_pattern(written[2:] if written[:2] in ("+:", "-:") else written, at)
        if written.startswith("-:"):
            rules.append(Rule(pattern, None))
            continue
        if not isinstance(settings, dict):
            raise ConfigError(f"{at}: {short(settings)} is not a map of settings")
        check_keys(settings, OVERRIDES, at)
        refuse_set(settings, CHANGING, at)
        rules.append(Rule(pattern, gptq_scheme({**base, **settings}, unsaid, "gptq", at)))
    return rules


def checked_pattern(pattern: str, where: str) -> str:
    """Return a regular expression. Raises ConfigError for one that is none."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{where}: not a regular expression ({error})") from None
    return pattern
