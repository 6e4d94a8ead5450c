"""The assignment of KV blocks to sequences. The engine's side of paged KV: ids and counts only; the executor has the tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from engine.kv.block_pool import SLICE, BlockPool
from engine.kv.prefix_cache import PrefixCache, block_key, root_key
from engine.sequence import Sequence
from engine.story import Lost, Missed, PrefixMatch
from executors.contract import Int32Array, KvLayout, TableUpdates


@dataclass(frozen=True, slots=True)
class Hit:
    """KV that a waiting sequence can begin with.

    - `blocks`: blocks to share. `num_tokens`: number of its tokens whose KV is in them, and in a copy of `copied`.
    - `copied`: a block of another sequence that matches in part: it is copied, because both sequences will write to it.
    - `pending`: some of the KV is computed in the step being assembled and can be read from the next step on.
    - `looked_up`: whether the prefix cache was searched.
    - `keys`: keys of the first blocks, as far as they are known already.
    """

    blocks: list[int]
    num_tokens: int
    copied: int | None = None
    pending: bool = False
    looked_up: bool = False
    keys: list[bytes] = field(default_factory=list)


MISS = Hit([], 0)


class KvCacheManager:
    """Grows, shares and frees block tables; collects the changes for the next step.

    Decides on `Sequence.block_table` and `.block_keys`. With an executor that owns its KV (a layout without groups)
    every table stays empty, every request for room succeeds, and nothing is shared.
    """

    def __init__(self, layout: KvLayout, model: str = "", prefix_caching: bool = True) -> None:
        self.layout = layout
        group = layout.groups[0] if layout.paged else None
        self.pool = BlockPool(group.num_blocks, group.blocks_per_span) if group else BlockPool(0)
        self.cache = PrefixCache()
        self.prefix_caching = prefix_caching and layout.paged and layout.state is None
        self._model = model
        self._grown: list[tuple[int, int, list[int]]] = []
        self._copies: list[tuple[int, int]] = []

    @property
    def num_cached(self) -> int:
        """Number of free blocks whose KV may be found again."""
        return self.pool.num_kept

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that hold this many tokens."""
        return -(-num_tokens // self.layout.block_size) if self.layout.paged else 0

    # -- tables --------------------------------------------------------------------------------------------------------

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make the sequence's table cover `num_tokens`. False, and nothing changed, if the pool has too few blocks.

        The sequence must have its slot already.
        """
        missing = self.blocks_for(num_tokens) - len(seq.block_table)
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        self.cache.forget(blocks)
        self._extend(seq, blocks)
        self._prepared(seq)
        return True

    def _prepared(self, seq: Sequence) -> None:
        """Record how far the sequence can grow in its blocks, before the next one is full."""
        size = self.layout.block_size
        end = len(seq.block_table) * size if self.layout.paged else sys.maxsize
        if self.prefix_caching:
            end = min(end, (seq.num_keyed_blocks + 1) * size - 1)
        seq.prepare(end)

    def room(self, seq: Sequence, kept_blocks: int) -> int:
        """Tokens by which the sequence can grow in its own blocks and in free ones, except `kept_blocks` of the latter."""
        if not self.layout.paged:
            return seq.num_to_generate + seq.num_uncomputed_tokens
        blocks = len(seq.block_table) + max(0, self.pool.num_free - kept_blocks)
        return blocks * self.layout.block_size - seq.num_computed_tokens

    def _extend(self, seq: Sequence, blocks: list[int]) -> None:
        assert seq.slot is not None, "blocks are laid out for a slot"
        self._grown.append((seq.slot, len(seq.block_table), blocks))
        seq.extend_table(blocks)

    def free(self, seq: Sequence) -> None:
        """Free all blocks of a sequence; steps submitted later may use them. The last blocks are freed first, so that a prefix
        is kept longest."""
        if blocks := seq.free_table():
            self._grown = [entry for entry in self._grown if entry[0] != seq.slot]
            self.pool.release(reversed(blocks), self.cache.blocks)

    # -- sharing -------------------------------------------------------------------------------------------------------

    def find(self, seq: Sequence) -> Hit:
        """KV with which a sequence without KV can begin: a sibling's prompt, or the longest prefix in the cache.

        At least one token is always left to compute, because it gives the logits.
        """
        if not self.layout.paged or self.layout.state is not None or seq.alone or seq.needs_whole_prompt:
            return MISS
        forked = self._find_sibling(seq)
        if forked is not None:
            return forked
        if not self.prefix_caching:
            return MISS
        most = (seq.num_known_tokens - 1) // self.layout.block_size
        blocks = self.cache.find(self._keys(seq, most))
        pending = not self.cache.fresh.isdisjoint(blocks)
        return Hit(blocks, len(blocks) * self.layout.block_size, pending=pending, looked_up=True)

    def _find_sibling(self, seq: Sequence) -> Hit | None:
        """KV of the prompt, without its last token, from another choice of the same call.

        Each choice computes the last token again: it gives the logits from which the choice samples its own first token.
        """
        num_shared = seq.prompt_len - 1
        if not seq.siblings or not num_shared or seq.output_token_ids:
            return None
        holders = [other for other in seq.siblings if other.block_table and not other.finished]
        full, partial = divmod(num_shared, self.layout.block_size)
        to_come = {destination for _, destination in self._copies}
        for other in holders:
            if other.num_computed_tokens < num_shared:
                continue
            copied = other.block_table[full] if partial else None
            if (
                copied not in to_come
            ):  # the copy of a sequence admitted in this very step is itself still to be made
                return Hit(other.block_table[:full], num_shared, copied, keys=other.block_keys[:full])
        # Where the prompt is being computed it is worth waiting for.
        return Hit([], 0, pending=True) if holders else None

    def fits(self, seq: Sequence, hit: Hit) -> bool:
        """True if there is room for all its known tokens besides the shared blocks."""
        missing = self.blocks_for(seq.num_known_tokens) - len(hit.blocks)
        return missing <= self.pool.num_free - self.pool.num_free_of(hit.blocks)

    def begin(self, seq: Sequence, hit: Hit) -> None:
        """Give a sequence its first table: the shared blocks, and room for all its known tokens, which must fit."""
        assert not seq.block_table
        seq.begin_table(hit.num_tokens, len(hit.blocks), hit.keys)
        if hit.blocks:
            self.pool.share(hit.blocks)
            self._extend(seq, list(hit.blocks))
        roomy = self.grow(seq, seq.num_known_tokens)
        assert roomy, "what does not fit is not admitted"
        if hit.copied is not None:
            self._copies.append((hit.copied, seq.block_table[len(hit.blocks)]))
            seq.count_copied_block()
        self._prepared(seq)

    def begin_step(self) -> None:
        """Begin to assemble a new step, which can read the KV that earlier steps compute."""
        self.cache.fresh.clear()

    def register(self, seq: Sequence, num_computed: int) -> None:
        """Add the keys of the blocks that are full of known tokens once `num_computed` tokens of the sequence are computed, by
        the steps submitted so far and the one being assembled."""
        if not self.prefix_caching:
            return
        full = min(num_computed, seq.num_known_tokens) // self.layout.block_size
        if full > seq.num_keyed_blocks:
            keys = self._keys(seq, full)
            before = keys[seq.num_keyed_blocks - 1] if seq.num_keyed_blocks else self._root(seq)
            for index in range(seq.num_keyed_blocks, full):
                self.cache.add(keys[index], seq.block_table[index])
                self.cache.history.add(before, keys[index], self._block_tokens(seq, index))
                before = keys[index]
            seq.name_blocks(full)
            self._prepared(seq)

    def withdraw(self, seq: Sequence) -> None:
        """Withdraw the blocks of a sequence whose computation failed: no sequence may find them, even if they are freed already.
        This includes its shared blocks: their writer may have ended without noticing the fault."""
        self.pool.forsake(self.cache.withdraw(seq.block_keys))

    def _keys(self, seq: Sequence, count: int) -> list[bytes]:
        """The keys of the sequence's first `count` blocks, whose tokens must be known; computed once each."""
        keys = seq.block_keys
        if len(keys) < count:
            new = []
            before = keys[-1] if keys else self._root(seq)
            for index in range(len(keys), count):
                before = block_key(before, self._block_tokens(seq, index))
                new.append(before)
            seq.extend_keys(new)
        return keys[:count] if len(keys) > count else keys

    def _root(self, seq: Sequence) -> bytes:
        return root_key(self._model, seq.request.adapter, seq.context.cache_salt)

    def _block_tokens(self, seq: Sequence, index: int) -> Int32Array:
        """The known tokens of a full block."""
        size = self.layout.block_size
        end = (index + 1) * size
        if end <= seq.prompt_len:
            return seq.request.prompt_token_ids[end - size : end]
        return np.array(seq.token_ids(end - size, end), np.int32)

    def explain(self, seq: Sequence, hit: Hit) -> PrefixMatch:
        """Why the prefix cache gave a sequence no more than `hit`, for its story."""
        if not hit.looked_up:
            return PrefixMatch(hit.num_tokens, Missed.OFF)
        matched, most = len(hit.blocks), (seq.num_known_tokens - 1) // self.layout.block_size
        if matched == most:
            return PrefixMatch(hit.num_tokens, None if most else Missed.SHORT)
        keys = self._keys(seq, most)
        before = keys[matched - 1] if matched else self._root(seq)
        tokens = self._block_tokens(seq, matched)
        return self.cache.history.explain(before, keys[matched:], tokens, hit.num_tokens)

    def reset(self) -> None:
        """Reset after the executor's KV was emptied: nothing can be found, and no change is left to report."""
        self.pool.forsake(self.cache.blocks)
        self.cache.clear()
        self._grown.clear()
        self._copies.clear()

    # -- memory --------------------------------------------------------------------------------------------------------

    def take_spare(self, keep: int, min_age: int, most_spans: int) -> Int32Array:
        """As `BlockPool.take_spare`; prefixes in these blocks are no longer found. The executor must be told before the next
        step: until then the blocks still have their memory, afterwards they may be zeros."""
        blocks = self.pool.take_spare(keep, min_age, most_spans)
        self.cache.forget(blocks.tolist(), Lost.RELEASE)
        return blocks

    # -- for the next batch --------------------------------------------------------------------------------------------

    def take_copies(self) -> Int32Array:
        """int32 [m, 3] of (group, source, destination) blocks since the last call."""
        copies, self._copies = self._copies, []
        return np.array([(0, *pair) for pair in copies], np.int32).reshape(-1, 3)

    def take_updates(self) -> TableUpdates:
        """Block-table deltas since the last call."""
        if not self._grown:
            return TableUpdates.empty()
        grown, self._grown = self._grown, []
        return TableUpdates(
            slots=np.array([slot for slot, _, _ in grown], np.int32),
            groups=np.zeros(len(grown), np.int32),
            starts=np.array([start for _, start, _ in grown], np.int32),
            counts=np.array([len(blocks) for _, _, blocks in grown], np.int32),
            block_ids=np.array([block for _, _, blocks in grown for block in blocks], np.int32),
        )

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises RuntimeError unless free + used = total, references equal the tables of these sequences, and every block with
        a key is one of them."""
        for _ in self.integrity(sequences):
            pass

    def integrity(self, sequences: Iterable[Sequence]) -> Iterator[None]:
        """`check_integrity` a slice at a time: nothing may change before it is exhausted."""
        yield from self.pool.integrity(seq.block_table for seq in sequences)
        yield from self.cache.integrity()
        num_keyed, cached = 0, iter(self.cache.blocks)
        while some := list(islice(cached, SLICE)):
            num_keyed += sum(not self.pool.num_references(block) for block in some)
            yield
        if num_keyed != self.pool.num_kept:
            raise RuntimeError(f"{num_keyed} free blocks have a key, {self.pool.num_kept} are kept")
