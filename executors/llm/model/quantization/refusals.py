"""Errors and notes about `quantization_config`, of one line."""

from __future__ import annotations

from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.quantization.keys import short


def refused(where: str, what: str, supported: str) -> ConfigError:
    """Return the error for a value that is not supported; `supported`: those that are."""
    return ConfigError(f"{where}: {what[:120]} is not supported; supported: {supported}")


def refuse_set(value: dict[str, Any], names: dict[str, str], where: str) -> None:
    """Raise ConfigError for the first of the keys `names` that is set: it would change answers. Their values say how."""
    for name, why in names.items():
        if value.get(name):
            raise ConfigError(f"{where}: {name} {short(value[name])} is not supported: {why}")


def whole_bits(value: object) -> int | None:
    """Return a number of bits that is written as a number or as digits; None for anything else."""
    if isinstance(value, str) and value.isdigit() and len(value) < 4:
        return int(value)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if plain and value == int(value) else None  # type: ignore[call-overload,operator]


def kv_note(key: str) -> str:
    """Return the note on a key that asks for quantized keys and values."""
    return (
        f"{key} is not applied: keys and values are stored in the model's dtype, which is more exact; --kv-cache-dtype fp8 "
        "stores them in FP8"
    )
