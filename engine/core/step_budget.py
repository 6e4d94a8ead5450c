"""`StepBudget`: how many tokens a step may have, fewer for a while after the executor had no memory for one."""

from __future__ import annotations

import logging

from engine.policies.budget import MIN_CHUNK

logger = logging.getLogger("cohort.engine")

LEAST_TOKENS = MIN_CHUNK
"""A step is not made smaller than this: what does not fit then is not the number of its tokens."""
PATIENCE = 64
"""Steps that go well before a budget that was cut is doubled."""
MOST_PATIENCE = 1 << 16
"""At about 50 steps a second, twenty minutes."""


class StepBudget:
    """Written by the loop task: by `Scheduler` when a step went well, by `Recovery` when there was no memory for one.

        no memory for a step         tokens -> half of what it had, at least LEAST_TOKENS
        `patience` steps went well   tokens -> twice as many, at most the configured number

    Each failed step makes all sequences recompute. So a failure right after growing doubles the patience: where memory stays
    short (another process on the device, say), the budget grows less and less often.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.tokens = most
        self._patience = PATIENCE
        self._good = 0
        self._grown = False

    def shrink(self, num_tokens: int) -> bool:
        """There was no memory for a step of `num_tokens`: the next ones are smaller. False if they cannot be."""
        if num_tokens <= LEAST_TOKENS:
            return False
        # Of what the step had: thousands are not what failed where a hundred decodes did.
        self.tokens = max(LEAST_TOKENS, min(self.tokens, num_tokens) // 2)
        if self._grown:
            self._patience = min(MOST_PATIENCE, 2 * self._patience)
        self._good, self._grown = 0, False
        return True

    def went_well(self) -> None:
        """A step gave its result."""
        self._good += 1
        if self.tokens < self.most and self._good >= self._patience:
            self._good, self._grown = 0, True
            self.tokens = min(self.most, 2 * self.tokens)
            if self.tokens == self.most:
                logger.info("steps may have %d tokens again", self.most)
        elif self._good >= MOST_PATIENCE:
            self._patience, self._grown = PATIENCE, False  # what was is forgotten
