"""Inputs and outputs of the contract's prefill and decode calls. Standard library and NumPy only."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executors.contract.batch import KvCacheHandle, SampledToken
from executors.contract.errors import InvalidInput
from executors.contract.sampling import SamplingParams
from executors.contract.tensor import Tensor


class LogitsMode(enum.StrEnum):
    """Which logits a prefill returns. Whole-prompt logits are gigabytes: LAST is the default."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PrefillInput:
    """One prompt, or a chunk of it.

    - `input_ids` int32 [1, L]; `attention_mask` int32 [1, pos_offset + L] or None for all ones (a mask with zeros raises
      Unsupported where the executor cannot honour it); `position_ids` int32 [1, L] or None for
      pos_offset .. pos_offset + L - 1.
    - `kv_cache`: the location of earlier tokens' KV, to which this chunk's KV is added; its tables must cover
      pos_offset + L tokens if the executor is paged. None: nothing is kept after the call, pos_offset must be 0.
    - `sampling` set: sample the next token on the device (at position pos_offset + L).
    """

    input_ids: Tensor
    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    kv_cache: KvCacheHandle | None = None
    pos_offset: int = 0
    logits: LogitsMode = LogitsMode.LAST
    sampling: SamplingParams | None = None
    adapter: str | None = None
    want_hidden_states: bool = False
    want_attention_weights: bool = False

    def batch_size(self) -> int:
        """Number of prompts: the first dimension of `input_ids`, always 1."""
        return self.input_ids.shape[0]

    def sequence_length(self) -> int:
        """Number of query tokens L."""
        return self.input_ids.shape[1]


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """`logits` float32 [1, L, V] (ALL), [1, 1, V] (LAST) or None; `hidden_states` [1, L, hidden] and `attention_weights`
    [layers, heads, L, pos_offset + L] only if requested (Unsupported if they are not available); `kv_cache` the handle with
    its new length; `sampled` if sampling was requested."""

    logits: Tensor | None
    kv_cache: KvCacheHandle | None
    hidden_states: Tensor | None = None
    attention_weights: Tensor | None = None
    sampled: SampledToken | None = None

    def last_token_logits(self) -> NDArray[np.float32]:
        """float32 [V]: logits at the last position. Raises InvalidInput if none were requested."""
        if self.logits is None:
            raise InvalidInput("no logits were asked for")
        row: NDArray[np.float32] = (
            self.logits.numpy().reshape(-1, self.logits.shape[-1])[-1].astype(np.float32)
        )
        return row


@dataclass(frozen=True, slots=True)
class DecodeInput:
    """One token of one sequence: `input_ids` int32 [1, 1] at position `pos_offset`, whose KV is written by this call.

    `kv_cache` as for prefill, required."""

    input_ids: Tensor
    kv_cache: KvCacheHandle
    pos_offset: int
    logits: LogitsMode = LogitsMode.LAST
    sampling: SamplingParams | None = None
    adapter: str | None = None

    def batch_size(self) -> int:
        """Number of sequences: always 1."""
        return self.input_ids.shape[0]


@dataclass(frozen=True, slots=True)
class DecodeOutput:
    """`logits` float32 [1, 1, V] or None, `kv_cache` with its new length, `sampled` if sampling was requested."""

    logits: Tensor | None
    kv_cache: KvCacheHandle
    hidden_states: Tensor | None = None
    attention_weights: Tensor | None = None
    sampled: SampledToken | None = None

    def last_token_logits(self) -> NDArray[np.float32]:
        """float32 [V]. Raises InvalidInput if none were requested."""
        if self.logits is None:
            raise InvalidInput("no logits were asked for")
        row: NDArray[np.float32] = self.logits.numpy().reshape(-1).astype(np.float32)
        return row


@dataclass(frozen=True, slots=True)
class SpeculativeDecodeOutput:
    """The result of `speculative_decode`.

    - `accepted_tokens`: the accepted drafts, then one token of the executor's own: N + 1 at most.
    - `next_logits` float32 [1, 1, V]: those that the last of these tokens was sampled from; None if the request asked for none.
    - `kv_cache`: the handle; `num_tokens` counts the KV of the input and of the accepted drafts, the last token has none yet.
    - `acceptance_count`: how many drafts were accepted.
    """

    accepted_tokens: tuple[SampledToken, ...]
    next_logits: Tensor | None
    kv_cache: KvCacheHandle
    acceptance_count: int
