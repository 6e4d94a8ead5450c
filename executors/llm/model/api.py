"""What LlmExecutor and a model ask of each other: the step that goes in, the KV that it needs, and the forwards it offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from executors.contract.status import ModelInfo

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [T, heads, head_dim], k, v [T, kv_heads, head_dim]) -> [T, heads, head_dim]; writes k and v to the cache."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The packed tokens of a step. `token_ids` and `positions` int64 or int32 [T] on the model's device.

    `wanted` int64, ascending: the rows whose hidden states will be looked at, None for all. A model may leave out others.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attend: Attend
    wanted: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What the model's attention needs: it stores `num_layers` x keys and values of [num_kv_heads, head_dim] per token.

    `scale` multiplies the scores, `softcap` c makes them c * tanh(score / c). `windows` has one entry per layer: how many
    tokens a token sees, itself included; None for all before it.

    `kv_dtype`: what keys and values are stored in where that is not `dtype`, and `kv_scales` one pair per layer: what stored
    keys and values are multiplied by; () for 1.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    scale: float
    softcap: float | None
    windows: tuple[int | None, ...]
    kv_dtype: torch.dtype | None = None
    kv_scales: tuple[tuple[float, float], ...] = ()

    @property
    def stored_dtype(self) -> torch.dtype:
        """Of keys and values in the cache."""
        return self.kv_dtype or self.dtype

    def scales(self, layer: int) -> tuple[float, float]:
        """What the layer's stored keys, and values, are multiplied by."""
        return self.kv_scales[layer] if self.kv_scales else (1.0, 1.0)

    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.stored_dtype.itemsize


@runtime_checkable
class DecoderOnlyLLM(Protocol):
    """What LlmExecutor asks of a model. One with `unified_forward` too runs one forward per step."""

    @property
    def kv_spec(self) -> KvSpec:
        """Shape of the KV the model needs."""

    def prefill(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of the tokens of ONE sequence."""

    def batch_decode(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of one token each of T sequences."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [rows, width] of hidden states [rows, hidden], in the model's dtype or float32; in `out` if that is given, which
        is of the same dtype."""


@runtime_checkable
class PreparedModel(Protocol):
    """A model that has something to set up once the length of the longest sequence is known."""

    def prepare(self, max_model_len: int) -> None:
        """Called when weights are loaded and KV is planned; again where the plan has changed."""


class FusedForward(Protocol):
    """All layers in one call."""

    def takes(self, attend: Attend) -> bool:
        """Whether it can work with this attention."""

    def __call__(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] after the final norm; of rows that are not wanted they mean nothing."""


@runtime_checkable
class SamplingModel(Protocol):
    """A model that finds what sampling looks for first while it computes logits."""

    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [rows, width], good until the next call, and maxima of blocks of each row, float32 [rows, blocks]."""


@runtime_checkable
class UnifiedModel(DecoderOnlyLLM, Protocol):
    """A model that computes any mix of prefill chunks and decode steps in one forward."""

    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of all tokens of all sequences."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `activation_bytes_per_token` is an estimate of what a forward needs at its widest."""

    model: DecoderOnlyLLM
    info: ModelInfo
    parameter_bytes: int
    activation_bytes_per_token: int
    note: str | None = None
    """What is slower here than it could be."""
    warnings: tuple[str, ...] = ()
    """What in the checkpoint is not used, a sentence each."""
