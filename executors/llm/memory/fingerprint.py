"""`kv_fingerprint`: a digest of all that the bytes of a KV block, or of a state, depend on beside the tokens before it.

Two lives of an executor with equal fingerprints compute the same keys, values and states, up to the rounding that the
composition of a batch changes anyway, and place them at the same addresses.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from executors.contract.config import ExecutorConfig
from executors.contract.status import KvLayout, ModelInfo

_CODE = Path(__file__).resolve().parents[2]
_SUFFIXES = (".py", ".h", ".cpp")
COMPUTING = ("kernels", "llm", "gguf", "lora", "qwen3")
"""Folders of what computes keys, values and states, and reads weights."""
_READ = (".json", ".safetensors", ".gguf")


def kv_fingerprint(
    config: ExecutorConfig, info: ModelInfo, layout: KvLayout, parts: Sequence[object], files: Sequence[str]
) -> str:
    """Return 64 hexadecimal digits. `parts`: the geometry of groups and states, and the kernels that compute; their `repr`
    counts. `files`: those of the weights, see `checkpoint_files`."""
    settings = config.optimization
    facts = (
        layout.block_size, layout.groups, layout.state, info.name, info.family, info.dtype, info.max_model_len, config.dtype,
        config.load_format, config.seed, settings.quantization, settings.deterministic, config.memory.kv_cache_dtype,
        config.attention.backend, config.parallel.rank, config.parallel.tensor_parallel_size,
        config.parallel.pipeline_parallel_size, torch.__version__, np.__version__, *parts,
    )  # fmt: skip
    digest = hashlib.sha256("\0".join(map(repr, facts)).encode())
    digest.update(code_digest())
    for line in files:
        digest.update(line.encode(errors="replace"))
    return digest.hexdigest()


def content_digest(
    config: ExecutorConfig, info: ModelInfo, layout: KvLayout, parts: Sequence[object], files: Sequence[str]
) -> str:
    """As `kv_fingerprint`, without what changes from one start of the server to the next: the number of blocks, the numbers of
    devices, and code that computes nothing. What was written to a disk under this digest can be read under it."""
    groups = [(group.window, group.bytes_per_block) for group in layout.groups]
    state = layout.state and (layout.state.slot_bytes, layout.state.interval)
    settings = config.optimization
    facts = (
        layout.block_size, groups, state, info.name, info.family, info.dtype, info.max_model_len, config.dtype,
        config.load_format, config.seed, settings.quantization, settings.deterministic, config.memory.kv_cache_dtype,
        config.attention.backend, config.parallel.rank, config.parallel.tensor_parallel_size,
        config.parallel.pipeline_parallel_size, torch.__version__, np.__version__, *parts,
    )  # fmt: skip
    digest = hashlib.sha256("\0".join(map(repr, facts)).encode())
    digest.update(code_digest(COMPUTING))
    for line in files:
        name, _, *others = line.rsplit(maxsplit=5)
        digest.update(" ".join((name, *others)).encode(errors="replace") + b"\n")
    return digest.hexdigest()


@functools.cache
def code_digest(folders: tuple[str, ...] = (".",)) -> bytes:
    """Digest of the sources that compute, kernels included, as they were at the first call: a process that is started later may
    run others. `folders`: of this package, with all below them."""
    digest = hashlib.sha256()
    sources = {one for name in folders for one in (_CODE / name).rglob("*") if one.suffix in _SUFFIXES}
    for path in sorted(sources):
        digest.update(str(path.relative_to(_CODE)).encode() + b"\0" + path.read_bytes())
    return digest.digest()


def checkpoint_files(model: Path) -> tuple[str, ...]:
    """Return a line for each file of a checkpoint that is read: what changes when it is replaced or written. Its contents, which
    may be hundreds of gigabytes, are not read. Other files of the folder, logs and pages, do not count."""
    paths = sorted(one for one in model.iterdir() if one.suffix in _READ) if model.is_dir() else [model]
    lines = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            lines.append(f"{path.name} cannot be read\n")
            continue
        lines.append(
            f"{path.name} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"
        )
    return tuple(lines)
