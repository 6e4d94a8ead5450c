"""A folder of PEFT's (adapter_config.json, adapter_model.safetensors) as one file: see `adapter_file.py`.

What changes the result and is not supported is refused by its name: other kinds of adapters, DoRA, trained biases and whole
modules, layers that are repeated, embeddings, and initialisations that also change the model's own weights.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from executors.contract.errors import ConfigError
from executors.lora.adapter_file import MOST_MODULES, Digest, PackedAdapter, header_of, read_exactly
from executors.lora.safetensors_header import Entry, read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_CONFIG = 1 << 20
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.[\w-]+)?\.weight")
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "megatron_config": (None,),
    "ensure_weight_tying": (False, None),
}
"""Fields of adapter_config.json, and the values at which they change nothing."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Values of `init_lora_weights` with which the model's own weights were changed, too."""
EXPONENTS = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}
"""Bits that are all set in NaN and infinity."""


def pack(folder: Path, target: Path, max_rank: int) -> PackedAdapter:
    """Check the adapter in `folder` and write it to `target`, a folder, as `<digest>.safetensors`.

    Raises ConfigError naming the file and the field or tensor, OSError if the target cannot be written.
    """
    config = _config(folder / CONFIG)
    path = folder / WEIGHTS
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            entries, _ = read_header(file, path, size)
            pairs = _pairs(path, entries)
            scales = {name: _scale(config, path, name, pair, max_rank) for name, pair in pairs.items()}
            return _write(file, path, target, pairs, scales, config)
    except FileNotFoundError:
        raise ConfigError(f"the adapter has no {WEIGHTS}") from None


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_CONFIG + 1)
    except FileNotFoundError:
        raise ConfigError(f"the adapter has no {CONFIG}") from None
    try:
        config = json.loads(raw.decode("utf-8")) if len(raw) <= _MOST_CONFIG else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG}: it is not a JSON object")
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise ConfigError(f"{CONFIG}: peft_type {str(kind)[:60]!r} is not supported; supported: LORA")
    for field, harmless in _UNSUPPORTED.items():
        value = config.get(field)
        if value not in harmless:
            raise ConfigError(f"{CONFIG}: {field} {str(value)[:100]!r} is not supported")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise ConfigError(
            f"{CONFIG}: init_lora_weights {start[:40]!r} changes the model's own weights, too: save the adapter converted to "
            "plain LoRA"
        )
    return config


Pair = tuple[tuple[str, Entry], tuple[str, Entry]]
"""Names and entries of A and B."""


def _pairs(path: Path, entries: dict[str, Entry]) -> dict[str, Pair]:
    """The two tensors of each module, by the checkpoint's name of the weight."""
    parts: dict[str, dict[str, tuple[str, Entry]]] = {}
    for name, entry in entries.items():
        found = _TENSOR.fullmatch(name)
        if found is None:
            raise ConfigError(f"{path.name}: tensor {name[:200]} is no lora_A or lora_B of a linear layer")
        pair = parts.setdefault(found["module"], {})
        if found["part"] in pair:
            raise ConfigError(
                f"{path.name}: there are two tensors for lora_{found['part']} of {found['module'][:200]}"
            )
        pair[found["part"]] = name, entry
    if not parts:
        raise ConfigError(f"{path.name}: it has no tensors")
    if len(parts) > MOST_MODULES:
        raise ConfigError(f"{path.name}: it has {len(parts)} modules; at most {MOST_MODULES} are read")
    pairs = {}
    for module in sorted(parts):
        lacking = next((part for part in "AB" if part not in parts[module]), None)
        if lacking is not None:
            raise ConfigError(f"{path.name}: lora_{lacking} of {module[:200]} is missing")
        pairs[module] = parts[module]["A"], parts[module]["B"]
    return pairs


def _scale(config: dict[str, Any], path: Path, module: str, pair: Pair, max_rank: int) -> float:
    """The factor of a module, from its alpha and rank, which its tensors must have."""
    (name_a, a), (name_b, b) = pair
    for name, entry in pair:
        if len(entry.shape) != 2 or not all(entry.shape):
            raise ConfigError(
                f"{path.name}: tensor {name[:200]} has shape {list(entry.shape)}; two sizes are needed"
            )
    rank = _number(config, "rank_pattern", "r", module)
    if not isinstance(rank, int) or rank < 1:
        raise ConfigError(
            f"{CONFIG}: the rank of {module[:200]} is {str(rank)[:40]}; a whole number from 1 on is needed"
        )
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ConfigError(
            f"{path.name}: {name_a[:200]} has shape {list(a.shape)} and {name_b[:200]} {list(b.shape)}; {CONFIG} says rank {rank}"
        )
    if rank > max_rank:
        raise ConfigError(f"{CONFIG}: rank {rank} is more than this server's --max-lora-rank {max_rank}")
    alpha = _number(config, "alpha_pattern", "lora_alpha", module)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ConfigError(f"{CONFIG}: lora_alpha of {module[:200]} is {str(alpha)[:40]}; a number is needed")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _number(config: dict[str, Any], pattern: str, plain: str, module: str) -> Any:
    """A module's own number where a pattern names it, as PEFT finds it: by the end of its name."""
    patterns = config.get(pattern) or {}
    if not isinstance(patterns, dict):
        raise ConfigError(f"{CONFIG}: {pattern} is not an object")
    for key, value in patterns.items():
        try:
            matches = re.match(rf"(.*\.)?({key})$", module) is not None if len(key) < 1000 else False
        except re.error:
            raise ConfigError(f"{CONFIG}: {pattern}: {key[:100]!r} is no regular expression") from None
        if matches:
            return value
    return config.get(plain, 8)


def _write(
    file: object,
    path: Path,
    target: Path,
    pairs: dict[str, Pair],
    scales: dict[str, float],
    config: dict[str, Any],
) -> PackedAdapter:
    shapes = {
        f"{module}.{part}": (entry.dtype, entry.shape)
        for module, pair in pairs.items()
        for part, (_, entry) in zip("AB", pair, strict=True)
    }
    header, _ = header_of(shapes, scales)
    digest = Digest()
    with tempfile.NamedTemporaryFile(dir=target, prefix="packing-", delete=False) as made:
        try:
            made.write(header)
            for module, pair in pairs.items():
                digest.add_module(module, scales[module])
                for name, entry in pair:
                    raw = read_exactly(file, entry, path, name)
                    _check_finite(path, name, entry, raw)
                    digest.add_tensor(entry, raw)
                    made.write(raw)
            made.flush()
            final = target / f"{digest.value}.safetensors"
            Path(made.name).replace(final)
        except BaseException:
            Path(made.name).unlink(missing_ok=True)
            raise
    base = config.get("base_model_name_or_path")
    rank = max(pair[0][1].shape[0] for pair in pairs.values())
    return PackedAdapter(final, digest.value, rank, base if isinstance(base, str) else None)


def _check_finite(path: Path, name: str, entry: Entry, raw: bytes) -> None:
    kind, exponent = EXPONENTS[entry.dtype]
    if bool(((np.frombuffer(raw, kind) & exponent) == exponent).any()):
        raise ConfigError(f"{path.name}: tensor {name[:200]} holds NaN or infinity")
