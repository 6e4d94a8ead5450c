"""The default pooling: which of a prompt's hidden states make its embedding if the request does not say.

Models of sentence-transformers declare it: modules.json lists their steps, and 1_Pooling/config.json has a switch for each
kind of pooling. A model without these files uses its last token's state, which has attended to all the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executors.contract import ConfigError

_KINDS = {"mean_tokens": "mean", "mean": "mean", "lasttoken": "last", "last": "last"}
_MODULES = ("Transformer", "Pooling", "Normalize")
"""Steps of a model that are supported, by the last part of their types."""


@dataclass(frozen=True, slots=True)
class DefaultPooling:
    """`kind` is "last" or "mean"; None if the model's own kind is not supported, and then `reason` says why."""

    kind: str | None = "last"
    reason: str = ""
    declared: bool = False
    """Whether the model's files name it an embedding model."""
    includes_prompt: bool = True
    """Whether the hidden states of a prompt before the text count in the mean."""


def default_pooling(directory: Path) -> DefaultPooling:
    """The pooling that a model directory declares. Raises ConfigError, naming the file, if a file cannot be read."""
    steps = modules(directory)
    if other := [name for name in steps if name not in _MODULES]:
        return DefaultPooling(None, f"the model ends with a module '{other[0]}'")
    config = read_file(directory / "1_Pooling" / "config.json", dict)
    if config is None:
        return DefaultPooling()
    kinds = [
        name.removeprefix("pooling_mode_")
        for name, value in config.items()
        if value is True and name.startswith("pooling_mode_")
    ]
    if isinstance(named := config.get("pooling_mode"), str):
        kinds = [named]
    declared = "Pooling" in steps
    if len(kinds) == 1 and kinds[0] in _KINDS:
        return DefaultPooling(_KINDS[kinds[0]], "", declared, config.get("include_prompt") is not False)
    return DefaultPooling(None, f"the model's own pooling is {' and '.join(kinds) or 'none'}", declared)


def modules(directory: Path) -> dict[str, str]:
    """The steps of a model of sentence-transformers, by the last part of their types, each with the folder of its files; empty
    for other models. Raises ConfigError."""
    steps = read_file(directory / "modules.json", list) or ()
    return {
        str(one.get("type")).rpartition(".")[2]: str(one.get("path") or "")
        for one in steps
        if isinstance(one, dict)
    }


def read_file(path: Path, kind: type) -> Any:
    """The JSON value in a file, None if there is no such file. Raises ConfigError unless it is of this `kind`, dict or list."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(value, kind):
        raise ConfigError(f"{path}: not a JSON {'object' if kind is dict else 'list'}")
    return value
