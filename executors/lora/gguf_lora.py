"""A GGUF file with an adapter, as llama.cpp's converter and Ollama write it, as one file: see `lora_file.py`.

    general.type "adapter", adapter.type "lora", adapter.lora.alpha
    blk.0.attn_q.weight.lora_a [rank, inputs]    blk.0.attn_q.weight.lora_b [outputs, rank]

The scale is alpha / rank, and 1 for an alpha of 0. Names and the order of B's rows stay those of the architecture: the executor,
which knows the model, turns them into the usual ones.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, GgufTensor, read_gguf
from executors.lora.lora_file import MOST_MODULES, PackedLora, PackedTensor, write_adapter

GGUF = "adapter.gguf"
"""Name of the server's copy of such a file."""
_TENSOR = re.compile(r"(?P<module>.+)\.weight\.lora_(?P<part>[ab])")
_TYPES = ("F32", "F16", "BF16", "Q8_0")
_OLD_MAGICS = (b"ggla", b"algg")
_EMBEDDING = "token_embd"
_MERGE = "merge the adapter into the model (llama-export-lora of llama.cpp) and serve that"
_INVOCATION = "adapter.alora.invocation_tokens"

READ = frozenset(
    {
        "general.type",
        "general.architecture",
        "adapter.type",
        "adapter.lora.alpha",
        "general.base_model.0.name",
    }
)
"""Keys of the metadata that the reader uses."""
HARMLESS: dict[str, str] = {
    "general.*": "says what the file is and where it comes from",
    "GGUF.*": "says how the file is written",
    "split.*": "says how a model is split; the reader of files checks it",
    "adapter.lora.task_name": "a name for people",
    "adapter.lora.prompt_prefix": "llama.cpp shows it to clients and puts it before no prompt",
    "ARCHITECTURE.*": "a fact on the model, which the model's own file has, too",
}
"""Keys without effect on the result, each with the reason; `ARCHITECTURE` stands for the file's own."""


def pack_gguf(path: Path, target: Path, max_rank: int, label: str | None = None) -> PackedLora:
    """Check the adapter in a GGUF file and write it to `target`, a folder, as `<digest>.safetensors`.

    `label`: the name of the file in messages. Raises ConfigError naming it and the key or tensor, OSError if the target cannot be
    written.
    """
    label = str(path) if label is None else label
    gguf = _read(path, label)
    alpha = _check_metadata(gguf.metadata, label)
    pairs = _pairs(gguf, label)
    rank = _check_rank(_check_shapes(pairs, label), max_rank, label)
    scales = {name: alpha / b.shape[1] if alpha else 1.0 for name, (_, b) in pairs.items()}
    with path.open("rb") as file:
        tensors = {name: (_packed(file, a, label), _packed(file, b, label)) for name, (a, b) in pairs.items()}
        architecture = str(gguf.metadata["general.architecture"])
        final, digest = write_adapter(target, tensors, scales, label, architecture)
    base = gguf.metadata.get("general.base_model.0.name")
    return PackedLora(final, digest, rank, base if isinstance(base, str) else None)


def gguf_rank(path: Path, label: str) -> int:
    """Return the highest rank of the adapter in a GGUF file, of which only the header is read. Raises ConfigError."""
    gguf = _read(path, label)
    _check_metadata(gguf.metadata, label)
    return _check_shapes(_pairs(gguf, label), label)


def check_gguf(path: Path, max_rank: int, label: str) -> None:
    """Check what the header of an adapter in a GGUF file says. Raises ConfigError as `pack_gguf` does."""
    _check_rank(gguf_rank(path, label), max_rank, label)


def _check_rank(rank: int, max_rank: int, label: str) -> int:
    if rank > max_rank:
        raise ConfigError(f"{label}: rank {rank} is more than this server's --max-lora-rank {max_rank}")
    return rank


def _read(path: Path, label: str) -> GgufFile:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic in _OLD_MAGICS:
            raise ConfigError(
                f"{label}: an adapter in the format before GGUF (ggla): convert the original anew"
            )
        return read_gguf(path)
    except OSError as error:
        raise ConfigError(f"{label}: it cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{path}", label)) from None


def _check_metadata(metadata: dict[str, Any], label: str) -> float:
    """Return alpha. Raises ConfigError naming a key that is missing, unsupported or unknown."""
    kind = metadata.get("general.type")
    if kind != "adapter":
        raise ConfigError(f"{label}: general.type is {_quoted(kind)}: no adapter, for which it is 'adapter'")
    if metadata.get("adapter.type") != "lora":
        raise ConfigError(
            f"{label}: adapter.type {_quoted(metadata.get('adapter.type'))} is not supported; supported: lora"
        )
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ConfigError(f"{label}: general.architecture is {_quoted(architecture)}; the model's is needed")
    alpha = metadata.get("adapter.lora.alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ConfigError(f"{label}: adapter.lora.alpha is {_quoted(alpha)}; a number is needed")
    if len(metadata.get(_INVOCATION, ())):
        raise ConfigError(
            f"{label}: {_INVOCATION}: adapters that begin in the middle of a text are not supported"
        )
    for key in metadata:
        if key not in READ and key != _INVOCATION and not _is_harmless(key, architecture):
            raise ConfigError(f"{label}: metadata {_quoted(key)} is unknown here and may change the result")
    return float(alpha)


def _is_harmless(key: str, architecture: str) -> bool:
    return any(
        key.startswith(name.replace("ARCHITECTURE", architecture)[:-1])
        if name.endswith(".*")
        else key == name
        for name in HARMLESS
    )


def _quoted(value: object) -> str:
    return ascii(str(value)[:60]) if value is not None else "missing"


def _pairs(gguf: GgufFile, label: str) -> dict[str, tuple[GgufTensor, GgufTensor]]:
    """A and B of each module, by the name of its weight in GGUF files, in order."""
    parts: dict[str, dict[str, GgufTensor]] = {}
    for name, tensor in gguf.tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise ConfigError(f"{label}: tensor {_quoted(name)} is no lora_a or lora_b of a weight; {_MERGE}")
        if tensor.type not in _TYPES:
            raise ConfigError(
                f"{label}: tensor {_quoted(name)} has type {tensor.type}; supported in adapters: {', '.join(_TYPES)}"
            )
        parts.setdefault(match["module"], {})[match["part"]] = tensor
    if not parts or len(parts) > MOST_MODULES:
        raise ConfigError(f"{label}: it has {len(parts)} modules; 1 to {MOST_MODULES} are read")
    for module, pair in parts.items():
        lacking = next((part for part in "ab" if part not in pair), None)
        if lacking is not None:
            raise ConfigError(f"{label}: lora_{lacking} of {_quoted(module)} is missing")
    return {module: (parts[module]["a"], parts[module]["b"]) for module in sorted(parts)}


def _check_shapes(pairs: dict[str, tuple[GgufTensor, GgufTensor]], label: str) -> int:
    """Return the highest rank. Raises ConfigError for tensors that do not fit each other."""
    for module, (a, b) in pairs.items():
        if module == _EMBEDDING:
            raise ConfigError(
                f"{label}: {_quoted(a.name)}: adapters of embeddings are not supported; {_MERGE}"
            )
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not all(a.shape + b.shape):
            raise ConfigError(
                f"{label}: {_quoted(a.name)} has shape {list(a.shape)} and {_quoted(b.name)} {list(b.shape)}, which are no pair"
            )
    return max(a.shape[0] for a, _ in pairs.values())


def _packed(file: BinaryIO, tensor: GgufTensor, label: str) -> PackedTensor:
    dtype = "F32" if tensor.type == "Q8_0" else tensor.type
    return PackedTensor(tensor.name, dtype, tensor.shape, functools.partial(_numbers, file, tensor, label))


def _numbers(file: BinaryIO, tensor: GgufTensor, label: str) -> bytes:
    """A tensor's bytes; blocks of Q8_0, a float16 scale and 32 int8 each, as float32."""
    file.seek(tensor.offset)
    raw = file.read(tensor.num_bytes)
    if len(raw) != tensor.num_bytes:
        raise ConfigError(f"{label}: tensor {_quoted(tensor.name)} is cut off")
    if tensor.type != "Q8_0":
        return raw
    blocks = np.frombuffer(raw, np.dtype([("scale", "<f2"), ("values", "i1", 32)]))
    return (blocks["scale"].astype(np.float32)[:, None] * blocks["values"].astype(np.float32)).tobytes()
