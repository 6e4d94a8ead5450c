"""What the small files of a model, or the header of its GGUF file, say of its use. No weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.text.tokenizer_files import chat_templates
from executors.contract import ConfigError
from executors.gguf.file import read_gguf
from server.model_files.folders import changed
from server.model_files.small_json import read_object

_SHARED_WEIGHTS = 0.05
"""Share of a mixture's weights that every token uses: attention, embeddings, shared experts. A guess."""
_UNSPECIFIED = (None, -1, 0, 0xFFFFFFFF)
"""Values of `ARCH.pooling_type` of files that are no embedding models."""
_MODULES = "modules.json"
"""Of sentence-transformers: the steps that make an embedding."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `used` of `count` compute each token."""

    count: int
    used: int

    @property
    def active_share(self) -> float:
        """The share of the weights that one token uses, about."""
        return min(1.0, self.used / self.count + _SHARED_WEIGHTS)


@dataclass(frozen=True, slots=True)
class Header:
    """`chat_template`: whether there is one. `other_use`: what the model is for, if not for generating text. `changed`: time of
    the newest file, in seconds since the epoch."""

    chat_template: bool
    experts: Experts | None
    other_use: str | None
    changed: float


def read_header(path: Path) -> Header:
    """Read what lies in a checkpoint directory, or a GGUF file's metadata. Raises ConfigError for what cannot be read."""
    try:
        return _of_directory(path) if path.is_dir() else _of_gguf(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _of_gguf(path: Path) -> Header:
    metadata = read_gguf(path.parent.resolve() / path.name, arrays=False).metadata
    other = None
    if (kind := metadata.get("general.type", "model")) != "model":
        other = f"its general.type is {str(kind)[:40]!r}"
    elif metadata.get(f"{metadata.get('general.architecture')}.pooling_type") not in _UNSPECIFIED:
        other = "an embedding model or reranker (pooling_type)"
    template = metadata.get("tokenizer.chat_template")
    return Header(bool(template), experts_of(metadata), other, changed(path))


def _of_directory(directory: Path) -> Header:
    try:
        templates = chat_templates(directory, read_object(directory / "tokenizer_config.json"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory}: chat template: {error}") from None
    other = None
    if (directory / _MODULES).exists():
        other = f"an embedding model or reranker ({_MODULES})"
    elif (directory / "adapter_config.json").exists():
        other = "a LoRA adapter"
    newest = max((changed(one) for one in directory.iterdir()), default=0.0)
    return Header(bool(templates), experts_of(read_object(directory / "config.json")), other, newest)


def experts_of(config: Mapping[str, Any]) -> Experts | None:
    """Return what a config.json, or the metadata of a GGUF file, says of experts; None for a dense model."""
    text = config.get("text_config")
    if isinstance(text, dict):
        config = text
    architecture = config.get("general.architecture")
    counts = (f"{architecture}.expert_count", "num_experts", "num_local_experts", "n_routed_experts")
    useds = (f"{architecture}.expert_used_count", "num_experts_per_tok", "experts_per_token", "top_k_experts")

    def first(names: tuple[str, ...]) -> int:
        return next((config[name] for name in names if type(config.get(name)) is int), 0)

    count, used = first(counts), first(useds)
    return Experts(count, used) if count > used > 0 else None
