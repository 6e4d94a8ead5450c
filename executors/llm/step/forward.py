"""`HostForward`: the stage that computes the hidden states of a step, launched call by call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.llm.device.base import DeviceMemory
from executors.llm.memory.device_memory import retried
from executors.llm.step.runner import ModelRunner
from executors.llm.step.states import SequenceStates
from executors.llm.step_arrays import StepArrays

Observe = Callable[[StepArrays, torch.Tensor], None]


class HostForward:
    """See the module. `memory`: see `retried`; `observe` receives each step and its token ids, int64 [T] on the device."""

    def __init__(
        self, states: SequenceStates, runner: ModelRunner, memory: DeviceMemory | None, observe: Observe | None = None
    ) -> None:  # fmt: skip
        self._states = states
        self._runner = runner
        self._memory = memory
        self._observe = observe

    def __call__(self, batch: UnifiedBatch, step: StepArrays) -> torch.Tensor:
        """Compute hidden states [T, hidden], and write KV."""
        self._runner.cache.copy_blocks(batch.block_copies)
        if self._states.companion is not None:
            self._states.companion.note(batch)
        return retried(self._memory, lambda: self._runner.forward(step, self._token_ids(batch, step)))

    def _token_ids(self, batch: UnifiedBatch, step: StepArrays) -> torch.Tensor:
        """Token ids int64 [T] on the device; pending ones come from the token pool."""
        ids = self._runner.to_device(step.token_ids)
        if batch.pending is not None and batch.pending.any():
            rows = np.flatnonzero(batch.pending)
            index = self._states.pool_index(batch.slots[step.item_of_row[rows]], step.positions[rows])
            ids[self._runner.to_device(rows)] = self._states.pool.view(-1).index_select(0, index).long()
        if self._observe is not None:
            self._observe(step, ids)
        return ids
