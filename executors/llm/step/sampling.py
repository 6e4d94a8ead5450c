"""`HostSampling`: the stage that chooses tokens from a forward's hidden states, with grammars, drafts and all settings."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from executors.contract.batch import ItemOutput, UnifiedBatch, UnifiedOutput
from executors.contract.errors import ItemFault
from executors.llm.device.base import DeviceMemory
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.edits import EditsBuilder, LogitEdits
from executors.llm.sampling.sampler import Sampled, sample
from executors.llm.sampling.slot_grammars import Inputs, ItemMasks
from executors.llm.step.runner import ModelRunner
from executors.llm.step.sampled_rows import SampledRows
from executors.llm.step.states import SequenceStates
from executors.llm.step_arrays import StepArrays


class HostSampling:
    """See the module. `memory`: see `retried`."""

    def __init__(self, states: SequenceStates, runner: ModelRunner, memory: DeviceMemory | None) -> None:
        self._states = states
        self._runner = runner
        self._memory = memory

    def rows(self, batch: UnifiedBatch, step: StepArrays) -> SampledRows:
        """Find the sampled rows of final items, drafts included."""
        rows = SampledRows.of(batch, step, batch.is_final_chunk & self._states.samples[batch.slots])
        return rows._replace(masks=self._start_masks(batch, step, rows.counts))

    def _start_masks(
        self, batch: UnifiedBatch, step: StepArrays, counts: np.ndarray
    ) -> Future[dict[int, ItemMasks]] | None:
        """Start computing masks of items that sample under a grammar; return None if there are no such items."""
        if not self._states.grammars:
            return None
        slots = batch.slots.tolist()
        items = [i for i, slot in enumerate(slots) if counts[i] and slot in self._states.grammars]
        return (
            self._states.grammars.start({i: (slots[i], _inputs(batch, step, i)) for i in items})
            if items
            else None
        )

    def __call__(
        self, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, where: SampledRows
    ) -> UnifiedOutput:
        """Sample, and keep of each item the tokens that verification accepts: see `SampledRows.keep`."""
        if not len(where.item):
            return UnifiedOutput(np.zeros(len(batch), np.int32), np.empty(0, np.int32))
        logits, maxima = retried(self._memory, lambda: self._runner.logits_for_sampling(hidden, where.rows))
        return self.sample_from(batch, step, where, logits, maxima)

    def sample_from(
        self, batch: UnifiedBatch, step: StepArrays, where: SampledRows, logits: torch.Tensor, maxima: torch.Tensor | None
    ) -> UnifiedOutput:  # fmt: skip
        """Sample from the logits of a step's sampled rows, of which there are some."""
        n = len(batch)
        counts, starts, item, positions = where.counts, where.starts, where.item, where.positions
        slots = batch.slots[item]
        shaped = self._states.shapers.items(batch.slots, counts) if self._states.shapers else []
        masks = {} if where.masks is None else where.masks.result()
        settings = self._states.sampling.rows(slots, positions)
        edits = self._edits(batch, step, shaped, starts, masks) if shaped else None
        sampled = retried(self._memory, lambda: sample(logits, settings, edits, maxima))
        failed = {i: item.failed for i, item in masks.items() if item.failed is not None}
        for i in failed:
            sampled.bad[starts[i] : starts[i] + counts[i]] = True
        tokens = sampled.tokens.astype(np.int32)
        self._states.pool.view(-1).index_copy_(
            0, self._states.pool_index(slots, positions), torch.from_numpy(tokens).to(self._runner.device)
        )
        if len(item) == n and not where.drafts.any():
            num_tokens = np.ones(n, np.int32)
        else:
            counting, num_tokens = where.keep(tokens, sampled.bad)
            tokens = tokens[counting]
        output = UnifiedOutput(num_tokens, tokens)
        ends = np.cumsum(num_tokens)
        for i in shaped:
            kept_tokens = tokens[ends[i] - num_tokens[i] : ends[i]].tolist()
            self._states.shapers.keep(int(batch.slots[i]), kept_tokens)
            if i in masks:
                self._states.grammars.keep(int(batch.slots[i]), kept_tokens)
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
            self._states.shapers.add_rows(
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
