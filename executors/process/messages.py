"""Messages between the server process and the executor process.

    server -> executor   perhaps StandBy, each answered by StandingBy; Load, then calls (Step, Prefill, ...), each answered once
                         and in order; Release, Truncate and ReleaseMemory are not answered; Shutdown is the last.
    executor -> server   Progress and one Ready or LoadFailed; then Done, StepDone, ... or Failed for each call; Heartbeat
                         at any time.

`call` is a number that rises by one per call. `seconds` is the time the executor worked on it, by its own clock.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar, get_args

import msgspec
import numpy as np

from executors.contract import (
    DecodeInput,
    DecodeOutput,
    DeviceChecks,
    Drafts,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorMetrics,
    ExecutorStatus,
    InvalidInput,
    ItemFault,
    ItemOutput,
    KvCacheHandle,
    KvLayout,
    ModelInfo,
    Pace,
    PrefillInput,
    PrefillOutput,
    SampledToken,
    SealedBlocks,
    SequenceStart,
    SpeculativeDecodeOutput,
    StepFailed,
    TableUpdates,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
)

EXIT_MEMORY = 4
"""Exit code of an executor process that ended itself at its container's memory limit."""
EXIT_DEVICE = 5
"""Exit code of an executor process that ended itself because its device was lost while no call computed."""

OWN_CAUSES = ("exit", "hang", "device")
"""Causes of death that an executor can name itself. Any other is reported as exit: a metric has a label for each."""

Array = np.ndarray  # on the wire always of one dimension; its dtype travels with it

# -- server -> executor --------------------------------------------------------------------------------------------------


class Load(msgspec.Struct, tag=1, array_like=True):
    """Create and warm up the executor. The first message, once. `memory`: descriptor for `use_memory`, which the process has
    inherited; None if there is none. `turns`: see `CoreTurns.open`; None: steps wait for no other executor."""

    config: ExecutorConfig
    heartbeat_s: float
    memory: int | None = None
    turns: str | None = None


class Step(msgspec.Struct, tag=2, array_like=True):
    """A `UnifiedBatch`: its arrays in the order of `_BATCH_ARRAYS`, then the rest."""

    call: int
    epoch: int
    step_id: int
    arrays: list[Array]
    pending: Array | None
    drafts_wanted: Array | None
    block_copies: Array
    seals: Array
    tables: TableUpdates
    starts: tuple[SequenceStart, ...]
    state_src: Array | None = None
    state_dst: Array | None = None
    snapshots: Array | None = None
    """None where there are none."""


class Prefill(msgspec.Struct, tag=3, array_like=True):
    """`prefill` of the only input, or `batch_prefill` of all."""

    call: int
    inputs: list[PrefillInput]
    how: Literal["one", "many"]


class Decode(msgspec.Struct, tag=4, array_like=True):
    """`decode` of the only input, `batch_decode` or `forward_verify` of all."""

    call: int
    inputs: list[DecodeInput]
    how: Literal["one", "many", "verify"]


class Speculate(msgspec.Struct, tag=5, array_like=True):
    """`speculative_decode`."""

    call: int
    request: DecodeInput
    draft_tokens: list[int]
    acceptance_threshold: float


class Forward(msgspec.Struct, tag=6, array_like=True):
    """`forward`."""

    call: int
    tensor: Tensor


class LoadAdapter(msgspec.Struct, tag=7, array_like=True):
    """`load_adapter`."""

    call: int
    name: str
    path: str
    digest: str


class UnloadAdapter(msgspec.Struct, tag=8, array_like=True):
    """`unload_adapter`."""

    call: int
    name: str


class BeginEpoch(msgspec.Struct, tag=9, array_like=True):
    """`begin_epoch`."""

    call: int
    epoch: int
    adopt: SealedBlocks | None = None


class Release(msgspec.Struct, tag=10, array_like=True):
    """`release_cache`; no answer."""

    cache_id: int


class Truncate(msgspec.Struct, tag=11, array_like=True):
    """`truncate_kv`; no answer."""

    handle: KvCacheHandle
    new_len: int


class Shutdown(msgspec.Struct, tag=12, array_like=True):
    """Free everything and exit; the end of the process is the answer."""


class Prepare(msgspec.Struct, tag=13, array_like=True):
    """`prepare_grammar`, or `prepare_adapter` where there is a digest; answered by Prepared, in no order with the calls."""

    number: int
    grammar: str = ""
    name: str = ""
    path: str = ""
    digest: str | None = None


class ReleaseMemory(msgspec.Struct, tag=14, array_like=True):
    """`release_memory`; no answer."""

    group: int
    block_ids: Array


class AdoptBlocks(msgspec.Struct, tag=15, array_like=True):
    """`adopt_blocks`."""

    call: int
    sealed: SealedBlocks


class StandBy(msgspec.Struct, tag=16, array_like=True):
    """Import what the executor of this configuration needs and, with `opens_device`, open its device. Before Load, any number of
    times: what is done already is not done again. Answered by StandingBy; a process that cannot ends."""

    config: ExecutorConfig
    opens_device: bool


class Unreadable(msgspec.Struct):
    """Never sent: stands for a received frame whose fields do not fit its tag. `call` is None if no answer is due."""

    call: int | None
    reason: str


Call = Step | Prefill | Decode | Speculate | Forward | LoadAdapter | UnloadAdapter | BeginEpoch | AdoptBlocks
ToExecutor = Load | Call | Release | Truncate | ReleaseMemory | Prepare | StandBy | Shutdown

# -- executor -> server --------------------------------------------------------------------------------------------------


class Snapshot(msgspec.Struct, array_like=True):
    """Answers of the synchronous members."""

    status: ExecutorStatus
    metrics: ExecutorMetrics
    cache: dict[str, float | int | str] | None
    lora: dict[str, float | int | str] | None


class Heartbeat(msgspec.Struct, tag=1, array_like=True):
    """A sign of life. `snapshot`: None before the executor exists. `running_s`: seconds of the current call, None when idle.
    `waits`: the call waits for its turn at the cores."""

    snapshot: Snapshot | None
    stage: str
    running_s: float | None
    waits: bool = False


class Progress(msgspec.Struct, tag=2, array_like=True):
    """Loading or, within a call, compiling: see `ProgressCallback`."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, tag=3, array_like=True):
    """Warm: the executor's facts, fixed for this process's life."""

    info: ModelInfo
    capabilities: ExecutorCapabilities
    kv_layout: KvLayout
    kv_capacity: int | None
    native_unified_decode: bool
    optimal_batch_size: int
    adapters: bool
    pace: Pace | None
    checks: DeviceChecks | None = None


class LoadFailed(msgspec.Struct, tag=4, array_like=True):
    """The executor could not be created; the process ends."""

    kind: str
    message: str


class StepDone(msgspec.Struct, tag=5, array_like=True):
    """A `UnifiedOutput`."""

    call: int
    seconds: float
    num_tokens: Array
    token_ids: Array
    details: dict[int, Item]
    drafts: Drafts | None
    checksums: Array | None
    waited: float = 0.0


class Item(msgspec.Struct, array_like=True):
    """An `ItemOutput`."""

    tokens: tuple[SampledToken, ...]
    prompt_logprobs: tuple[SampledToken, ...] | None
    pooled: Array | None
    logits: Tensor | None
    error: str | None
    fault: ItemFault


class PrefillDone(msgspec.Struct, tag=6, array_like=True):
    """One output per input."""

    call: int
    seconds: float
    outputs: list[PrefillOutput]


class DecodeDone(msgspec.Struct, tag=7, array_like=True):
    """One output per input."""

    call: int
    seconds: float
    outputs: list[DecodeOutput]


class SpeculateDone(msgspec.Struct, tag=8, array_like=True):
    """The result of `speculative_decode`."""

    call: int
    seconds: float
    output: SpeculativeDecodeOutput


class ForwardDone(msgspec.Struct, tag=9, array_like=True):
    """The result of `forward`."""

    call: int
    seconds: float
    tensor: Tensor


class Done(msgspec.Struct, tag=10, array_like=True):
    """A call that returns nothing."""

    call: int
    seconds: float


class Failed(msgspec.Struct, tag=11, array_like=True):
    """The call raised; `kind` names the error's class, see `executors/contract/errors.py`."""

    call: int
    seconds: float
    kind: str
    message: str
    cause: str = "exit"
    """The cause of an `ExecutorDied`."""


class EpochBegun(msgspec.Struct, tag=13, array_like=True):
    """The blocks that were adopted."""

    call: int
    seconds: float
    adopted: Array


class Adopted(msgspec.Struct, tag=14, array_like=True):
    """The blocks that were adopted while the epoch goes on."""

    call: int
    seconds: float
    adopted: Array


class Prepared(msgspec.Struct, tag=12, array_like=True):
    """The answer to the Prepare of that number; `kind` None if all went well, else as of Failed."""

    number: int
    kind: str | None
    message: str


class StandingBy(msgspec.Struct, tag=15, array_like=True):
    """The answer to StandBy. `opened`: the device that is open, "" if there is none to open."""

    opened: str


Answer = (
    StepDone | PrefillDone | DecodeDone | SpeculateDone | ForwardDone | EpochBegun | Adopted | Done | Failed
)
ToServer = Heartbeat | Progress | Ready | LoadFailed | Prepared | StandingBy | Answer

# -- frames that fit no message ------------------------------------------------------------------------------------------

_CALL_TAGS = frozenset(kind.__struct_config__.tag for kind in get_args(Call))
_UNANSWERED_TAGS = frozenset(kind.__struct_config__.tag for kind in (Release, Truncate, ReleaseMemory))


def unreadable(payload: bytearray, reason: str) -> Unreadable | None:
    """The call that a frame was meant to be, None if that is unknown: a field of a wrong type in one call must not end the
    other calls."""
    try:
        fields = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None
    match fields:
        case [int(tag), int(call), *_] if tag in _CALL_TAGS:
            return Unreadable(call, reason)
        case [int(tag), *_] if tag in _UNANSWERED_TAGS:
            return Unreadable(None, reason)
        case _:
            return None


# -- conversions ---------------------------------------------------------------------------------------------------------

_BATCH_ARRAYS: tuple[tuple[str, np.dtype[Any]], ...] = (
    ("seq_ids", np.dtype(np.int64)),
    ("slots", np.dtype(np.int32)),
    ("num_q_tokens", np.dtype(np.int32)),
    ("pos_offsets", np.dtype(np.int32)),
    ("is_final_chunk", np.dtype(np.bool_)),
    ("num_draft_tokens", np.dtype(np.int32)),
    ("token_ids", np.dtype(np.int32)),
)
_INT32 = np.dtype(np.int32)
R = TypeVar("R", PrefillInput, PrefillOutput, DecodeInput, DecodeOutput, SpeculativeDecodeOutput)
In = TypeVar("In", PrefillInput, DecodeInput)


def pack_batch(call: int, batch: UnifiedBatch) -> Step:
    """Raises InvalidInput for an array of the wrong dtype: the child would read other numbers from it."""
    arrays = []
    for name, dtype in _BATCH_ARRAYS:
        array = getattr(batch, name)
        if array.dtype != dtype:
            raise InvalidInput(f"{name} is {array.dtype}, not {dtype}")
        arrays.append(array)
    if batch.pending is not None and batch.pending.dtype != np.bool_:
        raise InvalidInput(f"pending is {batch.pending.dtype}, not bool")
    if (counts := batch.drafts_wanted) is not None and counts.dtype != _INT32:
        raise InvalidInput(f"drafts_wanted is {counts.dtype}, not int32")
    copies = batch.block_copies
    if copies.dtype != _INT32 or copies.shape[1:] != (3,):
        raise InvalidInput(f"block_copies is {copies.dtype}{list(copies.shape)}, not int32[m, 3]")
    seals = batch.seals
    if seals.dtype != _INT32 or seals.shape[1:] != (2,):
        raise InvalidInput(f"seals is {seals.dtype}{list(seals.shape)}, not int32[m, 2]")
    for name in ("state_src", "state_dst"):
        if (slots := getattr(batch, name)) is not None and slots.dtype != _INT32:
            raise InvalidInput(f"{name} is {slots.dtype}, not int32")
    snapshots = batch.snapshots
    if snapshots.dtype != _INT32 or snapshots.shape[1:] != (3,):
        raise InvalidInput(f"snapshots is {snapshots.dtype}{list(snapshots.shape)}, not int32[m, 3]")
    return Step(
        call=call,
        epoch=batch.epoch,
        step_id=batch.step_id,
        arrays=arrays,
        pending=batch.pending,
        drafts_wanted=batch.drafts_wanted,
        block_copies=copies.reshape(-1),
        seals=seals.reshape(-1),
        tables=batch.tables,
        starts=tuple(batch.starts),
        state_src=batch.state_src,
        state_dst=batch.state_dst,
        snapshots=snapshots.reshape(-1) if len(snapshots) else None,
    )


def unpack_batch(step: Step) -> UnifiedBatch:
    """The batch of a step. Raises InvalidInput if arrays are missing or have another dtype."""
    dtypes = [array.dtype for array in step.arrays]
    if dtypes != [dtype for _, dtype in _BATCH_ARRAYS]:
        raise InvalidInput(f"a step's arrays are {', '.join(map(str, dtypes))}")
    if step.block_copies.dtype != _INT32 or len(step.block_copies) % 3:
        raise InvalidInput(f"block_copies came as {step.block_copies.dtype}[{len(step.block_copies)}]")
    if step.seals.dtype != _INT32 or len(step.seals) % 2:
        raise InvalidInput(f"seals came as {step.seals.dtype}[{len(step.seals)}]")
    for name in ("state_src", "state_dst"):
        if (states := getattr(step, name)) is not None and states.dtype != _INT32:
            raise InvalidInput(f"{name} came as {states.dtype}")
    snapshots = np.empty(0, np.int32) if step.snapshots is None else step.snapshots
    if snapshots.dtype != _INT32 or len(snapshots) % 3:
        raise InvalidInput(f"snapshots came as {snapshots.dtype}[{len(snapshots)}]")
    seq_ids, slots, num_q_tokens, pos_offsets, is_final_chunk, num_draft_tokens, token_ids = step.arrays
    return UnifiedBatch(
        epoch=step.epoch,
        step_id=step.step_id,
        seq_ids=seq_ids,
        slots=slots,
        num_q_tokens=num_q_tokens,
        pos_offsets=pos_offsets,
        is_final_chunk=is_final_chunk,
        num_draft_tokens=num_draft_tokens,
        token_ids=token_ids,
        pending=step.pending,
        drafts_wanted=step.drafts_wanted,
        starts=step.starts,
        tables=step.tables,
        block_copies=step.block_copies.reshape(-1, 3),
        seals=step.seals.reshape(-1, 2),
        state_src=step.state_src,
        state_dst=step.state_dst,
        snapshots=snapshots.reshape(-1, 3),
    )


def pack_output(call: int, seconds: float, output: UnifiedOutput) -> StepDone:
    """Raises StepFailed for arrays of the wrong dtype."""
    dtypes = (output.num_tokens.dtype, output.token_ids.dtype)
    if dtypes != (_INT32, _INT32):
        raise StepFailed(f"num_tokens, token_ids are {dtypes[0]}, {dtypes[1]}, not int32")
    if (sums := output.checksums) is not None and sums.dtype != np.uint64:
        raise StepFailed(f"checksums are {sums.dtype}, not uint64")
    details = {
        int(i): Item(one.tokens, one.prompt_logprobs, one.pooled, one.logits, one.error, one.fault)
        for i, one in output.details.items()
    }
    return StepDone(
        call, seconds, output.num_tokens, output.token_ids, details, output.drafts, output.checksums
    )


def unpack_output(done: StepDone) -> UnifiedOutput:
    """The output of a step."""
    details = {
        i: ItemOutput(
            tokens=one.tokens,
            prompt_logprobs=one.prompt_logprobs,
            pooled=one.pooled,
            logits=None if one.logits is None else own_tensor(one.logits),
            error=one.error,
            fault=one.fault,
        )
        for i, one in done.details.items()
    }
    return UnifiedOutput(done.num_tokens, done.token_ids, details, done.drafts, done.checksums, done.waited)


def own(record: R) -> R:
    """A copy whose tensors have memory of their own: decoded ones are unaligned views that keep a whole frame alive."""
    values = ((f.name, getattr(record, f.name)) for f in dataclasses.fields(record))
    owned: dict[str, Any] = {name: own_tensor(value) for name, value in values if isinstance(value, Tensor)}
    return dataclasses.replace(record, **owned)


def own_tensor(tensor: Tensor) -> Tensor:
    """As `own`."""
    return Tensor(tensor.shape, tensor.dtype, memoryview(bytearray(tensor.data)))
