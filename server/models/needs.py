"""What a model needs while it is loaded, from the sizes of its files: known before a load, and the executor's limit then."""

from __future__ import annotations

from pathlib import Path

from executors.contract import ConfigError
from executors.weight_files import index_of, weight_files
from server.model_files.candidates import NO_BOUND, candidates, free_memory
from server.model_files.matrix_sizes import adapter_elements
from server.model_files.prepared import is_gguf, model_file
from server.model_files.small_json import read_object
from server.settings.table import Settings

PROCESS = 512 * 2**20
"""Bytes of an executor's process beside weights and KV: the interpreter, libraries, and the largest step."""
_PACKED = 1.1
"""Bytes of weights in memory for each byte of their files: they are packed anew, and rows are padded."""
_LEAST_KV, _MOST_KV = 256 * 2**20, 2 * 2**30
_KV_SHARE = 0.25
"""KV's share of the weights' bytes, within the bounds above; `kv_cache_memory_bytes` takes its place."""
_UNKNOWN = 2 * 2**30
"""Bytes of weights of a model that has to be downloaded first."""
_OF_FREE = 0.8
OF_MODELS = ("llm", "qwen3")
"""Executors that load weights, and keep to a limit of memory."""
_WIDE, _NARROW = 4, 2
"""Bytes of a number of an adapter: as wide as the model computes."""
_OTHER = 64 * 2**20
"""Bytes for an executor of another kind, such as a fake."""


def budget_of(settings: Settings) -> float:
    """Bytes that all loaded models may need together."""
    return settings.memory if settings.memory is not None else _OF_FREE * free_memory("cpu")


def has_gpu() -> bool:
    """Whether a device that is not named is a GPU."""
    return free_memory("auto") == NO_BOUND


def need_of(settings: Settings, path: Path | None, draft: Path | None = None) -> int:
    """Bytes that a model needs. `path`: its files, None if they are not on this disk. `draft`: those of its draft model."""
    if settings.executor not in OF_MODELS:
        return _OTHER
    weights = _UNKNOWN if path is None else weight_bytes(path)
    adapters = 0 if path is None or not settings.lora_modules else _adapter_bytes(settings, path)
    weights += 0 if draft is None else weight_bytes(draft)
    kv = settings.kv_cache_memory_bytes or int(min(_MOST_KV, max(_LEAST_KV, weights * _KV_SHARE)))
    return int(weights * _PACKED) + adapters + kv + PROCESS


def _adapter_bytes(settings: Settings, path: Path) -> int:
    """Memory that the executor keeps for adapters: for each, and for one more that is tried beside them, of the highest rank."""
    try:
        elements = adapter_elements(path)
    except ConfigError:  # the load names what is wrong
        return 0
    size = _NARROW if settings.dtype in ("float16", "bfloat16") else _WIDE
    return (settings.max_loras + 1) * settings.max_lora_rank * elements * size


def weight_bytes(path: Path) -> int:
    """Bytes of the weight files of a checkpoint's directory or of a GGUF file with all its parts. 0 if there are none."""
    file = path if is_gguf(path) else model_file(path)
    if file is not None:
        beside = {one.name: one.stat().st_size for one in file.parent.glob("*.gguf") if one.is_file()}
        whole = next((one for one in candidates(beside) if one.name == file.name), None)
        return file.stat().st_size if whole is None else whole.size
    by_name = {one.name: one for one in path.glob("*.safetensors")}
    index = index_of([*by_name, *(one.name for one in path.glob("*.json"))])
    try:
        chosen = weight_files(by_name, index, None if index is None else read_object(path / index)).files
    except ConfigError:  # the load names what is wrong
        chosen = tuple(by_name)
    return sum(by_name[name].stat().st_size for name in chosen if name in by_name)
