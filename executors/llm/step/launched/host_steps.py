"""`HostSteps`: which steps a device does not compute alone, why, and how many there were.

A step that needs the host within it is computed by the host's stages, eagerly: all its rows pay for the one that needs it.
"""

from __future__ import annotations

import enum
from collections import Counter

import numpy as np

from executors.contract.batch import UnifiedBatch
from executors.llm.sampling.shaped_slots import ShapedSlots
from executors.llm.step.states import SequenceStates


class HostReason(enum.StrEnum):
    """Why a step needs the host; the first that applies is counted."""

    OUTPUT = "prompt logprobs or pooling"
    SETTINGS = "typical-p, bad words of several tokens, or settings beyond the table on the device"
    TOO_MANY_DRAFTS = "more drafts than there is room for"
    """No engine asks for so many: see `ExecutorCapabilities.max_step_drafts`."""


class HostSteps:
    """See the module. `max_samples`: most rows that a launched step samples. Used by the thread that computes the steps."""

    def __init__(self, states: SequenceStates, shaped: ShapedSlots, max_samples: int) -> None:
        self._states = states
        self._shaped = shaped
        self._max_samples = max_samples
        self.slow = np.zeros(states.slots.num_slots, np.bool_)
        """Marks slots whose tokens need the host to choose them."""
        self.counts: Counter[HostReason] = Counter()
        """Steps computed by the host's stages."""

    def reason(self, batch: UnifiedBatch, sampled: np.ndarray) -> HostReason | None:
        """Return why a step needs the host, and count it; None if it does not. `sampled` bool [n]: items that get a token."""
        reason = self._reason(batch, sampled)
        if reason is not None:
            self.counts[reason] += 1
        return reason

    def _reason(self, batch: UnifiedBatch, sampled: np.ndarray) -> HostReason | None:
        if self._states.special[batch.slots].any():
            return HostReason.OUTPUT
        if self.slow[batch.slots[sampled]].any():
            return HostReason.SETTINGS
        if not batch.num_draft_tokens.any():
            return None
        drafts = np.where(sampled, batch.num_draft_tokens, 0)
        # Logits that are shaped take memory of their own behind each draft.
        shaped = int(drafts[self._shaped.row_of[batch.slots] >= 0].sum())
        rows = int(np.count_nonzero(sampled)) + int(drafts.sum())
        has_room = rows <= self._max_samples and shaped <= self._shaped.max_drafts
        return None if has_room else HostReason.TOO_MANY_DRAFTS

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`: none before the first such step."""
        if not self.counts:
            return ()
        each = ", ".join(f"{count} for {reason}" for reason, count in self.counts.most_common())
        return (f"steps computed with the host: {each}",)
