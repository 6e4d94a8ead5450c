"""`HostPacking`: the last stage of a step. Adds what few sequences ask for beside tokens, and drafts for the next step."""

from __future__ import annotations

import numpy as np
import torch

from executors.contract.batch import ItemOutput, SampledToken, SequenceStart, UnifiedBatch, UnifiedOutput
from executors.llm.device.base import DeviceMemory
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.sampler import describe
from executors.llm.step.runner import LOGITS_CHUNK, ModelRunner
from executors.llm.step.states import SequenceStates
from executors.llm.step_arrays import StepArrays


class HostPacking:
    """See the module. `memory`: see `retried`."""

    def __init__(self, states: SequenceStates, runner: ModelRunner, memory: DeviceMemory | None) -> None:
        self._states = states
        self._runner = runner
        self._memory = memory

    def __call__(
        self, output: UnifiedOutput, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, special: np.ndarray
    ) -> None:  # fmt: skip
        """Complete the output. `special` int64: items whose slots are marked so."""
        if len(special):
            self._add_label_logits(output, batch, step, hidden, special)
            for i in special.tolist():
                self._add_special(output, batch, step, hidden, i)
        companion = self._states.companion
        if companion is not None:
            output.drafts = retried(self._memory, lambda: companion.draft(batch, output, step, hidden))

    def _add_label_logits(
        self, output: UnifiedOutput, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, special: np.ndarray
    ) -> None:  # fmt: skip
        """Add the logits that items with pooling "logits" ask for. The head multiplies the last rows of all of them at once:
        it is as large as some layers, and a reranker's step has many short prompts."""
        starts: dict[int, SequenceStart] = {}
        for i in special[batch.is_final_chunk[special]].tolist():
            start = self._states.slots.start_of(int(batch.slots[i]))
            if start.pooling == "logits":
                starts[i] = start
        items = np.array(list(starts), np.int64)
        rows = step.q_starts[items] + step.q_lens[items] - 1
        for begin in range(0, len(items), LOGITS_CHUNK):
            part = slice(begin, begin + LOGITS_CHUNK)
            logits = self._runner.label_logits(hidden, rows[part])
            for i, row in zip(items[part].tolist(), logits, strict=True):
                ids = self._runner.to_device(np.array(starts[i].label_ids))
                output.details[i] = ItemOutput(pooled=row.index_select(0, ids).float().cpu().numpy())

    def _add_special(
        self, output: UnifiedOutput, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, i: int
    ) -> None:
        """Add prompt logprobs and pooled output."""
        slot = int(batch.slots[i])
        start = self._states.slots.start_of(slot)
        before = output[i] or ItemOutput()
        prompt_logprobs = pooled = None
        if start.prompt_logprobs is not None:
            prompt_logprobs = self._prompt_logprobs(step, hidden, start, i)
        if start.pooling == "logits":
            pooled = before.pooled
        elif start.pooling is not None:
            pooled = self._pooled(start, step, hidden, i, bool(batch.is_final_chunk[i]))
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
        described: list[SampledToken] = []
        for begin, logits in self._runner.logits_in_chunks(hidden, rows):
            part = targets[begin : begin + len(logits)]
            described += describe(logits, part, np.full(len(part), count), ranked=True)
        return tuple(described)

    def _pooled(
        self, start: SequenceStart, step: StepArrays, hidden: torch.Tensor, i: int, final: bool
    ) -> np.ndarray | None:
        """float32 [hidden] on the final chunk: the last token's hidden state, or the mean over all tokens."""
        rows = hidden[int(step.q_starts[i]) : int(step.q_starts[i] + step.q_lens[i])]
        if start.pooling == "last":
            return rows[-1].float().cpu().numpy() if final else None
        total = rows.sum(0, dtype=torch.float32)
        if step.pos_offsets[i] > 0 and start.slot in self._states.pooled_sums:
            total = total + self._states.pooled_sums[start.slot]
        self._states.pooled_sums[start.slot] = total
        return (total / int(step.pos_offsets[i] + step.q_lens[i])).cpu().numpy() if final else None
