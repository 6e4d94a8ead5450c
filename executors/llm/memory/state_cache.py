"""The states of sequences: one row per slot and layer, in float32.

    layers[i]   [num_slots, *shape]

The engine gives out the slots: a step reads the state of an item in one, writes it to the same or another one, and leaves
snapshots in more. A slot needs no cleaning: a state begins with zeros where the step names no source. On a CPU a row becomes
resident when it is first written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.contract.checks import check_states
from executors.contract.errors import InvalidInput, OutOfMemory
from executors.contract.faults import no_memory
from executors.contract.status import StateLayout
from executors.llm.memory.kv_cache import lazy_zeros
from executors.llm.model.api import InnerState
from executors.llm.model.caches import StateSpec
from executors.llm.step_arrays import StateSlots, StepArrays


class StateCache:
    """States by slot. Only `SlotStates.store` writes them."""

    def __init__(self, spec: StateSpec, layout: StateLayout) -> None:
        """Raises OutOfMemory."""
        self.spec = spec
        self.layout = layout
        self.num_tokens = np.full(layout.num_slots, -1, np.int64)
        """How many tokens of its sequence each slot's state has seen; -1: none has written it."""
        self._trusts = False
        shape = (layout.num_slots, *spec.shape)
        try:
            self.layers = [lazy_zeros(shape, torch.float32, spec.device) for _ in range(spec.num_layers)]
        except (MemoryError, RuntimeError) as error:
            why = no_memory(error)
            if why is None:
                raise
            raise OutOfMemory(f"no memory for {layout.num_slots} states of sequences: {why}") from None

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.layout.num_slots * self.spec.bytes_per_slot()

    def check(self, batch: UnifiedBatch) -> None:
        """Raise InvalidInput for slots that cannot be used, see `check_states`, and for an item that begins at another position
        than its state ends."""
        if self._trusts:
            return
        check_states(batch, self.layout)
        source = batch.state_src
        assert source is not None
        lengths = np.where(source < 0, 0, self.num_tokens[source])
        wrong = np.flatnonzero(lengths != batch.pos_offsets)
        if len(wrong):
            i = int(wrong[0])
            state = (
                f"its state has seen {lengths[i]} tokens" if lengths[i] >= 0 else "its slot holds no state"
            )
            raise InvalidInput(
                f"sequence {batch.seq_ids[i]}: {state}, and the step begins at position {batch.pos_offsets[i]}"
            )

    @property
    def trusts(self) -> bool:
        """Whether steps are tried out that need not name slots."""
        return self._trusts

    @contextlib.contextmanager
    def trusting(self) -> Iterator[None]:
        """Let steps begin at any position, with whatever states there are: steps that are timed, whose results are not used, and
        which need not name slots."""
        self._trusts = True
        try:
            yield
        finally:
            self._trusts = False

    def step(self, step: StepArrays) -> SlotStates:
        """Return the states of a step's items. Call it once per step, in the order of steps. Items of a step that names no slots
        begin with zeros, in the first ones."""
        slots, count = step.states, len(step)
        if slots is None:
            slots = StateSlots(np.full(count, -1), np.arange(count), np.empty((0, 3), np.int64))
        self.num_tokens[slots.destinations] = step.pos_offsets + step.q_lens
        self.num_tokens[slots.snapshots[:, 2]] = slots.snapshots[:, 1]
        return SlotStates(self, step, slots)


class SlotStates:
    """The states of a step's items: a `StepStates`."""

    def __init__(self, cache: StateCache, step: StepArrays, slots: StateSlots) -> None:
        self.q_lens: list[int] = step.q_lens.tolist()
        items, positions, targets = slots.snapshots.T
        counts = positions - step.pos_offsets[items]
        self.inner = [InnerState(*one) for one in zip(items.tolist(), counts.tolist(), strict=True)]
        self._cache = cache
        self._sources = self._to_device(np.maximum(slots.sources, 0))
        self._fresh = self._to_device(np.flatnonzero(slots.sources < 0))
        self._written = self._to_device(np.concatenate((slots.destinations, targets)))

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self._cache.spec.device)

    def begin(self, layer: int) -> torch.Tensor:
        """See `StepStates`."""
        states = self._cache.layers[layer].index_select(0, self._sources)
        return states.index_fill_(0, self._fresh, 0.0)

    def store(self, layer: int, states: torch.Tensor) -> None:
        """See `StepStates`."""
        self._cache.layers[layer].index_copy_(0, self._written, states)
