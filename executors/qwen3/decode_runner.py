"""Computes steps that consist of decodes only; a faster form than the unified forward belongs here.

    steps with a chunk, verification     -> the unified forward
    one token each of n sequences        -> DecodeRunner

Such a step has one shape for every n, so a graph can be captured of it. On a GPU `LaunchedSteps` does so, with lm_head,
sampling and the token pool in the graph, and also has graphs of small mixed steps. Only decode steps whose hidden states the
host processes (logprobs, edited logits) reach this module there, and they are launched call by call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from executors.llm.device.table import device_of
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.api import Attend
from executors.llm.row_loras import RowLoras
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays

Forward = Callable[[StepArrays, torch.Tensor | None], torch.Tensor]
"""`ModelRunner.forward` over the executor's own KV."""


class DecodeRunner(Protocol):
    """Computes decode steps over the executor's own KV. Created at the first such step and kept until shutdown."""

    name: str
    """Name for `status()`."""

    def decode(self, step: StepArrays, token_ids: torch.Tensor | None) -> torch.Tensor:
        """Compute hidden states [n, hidden] of one token each of n sequences and write their KV.

        `token_ids` int64 [n] on the device replaces the step's own ids if the host does not know some of them yet.
        """


class PlainDecodeRunner:
    """Uses the unified forward, as for any other step."""

    name = "plain"

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def decode(self, step: StepArrays, token_ids: torch.Tensor | None) -> torch.Tensor:
        """See `DecodeRunner`."""
        return self._forward(step, token_ids)


class GraphDecodeRunner(PlainDecodeRunner):
    """Names the graphs of `LaunchedSteps` in `status()`, beside their number, and uses the unified forward for the
    remaining steps."""

    name = "graphs"


def decode_runner_class(device: torch.device) -> type[PlainDecodeRunner]:
    """Return the decode runner class for a device."""
    return GraphDecodeRunner if device_of(device).launches else PlainDecodeRunner


class Qwen3Runner(ModelRunner):
    """A `ModelRunner` that passes decode steps to its `decode_runner`, which is None until the first of them."""

    decode_runner: DecodeRunner | None = None

    def forward(
        self, step: StepArrays, token_ids: torch.Tensor | None = None, cache: KvCache | None = None
    ) -> torch.Tensor:
        """See `ModelRunner.forward`. Steps over scratch KV use the unified forward."""
        own = cache is None or cache is self.cache
        if not own or (step.q_lens != 1).any():
            return super().forward(step, token_ids, cache)
        if self.decode_runner is None:
            self.decode_runner = decode_runner_class(self.device)(super().forward)
        return self.decode_runner.decode(step, token_ids)

    def forward_packed(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, adapters: RowLoras | None = None
    ) -> torch.Tensor:  # fmt: skip
        """See `ModelRunner.forward_packed`. Graphs are captured of this call."""
        if self.decode_runner is None:
            self.decode_runner = decode_runner_class(self.device)(super().forward)
        return super().forward_packed(token_ids, positions, attend, adapters)

    @property
    def note(self) -> str:
        """Note on the decode runner, for `status()`."""
        name = decode_runner_class(self.device).name
        return f"decode runner: {name}" + ("" if self.decode_runner else ", created at the first decode step")
