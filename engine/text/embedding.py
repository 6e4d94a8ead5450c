"""Prompts in token ids to vectors or label logits: sequences without output, queued and budgeted like any other."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError, InvalidRequest, SequenceFailed
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from engine.text.core import TextCore
from executors.contract import SamplingParams

_MOST_AT_ONCE = 64
"""Number of prompts of one call in the engine at a time: the others wait here and do not fill the engine's queue."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One API call. `pooling`: "last" takes the last token's hidden state, "mean" the mean over all of the prompt's, "logits"
    those of `label_ids` at the last token."""

    context: RequestContext
    prompts: tuple[tuple[int, ...], ...]
    pooling: str = "last"
    adapter: str | None = None
    """Digest of the LoRA adapter to compute with, known to the engine."""
    label_ids: tuple[int, ...] = ()
    """Labels of the model's classification head, or token ids if it has none."""
    second_segments: tuple[int | None, ...] = ()
    """`Request.second_segment` of each prompt; (): all prompts are one text."""


class Embedder:
    """One call in progress; if `run` ends early, its running sequences are aborted."""

    def __init__(self, core: TextCore, request: EmbeddingRequest) -> None:
        self._core = core
        self._request = request
        self._mailbox = Mailbox()
        self._seq_ids: dict[int, int] = {}
        """Sequences that still run, by the number of their prompt."""
        self.cached_tokens = 0
        """Number of tokens of all prompts found in the prefix cache."""

    async def run(self) -> list[NDArray[np.float32]]:
        """float32 [hidden] or [labels] for each prompt, as the model returns it, not normalised.

        Raises EngineError: the first prompt that fails ends the call.
        """
        vectors: dict[int, NDArray[np.float32]] = {}
        waiting = list(enumerate(self._request.prompts))[::-1]
        with self._core.call():
            try:
                while waiting or self._seq_ids:
                    while waiting and len(self._seq_ids) < _MOST_AT_ONCE:
                        self._submit(*waiting.pop(), accepted=bool(vectors))
                    for number, delta in (await self._mailbox.take()).items():
                        vectors[number] = self._take(number, delta)
            finally:
                for seq_id in self._seq_ids.values():
                    self._core.abort(seq_id)
        return [vectors[number] for number in range(len(self._request.prompts))]

    def _submit(self, number: int, ids: SequenceOf[int], accepted: bool) -> None:
        call = self._request
        one = Request(
            call.context,
            np.array(ids, np.int32),
            SamplingParams(),
            max_tokens=1,
            adapter=call.adapter,
            pooling=call.pooling,
            label_ids=call.label_ids,
            second_segment=call.second_segments[number] if call.second_segments else None,
        )
        try:
            self._seq_ids[number] = self._core.submit(one, self._mailbox, number, accepted=accepted)
        except InvalidRequest as error:
            error.element = number
            raise

    def _take(self, number: int, delta: TokenDelta) -> NDArray[np.float32]:
        del self._seq_ids[number]  # an embedding request has one delta
        if delta.finish_reason is FinishReason.ERROR:
            error: EngineError = delta.error or SequenceFailed("the sequence failed")
            error.element = number
            raise error
        if delta.pooled is None:
            raise SequenceFailed("the executor gave no embedding")
        self.cached_tokens += delta.num_cached_tokens
        return delta.pooled
