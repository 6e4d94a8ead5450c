"""What a manifest of Ollama's store names beside the model: adapter, system text, parameters, messages, template and licenses.

A model is all of that: its GGUF file alone answers otherwise. Types of layers are those of Ollama's server/images.go; one that
is not known here is refused by its name. A prepared directory keeps a package as `ollama.json`, so that all processes of a server
read the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executors.contract import ConfigError

FILE = "ollama.json"
_PREPARED = "gguf.json"
PREFIX = "application/vnd.ollama.image."
MODEL = "model"
_MOST_BYTES = 4 << 20
"""Of a layer of text."""
_MOST_MESSAGES = 1000
_ROLES = ("system", "user", "assistant")
_TEXTS = ("system", "params", "messages", "template", "prompt", "license")
_WITHOUT_EFFECT: dict[str, str] = {
    "json": "a file of a model that is stored as single tensors",
    "draft": "a smaller model that makes the same answers come faster",
    "embed": "embeddings of an early version, which Ollama does not read any more",
    "projector": "the encoder of images",
}
"""Layers that no text goes through, each with the reason."""
_NOTED = ("projector", "draft")
SUPPORTED = (MODEL, "adapter", *_TEXTS, *_WITHOUT_EFFECT)


@dataclass(frozen=True, slots=True)
class Package:
    """`name`: the model's in Ollama. `template` is in Go's language. `notes`: a sentence for each layer that is not used."""

    name: str
    adapter: Path | None = None
    system: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] = ()
    template: str = ""
    licenses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"Ollama's model {self.name}"

    @property
    def digest(self) -> str:
        """Of what changes answers, "" if nothing does."""
        parts = (str(self.adapter or ""), self.system, dict(self.params), list(self.messages))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if any(parts) else ""

    def to_json(self) -> bytes:
        """Return the content of `ollama.json`."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**values, "adapter": None if self.adapter is None else str(self.adapter)}).encode()


def read_package(directory: Path) -> Package | None:
    """Return the package of a prepared directory, None for any other directory: what others wrote by that name is none."""
    if not (directory / _PREPARED).is_file():
        return None
    try:
        values = json.loads((directory / FILE).read_bytes())
        adapter = values.pop("adapter")
        for name in ("messages", "licenses", "notes"):
            values[name] = tuple(values[name])
        return Package(adapter=None if adapter is None else Path(adapter), **values)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def package_of(
    name: str, layers: list[Mapping[str, Any]], blob: Callable[[Mapping[str, Any]], Path]
) -> Package:
    """Read the layers of a model's manifest; `blob` finds a layer's file. Raises ConfigError naming the model and the layer."""
    where = f"Ollama's model {name}"
    texts: dict[str, list[str]] = {kind: [] for kind in _TEXTS}
    adapters, notes, models = [], [], 0
    for layer in layers:
        media = str(layer.get("mediaType"))
        kind = media.removeprefix(PREFIX)
        if kind not in SUPPORTED or kind == media:
            raise ConfigError(
                f"{where}: its manifest has a layer of type {media[:80]!r}, which is not supported; supported: "
                f"{', '.join(SUPPORTED)}"
            )
        models += kind == MODEL
        if kind == "adapter":
            adapters.append(blob(layer))
        elif kind in _NOTED:
            notes.append(f"{where}: its {kind} is not used: {_WITHOUT_EFFECT[kind]}")
        elif kind in texts:
            texts[kind].append(_text(where, kind, blob(layer)))
    if models > 1 or len(adapters) > 1:
        which, count = ("model", models) if models > 1 else ("adapter", len(adapters))
        raise ConfigError(f"{where}: its manifest has {count} layers of type {which}; one is supported")
    return Package(
        name,
        adapters[0] if adapters else None,
        # As in Ollama, the last layer of a type counts; licenses count all.
        system=_last(texts["system"]),
        params=_params(where, texts["params"]),
        messages=_messages(where, texts["messages"]),
        template=_last(texts["template"] or texts["prompt"]),
        licenses=tuple(texts["license"]),
        notes=tuple(notes),
    )


def _last(texts: list[str]) -> str:
    return texts[-1] if texts else ""


def _text(where: str, kind: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{where}: its layer {kind}, {path}, cannot be read: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{where}: its layer {kind}, {path}, has more than {_MOST_BYTES} bytes")
    # A license is for people; the others reach the model.
    try:
        return raw.decode("utf-8", "replace" if kind == "license" else "strict")
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: its layer {kind}, {path}, is not text in UTF-8") from None


def _json(where: str, kind: str, texts: list[str], form: type) -> Any:
    if not texts:
        return form()
    try:
        value = json.loads(texts[-1])
    except (ValueError, RecursionError):
        value = None
    if value is None and texts[-1].strip() == "null":
        return form()
    if not isinstance(value, form):
        raise ConfigError(f"{where}: its layer {kind} is not a JSON {'object' if form is dict else 'list'}")
    return value


def _params(where: str, texts: list[str]) -> dict[str, Any]:
    params: dict[str, Any] = _json(where, "params", texts, dict)
    return params


def _messages(where: str, texts: list[str]) -> tuple[dict[str, str], ...]:
    messages = []
    listed: list[Any] = _json(where, "messages", texts, list)
    for number, one in enumerate(listed[: _MOST_MESSAGES + 1]):
        place = f"{where}: its layer messages: message {number}"
        if (
            not isinstance(one, dict)
            or one.get("role") not in _ROLES
            or not isinstance(one.get("content"), str)
        ):
            raise ConfigError(f"{place} needs a role, one of {', '.join(_ROLES)}, and a text as content")
        if other := next(
            (key for key, value in one.items() if key not in ("role", "content") and value), None
        ):
            raise ConfigError(f"{place} has {other[:40]!r}, which is not supported; supported: role, content")
        messages.append({"role": one["role"], "content": one["content"]})
    if len(messages) > _MOST_MESSAGES:
        raise ConfigError(
            f"{where}: its layer messages has {len(listed)} messages; at most {_MOST_MESSAGES} are read"
        )
    return tuple(messages)
