"""How steps of nothing but decodes are computed: the place where a faster form than the unified forward goes.

    a chunk in it, or a verification     -> the unified forward
    one token of each of n sequences     -> DecodeRunner

Such a step has one shape for every n, which is what a graph can be captured of. On a GPU it is, with lm_head, sampling and the
token pool in it, by `DeviceUnifiedRunner`, which has graphs of small mixed steps as well: there only those decode steps come
here whose hidden states the host works on (logprobs, edited logits), and they are launched call by call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.api import Attend
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays

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


class GraphDecodeRunner(PlainDecodeRunner):
    """The graphs of `DeviceUnifiedRunner`, named in `status()` beside how many there are; and the unified forward for the steps
    that are left to it."""

    name = "graphs"


def decode_runner_class(device: torch.device) -> type[PlainDecodeRunner]:
    """The form that a device gets."""
    return GraphDecodeRunner if device.type == "cuda" else PlainDecodeRunner


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

    def forward_packed(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """As `ModelRunner.forward_packed`: what the graphs are captured of."""
        if self.decode_runner is None:
            self.decode_runner = decode_runner_class(self.device)(super().forward)
        return super().forward_packed(token_ids, positions, attend)

    @property
    def note(self) -> str:
        """Which decode runner there is, for `status()`."""
        name = decode_runner_class(self.device).name
        return f"decode runner: {name}" + ("" if self.decode_runner else ", created at the first decode step")
