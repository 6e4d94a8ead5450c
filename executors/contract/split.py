"""The split path: a `UnifiedBatch` for an executor whose `unified_decode` is not one forward. Standard library and NumPy.

Every item is exactly one of these:

    decode    one query token, final, at a position above 0, no drafts, no prompt logprobs to give, no pooling
    verify    it carries drafts. Its tokens are  head ... head | last | draft ... draft ; the head may be empty
    prefill   everything else: prompts, chunks (also of one token, also in the middle), pooled requests

and a step runs as

    1. block copies                      executor.copy_blocks, see `BlockCopier`
    2. ONE batch_prefill                 the prefill items, and the heads of verify items
    3. ONE batch_decode                  the decode items, and the last token of verify items
    4. one batch_decode per draft place  the verify items whose draft was accepted compute it

Stage 4 is `speculative_decode` for many sequences at once: a rejected draft is never computed, so no rollback is needed.
Without drafts there are at most two forwards. Outputs come in the order of the items.

The executor keeps a `SlotTable`, offers it as `slot_table()` and clears it in `begin_epoch`; this module applies the batch
to it. It needs no other state: tokens for `pending` inputs, running sums for mean pooling, and whether a step of this
epoch failed are remembered in that table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from executors.contract import checks, reference_sampler
from executors.contract.batch import (
    BatchItem,
    Int32Array,
    ItemOutput,
    SampledToken,
    SamplingParams,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.errors import InvalidInput, ItemFault, Skipped, StepFailed, Unsupported
from executors.contract.records import DecodeInput, DecodeOutput, LogitsMode, PrefillInput, PrefillOutput
from executors.contract.slots import SlotTable
from executors.contract.status import ExecutorCapabilities, KvLayout, ModelInfo
from executors.contract.tensor import Tensor
from executors.contract.token_history import TokenHistory

ANY_TOKEN = 0
"""Token recorded for an item with an error, for a later step's pending input."""
_Out = TypeVar("_Out")


class SplitForwards(Protocol):
    """The members of `ModelExecutor` that the split path calls."""

    def info(self) -> ModelInfo:
        """See `ModelExecutor`."""

    def capabilities(self) -> ExecutorCapabilities:
        """See `ModelExecutor`."""

    def kv_layout(self) -> KvLayout:
        """See `ModelExecutor`."""

    def slot_table(self) -> SlotTable:
        """See `ModelExecutor`."""

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> Sequence[PrefillOutput]:
        """See `ModelExecutor`."""

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> Sequence[DecodeOutput]:
        """See `ModelExecutor`."""


@runtime_checkable
class BlockCopier(Protocol):
    """The method that a paged executor needs, besides `slot_table`, for the split path."""

    def copy_blocks(self, copies: Int32Array) -> None:
        """Copy KV blocks, int32 [m, 3] of (group, source, destination), before anything that runs later."""


@dataclass(slots=True)
class _Task:
    """One item on its way through the stages; written by this module only."""

    item: BatchItem
    slot: int
    prompt: Int32Array
    """Token ids of the sequence's whole prompt, which determine the known prompt logprobs."""
    history: TokenHistory | None = None
    """Token history for settings that need it, kept in the slot table, because executors have no history outside a step. The
    logits of such an item are requested and sampled here."""
    tokens: list[SampledToken] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    prompt_logprobs: tuple[SampledToken, ...] | None = None
    pooled: NDArray[np.float32] | None = None
    going: bool = True
    """Whether all drafts so far were accepted."""
    failed: ItemOutput | None = None
    """Output of an item without a result: its logits cannot be sampled from, or there is nothing to pool."""

    @property
    def end(self) -> int:
        """Position after the item's last query token."""
        return self.item.pos_offset + len(self.item.q_tokens)

    @property
    def num_prompt_logprobs(self) -> int:
        """Number of the item's positions that have a known next prompt token and request its logprob."""
        if self.item.prompt_logprobs is None:
            return 0
        return max(0, min(len(self.item.q_tokens), len(self.prompt) - 1 - self.item.pos_offset))

    @property
    def num_prefilled(self) -> int:
        """Query tokens that go through batch_prefill: all, a verify item's head, or none for a decode item."""
        count, item = len(self.item.q_tokens), self.item
        if item.num_draft_tokens:
            # Prompt logprobs come from a prefill; an item that wants them of its last token keeps none for stage 3.
            return count - item.num_draft_tokens - 1
        plain = count == 1 and item.is_final_chunk and item.pos_offset > 0
        return 0 if plain and item.pooling is None and not self.num_prompt_logprobs else count

    def output(self) -> ItemOutput | None:
        """The result of the stages; None for an intermediate chunk that requested nothing."""
        if self.failed is not None:
            return self.failed
        logits = Tensor.of(np.stack(self.logits)) if self.logits else None
        if not self.tokens and logits is None and self.pooled is None and self.prompt_logprobs is None:
            return None
        return ItemOutput(tuple(self.tokens), self.prompt_logprobs, self.pooled, logits)


async def split_unified_decode(executor: SplitForwards, batch: UnifiedBatch) -> UnifiedOutput:
    """Compute a batch as separate prefill and decode forwards; see the module.

    Raises as `ModelExecutor.unified_decode`. An InvalidInput from the executor after part of this batch was computed is
    raised as StepFailed, because the state of its sequences is then unknown.
    """
    table = executor.slot_table()
    if table.failed:
        raise Skipped("a step of this epoch failed before")
    checks.check_arrays(batch)
    capabilities = executor.capabilities()
    checks.check_limits(
        batch, executor.info().logits_width, capabilities.max_sequence_length, capabilities.max_batch_size
    )
    checks.check_blocks(batch, [group.num_blocks for group in executor.kv_layout().groups])
    for start in batch.starts:
        checks.check_pooling(start, executor.info().label_width)
        # A `PrefillInput` has no token types.
        checks.check_segments(start, 0)
        if start.sampling is not None:
            start.sampling.check_ids(executor.info().logits_width)
    if batch.state_dst is not None:
        raise Unsupported(
            f"{type(executor).__name__} has states: they are for executors with a native unified_decode"
        )
    if len(batch.block_copies) and not isinstance(executor, BlockCopier):
        raise Unsupported(
            f"{type(executor).__name__} needs copy_blocks(copies) to run block copies on the split path"
        )
    table.apply(batch)
    try:
        return await _run(executor, table, batch)
    except StepFailed:
        table.failed = True
        raise


async def _run(executor: SplitForwards, table: SlotTable, batch: UnifiedBatch) -> UnifiedOutput:
    """Run the stages for a batch that was applied to `table`."""
    tasks = _tasks(batch, table)
    if len(batch.block_copies):
        assert isinstance(executor, BlockCopier)
        executor.copy_blocks(batch.block_copies)
    prefills = [task for task in tasks if task.num_prefilled]
    if prefills:
        await _prefill(executor, table, prefills)
    for place in range(1 + int(batch.num_draft_tokens.max(initial=0))):
        decodes = [t for t in tasks if t.going and _decodes_at(t, place)]
        if decodes:
            await _decode(executor, decodes, place, something_computed=bool(prefills) or place > 0)
    for task in tasks:
        # A step that is out already goes on from what an item with an error did not sample: from anything, then.
        tokens = [ANY_TOKEN] if task.failed is not None else [token.token_id for token in task.tokens]
        if tokens:
            table.remember(task.item.seq_id, task.end - task.item.num_draft_tokens, tokens)
    return UnifiedOutput.from_items([task.output() for task in tasks])


def _tasks(batch: UnifiedBatch, table: SlotTable) -> list[_Task]:
    if batch.pending is not None and batch.pending.any():
        batch = replace(batch, token_ids=fill_pending(batch, batch.pending, table.recall), pending=None)
    tasks = [
        _Task(item, int(slot), table.start_of(int(slot)).prompt_token_ids)
        for item, slot in zip(batch.items(table), batch.slots, strict=True)
    ]
    for task in tasks:
        item = task.item
        if item.is_final_chunk and item.sampling is not None and item.sampling.needs_history:
            task.history = table.history_of(task.slot)
            num_known = len(item.q_tokens) - item.num_draft_tokens
            task.history.sync(item.pos_offset, item.q_tokens[:num_known].tolist())
    return tasks


def fill_pending(
    batch: UnifiedBatch, pending: NDArray[np.bool_], recall: Callable[[int, int], int]
) -> Int32Array:
    """int32 [total_q]: the step's tokens, the pending ones filled in by `recall(seq_id, position)`."""
    tokens = batch.token_ids.copy()
    for where in np.flatnonzero(pending).tolist():
        i = int(np.searchsorted(batch.q_starts, where, side="right")) - 1
        position = int(batch.pos_offsets[i]) + where - int(batch.q_starts[i])
        tokens[where] = recall(int(batch.seq_ids[i]), position)
    return tokens


async def _prefill(executor: SplitForwards, table: SlotTable, tasks: list[_Task]) -> None:
    """Stage 2, before which nothing of the batch was computed."""
    outputs = await executor.batch_prefill([_prefill_input(task) for task in tasks])
    for task, output in zip(tasks, outputs, strict=True):
        item = task.item
        if task.num_prompt_logprobs:
            assert output.logits is not None
            task.prompt_logprobs = _describe_prompt(task, output)
        if item.pooling == "logits":
            if item.is_final_chunk:
                task.pooled = output.last_token_logits()[list(item.label_ids)].astype(np.float32)
        elif item.pooling is not None and output.hidden_states is None:
            message = "this executor returns no hidden states, which embeddings are made from"
            task.failed = ItemOutput(error=message)
        elif item.pooling is not None:
            pooled = _pool(table, task, output)
            task.pooled = pooled if item.is_final_chunk else None
        elif item.is_final_chunk and not item.num_draft_tokens:
            _take(executor, task, output)


def _prefill_input(task: _Task) -> PrefillInput:
    item, count = task.item, task.num_prefilled
    ends_here = item.is_final_chunk and not item.num_draft_tokens and item.pooling is None
    reads_last = ends_here and (item.sampling is None or task.history is not None)
    reads_last = reads_last or (item.pooling == "logits" and item.is_final_chunk)
    logits = LogitsMode.LAST if reads_last else LogitsMode.NONE
    if task.num_prompt_logprobs:
        logits = LogitsMode.ALL
    return PrefillInput(
        input_ids=Tensor.of(item.q_tokens[None, :count], "int32"),
        kv_cache=item.kv_cache,
        pos_offset=item.pos_offset,
        logits=logits,
        sampling=item.sampling if ends_here and task.history is None else None,
        adapter=item.adapter,
        want_hidden_states=item.pooling in ("last", "mean"),
    )


def _decodes_at(task: _Task, place: int) -> bool:
    """True if the task feeds its token number `num_prefilled + place` through batch_decode."""
    return task.num_prefilled + place < len(task.item.q_tokens)


async def _decode(executor: SplitForwards, tasks: list[_Task], place: int, something_computed: bool) -> None:
    """Stage 3 (`place` 0) and stage 4 (the others)."""
    call = executor.batch_decode([_decode_input(task, place) for task in tasks])
    outputs = await (_as_failure(call) if something_computed else call)
    for task, output in zip(tasks, outputs, strict=True):
        _take(executor, task, output)
        following = task.num_prefilled + place + 1
        if task.going and task.tokens and following < len(task.item.q_tokens):
            task.going = int(task.item.q_tokens[following]) == task.tokens[-1].token_id


def _decode_input(task: _Task, place: int) -> DecodeInput:
    item, index = task.item, task.num_prefilled + place
    sampling = item.sampling if task.history is None else None
    return DecodeInput(
        input_ids=Tensor.of(item.q_tokens[None, index : index + 1], "int32"),
        kv_cache=replace(item.kv_cache, num_tokens=item.pos_offset + index),
        pos_offset=item.pos_offset + index,
        logits=LogitsMode.NONE if sampling is not None else LogitsMode.LAST,
        sampling=sampling,
        adapter=item.adapter,
    )


async def _as_failure(call: Awaitable[_Out]) -> _Out:
    try:
        return await call
    except InvalidInput as error:
        raise StepFailed(f"refused after a part of the step was computed: {error}") from error


def _take(executor: SplitForwards, task: _Task, output: PrefillOutput | DecodeOutput) -> None:
    """Keep the sampled token, or the logits of a sequence that is not sampled."""
    if task.item.sampling is None:
        task.logits.append(output.last_token_logits())
    elif task.history is not None:
        _sample_here(task, task.item.sampling, task.history, output.last_token_logits())
    elif output.sampled is None and output.logits is not None:
        # SamplingWrapper's way to say so: logits that were not asked for, and no token drawn from them.
        message = f"{ItemFault.NOT_FINITE.message}, or {ItemFault.NOTHING_LEFT.message}"
        task.failed, task.going = ItemOutput(error=message), False
    elif output.sampled is None:
        raise Unsupported(f"{type(executor).__name__} does not sample; wrap it in SamplingWrapper")
    else:
        task.tokens.append(output.sampled)


def _sample_here(
    task: _Task, params: SamplingParams, history: TokenHistory, logits: NDArray[np.float32]
) -> None:
    try:
        token = reference_sampler.sample(logits.astype(np.float32), params, len(history), history)
    except reference_sampler.NoToken as none:
        task.failed, task.going = ItemOutput.failed(none.fault), False
        return
    history.append(token.token_id)
    task.tokens.append(token)


def _describe_prompt(task: _Task, output: PrefillOutput) -> tuple[SampledToken, ...]:
    """Logprobs of the prompt tokens that follow the item's positions."""
    assert output.logits is not None
    rows = output.logits.numpy().reshape(-1, output.logits.shape[-1])
    first = task.item.pos_offset + 1
    return tuple(
        reference_sampler.describe(row.astype(np.float32), int(token), task.item.prompt_logprobs, ranked=True)
        for row, token in zip(rows, task.prompt[first : first + task.num_prompt_logprobs], strict=False)
    )


def _pool(table: SlotTable, task: _Task, output: PrefillOutput) -> NDArray[np.float32]:
    """float32 [hidden]: the last hidden state, or the mean of all since position 0."""
    assert output.hidden_states is not None
    states = output.hidden_states.numpy()[0].astype(np.float32)
    if task.item.pooling == "last":
        last: NDArray[np.float32] = states[-1]
        return last
    total = table.add_hidden(
        task.slot, task.item.pos_offset, states.sum(axis=0, dtype=np.float64), len(states)
    )
    mean: NDArray[np.float32] = (total / task.end).astype(np.float32)
    return mean
