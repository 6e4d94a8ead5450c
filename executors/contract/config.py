"""How an executor is configured: model, type, attention, memory, optimizations. Standard library only.

Immutable records that travel whole over the wire. Units are in the field names or beside them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class ExecutorType(enum.StrEnum):
    """How an executor organises its work."""

    SEQUENTIAL = "Sequential"
    BATCH = "Batch"
    CONTINUOUS_BATCH = "ContinuousBatch"
    SPECULATIVE = "Speculative"
    PIPELINE_PARALLEL = "PipelineParallel"
    TENSOR_PARALLEL = "TensorParallel"


@dataclass(frozen=True, slots=True)
class ExecutorAttentionConfig:
    """How KV is laid out and read."""

    block_size: int = 16
    backend: str = "auto"
    """What computes attention, one of `kernels.ATTENTION_BACKENDS`; "auto": the best that is there."""


@dataclass(frozen=True, slots=True)
class ExecutorMemoryConfig:
    """How much memory the executor may take. None means: sized from what the device or cgroup allows."""

    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    """"fp8": keys and values in e4m3, half the bytes of bf16; "auto": in the model's dtype."""
    gpu_memory_utilization: float = 0.9
    memory_limit_bytes: int | None = None
    kv_on_demand: bool | None = None
    """Host memory for KV is taken when a block is first used, and can be given back; False: at the start. None: on demand
    where neither `kv_cache_memory_bytes` nor a cgroup limits it. Memory of a device is always taken at the start."""


@dataclass(frozen=True, slots=True)
class OptimizationConfig:
    """Speed against other goods."""

    enforce_eager: bool = False
    deterministic: bool = False
    """A sequence's tokens are the same bit for bit alone, in any batch, in chunks, and computed anew."""
    quantization: str | None = None
    """"int8": weights and activations in int8, with a scale per 32 values of a row. "fp8": the layers' weights and activations
    in e4m3, with a scale per row. None: as stored."""
    num_threads: int | None = None
    cpu_isa: str | None = None
    """Instruction set of the CPU kernels; None: the best that the CPU has."""


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Everything an executor needs to start; plain data, sent to the child process as it is.

    `model` is a directory of a Hugging Face checkpoint (fakes ignore it). `max_model_len` None means the model's own
    context length. `options` are further settings of one executor, by name; an unknown one is refused by
    `ModelExecutorFactory.validate_config`.
    """

    executor: str
    model: str = ""
    tokenizer: str = ""
    """Directory of the tokenizer.json that grammars are written in; empty: the model's own."""
    executor_type: ExecutorType = ExecutorType.CONTINUOUS_BATCH
    load_format: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    shrink_batch: bool = False
    """Nobody asked for these two limits: the executor may lower them to what its box can carry, and says so in its
    capabilities. Else limits that do not fit are refused."""
    seed: int = 0
    attention: ExecutorAttentionConfig = field(default_factory=ExecutorAttentionConfig)
    memory: ExecutorMemoryConfig = field(default_factory=ExecutorMemoryConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
