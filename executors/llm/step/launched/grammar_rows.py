"""`GrammarRows`: rows of launched steps that follow a grammar. Their masks are made while the step's forward runs.

    device   | forward n | sample n |  forward n + 1               | masks | sample n + 1 |
    host                       token n -> |-- masks of n + 1 --| queue ^ (the sampler is held until then)

A mask needs the token before it. So a step with such rows is queued in two parts: its copy and forward at once, its sampler when
the tokens of the steps before it are known and the masks are made, on the grammars' thread. Nothing else is queued in between:
all steps share one tensor of logits and one of results, which the order of one stream protects. Rows without a grammar wait only
where a mask takes longer than the forward.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future

import numpy as np
import torch

from executors.contract.batch import ItemOutput, SequenceStart, UnifiedBatch
from executors.contract.errors import Skipped
from executors.llm.sampling.slot_grammars import Follower, Inputs, SlotGrammars
from executors.llm.step.launched.inputs import BufferRing
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.launched.queueing import RING, QueuedStep, StepQueue

_PAUSE_S = 0.002
"""Longest wait of a poll for masks, in seconds: a caller that polls may sleep for as long as steps usually take."""
_SHORT_S = 0.05
"""Seconds in which masks are polled for. They take longer where a grammar is compiled anew: then the host waits for them at once,
so that this does not count as time in which the device computes."""


class GrammarRows:
    """See the module. Used by the thread that computes the steps."""

    def __init__(self, grammars: SlotGrammars, num_slots: int) -> None:
        self._grammars = grammars
        self.has = np.zeros(num_slots, np.bool_)
        """Marks slots whose sequences sample under a grammar."""
        self._late: LateSampler | None = None
        """Of the step launched last, if its sampler is not queued yet."""
        self._unrecorded: list[tuple[PendingDeviceStep, frozenset[Follower]]] = []
        """Steps whose tokens the followers of their grammars may not know yet, oldest first."""

    def begin(self, start: SequenceStart) -> None:
        """A sequence begins in its slot. Called before `SlotGrammars` hears of it."""
        self.has[start.slot] = (
            start.grammar is not None and start.sampling is not None and start.pooling is None
        )

    def drop(self, slot: int) -> None:
        """The slot's sequence is released."""
        self.has[slot] = False

    def clear(self) -> None:
        """All sequences are released, and no step is in flight."""
        self.settle()
        self._unrecorded.clear()
        self.has[:] = False

    def items(self, slots: np.ndarray, sampled: np.ndarray, order: np.ndarray) -> np.ndarray:
        """int64 [k]: the items of a step whose tokens need masks, in the `order` of its rows, int64 [n]. `sampled` bool [n]."""
        return order[(sampled & self.has[slots])[order]]

    def settle(self) -> None:
        """Queue a sampler that is held, before anything else is queued; waits for its masks. What goes wrong is told by its own
        step."""
        if self._late is not None:
            self._late.failed()
            self._late = None

    def settle_host(self, slots: np.ndarray, ring: BufferRing) -> None:
        """Record all tokens in flight, if the host is to follow the grammar of one of these slots."""
        if self.has[slots].any():
            ring.drain()

    def hold(
        self, step: PendingDeviceStep, queue: StepQueue, queued: QueuedStep, batch: UnifiedBatch, items: np.ndarray,
        places: np.ndarray,
    ) -> None:  # fmt: skip
        """Make a step whose forward is `queued` wait for the masks of its `items`. `places` int64 [k]: where their tokens are
        among all that the step samples."""
        work = [
            (self._grammars.follower(slot), inputs)
            for slot, inputs in zip(batch.slots[items].tolist(), _inputs_of(batch, items), strict=True)
        ]
        followers = frozenset(follower for follower, _ in work)
        self._unrecorded = [one for one in self._unrecorded if not one[0].done][-RING:]
        before = [one for one, theirs in self._unrecorded if theirs & followers]
        self._late = step.late_sampler = LateSampler(queue, queued, self._grammars, work, places, before)
        self._unrecorded.append((step, followers))
        if not before:
            self._late.start()


class LateSampler:
    """The sampler of one step, queued once its masks are made.

    `work`: follower and inputs of each item with a grammar, in the order of the rows of `RowMasks.table`, of which an item has
    one and one for each draft; `places` int64 [k]: where their first rows are among the step's samples. `before`: steps that
    sample tokens which these grammars must take first.
    """

    def __init__(
        self, queue: StepQueue, queued: QueuedStep, grammars: SlotGrammars, work: list[tuple[Follower, Inputs]],
        places: np.ndarray, before: Sequence[PendingDeviceStep],
    ) -> None:  # fmt: skip
        self._queue = queue
        self._queued = queued
        self._grammars = grammars
        self._work = work
        self._num_masks = len(work) + sum(inputs.num_drafts for _, inputs in work)
        self._places = places.tolist()
        self._before = before
        self._masks: Future[dict[int, ItemOutput]] | None = None
        self._began = 0.0
        self._done = False
        self._error: Exception | None = None
        self.outputs: dict[int, ItemOutput] = {}
        """By place among the step's samples: outputs of items whose grammar cannot go on, instead of tokens."""
        for step in before:
            step.followed_by = self

    @property
    def queued(self) -> bool:
        """See `SamplerToCome`."""
        return self._done

    def start(self) -> None:
        """Start making masks, unless tokens before them are not recorded yet. Raises nothing: see `advance`."""
        if self._masks is None and self._error is None and all(step.done for step in self._before):
            self._began = time.monotonic()
            self._before = ()  # a chain of steps would never end
            try:
                into = self._queue.mask_rows(self._queued, self._num_masks)
                self._masks = self._grammars.start_packed(self._work, into)
            except Exception as error:
                self._fail(error)

    def advance(self, wait: bool = False) -> bool:
        """Do what can be done without waiting for long, or everything; return whether the sampler is queued. Raises, now and
        later, what went wrong; Skipped if a step before it did."""
        if self._error is not None:
            raise self._error
        if self._done:
            return True
        try:
            if not self._take_tokens(wait):
                return False
            self.start()
            if self._masks is None:
                raise self._error or AssertionError("masks are not started")
            if not wait and time.monotonic() - self._began < _SHORT_S:
                futures.wait((self._masks,), _PAUSE_S)
                if not self._masks.done():
                    return False
            self.outputs = {self._places[item]: output for item, output in self._masks.result().items()}
        except Exception as error:
            self._fail(error)
            raise
        try:
            with torch.inference_mode():
                self._queue.finish(self._queued, self._num_masks)
        except Exception as error:
            self._error = error
            raise
        self._done = True
        return True

    def _fail(self, error: Exception) -> None:
        """Give up a sampler that is not queued."""
        self._before = ()  # they know this one
        if self._error is None:
            self._error = error
            self._queue.abandon(self._queued)

    def failed(self) -> bool:
        """Queue the sampler, waiting for its masks; return whether that went wrong."""
        with contextlib.suppress(Exception):
            self.advance(wait=True)
        return self._error is not None

    def record(self, tokens: np.ndarray) -> None:
        """Let the grammars take `tokens` int32, all that the step sampled. The next masks tell whether they are valid; before,
        the next inputs take back what was sampled behind a rejected draft."""
        for (follower, inputs), first in zip(self._work, self._places, strict=True):
            for token in tokens[first : first + 1 + inputs.num_drafts].tolist():
                follower.output.append(token)

    def _take_tokens(self, wait: bool) -> bool:
        """Return whether the steps before this one have recorded their tokens. Raises Skipped."""
        for step in self._before:
            if step.done:
                continue
            try:
                if not (wait or step.ready()):
                    return False
                step.result()
            except Exception as error:
                raise Skipped("a step that this one follows failed") from error
        return True


def _inputs_of(batch: UnifiedBatch, items: np.ndarray) -> list[Inputs]:
    lens = batch.num_q_tokens
    ends = np.cumsum(lens)[items].tolist()
    columns = (
        lens[items].tolist(),
        batch.pos_offsets[items].tolist(),
        batch.num_draft_tokens[items].tolist(),
    )
    inputs = []
    for end, count, position, drafts in zip(ends, *columns, strict=True):
        part = slice(end - count, end)
        pending = None if batch.pending is None else batch.pending[part].tolist()
        inputs.append(Inputs(position, batch.token_ids[part].tolist(), pending, drafts))
    return inputs
