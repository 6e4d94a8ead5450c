"""`DeviceDraftCompanion`: a draft model on a device, where steps are launched before those before them have ended.

    step 7 | drafting of 7's tokens: catch up, d1, d2, d3 | step 8, which verifies d1 d2 d3      on the device
           ^ its tokens reach the host                    ^ its drafts reach the host

A drafting begins when the tokens of its step are known. All of its forwards are queued then, each draft is handed on in the
token pool, and the host reads them together. Prompts are known before: they are queued behind the step that has them.

Behind a step that was launched meanwhile nothing is drafted: the tokens would wait for that step's end, and it may have the same
sequences, or blocks that they have lost. No drafts are always an answer, where the device has no memory for a forward, too: the
step's own tokens are there. Work on the device is in the order in which it was queued, so the rest needs no further care.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from executors.contract.batch import Drafts, UnifiedBatch, UnifiedOutput
from executors.contract.faults import no_memory
from executors.llm.memory.paged_kv import copied_pairs
from executors.llm.spec.base import ModelSide, drafts_of
from executors.llm.spec.companion import Ahead, DraftCompanion, Wish
from executors.llm.spec.device_forwards import DraftForwards
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.pending_steps import PendingStep
from executors.llm.step_arrays import StepArrays

_log = logging.getLogger(__name__)
T = TypeVar("T")


class DeviceDraftCompanion(DraftCompanion):
    """See the module. `model.history` is written here: sampled tokens, as they reach the host."""

    def __init__(
        self, forwards: DraftForwards, model: ModelSide, max_model_len: int, max_tokens: int
    ) -> None:
        """As `DraftCompanion`."""
        super().__init__(forwards.runner, model, max_model_len, max_tokens)
        self.forwards = forwards
        self._launches = 0
        """Number of the step launched last."""
        slots = model.slots.num_slots
        self._since = np.zeros(slots, np.int64)
        """By slot: the first step that its sequence may be in."""
        self._is_trial = False

    # -- state ---------------------------------------------------------------------------------------------------------

    def note(self, batch: UnifiedBatch) -> None:
        """See `DraftCompanion`; called once for each launched step, in their order."""
        self._launches += 1
        super().note(batch)

    def forget(self, slot: int) -> None:
        """See `DraftCompanion`."""
        super().forget(slot)
        self._since[slot] = self._launches + 1

    def clear(self) -> None:
        """See `DraftCompanion`."""
        super().clear()
        self._since[:] = self._launches + 1

    def _is_as_in(self, launch: int, slot: int) -> bool:
        """Whether the slot's sequence, its tokens and its blocks are those of that step, and no step is behind it."""
        return self._launches == launch and bool(self._since[slot] <= launch)

    def _record(self, batch: UnifiedBatch, output: UnifiedOutput, launch: int) -> None:
        """Write the tokens that a step gave into the history."""
        counts = output.num_tokens
        items = np.repeat(np.arange(len(batch)), counts)
        place = np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = batch.pos_offsets + batch.num_q_tokens - batch.num_draft_tokens
        slots, positions = batch.slots[items], first[items] + place
        there = self._since[slots] <= launch
        self._history[slots[there], positions[there]] = output.token_ids[there]

    def _copy_blocks(self, batch: UnifiedBatch) -> np.ndarray:
        """See `PagedCompanion`. A block that could not be copied holds nothing."""
        pairs = self._with_memory(lambda: super(DeviceDraftCompanion, self)._copy_blocks(batch))
        if pairs is None:
            pairs = copied_pairs(batch.block_copies, self._group)
            self._filled[pairs[:, 1]] = 0
            return pairs[:0]
        return pairs

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """See `Follower`."""
        self._is_trial = True
        try:
            yield
        finally:
            self._is_trial = False

    def _with_memory(self, queue: Callable[[], T]) -> T | None:
        """Return the result of `queue`, None if there was no memory for it. The step behind which it is queued was launched
        already: it is not to fail, for its tokens are recorded, and a smaller step would not need less."""
        try:
            return queue()
        except Exception as error:
            if self._is_trial or (why := no_memory(error)) is None:
                raise
            _log.warning("no memory for a draft model's forward: %s", why)
            return None

    # -- a step --------------------------------------------------------------------------------------------------------

    def draft(
        self, batch: UnifiedBatch, output: UnifiedOutput, step: StepArrays, hidden: torch.Tensor
    ) -> Drafts | None:
        """None: drafts of a step that the host computes come as those of all others."""
        return None

    @torch.inference_mode()
    def follow(self, batch: UnifiedBatch, step: PendingStep) -> PendingStep:
        """Return the step with its drafts; `note` was the one of this batch."""
        asks = batch.drafts_wanted is not None and bool(batch.drafts_wanted.any())
        if asks:
            self._read_prompts(batch)
        return DraftedStep(self, batch, step, self._launches, asks)

    def _read_prompts(self, batch: UnifiedBatch) -> None:
        """Queue the forward of the prompts, or their chunks, that a step has."""
        assert batch.drafts_wanted is not None
        reads = (batch.drafts_wanted > 0) & (batch.num_q_tokens - batch.num_draft_tokens > 1)
        if batch.pending is not None:  # tokens that the host does not know yet
            reads[np.repeat(np.arange(len(batch)), batch.num_q_tokens)[batch.pending]] = False
        items = np.flatnonzero(reads)
        if len(items) and (wishes := self._wishes(batch, items, None)):
            self._first_round(wishes)

    @torch.inference_mode()
    def begin(
        self, batch: UnifiedBatch, output: UnifiedOutput, launch: int, asks: bool
    ) -> QueuedDrafting | None:
        """Take in a step's tokens and queue its drafting; None if there is none. `launch`: the step's number."""
        self._record(batch, output, launch)
        if not asks:
            return None
        assert batch.drafts_wanted is not None
        began = time.perf_counter()
        asking = np.flatnonzero((batch.drafts_wanted > 0) & batch.is_final_chunk)
        items = [item for item in asking.tolist() if self._is_as_in(launch, int(batch.slots[item]))]
        wishes = self._wishes(batch, np.array(items, np.int64), output.num_tokens)
        if not wishes:
            return None
        rounds, queued = list[PendingDeviceStep](), self._first_round(wishes)
        while queued is not None:
            rounds.append(queued)
            further = [wish for wish in wishes if wish.count > len(rounds)]
            queued = self._next_round(further, len(rounds)) if further else None
        return QueuedDrafting(launch, len(batch), wishes, began, rounds) if rounds else None

    def _first_round(self, wishes: list[Wish]) -> PendingDeviceStep | None:
        """Queue the forward of what is missing; it gives the first draft of those that get some. None without memory for it."""
        slots, begins = (np.array([getattr(wish, name) for wish in wishes]) for name in ("slot", "begin"))
        lens = np.array([wish.end for wish in wishes]) - begins
        tokens = np.concatenate([self._history[wish.slot, wish.begin : wish.end] for wish in wishes])
        sampled = np.array([wish.count > 0 for wish in wishes])
        queued = self._with_memory(lambda: self.forwards.send(slots, lens, begins, tokens, sampled))
        if queued is not None:
            for wish in wishes:
                self._fill(self._blocks_of(wish.slot), wish.begin, wish.end)
        return queued

    def _next_round(self, wishes: list[Wish], place: int) -> PendingDeviceStep | None:
        """Queue the forward of the drafts at that place, which the forward before has put into the pool. None as above."""
        ones = np.ones(len(wishes), np.int64)
        offsets = np.array([wish.num_known + place - 1 for wish in wishes])
        slots = np.array([wish.slot for wish in wishes])
        return self._with_memory(
            lambda: self.forwards.send(slots, ones, offsets, 0 * ones, ones > 0, pending=True)
        )

    def end(self, drafting: QueuedDrafting) -> Drafts:
        """Read the drafts; waits for them."""
        drafts: dict[int, list[int]] = {wish.item: [] for wish in drafting.wishes if wish.count}
        for place, one in enumerate(drafting.rounds):
            output = one.result()
            wishes = [wish for wish in drafting.wishes if wish.count > place] if place else drafting.wishes
            ends = np.cumsum(output.num_tokens)
            for wish, end, count in zip(wishes, ends.tolist(), output.num_tokens.tolist(), strict=True):
                # Behind a row without a token nothing counts.
                if count and len(drafts[wish.item]) == place and output.token_ids[end - 1] < self._width:
                    drafts[wish.item].append(int(output.token_ids[end - 1]))
        for wish in drafting.wishes:
            if wish.count and self._is_as_in(drafting.launch, wish.slot):
                # The KV of what the last forward gave is not computed. Fewer are queued where memory is short.
                computed = min(wish.count, len(drafting.rounds)) - 1
                self._ahead[wish.slot] = Ahead(wish.num_known, drafts[wish.item][:computed])
        return drafts_of(
            drafting.num_items, drafts, len(drafting.rounds), time.perf_counter() - drafting.began
        )

    @torch.inference_mode()
    def time_forward(self, count: int, past: int) -> float:
        """See `PagedCompanion`; of the sequences in the first `count` slots, whose tables have blocks for it."""
        slots, ones = np.arange(count), np.ones(count, np.int64)
        began = time.perf_counter()
        self.forwards.send(slots, ones, past * ones, 0 * ones, ones > 0).result()
        return time.perf_counter() - began


@dataclass(slots=True)
class QueuedDrafting:
    """Forwards that are queued for the `wishes` of a step of `num_items` items, number `launch`. `began`: when they were queued,
    in seconds; `rounds`: the forward of what was missing, and one for each further draft."""

    launch: int
    num_items: int
    wishes: list[Wish]
    began: float
    rounds: list[PendingDeviceStep]

    def ready(self) -> bool:
        """Whether the device has computed all of them."""
        return self.rounds[-1].ready()


class DraftedStep:
    """A `PendingStep` whose output has drafts. It is the one that takes the results of `step`, in the order of steps."""

    def __init__(
        self, companion: DeviceDraftCompanion, batch: UnifiedBatch, step: PendingStep, launch: int, asks: bool
    ) -> None:
        """`launch`: its number; `asks`: whether an item wants drafts."""
        self._companion = companion
        self._batch = batch
        self._step = step
        self._launch = launch
        self._asks = asks
        self._output: UnifiedOutput | None = None
        self._drafting: QueuedDrafting | None = None

    @property
    def is_held(self) -> bool:
        """See `PendingStep`."""
        return self._step.is_held or (self._asks and self._output is None)

    def _begin(self) -> UnifiedOutput:
        if self._output is None:
            self._output = self._step.result()
            self._drafting = self._companion.begin(self._batch, self._output, self._launch, self._asks)
        return self._output

    def ready(self) -> bool:
        """See `PendingStep`. Queues the drafting when the step is done."""
        if self._output is None:
            if not self._step.ready():
                return False
            self._begin()
        return self._drafting is None or self._drafting.ready()

    def result(self) -> UnifiedOutput:
        """See `PendingStep`."""
        output = self._begin()
        if self._drafting is not None:
            output.drafts = self._companion.end(self._drafting)
            self._drafting = None
        return output
