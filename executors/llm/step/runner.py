"""`ModelRunner`: one forward over packed items, and logits for the rows that need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from executors.contract.status import StateLayout
from executors.llm.attention import groups
from executors.llm.attention.backend import AttentionBackend
from executors.llm.device.ranges import Ranges, no_ranges
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.memory.state_cache import SlotStates, StateCache
from executors.llm.model.api import (
    Attend,
    DecoderOnlyLLM,
    ForwardInput,
    LabelModel,
    SamplingModel,
    UnifiedModel,
)
from executors.llm.model.caches import kv_group, state_group
from executors.llm.row_loras import RowLoras
from executors.llm.step_arrays import StepArrays

LOGITS_CHUNK = 256
"""Rows of lm_head computed at a time if logits of whole prompts are requested. A row of a large vocabulary takes over half a
megabyte."""


class ModelRunner:
    """The model, its attention and its KV, and the states that layers keep of sequences."""

    def __init__(self, model: DecoderOnlyLLM, attention: AttentionBackend, cache: PagedKv) -> None:
        self.model = model
        self.attention = attention
        self.cache = cache
        self.device = kv_group(model).device
        # Asked once: a protocol's isinstance looks at every member, each time.
        self._unified = model if isinstance(model, UnifiedModel) else None
        self._sampling = model if isinstance(model, SamplingModel) else None
        self._labels = model.label_logits if isinstance(model, LabelModel) else model.logits
        self.states: StateCache | None = None
        """States of sequences, if layers have some; see `hold_states`."""
        self.ranges: Ranges = no_ranges
        """Names phases of a step for profilers."""
        self.forwards = 0
        """Number of calls of the model since start."""

    def hold_states(
        self, layout: StateLayout | None, take: Callable[[int], np.ndarray | None] | None = None
    ) -> None:
        """Allocate the states, if the model's layers have some. `take`: see `StateCache`. Raises OutOfMemory."""
        if layout is not None and (spec := state_group(self.model)) is not None:
            self.states = StateCache(spec, layout, take)

    def _states(self, step: StepArrays) -> SlotStates | None:
        if self.states is None:
            return None
        cache = self.states
        if step.states is None and not cache.trusts:  # items of a direct call: their states are gone with it
            cache = StateCache(cache.spec, replace(cache.layout, num_slots=len(step)))
        return cache.step(step)

    def to_device(self, values: np.ndarray) -> torch.Tensor:
        """int64 tensor on the model's device."""
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self.device)

    def forward(
        self, step: StepArrays, token_ids: torch.Tensor | None = None, cache: PagedKv | None = None,
        hidden: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Compute hidden states [T, hidden] of a step and write its KV to `cache` (default: the executor's own). Rows that
        are not wanted may hold arbitrary values.

        `token_ids` int64 [T] on the device replaces the step's own ids if the host does not know some of them yet.
        `hidden` [T, hidden]: see `ForwardInput`.
        """
        cache = cache or self.cache
        ids = self.to_device(step.token_ids) if token_ids is None else token_ids
        if self._unified is not None:
            return self._call(self._unified.unified_forward, step, ids, cache, hidden)
        return self._forward_split(step, ids, cache)

    @property
    def takes_packed(self) -> bool:
        """Whether `forward_packed` works: the model has a unified forward."""
        return self._unified is not None

    def forward_packed(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend, adapters: RowLoras | None = None
    ) -> torch.Tensor:  # fmt: skip
        """Compute hidden states [T, hidden] of tokens on the device, `token_ids` and `positions` int [T], without
        synchronising with the host. `attend` writes the KV; `adapters` of the rows, None if no row has one."""
        assert self._unified is not None
        self.forwards += 1
        return self._unified.unified_forward(ForwardInput(token_ids, positions, attend, adapters=adapters))

    def _forward_split(self, step: StepArrays, ids: torch.Tensor, cache: PagedKv) -> torch.Tensor:
        """Run a model without a unified forward: prefills one by one, then all decodes together."""
        pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
        decodes = np.flatnonzero(step.q_lens == 1)
        for item in np.flatnonzero(step.q_lens > 1):
            pieces.append(self._part(self.model.prefill, step, np.array([item]), ids, cache))
        if len(decodes):
            pieces.append(self._part(self.model.batch_decode, step, decodes, ids, cache))
        hidden = pieces[0][1].new_empty(len(ids), pieces[0][1].shape[-1])
        for rows, part in pieces:
            hidden.index_copy_(0, rows, part)
        return hidden

    def _part(self, call, step, items, ids, cache) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.to_device(step.rows_of(items))
        return rows, self._call(call, step.subset(items), ids.index_select(0, rows), cache)

    def _call(
        self, call, step: StepArrays, ids: torch.Tensor, cache: PagedKv, hidden: torch.Tensor | None = None
    ) -> torch.Tensor:
        self.forwards += 1
        rotary = step.positions if step.rotary_positions is None else step.rotary_positions
        used_rows = None if step.used_rows is None else self.to_device(step.used_rows)
        return call(
            ForwardInput(
                ids,
                self.to_device(rotary),
                groups.begin(self.attention, step, cache),
                used_rows,
                step.adapters,
                self._states(step),
                hidden,
            )
        )

    def logits(self, hidden: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Logits [len(rows), width] of the given rows of a step's hidden states, in the model's dtype or float32."""
        if len(rows) < len(hidden):
            hidden = hidden.index_select(0, self.to_device(rows))
        return self.model.logits(hidden)

    def label_logits(self, hidden: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
        """Logits [len(rows), labels] of the given rows, of the vocabulary if the model has no classification head."""
        return self._labels(hidden.index_select(0, self.to_device(rows)))

    def logits_for_sampling(
        self, hidden: torch.Tensor, rows: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the same as `logits`, valid until the next call, and maxima of blocks of each row if the model provides
        them."""
        if self._sampling is None:
            return self.logits(hidden, rows), None
        if len(rows) < len(hidden):
            hidden = hidden.index_select(0, self.to_device(rows))
        return self._sampling.logits_for_sampling(hidden)

    def logits_in_chunks(self, hidden: torch.Tensor, rows: np.ndarray) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (first index into `rows`, logits) for `LOGITS_CHUNK` rows at a time."""
        for begin in range(0, len(rows), LOGITS_CHUNK):
            yield begin, self.logits(hidden, rows[begin : begin + LOGITS_CHUNK])
