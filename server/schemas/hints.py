"""Hints of error messages in the names of the body at hand.

Hints are written in the names of a chat (`use 'max_tokens'`). Other bodies have other names for the same, or nothing like it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "max_tokens": ("max_output_tokens",),
    "stop": ("stop_sequences",),
    "structured_outputs": ("text.format", "output_config.format", "format"),
    "response_format": ("text.format", "output_config.format", "format"),
    "reasoning_effort": ("reasoning.effort", "output_config.effort"),
    "input": ("documents",),
}
"""Names of a chat or an embedding, each with what other bodies have in its place."""
ELSEWHERE = "only /v1/chat/completions has something like it"
_QUOTED = re.compile(r"'([a-z_.]+)'")


def fitted(hint: str, model: type[BaseModel], inner: bool = False) -> str | None:
    """The hint in the names of `model`'s fields. Without such a field: another endpoint for a body that generates, else None.
    `inner`: the hint is about a key of an inner object, beside which the fields of that object stand."""
    paths = field_paths(model) | (inner_names(model) if inner else frozenset())
    own: dict[str, str] = {}
    for name in _QUOTED.findall(hint):
        fit = next((one for one in (name, *OTHER_NAMES.get(name, ())) if one in paths), None)
        if fit is None:
            return ELSEWHERE if "temperature" in paths else None
        own[name] = fit
    return _QUOTED.sub(lambda quoted: f"'{own[quoted[1]]}'", hint)


@functools.cache
def field_paths(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a body and of the objects within it by their paths without positions: `messages.content`."""
    return frozenset(map(".".join, _paths(model, ())))


def inner_names(model: type[BaseModel]) -> frozenset[str]:
    """The names of fields of the objects within a body."""
    return frozenset(path.rpartition(".")[2] for path in field_paths(model) if "." in path)


def names_of(name: str, field: FieldInfo) -> list[str]:
    """The names of a field in the client's JSON."""
    if isinstance(field.validation_alias, AliasChoices):
        return [one for one in field.validation_alias.choices if isinstance(one, str)]
    return [field.alias or name]


def _paths(model: type[BaseModel], within: tuple[type[BaseModel], ...]) -> Iterator[tuple[str, ...]]:
    if model in within:  # a schema that contains itself
        return
    for name, field in model.model_fields.items():
        for own in names_of(name, field):
            yield (own,)
            for inner in _models(field.annotation):
                for path in _paths(inner, (*within, model)):
                    yield (own, *path)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models(one)
