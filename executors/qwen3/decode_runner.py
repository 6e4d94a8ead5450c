"""How steps of nothing but decodes are computed: the place where a faster form than the unified forward goes.

    a chunk in it, or a verification     -> the unified forward
    one token of each of n sequences     -> DecodeRunner

Such a step has one shape for every n, which is what a graph can be captured of; a mixed step has a new one each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from executors.llm.kv_cache import KvCache
from executors.llm.runner import ModelRunner
from executors.llm.step import StepArrays

Forward = Callable[[StepArrays, torch.Tensor | None], torch.Tensor]
"""`ModelRunner.forward` over the executor's own KV."""


class DecodeRunner(Protocol):
    """Computes decode steps over the executor's own KV. Made at the first of them, lives until shutdown."""

    name: str
    """For `status()`."""

    def decode(self, step: StepArrays, token_ids: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [n, hidden] of one token each of n sequences, whose KV is written.

        `token_ids` int64 [n] on the device replaces the step's own where some are known only there.
        """


class PlainDecodeRunner:
    """The unified forward, as for any other step."""

    name = "plain"

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def decode(self, step: StepArrays, token_ids: torch.Tensor | None) -> torch.Tensor:
        """See `DecodeRunner`."""
        return self._forward(step, token_ids)


def decode_runner_class(device: torch.device) -> type[PlainDecodeRunner]:
    """The form that a device gets. There is one form so far, for every device."""
    return PlainDecodeRunner


class Qwen3Runner(ModelRunner):
    """A `ModelRunner` that hands decode steps to its `decode_runner`, None until the first of them."""

    decode_runner: DecodeRunner | None = None

    def forward(
        self, step: StepArrays, token_ids: torch.Tensor | None = None, cache: KvCache | None = None
    ) -> torch.Tensor:
        """As `ModelRunner.forward`. Scratch KV is nobody's decode: it goes the general way."""
        own = cache is None or cache is self.cache
        if not own or (step.q_lens != 1).any():
            return super().forward(step, token_ids, cache)
        if self.decode_runner is None:
            self.decode_runner = decode_runner_class(self.device)(super().forward)
        return self.decode_runner.decode(step, token_ids)

    @property
    def note(self) -> str:
        """Which decode runner there is, for `status()`."""
        name = decode_runner_class(self.device).name
        return f"decode runner: {name}" + ("" if self.decode_runner else ", made at the first decode step")
