"""`KvSizes`: how one budget of bytes is divided among the groups of KV blocks.

A group that keeps all tokens has blocks for T tokens. A window group has blocks for min(T, 2 w) tokens, where

    w = max_num_seqs * (window + 2 blocks) + max_num_batched_tokens

is what all sequences use at most: their windows, which begin and end anywhere in a block, and the tokens of a step. As much
again keeps prefixes for later requests. T is the largest number whose blocks fit the budget. One sequence of the greatest length
fits in any case: where T would be below that length, window groups get less than min(T, 2 w).

Where layers have states, there is a slot for each sequence, and snapshots take a third of what the blocks do, at least
`LEAST_SNAPSHOTS`. The same budget pays for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from executors.contract.config import ExecutorConfig
from executors.contract.status import KvGroup, KvLayout, StateLayout
from executors.llm.memory.kv_groups import group_specs, group_windows
from executors.llm.model.caches import KvSpec, StateSpec, block_bytes

LEAST_SNAPSHOTS = 8
"""Slots of states beside those of sequences."""
_INTERVAL = 64
"""Tokens between two places for a snapshot, rounded up to whole blocks."""


@dataclass(frozen=True, slots=True)
class _Group:
    """`window` in tokens. `share`: blocks that each sequence keeps, `step`: blocks that the largest step adds to those of all
    sequences, `most`: blocks that are of use."""

    window: int | None
    bytes_per_block: int
    share: int
    step: int
    most: int

    def of_one(self, blocks: int) -> int:
        """Blocks of one sequence that is `blocks` blocks long."""
        return blocks if self.window is None else min(blocks, self.share + self.step)


class KvSizes:
    """See the module. All numbers are blocks if nothing else is said."""

    def __init__(
        self, spec: KvSpec, config: ExecutorConfig, max_model_len: int, beside: Sequence[int] = (),
        states: StateSpec | None = None,
    ) -> None:  # fmt: skip
        """`beside`: bytes per token of a draft model's KV, for each of its groups. `states` of the model's layers, if they have
        some."""
        self._size = size = config.attention.block_size
        self._seqs = config.max_num_seqs
        self._slot_bytes = 0 if states is None else states.bytes_per_slot()
        self._per_sequence = math.ceil(max_model_len / size)
        windows = group_windows(spec, max_model_len, bool(beside))
        parts = group_specs(spec, [KvGroup(0, 0, window) for window in windows])
        step = math.ceil(config.max_num_batched_tokens / size)
        self._groups = []
        for window, part in zip(windows, parts, strict=True):
            bytes_per_block = part.bytes_per_block(size)
            if window is None:
                bytes_per_block += sum(block_bytes(one, size, spec.device) for one in beside)
            most, share = self._seqs * self._per_sequence, self._per_sequence
            if window is not None:
                share = math.ceil(window / size) + 2
                most = min(most, 2 * (self._seqs * share + step))
            self._groups.append(_Group(window, bytes_per_block, share, step, most))

    @property
    def least_state_bytes(self) -> int:
        """Bytes that states take, however short sequences are."""
        return (self._seqs + LEAST_SNAPSHOTS) * self._slot_bytes

    def of_one(self, blocks: int) -> int:
        """Return the bytes that one sequence of `blocks` blocks needs while its prompt is computed in the largest steps; and the
        states of all sequences, which are there whatever is computed."""
        blocks_of_one = sum(group.of_one(blocks) * group.bytes_per_block for group in self._groups)
        return blocks_of_one + self.least_state_bytes

    def _num_slots(self, block_bytes: int) -> int:
        """Slots of states that suit blocks of so many bytes."""
        return self._seqs + max(LEAST_SNAPSHOTS, block_bytes // (3 * self._slot_bytes))

    def longest(self, allowed: int) -> int:
        """Return the length of the longest sequence that fits `allowed` bytes, at most the longest that was asked for."""
        return _largest(self._per_sequence, lambda blocks: self.of_one(blocks) <= allowed)

    def layout(self, allowed: int, blocks_per_span: int = 0) -> KvLayout:
        """Return the layout that `allowed` bytes hold; a sequence of the greatest length must fit."""
        blocks = _largest(self._seqs * self._per_sequence, lambda blocks: self._bytes_of(blocks) <= allowed)
        counts = self._counts(blocks)
        groups = tuple(
            KvGroup(count, group.bytes_per_block, group.window, blocks_per_span)
            for group, count in zip(self._groups, counts, strict=True)
        )
        layout = KvLayout(self._size, groups, max_tokens=self._max_tokens(counts))
        if not self._slot_bytes:
            return layout
        # One sequence of the greatest length may leave less to snapshots.
        fitting = max(self._seqs + LEAST_SNAPSHOTS, (allowed - layout.block_bytes) // self._slot_bytes)
        slots = min(self._num_slots(layout.block_bytes), fitting)
        interval = -(-_INTERVAL // self._size) * self._size
        return replace(layout, state=StateLayout(self._slot_bytes, slots, interval))

    def _counts(self, blocks: int) -> list[int]:
        """Blocks of each group where `blocks` is T."""
        return [max(group.of_one(self._per_sequence), min(blocks, group.most)) for group in self._groups]

    def _bytes_of(self, blocks: int) -> int:
        counts = self._counts(blocks)
        num_bytes = sum(
            count * group.bytes_per_block for count, group in zip(counts, self._groups, strict=True)
        )
        return num_bytes + (self._num_slots(num_bytes) * self._slot_bytes if self._slot_bytes else 0)

    def _max_tokens(self, counts: list[int]) -> int:
        """T in tokens; 0 if the layout has no window. Where every layer has a window, T is the context of the sequences whose
        windows fit."""
        pairs = list(zip(self._groups, counts, strict=True))
        if all(group.window is None for group, _ in pairs):
            return 0
        keeping = [count for group, count in pairs if group.window is None]
        if keeping:
            return keeping[0] * self._size
        fitting = min((count - group.step) // group.share for group, count in pairs)
        return max(1, min(fitting, self._seqs)) * self._per_sequence * self._size


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits; 0 if none does. Smaller numbers than one that fits do, too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
