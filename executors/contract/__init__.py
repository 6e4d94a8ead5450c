"""The contract between the engine and the executors that compute tokens. Standard library and NumPy only.

An executor runs the model, nothing else: it never schedules, never waits for requests, never sees text. Everything the
engine needs is imported from here; the parts are

interface.py    `ModelExecutor` and its factory           records.py   what prefill and decode take and return
batch.py        a step and its result; checks.py: are they sound?      slots.py, tensor.py, token_history.py
seals.py        blocks that outlive their process
config.py       the configuration of an executor          status.py    its facts, capabilities and status
sampling.py     sampling parameters; noise.py: the counter-based noise of a draw
errors.py       every error by name; faults.py: which exceptions mean that memory ran out

and helpers for executors with fewer features:

split.py              a `UnifiedBatch` for an executor without a forward of its own for mixed batches
sampling_wrapper.py   samples for an executor that returns logits, by reference_sampler.py
stats.py              counts what `metrics()` and `status()` report

Rules that hold for every executor:

- Coroutines are called by one task, in order. The synchronous members never block: they answer from known facts.
- A default *works*: it falls back to a slower path and never drops work. A member without a fallback raises `Unsupported`.
- An executor whose `KvLayout.fingerprint` is not empty keeps its blocks when its process dies: see `executors.contract.seals`.
- The capabilities that `capabilities()` declares are true; `executors/testing/conformance.py` tests them.
"""

from __future__ import annotations

from dataclasses import replace

from executors.contract.batch import (
    BatchItem,
    Drafts,
    Int32Array,
    ItemOutput,
    KvCacheHandle,
    SampledToken,
    SamplingParams,
    SequenceStart,
    TableUpdates,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.checks import check_output
from executors.contract.config import (
    BATCH_LIMITS,
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    ExecutorType,
    OptimizationConfig,
    ParallelConfig,
)
from executors.contract.errors import (
    ConfigError,
    DeviceLost,
    ExecutorDied,
    ExecutorError,
    InvalidInput,
    ItemFault,
    NotReady,
    OutOfMemory,
    Skipped,
    StepFailed,
    Unavailable,
    Unsupported,
    from_kind,
)
from executors.contract.interface import (
    BatchModelExecutor,
    LoraExecutor,
    ModelExecutor,
    ModelExecutorFactory,
    ProgressCallback,
    SnapshotValue,
    SpeculativeExecutor,
)
from executors.contract.records import (
    DecodeInput,
    DecodeOutput,
    LogitsMode,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
)
from executors.contract.sampling import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY
from executors.contract.seals import BlockMemory, SealedBlocks, check_adopted
from executors.contract.slots import SlotTable
from executors.contract.status import (
    POOLINGS,
    AttentionType,
    DeviceChecks,
    ExecutorCapabilities,
    ExecutorMemoryUsage,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    KvGroup,
    KvLayout,
    MemoryRequirements,
    ModelInfo,
    Pace,
    StateLayout,
    interpolated,
)
from executors.contract.tensor import Tensor

__all__ = [
    "BATCH_LIMITS",
    "MAX_REPETITION_PENALTY",
    "MIN_REPETITION_PENALTY",
    "POOLINGS",
    "AttentionType",
    "BatchItem",
    "BatchModelExecutor",
    "BlockMemory",
    "ConfigError",
    "DecodeInput",
    "DecodeOutput",
    "DeviceChecks",
    "DeviceLost",
    "Drafts",
    "ExecutorAttentionConfig",
    "ExecutorCapabilities",
    "ExecutorConfig",
    "ExecutorDied",
    "ExecutorError",
    "ExecutorMemoryConfig",
    "ExecutorMemoryUsage",
    "ExecutorMetrics",
    "ExecutorState",
    "ExecutorStatus",
    "ExecutorType",
    "Int32Array",
    "InvalidInput",
    "ItemFault",
    "ItemOutput",
    "KvCacheHandle",
    "KvGroup",
    "KvLayout",
    "LogitsMode",
    "LoraExecutor",
    "MemoryRequirements",
    "ModelExecutor",
    "ModelExecutorFactory",
    "ModelInfo",
    "NotReady",
    "OptimizationConfig",
    "OutOfMemory",
    "Pace",
    "ParallelConfig",
    "PrefillInput",
    "PrefillOutput",
    "ProgressCallback",
    "SampledToken",
    "SamplingParams",
    "SealedBlocks",
    "SequenceStart",
    "Skipped",
    "SlotTable",
    "SnapshotValue",
    "SpeculativeDecodeOutput",
    "SpeculativeExecutor",
    "StateLayout",
    "StepFailed",
    "TableUpdates",
    "Tensor",
    "Unavailable",
    "UnifiedBatch",
    "UnifiedOutput",
    "Unsupported",
    "check_adopted",
    "check_output",
    "from_kind",
    "interpolated",
    "replace",
]  # fmt: skip
