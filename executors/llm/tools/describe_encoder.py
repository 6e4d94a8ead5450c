"""Facts about an encoder for `cohort info`, in the form of `describe`. No weight is read, and there is no KV."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from executors.cgroup import memory_limit
from executors.contract.config import ExecutorConfig
from executors.llm.encoder.loading import SketchedEncoder, sketch_encoder
from executors.llm.encoder.reading import read_encoder


def describe_encoder(config: ExecutorConfig, memory: int | None = None) -> dict[str, Any]:
    """See `describe`. Raises ConfigError."""
    directory = Path(config.model)
    shape = read_encoder(directory)
    sketch = sketch_encoder(config)
    budget = memory_limit().available if memory is None else memory
    if config.memory.memory_limit_bytes is not None:
        budget = min(budget, config.memory.memory_limit_bytes)
    short = sketch.num_bytes > budget
    return {
        "name": directory.name,
        "architecture": shape.architecture,
        "family": shape.family.model_type,
        "text_only": False,
        "generates": False,
        "labels": len(shape.labels),
        "label_names": list(shape.labels),
        "vector_layers": list(sketch.info.vector_layers),
        "warnings": list(shape.notes),
        "parameters": sketch.info.num_parameters,
        "checkpoint": _checkpoint(sketch),
        "dtype": sketch.info.dtype,
        "device": "cpu",
        "weight_bytes": sketch.plain_bytes,
        "loaded_bytes": sketch.num_bytes,
        "quantization": config.optimization.quantization,
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "heads": shape.num_heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "other_heads": [],
        "layers_that_share_kv": 0,
        "experts": None,
        "vocab_size": shape.vocab_size,
        "context_length": shape.context_length,
        "max_context_length": shape.longest,
        "kv": None,
        "states": None,
        "ranks": [],
        "memory": {"problem": "the weights do not fit" if short else None, "given": memory},
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": max(config.max_num_batched_tokens, sketch.info.max_model_len),
        "limits": "",
        "info": asdict(sketch.info),
    }


def _checkpoint(sketch: SketchedEncoder) -> dict[str, Any]:
    formats = Counter[str]()
    for file, name in sketch.tensors:
        if (kind := file.stored_as(name)) is not None:
            formats[kind] += file.num_bytes(name)
    most = formats.most_common(1)
    return {
        "bytes": formats.total() or sketch.plain_bytes,
        "dtype": most[0][0] if most else sketch.info.dtype,
        "formats": dict(formats.most_common()),
        "files": len({file.path for file, _ in sketch.tensors}),
        "problem": sketch.problem,
        "fetched": True,
        "left_out": None,
    }
