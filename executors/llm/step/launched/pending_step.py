"""`PendingDeviceStep`: a step that the device computes while the host continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from executors.contract.batch import ItemOutput, SampledToken, UnifiedOutput
from executors.contract.errors import ItemFault
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.step.launched.inputs import StepBuffer, host_results
from executors.llm.step.sampled_rows import SampledRows


class SamplerToCome(Protocol):
    """A sampler that waits for masks: `grammar_rows.LateSampler`."""

    outputs: dict[int, ItemOutput]

    @property
    def queued(self) -> bool:
        """Whether the device has all that it needs."""

    def start(self) -> None:
        """Start making masks, if the tokens before them are recorded."""

    def advance(self, wait: bool = False) -> bool:
        """Return whether the sampler is queued."""

    def failed(self) -> bool:
        """Queue the sampler; return whether that went wrong."""

    def record(self, tokens: np.ndarray) -> None:
        """Take the step's tokens."""


class PendingDeviceStep:
    """A `PendingStep` that is the `owner` of its buffer.

    `sampled` bool [n]: items that get a token; `places` int64: the places of their results among `samples`. `record` receives
    the tokens, int32 [places]; the result for `logprobs` is in the buffer's `more`. `verified`: the sampled rows, whose results
    are at `places`, if an item has drafts: then it is decided here which tokens count, as the host's stages decide it.
    """

    def __init__(
        self, buffer: StepBuffer, samples: int, sampled: np.ndarray, places: np.ndarray,
        record: Callable[[np.ndarray], None] | None = None, logprobs: LogprobRows | None = None,
        verified: SampledRows | None = None,
    ) -> None:  # fmt: skip
        self._buffer = buffer
        self._samples = samples
        self._sampled = sampled
        self._places = places
        self._record = record
        self._logprobs = logprobs
        self._verified = verified
        self._output: UnifiedOutput | None = None
        self.late_sampler: SamplerToCome | None = None
        """The step's own sampler, if it was not queued with the forward."""
        self.followed_by: SamplerToCome | None = None
        """The sampler of a later step that waits for this one's tokens."""
        buffer.owner = self

    @property
    def done(self) -> bool:
        """Whether the results were taken and recorded."""
        return self._output is not None

    @property
    def is_held(self) -> bool:
        """See `PendingStep`."""
        return self.late_sampler is not None and not self.late_sampler.queued

    def ready(self) -> bool:
        """See `PendingStep`."""
        if self._output is not None:
            return True
        return (self.late_sampler is None or self.late_sampler.advance()) and self._buffer.event.query()

    def settle(self) -> None:
        """Take the results before the buffer is used again. A step that cannot have any says so to its own caller."""
        if self.late_sampler is None or not self.late_sampler.failed():
            self.result()

    def result(self) -> UnifiedOutput:
        """See `PendingStep`."""
        if self._output is None:
            if self.late_sampler is not None:
                self.late_sampler.advance(wait=True)
            self._buffer.event.synchronize()
            tokens, bad = host_results(self._buffer.results, self._samples)
            chosen, wrong = tokens[self._places], bad[self._places]
            verified = self._verified
            self._output = (
                self._pack(chosen, wrong) if verified is None else self._verify(verified, chosen, wrong)
            )
            self._buffer.owner = None
            if self._record is not None:
                self._record(chosen)
            if self.late_sampler is not None:
                self.late_sampler.record(chosen)
            if self.followed_by is not None:  # at once: the device computes its forward already
                self.followed_by.start()
                self.followed_by = None
        return self._output

    def _pack(self, tokens: np.ndarray, bad: np.ndarray) -> UnifiedOutput:
        output = UnifiedOutput(self._sampled.astype(np.int32), tokens)
        outputs = {} if self.late_sampler is None else self.late_sampler.outputs
        if self._logprobs is None and not bad.any() and not outputs:
            return output
        items = np.flatnonzero(self._sampled)
        if self._logprobs is not None:
            sampled = self._logprobs.read(self._buffer.more.numpy(), tokens)
            output.details |= {int(items[place]): ItemOutput((one,)) for place, one in sampled.items()}
        without = bad != 0
        for item, why in zip(items[without].tolist(), bad[without].tolist(), strict=True):
            output.details[item] = _fault(why)
        for place, failed in outputs.items():
            output.details[int(items[place])] = failed
            without[place] = True
        output.num_tokens[items[without]] = 0
        output.token_ids = tokens[~without]
        return output

    def _verify(self, rows: SampledRows, tokens: np.ndarray, bad: np.ndarray) -> UnifiedOutput:
        """The output of a step with drafts, as `HostSampling` makes it. An item whose last row that counts has no token gives
        none."""
        faults = {row: _fault(int(bad[row])) for row in np.flatnonzero(bad).tolist()}
        if self.late_sampler is not None:
            faults |= self.late_sampler.outputs
        described: dict[int, SampledToken] = {}
        if self._logprobs is not None:
            described = self._logprobs.read(self._buffer.more.numpy(), tokens)
        without = np.zeros(len(tokens), np.bool_)
        without[list(faults)] = True
        counting, num_tokens = rows.keep(tokens, without)
        output = UnifiedOutput(num_tokens, tokens)
        if faults or described:
            for item in np.flatnonzero(rows.counts).tolist():
                first = int(rows.starts[item])
                end = first + int(num_tokens[item])
                if end - 1 in faults:
                    output.details[item] = faults[end - 1]
                    counting[first:end] = False
                    num_tokens[item] = 0
                elif first in described:
                    output.details[item] = ItemOutput(tuple(described[row] for row in range(first, end)))
        output.token_ids = tokens[counting]
        return output


def _fault(why: int) -> ItemOutput:
    """The output of an item for what the sampler says of a row without a token."""
    return ItemOutput.failed(ItemFault.NOTHING_LEFT if why == 2 else ItemFault.NOT_FINITE)
