"""`PendingDeviceStep`: a step that the device computes while the host continues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from executors.contract.batch import ItemOutput, UnifiedOutput
from executors.contract.errors import ItemFault
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.step.launched.inputs import StepBuffer, host_results


class PendingDeviceStep:
    """A `PendingStep` that is the `owner` of its buffer.

    `sampled` bool [n]: items that get a token; `places` int64: the places of their results among `samples`. `record` receives
    the tokens, int32 [places]; the result for `logprobs` is in the buffer's `more`.
    """

    def __init__(
        self, buffer: StepBuffer, samples: int, sampled: np.ndarray, places: np.ndarray,
        record: Callable[[np.ndarray], None] | None = None, logprobs: LogprobRows | None = None,
    ) -> None:  # fmt: skip
        self._buffer = buffer
        self._samples = samples
        self._sampled = sampled
        self._places = places
        self._record = record
        self._logprobs = logprobs
        self._output: UnifiedOutput | None = None
        buffer.owner = self

    def ready(self) -> bool:
        """See `PendingStep`."""
        return self._output is not None or self._buffer.event.query()

    def settle(self) -> None:
        """Take the results before the buffer is used again."""
        self.result()

    def result(self) -> UnifiedOutput:
        """See `PendingStep`."""
        if self._output is None:
            self._buffer.event.synchronize()
            tokens, bad = host_results(self._buffer.results, self._samples)
            chosen = tokens[self._places]
            self._output = self._pack(chosen, bad[self._places])
            self._buffer.owner = None
            if self._record is not None:
                self._record(chosen)
        return self._output

    def _pack(self, tokens: np.ndarray, bad: np.ndarray) -> UnifiedOutput:
        output = UnifiedOutput(self._sampled.astype(np.int32), tokens)
        if self._logprobs is None and not bad.any():
            return output
        items = np.flatnonzero(self._sampled)
        if self._logprobs is not None:
            sampled = self._logprobs.read(self._buffer.more.numpy(), tokens)
            output.details |= {int(items[place]): ItemOutput((one,)) for place, one in sampled.items()}
        if bad.any():
            for item, why in zip(items[bad != 0].tolist(), bad[bad != 0].tolist(), strict=True):
                output.num_tokens[item] = 0
                fault = ItemFault.NOTHING_LEFT if why == 2 else ItemFault.NOT_FINITE
                output.details[item] = ItemOutput.failed(fault)
            output.token_ids = tokens[bad == 0]
        return output
