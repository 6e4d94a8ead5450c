"""A folder of PEFT's (adapter_config.json, adapter_model.safetensors) as one file: see `lora_file.py`.

What changes the result and is not supported is refused by its name: other kinds of adapters, DoRA, trained biases and whole
modules, layers that are repeated, embeddings, and initialisations that also change the model's own weights. Two kinds of tensors
are left out with a note: those of parts that no model here loads, and embeddings and heads that equal the model's, as PEFT writes
them when it finds a vocabulary that was resized.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executors.contract.errors import ConfigError
from executors.lora import other_parts
from executors.lora.base_weights import BaseWeights
from executors.lora.lora_file import MOST_MODULES, PackedLora, PackedTensor, read_exactly, write_adapter
from executors.lora.peft_config import CONFIG, MERGE, rank_of, read_config, scale_of
from executors.lora.safetensors_header import Entry, read_header

WEIGHTS = "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.[\w-]+)?\.weight")
_WHOLE = re.compile(
    r"(?:.+\.)?(?P<module>embed_tokens|wte|lm_head)(?:\.modules_to_save(?:\.[\w-]+)?|\.base_layer)?\.weight"
)
"""Names of whole embeddings and heads."""
_HEAD = "lm_head"


def pack_folder(
    folder: Path, target: Path, max_rank: int, label: str = WEIGHTS, base: Path | None = None
) -> PackedLora:
    """Check the adapter in `folder` and write it to `target`, a folder, as `<digest>.safetensors`.

    `label`: the name of its weights in messages. `base`: the directory of the model, for comparisons; without it whole tensors
    are refused. Raises ConfigError naming the file and the field or tensor, OSError if the target cannot be written.
    """
    config = read_config(folder / CONFIG)
    path = folder / WEIGHTS
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            entries, _ = read_header(file, path, size)
            parts, pairs, scales = _layout(config, entries, max_rank, label)
            notes = _notes(parts, BaseWeights(base), path, label)
            tensors = {
                name: tuple(
                    PackedTensor(
                        of, one.dtype, one.shape, functools.partial(read_exactly, file, one, label, of)
                    )
                    for of, one in pair
                )
                for name, pair in pairs.items()
            }
            final, digest = write_adapter(target, tensors, scales, label)  # type: ignore[arg-type]  # each has two
    except FileNotFoundError:
        raise ConfigError(f"the adapter has no {WEIGHTS}") from None
    base_name = config.get("base_model_name_or_path")
    rank = max(pair[0][1].shape[0] for pair in pairs.values())
    return PackedLora(final, digest, rank, base_name if isinstance(base_name, str) else None, notes)


def check_folder(folder: Path, max_rank: int, label: str = WEIGHTS) -> None:
    """Check the configuration and the header of the weights. Raises ConfigError as `pack_folder` does, and OSError."""
    config, path = read_config(folder / CONFIG), folder / WEIGHTS
    with path.open("rb") as file:
        entries, _ = read_header(file, path, path.stat().st_size)
    _layout(config, entries, max_rank, label)


Pair = tuple[tuple[str, Entry], tuple[str, Entry]]
"""Names and entries of A and B."""


@dataclass(slots=True)
class _Parts:
    """Tensors by what they are: those of pairs, whole embeddings and heads, and names of tensors of other parts."""

    pairs: dict[str, Entry] = field(default_factory=dict)
    whole: dict[str, Entry] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def _layout(
    config: dict[str, Any], entries: dict[str, Entry], max_rank: int, label: str
) -> tuple[_Parts, dict[str, Pair], dict[str, float]]:
    """The parts, and the tensors and the scale of each module. Raises ConfigError."""
    parts = _sorted_out(label, entries)
    _check_whole(config, parts, label)
    pairs = _pairs(label, parts.pairs)
    return parts, pairs, {name: _scale(config, label, name, pair, max_rank) for name, pair in pairs.items()}


def _sorted_out(label: str, entries: dict[str, Entry]) -> _Parts:
    parts = _Parts()
    for name, entry in entries.items():
        if other_parts.is_of_other_part(name):
            parts.others.append(name)
        elif _WHOLE.fullmatch(name):
            parts.whole[name] = entry
        else:
            parts.pairs[name] = entry
    if parts.others and not parts.pairs:
        raise ConfigError(
            f"{label}: nothing of it is for the text model: {other_parts.note_on(parts.others)}"
        )
    return parts


def _check_whole(config: dict[str, Any], parts: _Parts, label: str) -> None:
    """Raise ConfigError for a module to save of which no tensor is compared or left out."""
    modules = config.get("modules_to_save") or ()
    for module in (modules,) if isinstance(modules, str) else modules:
        if not _is_named(str(module), (*parts.whole, *parts.others)):
            raise ConfigError(f"{CONFIG}: modules_to_save {str(module)[:100]!r} is not supported: {MERGE}")


def _is_named(module: str, names: Iterable[str]) -> bool:
    return any(f".{module}." in f".{name}" for name in names)


def _notes(parts: _Parts, base: BaseWeights, path: Path, label: str) -> tuple[str, ...]:
    """Return what is left out. Raises ConfigError for a whole tensor that differs from the model's."""
    notes = [other_parts.note_on(parts.others)] if parts.others else []
    for name, entry in parts.whole.items():
        match = _WHOLE.fullmatch(name)
        assert match is not None
        why = base.difference(path, entry, head=match["module"] == _HEAD)
        if why:
            raise ConfigError(
                f"{label}: tensor {name[:200]} {why}: trained embeddings and heads are not supported; {MERGE}"
            )
    if parts.whole:
        notes.append(f"{', '.join(sorted(parts.whole))} equal the model's and are left out")
    return tuple(notes)


def _pairs(label: str, entries: dict[str, Entry]) -> dict[str, Pair]:
    """The two tensors of each module, by the checkpoint's name of the weight."""
    parts: dict[str, dict[str, tuple[str, Entry]]] = {}
    for name, entry in entries.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise ConfigError(
                f"{label}: tensor {name[:200]} is no lora_A or lora_B of a linear layer; for others {MERGE}"
            )
        pair = parts.setdefault(match["module"], {})
        if match["part"] in pair:
            raise ConfigError(
                f"{label}: there are two tensors for lora_{match['part']} of {match['module'][:200]}"
            )
        pair[match["part"]] = name, entry
    if not parts:
        raise ConfigError(f"{label}: it has no tensors")
    if len(parts) > MOST_MODULES:
        raise ConfigError(f"{label}: it has {len(parts)} modules; at most {MOST_MODULES} are read")
    pairs = {}
    for module in sorted(parts):
        lacking = next((part for part in "AB" if part not in parts[module]), None)
        if lacking is not None:
            raise ConfigError(f"{label}: lora_{lacking} of {module[:200]} is missing")
        pairs[module] = parts[module]["A"], parts[module]["B"]
    return pairs


def _scale(config: dict[str, Any], label: str, module: str, pair: Pair, max_rank: int) -> float:
    """The factor of a module, from its alpha and rank, which its tensors must have."""
    (name_a, a), (name_b, b) = pair
    for name, entry in pair:
        if len(entry.shape) != 2 or not all(entry.shape):
            raise ConfigError(
                f"{label}: tensor {name[:200]} has shape {list(entry.shape)}; two sizes are needed"
            )
    rank = rank_of(config, module)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ConfigError(
            f"{label}: {name_a[:200]} has shape {list(a.shape)} and {name_b[:200]} {list(b.shape)}; {CONFIG} says rank {rank}"
        )
    if rank > max_rank:
        raise ConfigError(f"{CONFIG}: rank {rank} is more than this server's --max-lora-rank {max_rank}")
    return scale_of(config, module, rank)
