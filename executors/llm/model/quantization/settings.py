"""Settings that GPTQ, AWQ and AutoRound have in common: kinds of numbers, and settings of single modules by expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.quantization.keys import KnownKeys, check_keys, short
from executors.llm.model.quantization.refusals import refuse_set, refused, whole_bits
from executors.llm.model.quantization.schemes import IntScheme, Rule, ZeroRule

CHANGING = {
    "rotation": "inputs would have to be rotated", "krot": "inputs would have to be rotated",
    "adapter": "it would have to be added to each layer", "super_bits": "scales would have to be dequantized",
}  # fmt: skip
"""Keys that change the computation, and how."""


def gptq_scheme(settings: dict[str, Any], zeros: ZeroRule, method: str, where: str) -> IntScheme:
    """Return the scheme of settings with `bits` and `sym`; `zeros`: what zeros are unless weights are symmetric.

    Kernels for symmetric weights read no zeros, and files whose stored ones are wrong have been published: then they are half of
    the range. Raises ConfigError.
    """
    if (bits := whole_bits(settings.get("bits"))) not in (4, 8):
        raise refused(where, f"{method} with bits {settings.get('bits')!r}", "4, 8")
    if (sym := settings.get("sym")) not in (None, True, False):
        raise refused(where, f"{method} with sym {sym!r}", "true, false")
    refuse_other_numbers(settings, method, where)
    return IntScheme("gptq", bits, "half" if sym else zeros)


def refuse_other_numbers(settings: dict[str, Any], method: str, where: str) -> None:
    """Raise ConfigError unless weights are whole numbers in words of 32 bits and activations are wide, as far as it is said."""
    if (kind := settings.get("data_type") or "int") != "int":
        raise refused(where, f"{method} with data_type {kind!r}", "int")
    if (packed := settings.get("pack_dtype") or "int32") != "int32":
        raise refused(where, f"{method} with pack_dtype {packed!r}", "int32")
    bits = settings.get("act_bits")
    if bits is not None and (whole_bits(bits) or 0) < 16:
        raise refused(where, f"{method} with act_bits {bits!r}", "16")


def dynamic_rules(
    value: dict[str, Any], table: KnownKeys, make: Callable[[dict[str, Any], str], IntScheme], where: str
) -> tuple[Rule, ...]:
    """Return the rules of GPTQModel's `dynamic`: its keys are regular expressions that match from the beginning of a module's
    name, after "+:" (or nothing) to change settings, after "-:" to leave the module wide.

    `table`: the keys of such settings; `make`: returns the scheme of all settings. Raises ConfigError.
    """
    dynamic = value.get("dynamic") or {}
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
        check_keys(settings, table, at)
        refuse_set(settings, CHANGING, at)
        rules.append(Rule(pattern, make({**value, **settings}, at)))
    return tuple(rules)


def checked_pattern(pattern: str, where: str) -> str:
    """Return a regular expression. Raises ConfigError for one that is none."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{where}: not a regular expression ({error})") from None
    return pattern
