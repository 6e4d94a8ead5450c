"""The interface between LlmExecutor and a model: the input of a step, and the forwards it offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from executors.contract.status import ModelInfo
from executors.kernels.scan import StateStep
from executors.llm.model.caches import CacheSpec
from executors.llm.row_loras import RowLoras


class Attend(Protocol):
    """Attention of a step, one layer at a time."""

    def __call__(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor:
        """Write k and v [T, kv_heads, head_dim] to the cache; return the attention [T, heads, head_dim] of q, of the same shape.

        `sinks` [heads]: a logit of each head that takes part in the softmax and has no value, as in gpt-oss; None for none. They
        may be given only where `KvSpec.sinks` says that layers have them.
        """


class InnerState(NamedTuple):
    """A place within an item at which its state is kept: behind the first `num_rows` rows of item `item`, which has more."""

    item: int
    num_rows: int


class StepStates(Protocol):
    """The states of a step's sequences, its n items, which have `q_lens` rows each, one item after the other. `inner`: m places
    at which a state is kept beside those behind the items."""

    q_lens: list[int]
    inner: list[InnerState]

    @property
    def slots(self) -> StateStep:
        """Return where all these states lie, for the CPU's kernels, which read and write them there in place of `begin` and
        `store`."""

    def begin(self, layer: int) -> torch.Tensor:
        """Return the states float32 [n, *shape] before the step, of the layer with this `cache_index`; zeros for a sequence that
        begins."""

    def store(self, layer: int, states: torch.Tensor) -> None:
        """Keep the states [n + m, *shape]: behind each item's last row, then those of `inner`."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The packed tokens of a step. `token_ids` and `positions` int64 or int32 [T] on the model's device.

    `used_rows` int64, ascending: the rows whose hidden states are used, None for all. A model may skip the other rows.
    `adapters`: LoRA adapters of the rows; None if no row has one. `states`: those of the step's sequences; None if no layer
    has one. `hidden` [T, hidden]: what an MTP head takes of the model beside each token, see `mtp_head.py`; None for a model.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    attend: Attend
    used_rows: torch.Tensor | None = None
    adapters: RowLoras | None = None
    states: StepStates | None = None
    hidden: torch.Tensor | None = None


@runtime_checkable
class DecoderOnlyLLM(Protocol):
    """The interface that LlmExecutor requires of a model. A model that also has `unified_forward` runs one forward per step."""

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """The groups of memory that the model's layers need beside weights, see `caches.py`."""

    def prefill(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of the tokens of ONE sequence."""

    def batch_decode(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of one token each of T sequences."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute logits [rows, width] of hidden states [rows, hidden], in the model's dtype or float32. `out`, if given,
        receives them and has the same dtype."""


@runtime_checkable
class LabelModel(Protocol):
    """A model that may have a classification head."""

    def label_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits [rows, labels] of hidden states [rows, hidden]; those of the vocabulary without such a head."""


@runtime_checkable
class PreparedModel(Protocol):
    """A model that needs setup once the length of the longest sequence is known."""

    def prepare(self, max_model_len: int) -> None:
        """Set up the model. Called when weights are loaded and KV is planned, and again if the plan changes."""


class FusedForward(Protocol):
    """A forward that computes all layers in one call."""

    def takes(self, attend: Attend) -> bool:
        """Return whether the forward supports this attention."""

    def __call__(self, inputs: ForwardInput) -> torch.Tensor:
        """Compute hidden states [T, hidden] after the final norm. Rows that are not wanted hold arbitrary values."""


@runtime_checkable
class SamplingModel(Protocol):
    """A model that computes block maxima for sampling together with logits."""

    def logits_for_sampling(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute logits [rows, width], valid until the next call, and maxima of blocks of each row, float32 [rows, blocks]."""


@runtime_checkable
class UnifiedModel(DecoderOnlyLLM, Protocol):
    """A model that computes any mix of prefill chunks and decode steps in one forward."""

    def unified_forward(self, inputs: ForwardInput) -> torch.Tensor:
        """Hidden states [T, hidden] of all tokens of all sequences."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `activation_bytes_per_token` estimates the memory of a forward at its peak, in bytes per token."""

    model: DecoderOnlyLLM
    info: ModelInfo
    parameter_bytes: int
    activation_bytes_per_token: int
    note: str | None = None
    """Note on what runs slower here than it could."""
    warnings: tuple[str, ...] = ()
    """Parts of the checkpoint that are not used, one sentence each."""
    adapter_bytes_per_rank: int = 0
    """Bytes of a LoRA adapter of rank 1 for all linear layers that may have one."""
    files: tuple[str, ...] = ()
    """What tells its files from others', as they were when it was loaded."""
