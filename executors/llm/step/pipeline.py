"""`UnifiedRunner`: turns a `UnifiedBatch` into a `UnifiedOutput` and holds all state of sequences that lasts between steps.

The stages of a step: check, take in what is new, forward, sample, pack.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import numpy as np
import torch

from executors.contract import ProgressCallback
from executors.contract.batch import (
    Drafts,
    ItemOutput,
    SampledToken,
    SequenceStart,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.checks import check_arrays, check_blocks, check_limits, check_pooling
from executors.contract.errors import InvalidInput, ItemFault
from executors.contract.slots import SlotTable
from executors.llm.lora.device import DeviceWeights
from executors.llm.lora.table import AdapterTable
from executors.llm.memory.device_memory import DeviceMemory, retried
from executors.llm.memory.kv_cache import lazy_zeros
from executors.llm.sampling.edits import EditsBuilder, LogitEdits, SlotShapers
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.sampling.sampler import Sampled, SamplingTable, describe, sample
from executors.llm.sampling.slot_grammars import Inputs, ItemMasks, SlotGrammars
from executors.llm.step.pending_steps import ComputedStep, PendingStep
from executors.llm.step.runner import LOGITS_CHUNK, ModelRunner
from executors.llm.step_arrays import StepArrays


class SampledRows(NamedTuple):
    """Rows of a step that are sampled.

    Per item, int64 [n]: `drafts`, `counts` of rows, and `starts`, the first of those rows. Per row, int64: its `item`, its
    `place` among the item's rows, and its number among the step's `rows`. `masks`: the pending token masks of items under a
    grammar, or None if there are no such items.
    """

    drafts: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    item: np.ndarray
    place: np.ndarray
    rows: np.ndarray
    masks: Future[dict[int, ItemMasks]] | None


class Companion(Protocol):
    """What guesses the next tokens of sequences: `spec.companion.DraftCompanion`."""

    def note(self, batch: UnifiedBatch) -> None: ...

    def draft(self, batch: UnifiedBatch, output: UnifiedOutput) -> Drafts | None: ...

    def forget(self, slot: int) -> None: ...

    def clear(self) -> None: ...


class UnifiedRunner:
    """State by slot: block tables and starts (`slots`), sampling settings, and the token pool.

    `pool` int32 [num_slots + 1, max_model_len + 1] on the device holds each sampled token at its position. A later step reads
    its input from there if the host does not know the token's id yet. The last row belongs to no slot. Only `run`, `release`
    and `clear` write this state.
    """

    def __init__(
        self, runner: ModelRunner, num_slots: int, max_batch_size: int, max_model_len: int, compiler: GrammarCompiler
    ) -> None:  # fmt: skip
        self.runner = runner
        self.max_batch_size = max_batch_size
        self.max_model_len = max_model_len
        self.logits_width = self.label_width = compiler.width
        block_size = runner.cache.block_size
        self.slots = SlotTable(num_slots, -(-max_model_len // block_size))
        self.sampling = SamplingTable(num_slots)
        self.shapers = SlotShapers()
        """Shaping state of slots whose settings change single logits, token counts included."""
        self.grammars = SlotGrammars(compiler)
        runner.hold_states(num_slots)
        self.pool = lazy_zeros((num_slots + 1, max_model_len + 1), torch.int32, runner.device)
        self.adapters: AdapterTable | None = None
        """LoRA adapters, if the executor has any."""
        self.companion: Companion | None = None
        """A draft model, if the executor has one; the token pool then holds all tokens of a slot, not only those sampled."""
        self._samples = np.zeros(num_slots, np.bool_)
        self._special = np.zeros(num_slots, np.bool_)
        """Marks slots that need more than tokens: prompt logprobs or pooled output."""
        self._pooled_sums: dict[int, torch.Tensor] = {}

    label_width: int
    """`ModelInfo.label_width`; that of the vocabulary unless the executor sets another."""

    # -- what runners differ in ------------------------------------------------------------------------------------------

    max_in_flight = 1
    """Number of steps that may be in flight at once; more than one on devices that compute asynchronously."""
    report: ProgressCallback = staticmethod(lambda stage, done, total: None)
    """Receives the progress of captures, which take longer than steps."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`."""
        weights = None if self.adapters is None else self.adapters.weights
        return (weights.note,) if isinstance(weights, DeviceWeights) else ()

    @property
    def can_capture(self) -> bool:
        """Return whether `capture_next` has something left to capture."""
        return False

    memory: DeviceMemory | None = None
    """Memory that an allocation that failed may empty before it is tried again; None if there is nothing to empty."""

    def capture_first(self) -> None:
        """Capture the graphs that the first requests need."""

    def capture_next(self) -> bool:
        """Capture one more graph; return False if none is left."""
        return False

    @property
    def capture_wait(self) -> float:
        """Seconds to wait before the next call of `capture_next`, after memory was too short for a graph."""
        return 0.0

    # -- state ---------------------------------------------------------------------------------------------------------

    def use_adapters(self, table: AdapterTable) -> None:
        """Use LoRA adapters. Called once, before the first step."""
        self.adapters = table

    def trial(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for steps that are tried out before the executor serves."""
        states = self.runner.states
        return contextlib.nullcontext() if states is None else states.trusting()

    def forget_trials(self) -> None:
        """Forget what was learned from steps that were tried out: they say nothing of those that will come."""

    def release(self, seq_id: int) -> None:
        """Forget a sequence."""
        slot = self.slots.release(seq_id)
        if slot is not None:
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        self._pooled_sums.pop(slot, None)
        self.shapers.drop(slot)
        self.grammars.drop(slot)
        if self.adapters is not None:
            self.adapters.drop(slot)
        if self.companion is not None:
            self.companion.forget(slot)

    def clear(self) -> None:
        """Forget every sequence."""
        self.slots.clear()
        self.shapers.clear()
        self.grammars.clear()
        self._pooled_sums.clear()
        if self.adapters is not None:
            self.adapters.clear()
        if self.companion is not None:
            self.companion.clear()

    def _begin(self, start: SequenceStart) -> None:
        slot = start.slot
        self._pooled_sums.pop(slot, None)
        self._samples[slot] = start.sampling is not None and start.pooling is None
        if start.sampling is not None:
            self.sampling.set(slot, start.sampling)
        self.shapers.begin(start, self._follows(start))
        self.grammars.begin(start)
        if self.adapters is not None:
            self.adapters.begin(slot, start.adapter)
        if self.companion is not None:
            self.companion.forget(slot)
            known = np.concatenate((start.prompt_token_ids, start.output_token_ids))
            self.pool[slot, : len(known)] = torch.from_numpy(known)
        self._special[slot] = start.prompt_logprobs is not None or start.pooling is not None

    def _follows(self, start: SequenceStart) -> bool:
        """Return whether `shapers` must record the sequence's tokens from its start."""
        return True

    # -- a step --------------------------------------------------------------------------------------------------------

    def launch(self, batch: UnifiedBatch) -> PendingStep:
        """Launch a step after those launched before. Raises as `run`. This class computes the step before it returns."""
        return ComputedStep(self.run(batch))

    def run(self, batch: UnifiedBatch) -> UnifiedOutput:
        """Compute a step. Raises InvalidInput before any computation starts."""
        if not len(batch):
            return UnifiedOutput(np.empty(0, np.int32), np.empty(0, np.int32))
        self._take_in(batch)
        return self._compute(batch)

    def _take_in(self, batch: UnifiedBatch) -> None:
        """Check a step and store the state of its sequences. Raises InvalidInput."""
        self._check(batch)
        self.slots.apply(batch)
        for start in batch.starts:
            self._begin(start)

    @torch.inference_mode()
    def _compute(self, batch: UnifiedBatch) -> UnifiedOutput:
        step = self._step(batch)
        sampled = self._sampled_rows(batch, step)
        special = np.flatnonzero(self._special[batch.slots])
        if not len(special) and len(sampled.rows) < len(step.token_ids):
            step.wanted = sampled.rows
        self.runner.cache.copy_blocks(batch.block_copies)
        if self.companion is not None:
            self.companion.note(batch)
        hidden = retried(self.memory, lambda: self.runner.forward(step, self._token_ids(batch, step)))
        output = self._sample(batch, step, hidden, sampled)
        self._add_label_logits(output, batch, step, hidden, special)
        for i in special.tolist():
            self._add_special(output, batch, step, hidden, i)
        if self.companion is not None:
            companion = self.companion
            output.drafts = retried(self.memory, lambda: companion.draft(batch, output))
        return output

    def _check(self, batch: UnifiedBatch) -> None:
        check_arrays(batch)
        check_limits(batch, self.logits_width, self.max_model_len, self.max_batch_size)
        check_blocks(batch, self.runner.cache.num_blocks)
        tables = batch.tables
        if len(tables.slots):
            if tables.groups.any() or tables.starts.min() < 0 or tables.counts.min() < 0:
                raise InvalidInput(
                    "table updates: groups must be 0, and starts and counts must not be negative"
                )
            if tables.slots.min() < 0 or tables.slots.max() >= self.slots.num_slots:
                raise InvalidInput(f"table updates: slots must be within 0..{self.slots.num_slots - 1}")
            if int(tables.counts.sum()) != len(tables.block_ids):
                raise InvalidInput("table updates: counts do not add up to the number of block_ids")
        for start in batch.starts:
            if start.sampling is not None:
                start.sampling.check_ids(self.logits_width)
            if self.adapters is not None:
                self.adapters.check(start.adapter)
            elif start.adapter is not None:
                raise InvalidInput(f"sequence {start.seq_id}: adapter {start.adapter!r} is not loaded")
            if start.grammar is not None and self.grammars.compiler.unsupported is not None:
                why = self.grammars.compiler.unsupported
                raise InvalidInput(f"sequence {start.seq_id}: this executor does not support grammars: {why}")
            check_pooling(start, self.label_width)
        if self.runner.states is not None:
            self.runner.states.check(batch)

    def _step(self, batch: UnifiedBatch) -> StepArrays:
        """Pack the batch's items with the block tables of their slots. Raises InvalidInput for a table that is too short."""
        tables = self._tables_of(batch, self._blocks_needed(batch))
        q_lens, pos_offsets = batch.num_q_tokens.astype(np.int64), batch.pos_offsets.astype(np.int64)
        adapters = None
        if self.adapters is not None:
            adapters = self.adapters.rows_of_slots(batch.slots, q_lens)
        slots = batch.slots.astype(np.int64)
        return StepArrays(
            batch.token_ids.astype(np.int64), q_lens, pos_offsets, tables, adapters=adapters, slots=slots
        )

    def _tables_of(self, batch: UnifiedBatch, needed: int) -> np.ndarray:
        """Block tables int32 [n, needed] of a step's items."""
        # The slice comes first: a row of the full table is as wide as the longest possible sequence.
        return self.slots.block_tables[0][:, :needed][batch.slots]

    def _blocks_needed(self, batch: UnifiedBatch) -> int:
        """Return the number of blocks of the longest item. Raises InvalidInput for a table that is too short."""
        ends = batch.num_q_tokens.astype(np.int64) + batch.pos_offsets
        needed = -(-ends // self.runner.cache.block_size)
        short = np.flatnonzero(self.slots.num_blocks[0, batch.slots] < needed)
        if len(short):
            i = int(short[0])
            have = int(self.slots.num_blocks[0, batch.slots[i]])
            raise InvalidInput(
                f"sequence {batch.seq_ids[i]}: its table has {have} blocks, this step needs {needed[i]}"
            )
        return int(needed.max())

    def _pool_index(self, slots: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        return self.runner.to_device(slots.astype(np.int64) * self.pool.shape[1] + positions)

    def _token_ids(self, batch: UnifiedBatch, step: StepArrays) -> torch.Tensor:
        """Token ids int64 [T] on the device; pending ones come from the token pool."""
        ids = self.runner.to_device(step.token_ids)
        if batch.pending is not None and batch.pending.any():
            rows = np.flatnonzero(batch.pending)
            index = self._pool_index(batch.slots[step.item_of_row[rows]], step.positions[rows])
            ids[self.runner.to_device(rows)] = self.pool.view(-1).index_select(0, index).long()
        return ids

    def _sampled_rows(self, batch: UnifiedBatch, step: StepArrays) -> SampledRows:
        """Find the sampled rows of final items, drafts included.

        inputs of an item    t5  t6  d7  d8      drafts = 2, pos_offset = 5
        sampled rows             r0  r1  r2      for positions 7, 8, 9
        """
        drafts = batch.num_draft_tokens.astype(np.int64)
        counts = np.where(batch.is_final_chunk & self._samples[batch.slots], drafts + 1, 0)
        item = np.repeat(np.arange(len(batch)), counts)
        starts = np.cumsum(counts) - counts
        place = np.arange(len(item)) - starts[item]
        rows = (step.q_starts + step.q_lens - 1 - drafts)[item] + place
        return SampledRows(drafts, counts, starts, item, place, rows, self._start_masks(batch, step, counts))

    def _start_masks(
        self, batch: UnifiedBatch, step: StepArrays, counts: np.ndarray
    ) -> Future[dict[int, ItemMasks]] | None:
        """Start computing masks of items that sample under a grammar; return None if there are no such items."""
        if not self.grammars:
            return None
        slots = batch.slots.tolist()
        items = [i for i, slot in enumerate(slots) if counts[i] and slot in self.grammars]
        return self.grammars.start({i: (slots[i], _inputs(batch, step, i)) for i in items}) if items else None

    def _sample(
        self, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, where: SampledRows
    ) -> UnifiedOutput:
        """Sample, and keep of each item the tokens that verification accepts. In the example d7 is accepted iff r0 = d7, and
        d8 iff r1 = d8 as well; the item keeps the accepted tokens and one more."""
        if not len(where.item):
            return UnifiedOutput(np.zeros(len(batch), np.int32), np.empty(0, np.int32))
        logits, maxima = retried(self.memory, lambda: self.runner.logits_for_sampling(hidden, where.rows))
        return self._sample_from(batch, step, where, logits, maxima)

    def _sample_from(
        self, batch: UnifiedBatch, step: StepArrays, where: SampledRows, logits: torch.Tensor, maxima: torch.Tensor | None
    ) -> UnifiedOutput:  # fmt: skip
        """Sample from the logits of a step's sampled rows, of which there are some."""
        n = len(batch)
        drafts, counts, starts, item, place, rows, masks_to_come = where
        slots, positions = batch.slots[item], step.positions[rows] + 1
        shaped = self.shapers.items(batch.slots, counts) if self.shapers else []
        masks = {} if masks_to_come is None else masks_to_come.result()
        settings = self.sampling.rows(slots, positions)
        edits = self._edits(batch, step, shaped, starts, masks) if shaped else None
        sampled = retried(self.memory, lambda: sample(logits, settings, edits, maxima))
        failed = {i: item.failed for i, item in masks.items() if item.failed is not None}
        for i in failed:
            sampled.bad[starts[i] : starts[i] + counts[i]] = True
        tokens = sampled.tokens.astype(np.int32)
        self.pool.view(-1).index_copy_(
            0, self._pool_index(slots, positions), torch.from_numpy(tokens).to(self.runner.device)
        )
        if len(item) == n and not drafts.any():
            num_tokens = np.ones(n, np.int32)
        else:
            kept, num_tokens = _verify(step, sampled, drafts, counts, item, place, rows)
            tokens = tokens[kept]
        output = UnifiedOutput(num_tokens, tokens)
        ends = np.cumsum(num_tokens)
        for i in shaped:
            kept_tokens = tokens[ends[i] - num_tokens[i] : ends[i]].tolist()
            self.shapers.keep(int(batch.slots[i]), kept_tokens)
            if i in masks:
                self.grammars.keep(int(batch.slots[i]), kept_tokens)
        if sampled.described or sampled.bad.any():
            errors = _errors(logits, sampled.bad) | {int(starts[i]): why for i, why in failed.items()}
            self._detail(output, sampled, errors, counts, starts)
        return output

    def _edits(
        self, batch: UnifiedBatch, step: StepArrays, items: list[int], starts: np.ndarray, masks: dict[int, ItemMasks]
    ) -> LogitEdits | None:  # fmt: skip
        """Collect the logit changes that settings and grammars of `items` require. `starts` holds each item's first sampled
        row."""
        builder = EditsBuilder()
        for i in items:
            position, tokens, pending, num_drafts = _inputs(batch, step, i)
            of_rows = masks[i].masks if i in masks else None
            self.shapers.add_rows(
                builder, int(batch.slots[i]), int(starts[i]), (position, tokens, pending), num_drafts, of_rows
            )
        return builder.build()

    def _detail(
        self, output: UnifiedOutput, sampled: Sampled, errors: dict[int, ItemOutput], counts: np.ndarray, starts: np.ndarray
    ) -> None:  # fmt: skip
        """Add full outputs of items with logprobs, and those of `errors` (by row) for items whose last row gave no token."""
        keep = np.ones(len(output.token_ids), np.bool_)
        ends = np.cumsum(output.num_tokens)
        for i in np.flatnonzero(counts).tolist():
            rows = range(int(starts[i]), int(starts[i]) + int(output.num_tokens[i]))
            if rows[-1] in errors:
                output.details[i] = errors[rows[-1]]
                keep[ends[i] - len(rows) : ends[i]] = False
                output.num_tokens[i] = 0
            elif rows[0] in sampled.described:
                output.details[i] = ItemOutput(tuple(sampled.described[row] for row in rows))
        output.token_ids = output.token_ids[keep]

    # -- the rare outputs ------------------------------------------------------------------------------------------------

    def _add_label_logits(
        self, output: UnifiedOutput, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, special: np.ndarray
    ) -> None:  # fmt: skip
        """Add the logits that items with pooling "logits" ask for. The head multiplies the last rows of all of them at once:
        it is as large as some layers, and a reranker's step has many short prompts."""
        asked: dict[int, SequenceStart] = {}
        for i in special[batch.is_final_chunk[special]].tolist():
            start = self.slots.start_of(int(batch.slots[i]))
            if start.pooling == "logits":
                asked[i] = start
        items = np.array(list(asked), np.int64)
        rows = step.q_starts[items] + step.q_lens[items] - 1
        for begin in range(0, len(items), LOGITS_CHUNK):
            part = slice(begin, begin + LOGITS_CHUNK)
            logits = self.runner.label_logits(hidden, rows[part])
            for i, row in zip(items[part].tolist(), logits, strict=True):
                ids = self.runner.to_device(np.array(asked[i].label_ids))
                output.details[i] = ItemOutput(pooled=row.index_select(0, ids).float().cpu().numpy())

    def _add_special(
        self, output: UnifiedOutput, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, i: int
    ) -> None:
        """Add prompt logprobs and pooled output."""
        slot = int(batch.slots[i])
        start = self.slots.start_of(slot)
        before = output[i] or ItemOutput()
        prompt_logprobs = pooled = None
        if start.prompt_logprobs is not None:
            prompt_logprobs = self._prompt_logprobs(step, hidden, start, i)
        if start.pooling == "logits":
            pooled = before.pooled
        elif start.pooling is not None:
            pooled = self._pool(start, step, hidden, i, bool(batch.is_final_chunk[i]))
        # Last, for ranks compute logits together, and only one of them knows of the error.
        if before.error:
            return
        if prompt_logprobs is not None or pooled is not None:
            output.details[i] = ItemOutput(before.tokens, prompt_logprobs, pooled)

    def _prompt_logprobs(
        self, step: StepArrays, hidden: torch.Tensor, start: SequenceStart, i: int
    ) -> tuple[SampledToken, ...]:
        """One entry for each input position of this chunk whose next prompt token is known."""
        first, length = int(step.pos_offsets[i]), int(step.q_lens[i])
        targets = np.asarray(start.prompt_token_ids[first + 1 : first + 1 + length], np.int64)
        rows = int(step.q_starts[i]) + np.arange(len(targets))
        count = start.prompt_logprobs or 0
        found: list[SampledToken] = []
        for begin, logits in self.runner.logits_in_chunks(hidden, rows):
            part = targets[begin : begin + len(logits)]
            found += describe(logits, part, np.full(len(part), count), ranked=True)
        return tuple(found)

    def _pool(
        self, start: SequenceStart, step: StepArrays, hidden: torch.Tensor, i: int, final: bool
    ) -> np.ndarray | None:
        """float32 [hidden] on the final chunk: the last token's hidden state, or the mean over all tokens."""
        rows = hidden[int(step.q_starts[i]) : int(step.q_starts[i] + step.q_lens[i])]
        if start.pooling == "last":
            return rows[-1].float().cpu().numpy() if final else None
        total = rows.sum(0, dtype=torch.float32)
        if step.pos_offsets[i] > 0 and start.slot in self._pooled_sums:
            total = total + self._pooled_sums[start.slot]
        self._pooled_sums[start.slot] = total
        return (total / int(step.pos_offsets[i] + step.q_lens[i])).cpu().numpy() if final else None


def _inputs(batch: UnifiedBatch, step: StepArrays, i: int) -> Inputs:
    """Return the inputs of an item as plain lists."""
    part = slice(int(step.q_starts[i]), int(step.q_starts[i] + step.q_lens[i]))
    pending = None if batch.pending is None else batch.pending[part].tolist()
    return Inputs(
        int(step.pos_offsets[i]), step.token_ids[part].tolist(), pending, int(batch.num_draft_tokens[i])
    )


def _errors(logits: torch.Tensor, bad: np.ndarray) -> dict[int, ItemOutput]:
    """Map each row marked in `bad` to an output that says why the row gave no token. The raw `logits` [n, V] show whether the
    model or the settings are at fault."""
    rows = np.flatnonzero(bad)
    if not len(rows):
        return {}
    best = logits[torch.from_numpy(rows).to(logits.device)].max(-1).values
    finite = torch.isfinite(best).tolist()
    faults = [ItemFault.NOTHING_LEFT if one else ItemFault.NOT_FINITE for one in finite]
    return {row: ItemOutput.failed(fault) for row, fault in zip(rows.tolist(), faults, strict=True)}


def _verify(
    step: StepArrays, sampled: Sampled, drafts: np.ndarray, counts: np.ndarray, item: np.ndarray, place: np.ndarray,
    rows: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return which sampled rows are kept (bool) and, int32 [n], how many each item keeps: its accepted drafts and one more."""
    is_draft_row = place < drafts[item]
    following = step.token_ids[np.minimum(rows + 1, len(step.token_ids) - 1)]
    stops = ~is_draft_row | (sampled.tokens != following) | sampled.bad
    # The first row that stops an item is its last one kept; the row after the last draft always stops.
    stop_place = np.where(stops, place, len(place))
    num_tokens = np.zeros(len(counts), np.int32)
    nonempty = counts > 0
    begins = (np.cumsum(counts) - counts)[nonempty]
    num_tokens[nonempty] = np.minimum.reduceat(stop_place, begins) + 1
    return place < num_tokens[item], num_tokens
