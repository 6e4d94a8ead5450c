"""The configuration of an executor: model, type, attention, memory, optimizations. Standard library only.

Immutable records that travel whole over the wire. Units are in the field names or beside them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from executors.contract.status import DeviceChecks, Pace

BATCH_LIMITS = ("max_num_seqs", "max_num_batched_tokens")
"""Names of the fields of `ExecutorConfig` that limit a step."""


class ExecutorType(enum.StrEnum):
    """The way in which an executor organises its work."""

    SEQUENTIAL = "Sequential"
    BATCH = "Batch"
    CONTINUOUS_BATCH = "ContinuousBatch"
    SPECULATIVE = "Speculative"
    PIPELINE_PARALLEL = "PipelineParallel"
    TENSOR_PARALLEL = "TensorParallel"


@dataclass(frozen=True, slots=True)
class ExecutorAttentionConfig:
    """The layout of KV, and the attention backend."""

    block_size: int = 16
    backend: str = "auto"
    """Attention backend, one of `kernels.ATTENTION_BACKENDS`; "auto": the best one available."""


@dataclass(frozen=True, slots=True)
class ExecutorMemoryConfig:
    """Limits on the executor's memory. None means: sized by the limits of the device or cgroup."""

    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    """"fp8": keys and values in e4m3, half the bytes of bf16; "auto": in the model's dtype."""
    gpu_memory_utilization: float = 0.9
    memory_limit_bytes: int | None = None
    kv_on_demand: bool | None = None
    """Whether host memory for KV is allocated when a block is first used, and can be released; False: allocated at the start.
    None: on demand if neither `kv_cache_memory_bytes` nor a cgroup limits it. Device memory is always allocated at the start."""
    standby_context: bool = False
    """Whether another process that stands by has the device open, too: its context is kept free of KV."""


@dataclass(frozen=True, slots=True)
class OptimizationConfig:
    """Trade-offs between speed and other properties."""

    enforce_eager: bool = False
    deterministic: bool = False
    """Whether a sequence's tokens are bitwise the same alone, in any batch, in chunks, and when computed again."""
    quantization: str | None = None
    """"int8": weights and activations in int8, with a scale per 32 values of a row. "int4": weights of 4 bits with a scale and a
    minimum per 32 values, the head and activations in int8. "fp8": the layers' weights and activations in e4m3, with a scale per
    row. None: as stored."""
    num_threads: int | None = None
    cpu_isa: str | None = None
    """Instruction set of the CPU kernels; None: the best one that the CPU has."""
    draft_model: str = ""
    """Directory of a smaller model with the same vocabulary, whose guesses steps verify; empty: none."""
    mtp: bool = False
    """Whether the MTP head of the model's own checkpoint makes the guesses that steps verify; not beside `draft_model`."""
    mtp_if_usable: bool = False
    """As `mtp` where the checkpoint has an MTP head that can be used; else none, which is no error."""
    max_drafts: int = 0
    """Most drafts of a sequence in a step for which a device keeps room: logits of more rows, and graphs. See
    `ExecutorCapabilities.max_step_drafts`."""
    max_loras: int = 0
    """LoRA adapters that may be loaded at once; 0: none, and the executor is no `LoraExecutor`."""
    max_lora_rank: int = 64
    """Highest rank of an adapter. Memory for `max_loras` adapters of this rank is kept free of KV."""


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How many executor processes (ranks) compute one model, and which of them this one is.

    Ranks are numbered stage by stage: `rank` = stage x tensor_parallel_size + place within the stage. Rank 0 samples and
    answers.
    """

    tensor_parallel_size: int = 1
    """Ranks that share each layer."""
    pipeline_parallel_size: int = 1
    """Stages, each of which has some of the layers."""
    rank: int = 0
    rendezvous: str = ""
    """File in a private directory by which the ranks of one life find each other; set by what starts them."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def executor_type(self) -> ExecutorType:
        """Type of executor that these sizes need."""
        if self.pipeline_parallel_size > 1:
            return ExecutorType.PIPELINE_PARALLEL
        return (
            ExecutorType.TENSOR_PARALLEL if self.tensor_parallel_size > 1 else ExecutorType.CONTINUOUS_BATCH
        )

    @property
    def tensor_rank(self) -> int:
        """Place within the stage."""
        return self.rank % self.tensor_parallel_size

    @property
    def stage(self) -> int:
        """Number of the stage."""
        return self.rank // self.tensor_parallel_size


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Everything an executor needs to start; plain data, sent to the child process unchanged.

    `model` is a directory of a Hugging Face checkpoint (fakes ignore it). `max_model_len` None means the model's own
    context length. `options` are further settings of one executor, by name; an unknown one is refused by
    `ModelExecutorFactory.validate_config`.
    """

    executor: str
    model: str = ""
    tokenizer: str = ""
    """Directory of the tokenizer.json that grammars refer to; empty: the model's own."""
    executor_type: ExecutorType = ExecutorType.CONTINUOUS_BATCH
    load_format: str = "auto"
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    shrink_length: bool = False
    """Whether `max_model_len` is a default, which the executor may lower to fit its memory, as it may the model's own."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    default_limits: tuple[str, ...] = ()
    """Which of these two limits, by their names, are defaults. In their place the executor takes what suits its device and fits
    its memory, which may be more or less, and reports it in its capabilities. Limits that were set explicitly and do not fit
    are refused."""
    pace: Pace | None = None
    """As an earlier life of the executor has measured it on this machine. An executor that measures its own takes it instead."""
    checks: DeviceChecks | None = None
    """What an earlier life of the executor has found right on its device. It is believed under the same conditions only."""
    seed: int = 0
    attention: ExecutorAttentionConfig = field(default_factory=ExecutorAttentionConfig)
    memory: ExecutorMemoryConfig = field(default_factory=ExecutorMemoryConfig)
    optimization: OptimizationConfig = field(default_factory=OptimizationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
