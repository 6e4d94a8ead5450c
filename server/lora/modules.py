"""`--lora-modules`: NAME=PATH, or a JSON object as vLLM has it: {"name": ..., "path": ..., "base_model_name": ...}."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from server.settings.load import SettingsError

_FIELDS = {"name", "path", "base_model_name"}


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter that is loaded at the start: the name it is served under, its folder or hub name, and the base model that it is
    said to be for."""

    name: str
    path: str
    base_model_name: str | None = None


def read_modules(values: Sequence[str]) -> tuple[LoraModule, ...]:
    """Read the values of the setting. Raises SettingsError."""
    modules = tuple(map(_read, values))
    names = [one.name for one in modules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"--lora-modules: {twice!r} is named twice")
    return modules


def _read(value: str) -> LoraModule:
    if value.lstrip().startswith("{"):
        try:
            fields = json.loads(value)
        except ValueError:
            raise SettingsError(f"--lora-modules: {value[:100]!r} is not valid JSON") from None
        unknown = set(fields) - _FIELDS
        if unknown:
            raise SettingsError(
                f"--lora-modules: {sorted(unknown)[0]!r} is unknown; known: {', '.join(sorted(_FIELDS))}"
            )
        values = [fields.get(key) for key in ("name", "path", "base_model_name")]
        if not all(isinstance(one, str) and one for one in values[:2]) or not isinstance(
            values[2], str | None
        ):
            raise SettingsError(f"--lora-modules: {value[:100]!r} needs the strings 'name' and 'path'")
        return LoraModule(*values)
    name, separator, path = value.partition("=")
    if not (separator and name.strip() and path.strip()):
        raise SettingsError(
            f"--lora-modules: {value[:100]!r} should be NAME=PATH, or a JSON object with name and path"
        )
    return LoraModule(name.strip(), path.strip())
