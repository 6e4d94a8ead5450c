"""The states of sequences: one row per slot and layer, in float32.

    layers[i]   [num_slots, *shape]

The state of a slot belongs to the sequence that has the slot. It begins with zeros in the step that computes position 0, so a
slot needs no cleaning, and a preempted sequence, which computes its tokens again from position 0, gets a fresh state. The state
holds no earlier position: no prefix can be shared from it and no draft taken back. On a CPU a row becomes resident when it is
first written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.contract.errors import InvalidInput, OutOfMemory
from executors.contract.faults import no_memory
from executors.llm.memory.kv_cache import lazy_zeros
from executors.llm.model.caches import StateSpec


class StateCache:
    """States by slot. Only `SlotStates.store` writes them."""

    def __init__(self, spec: StateSpec, num_slots: int) -> None:
        """Raises OutOfMemory."""
        self.spec = spec
        self.num_slots = num_slots
        self.num_tokens = np.zeros(num_slots, np.int64)
        """How many tokens of its sequence each slot's state has seen."""
        self._trusts = False
        shape = (num_slots, *spec.shape)
        try:
            self.layers = [lazy_zeros(shape, torch.float32, spec.device) for _ in range(spec.num_layers)]
        except (MemoryError, RuntimeError) as error:
            why = no_memory(error)
            if why is None:
                raise
            raise OutOfMemory(f"no memory for {num_slots} states of sequences: {why}") from None

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.num_slots * self.spec.bytes_per_slot()

    def check(self, batch: UnifiedBatch) -> None:
        """Raise InvalidInput for drafts, and for an item that neither begins at position 0 nor continues where its state ends."""
        if self._trusts:
            return
        if batch.num_draft_tokens.any():
            raise InvalidInput(
                "drafts: the model's layers have states, from which a draft cannot be taken back"
            )
        new = {start.slot for start in batch.starts}
        lengths = [0 if slot in new else int(self.num_tokens[slot]) for slot in batch.slots.tolist()]
        for seq_id, length, begin in zip(
            batch.seq_ids.tolist(), lengths, batch.pos_offsets.tolist(), strict=True
        ):
            if begin not in (0, length):
                raise InvalidInput(
                    f"sequence {seq_id}: its state has seen {length} tokens and the step begins at position {begin}; a sequence "
                    "whose model has states begins at 0 or continues where it is"
                )

    @contextlib.contextmanager
    def trusting(self) -> Iterator[None]:
        """Let steps begin at any position, with whatever states there are: steps that are timed, whose results are not used."""
        self._trusts = True
        try:
            yield
        finally:
            self._trusts = False

    def step(self, slots: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray) -> SlotStates:
        """Return the states of a step's items, all int64 [n]: slots, numbers of tokens, first positions. Call it once per
        step, in the order of steps."""
        self.num_tokens[slots] = pos_offsets + q_lens
        return SlotStates(self, slots, q_lens, pos_offsets == 0)


class SlotStates:
    """The states of a step's items: a `StepStates`."""

    def __init__(self, cache: StateCache, slots: np.ndarray, q_lens: np.ndarray, fresh: np.ndarray) -> None:
        self.q_lens: list[int] = q_lens.tolist()
        self._cache = cache
        self._slots = torch.from_numpy(slots.astype(np.int64)).to(cache.spec.device)
        self._fresh = torch.from_numpy(np.flatnonzero(fresh)).to(cache.spec.device)

    def begin(self, layer: int) -> torch.Tensor:
        """See `StepStates`."""
        states = self._cache.layers[layer].index_select(0, self._slots)
        return states.index_fill_(0, self._fresh, 0.0)

    def store(self, layer: int, states: torch.Tensor) -> None:
        """See `StepStates`."""
        self._cache.layers[layer].index_copy_(0, self._slots, states)
