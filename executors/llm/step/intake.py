"""`HostIntake`: the first stage of a step. Checks it, and stores what lasts of its sequences."""

from __future__ import annotations

from executors.contract.batch import UnifiedBatch
from executors.contract.checks import (
    check_arrays,
    check_blocks,
    check_limits,
    check_pooling,
    check_seals,
    check_segments,
    check_states,
)
from executors.contract.errors import InvalidInput
from executors.contract.status import KvLayout
from executors.llm.memory.state_cache import StateCache
from executors.llm.step.states import SequenceStates


class HostIntake:
    """See the module. `layout` of KV and states; `max_batch_size`: most sequences of a step; `layer_states`: what layers keep of
    sequences, if they keep any."""

    def __init__(
        self, states: SequenceStates, layout: KvLayout, max_batch_size: int, layer_states: StateCache | None = None
    ) -> None:  # fmt: skip
        self._states = states
        self._num_blocks = tuple(group.num_blocks for group in layout.groups)
        self._num_sealable = layout.num_sealable
        self._max_batch_size = max_batch_size
        self._layer_states = layer_states

    def __call__(self, batch: UnifiedBatch) -> None:
        """Take in a step. Raises InvalidInput, and nothing has changed."""
        self._check(batch)
        self._states.slots.apply(batch)
        for start in batch.starts:
            self._states.begin(start)

    def _check(self, batch: UnifiedBatch) -> None:
        states = self._states
        check_arrays(batch)
        check_limits(batch, states.logits_width, states.max_model_len, self._max_batch_size)
        check_blocks(batch, self._num_blocks)
        check_seals(batch, self._num_sealable)
        if self._layer_states is None:
            check_states(batch, None)
        else:
            self._layer_states.check(batch)
        tables = batch.tables
        if len(tables.slots):
            if tables.starts.min() < 0 or tables.counts.min() < 0:
                raise InvalidInput("table updates: starts and counts must not be negative")
            if tables.slots.min() < 0 or tables.slots.max() >= states.slots.num_slots:
                raise InvalidInput(f"table updates: slots must be within 0..{states.slots.num_slots - 1}")
            if int(tables.counts.sum()) != len(tables.block_ids):
                raise InvalidInput("table updates: counts do not add up to the number of block_ids")
        for start in batch.starts:
            if start.sampling is not None:
                start.sampling.check_ids(states.logits_width)
            if states.adapters is not None:
                states.adapters.check(start.adapter)
            elif start.adapter is not None:
                raise InvalidInput(f"sequence {start.seq_id}: adapter {start.adapter!r} is not loaded")
            if start.grammar is not None and states.grammars.compiler.unsupported is not None:
                why = states.grammars.compiler.unsupported
                raise InvalidInput(f"sequence {start.seq_id}: this executor does not support grammars: {why}")
            check_pooling(start, states.label_width)
            check_segments(start, 0)  # decoders have no token types
