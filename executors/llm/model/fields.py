"""Typed look-ups in the JSON of a checkpoint. Every fault is a ConfigError of one line that names the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from executors.contract.errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises ConfigError if the file is missing, unreadable or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; a Hugging Face checkpoint directory is needed") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({str(error).splitlines()[0]})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object is needed")
    return value


MOST = (1 << 31) - 1
"""Largest size or length. A larger value is a mistake and would not fit into the integers of kernels."""


def _short(value: int) -> str:
    text = str(value) if value < 10**18 else f"about 1e{len(str(value)) - 1}" if value < 10**4000 else "huge"
    return text


class Fields:
    """The fields of one object; errors name `where` and the field.

    `aliases` maps the usual name of a field to this family's name. Null counts as missing.
    """

    def __init__(
        self, where: str, values: Mapping[str, Any], aliases: Mapping[str, str] | None = None
    ) -> None:
        self.where = where
        self.values = values
        self.aliases = aliases or {}

    def name(self, name: str) -> str:
        """Return the field's name in this object."""
        return self.aliases.get(name, name)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(self.name(name))
        return default if value is None else value

    def natural(self, name: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self.get(name, default)
        if value is None:
            raise ConfigError(
                f"{self.where}: field {self.name(name)} is missing; a positive integer is needed"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{self.where}: {self.name(name)} is {value!r}; a positive integer is needed")
        if value > MOST:
            raise ConfigError(
                f"{self.where}: {self.name(name)} is {_short(value)}; at most {MOST:,} is supported"
            )
        return value

    def count(self, name: str) -> int:
        """Return a positive integer, or 0 if the field is missing or 0."""
        return 0 if self.get(name, 0) == 0 and self.get(name) is not False else self.natural(name)

    def real(self, name: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{self.where}: field {self.name(name)} is missing; a number is needed")
        return self.number(name, value)

    def number(self, name: str, value: object) -> float:
        """Return `value`, found in the field `name`, as a finite number."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where}: {self.name(name)} is {value!r}; a number is needed")
        # JSON as Python reads it knows NaN and Infinity, and integers of any length.
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise ConfigError(f"{self.where}: {self.name(name)} is {number}; a finite number is needed")
        return number

    def positive(self, name: str) -> float | None:
        """Return a number above 0, or None if the field is missing."""
        if self.get(name) is None:
            return None
        number = self.real(name)
        if number <= 0.0:
            raise ConfigError(f"{self.where}: {self.name(name)} is {number}; more than 0 is needed")
        return number

    def switch(self, switch: bool | str, default: bool = False) -> bool:
        """Return a constant switch, or the value of the boolean field it names."""
        if isinstance(switch, bool):
            return switch
        value = self.get(switch, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {self.name(switch)} is {value!r}; true or false is needed")
        return value

    def items(self, name: str, kind: type, length: int) -> list[Any] | None:
        """Return a list of at least `length` values of `kind`, or None if the field is missing."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(one) is kind for one in value) or len(value) < length:
            raise ConfigError(
                f"{self.where}: {self.name(name)} is {str(value)[:80]}; a list of {length} {kind.__name__} is needed"
            )
        return value
