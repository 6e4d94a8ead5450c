"""`Hit`: KV that a waiting sequence can begin with, and the search for the longest prefix that every group holds."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from engine.kv.block_group import BlockGroup
from engine.kv.state_pool import StatePool


@dataclass(frozen=True, slots=True)
class Hit:
    """What the first tokens of a sequence need not be computed for.

    - `num_tokens`: number of its tokens whose KV is there: in the shared blocks, and in a copy of `copied`.
    - `num_blocks`: number of full blocks before its own ones.
    - `blocks`: for each group the blocks to share, the last of which has index `num_blocks - 1`: all in a full group, and in a
      window group those that the next token reads.
    - `copied`: for each group a block of another sequence that matches in part: it is copied, because both will write to it.
    - `pending`: some of the KV is computed in the step being assembled and can be read from the next step on.
    - `looked_up`: whether the prefix cache was searched.
    - `keys`: keys of the first blocks, as far as they are known already.
    - `num_in_full_groups`: blocks that every full group had. More than `num_blocks` if group `missed` lacked its window, or there
      was no snapshot of a state (`missed_state`).
    - `state`: slot with the state of layers behind `num_tokens` tokens; None without states, and for a sequence that begins at 0.
    """

    num_tokens: int = 0
    num_blocks: int = 0
    blocks: tuple[list[int], ...] = ()
    copied: tuple[int, ...] = ()
    pending: bool = False
    looked_up: bool = False
    keys: list[bytes] = field(default_factory=list)
    num_in_full_groups: int = 0
    missed: int | None = None
    state: int | None = None
    missed_state: bool = False


MISS = Hit()


def longest_prefix(
    groups: SequenceOf[BlockGroup], keys: list[bytes], block_size: int, states: StatePool | None = None
) -> Hit:
    """The longest prefix of blocks with these keys that a sequence can begin with. The deepest one that all full groups hold is
    cut until each window group holds what lies within its window before the end, and a snapshot of the states is there."""
    full = [group.cache.find(keys) if group.window is None else None for group in groups]
    deepest = min((len(blocks) for blocks in full if blocks is not None), default=len(keys))
    num_blocks, missed = deepest, None
    windows = [group for group in groups if group.window is not None]
    unsettled = len(windows) + (states is not None)
    missed_state = False
    while unsettled:  # a cut for one window moves the end of the others
        unsettled = 0
        for group in windows:
            if (deepest_here := group.holds_before(keys, num_blocks)) < num_blocks:
                num_blocks, missed, missed_state = deepest_here, group.index, False
                unsettled = len(windows) - 1 + (states is not None)
        if states is not None and (deepest_here := states.deepest(keys, num_blocks)) < num_blocks:
            if deepest_here < states.round_down(num_blocks):
                missed, missed_state = None, True
            num_blocks, unsettled = deepest_here, len(windows)
    state = states.find(keys[num_blocks - 1]) if states is not None and num_blocks else None
    blocks = tuple(
        group.blocks_before(keys, num_blocks) if matches is None else matches[:num_blocks]
        for group, matches in zip(groups, full, strict=True)
    )
    pending = any(
        not group.cache.fresh.isdisjoint(shared) for group, shared in zip(groups, blocks, strict=True)
    ) or (states is not None and state in states.fresh)
    return Hit(
        num_blocks * block_size,
        num_blocks,
        blocks,
        pending=pending,
        looked_up=True,
        num_in_full_groups=deepest,
        missed=missed,
        state=state,
        missed_state=missed_state,
    )


def reach(
    groups: SequenceOf[BlockGroup],
    states: StatePool | None,
    keys: list[bytes],
    block_size: int,
    has: Callable[[int, bytes], bool],
) -> int:
    """The largest n such that a sequence can begin behind n blocks with these keys, as `longest_prefix`, wherever they lie: `has`
    says whether a group, by its index, has the block of a key. The group of snapshots is the one behind the last."""
    full = [group.index for group in groups if group.window is None]
    num_blocks = next(
        (index for index, key in enumerate(keys) if not all(has(group, key) for group in full)), len(keys)
    )
    before = -1
    while num_blocks != before:
        before = num_blocks
        for group in groups:
            while group.window is not None and num_blocks:
                low = group.lowest(num_blocks * block_size)
                parts = range(num_blocks - 1, low - 1, -1)
                gap = next((index for index in parts if not has(group.index, keys[index])), None)
                if gap is None:
                    break
                num_blocks = gap
        if states is not None:
            num_blocks = states.round_down(num_blocks)
            while num_blocks and not has(len(groups), keys[num_blocks - 1]):
                num_blocks = states.round_down(num_blocks - 1)
    return num_blocks
