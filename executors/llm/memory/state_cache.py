"""The states of sequences: one row per slot and layer, in float32.

    layers[i]   [num_slots, *shape]; a row of it is contiguous

The engine gives out the slots: a step reads the state of an item in one, writes it to the same or another one, and leaves
snapshots in more. A slot needs no cleaning: a state begins with zeros where the step names no source. Slots are placed as KV
blocks are, see `kv_cache`: on a CPU [slot][layer], a slot is one range of a multiple of 4 KiB (`slots`) and becomes resident when
it is first written; on a device [layer][slot], a tensor for each layer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.contract.checks import check_states
from executors.contract.errors import InvalidInput, OutOfMemory
from executors.contract.faults import no_memory
from executors.contract.status import StateLayout
from executors.kernels.scan import LayerSlots, StateStep
from executors.llm.memory.kv_cache import give_back_rows, lazy_zeros
from executors.llm.model.api import InnerState
from executors.llm.model.caches import StateSpec
from executors.llm.step_arrays import StateSlots, StepArrays

_NONE, _ADOPTED = -1, -2


class StateCache:
    """States by slot. Only `SlotStates.store` writes them, and kernels that get `SlotStates.slots`.

    `slots` uint8 [num_slots, bytes of a slot]: the range of each slot, all layers, padding last; None where each layer is a
    tensor of its own.
    """

    def __init__(
        self, spec: StateSpec, layout: StateLayout, take: Callable[[int], np.ndarray | None] | None = None
    ) -> None:
        """`take`: function that gives so many bytes of memory on a CPU, see `KvArena.take`; None: memory of its own. Raises
        OutOfMemory."""
        self.spec = spec
        self.layout = layout
        self.slots: np.ndarray | None = None
        self.num_tokens = np.full(layout.num_slots, _NONE, np.int64)
        """How many tokens of its sequence each slot's state has seen; -1: none has written it in this epoch; -2: it was adopted,
        and the step that begins with it says how many."""
        self._trusts = False
        try:
            if spec.device.type == "cpu":
                self.layers = self._place_by_slot(take)
            else:
                shape = (layout.num_slots, *spec.shape)
                self.layers = [lazy_zeros(shape, torch.float32, spec.device) for _ in range(spec.num_layers)]
        except (MemoryError, RuntimeError) as error:
            why = no_memory(error)
            if why is None:
                raise
            raise OutOfMemory(f"no memory for {layout.num_slots} states of sequences: {why}") from None

    def _place_by_slot(self, take: Callable[[int], np.ndarray | None] | None) -> list[torch.Tensor]:
        """Set `slots`; return its views [num_slots, *shape], one for each layer."""
        spec, size, count = self.spec, self.spec.bytes_per_slot(), self.layout.num_slots
        memory = None if take is None else take(count * size)
        if memory is None:
            memory = lazy_zeros((count * size,), torch.uint8, spec.device, True).numpy()
        self.slots = memory[: count * size].reshape(count, size)
        flat, row = torch.from_numpy(memory[: count * size]).view(torch.float32), math.prod(spec.shape)
        inner = [math.prod(spec.shape[i + 1 :]) for i in range(len(spec.shape))]
        strides = (size // torch.float32.itemsize, *inner)
        return [
            flat.as_strided((count, *spec.shape), strides, row * layer) for layer in range(spec.num_layers)
        ]

    def begin(self, adopted: np.ndarray) -> None:
        """Begin an epoch: no slot holds anything but these, int [n], which an earlier life has written."""
        self.num_tokens.fill(_NONE)
        self.num_tokens[adopted] = _ADOPTED

    def adopt(self, slots: np.ndarray) -> None:
        """These slots, int [n], were filled from outside; a step that begins with one says how many tokens its state has seen."""
        self.num_tokens[slots] = _ADOPTED

    def give_back(self, slots: np.ndarray) -> None:
        """Return the memory of these slots to the system: they read as zeros until they are written again. `slots` int [n],
        ascending; does nothing on a device. Raises InvalidInput for a slot that does not exist."""
        if not len(slots) or self.slots is None:
            return
        if slots[0] < 0 or slots[-1] >= len(self.slots):
            raise InvalidInput(f"slot {slots[0]} or {slots[-1]} is outside 0..{len(self.slots) - 1}")
        self.num_tokens[slots] = _NONE
        give_back_rows(self.slots, slots)

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.layout.num_slots * self.spec.bytes_per_slot()

    @cached_property
    def layer_slots(self) -> LayerSlots:
        """The layers' states as the CPU's kernels find them."""
        return LayerSlots(self.layers)

    def check(self, batch: UnifiedBatch) -> None:
        """Raise InvalidInput for slots that cannot be used, see `check_states`, and for an item that begins at another position
        than its state ends."""
        if self._trusts:
            return
        check_states(batch, self.layout)
        source = batch.state_src
        assert source is not None
        lengths = np.where(source < 0, 0, self.num_tokens[source])
        position = batch.pos_offsets
        # What was adopted is a snapshot, and the server knows its position.
        adopted = (lengths == _ADOPTED) & (position > 0) & (position % self.layout.interval == 0)
        wrong = np.flatnonzero((lengths != position) & ~adopted)
        if len(wrong):
            i = int(wrong[0])
            state = f"its state has seen {lengths[i]} tokens"
            if lengths[i] < 0:
                adopted_one = f"its state is a snapshot at a multiple of {self.layout.interval} tokens"
                state = adopted_one if lengths[i] == _ADOPTED else "its slot holds no state"
            raise InvalidInput(
                f"sequence {batch.seq_ids[i]}: {state}, and the step begins at position {position[i]}"
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
        begins = slots.sources >= 0
        self.num_tokens[slots.sources[begins]] = step.pos_offsets[begins]
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
        self._cache, self._slots, self._snapshots = cache, slots, targets
        self._sources = self._to_device(np.maximum(slots.sources, 0))
        self._fresh = self._to_device(np.flatnonzero(slots.sources < 0))
        self._written = self._to_device(np.concatenate((slots.destinations, targets)))

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(self._cache.spec.device)

    @cached_property
    def slots(self) -> StateStep:
        """See `StepStates`."""
        return StateStep(
            self._cache.layer_slots,
            self.q_lens,
            self._slots.sources,
            self._slots.destinations,
            self.inner,
            self._snapshots,
        )

    def begin(self, layer: int) -> torch.Tensor:
        """See `StepStates`."""
        states = self._cache.layers[layer].index_select(0, self._sources)
        return states.index_fill_(0, self._fresh, 0.0)

    def store(self, layer: int, states: torch.Tensor) -> None:
        """See `StepStates`."""
        self._cache.layers[layer].index_copy_(0, self._written, states)
