"""The block pool against a model of lists, by a state machine; and the cache's keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv.block_pool import BlockPool
from engine.kv.prefix_cache import PrefixCache, block_key, root_key
from tests.tiers import examples

NUM_BLOCKS = 7
SPAN = 3
"""The last span is a part of one."""


class PoolMachine(RuleBasedStateMachine):
    """Tables come, share, and go; `order` is the model's list of free blocks in the order of reuse."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, SPAN)
        self.order = list(range(NUM_BLOCKS))
        self.tables: list[list[int]] = []
        self.keyed: set[int] = set()
        self.kept: set[int] = set()
        self.written: set[int] = set()
        self.freed_at = dict.fromkeys(range(-(-NUM_BLOCKS // SPAN)), 0)

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, count: int) -> None:
        got = self.pool.allocate(count)
        if count > len(self.order):
            assert got is None
            return
        assert got == self.order[:count]
        del self.order[:count]
        self.keyed -= set(got)
        self.kept -= set(got)
        self.written |= set(got)
        self.tables.append(got)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        known = sorted({block for table in self.tables for block in table} | (self.keyed & set(self.order)))
        if not known:
            return
        blocks = data.draw(st.lists(st.sampled_from(known), unique=True))
        free = sum(block in self.order for block in blocks)
        assert self.pool.num_free_of(blocks) == free
        self.pool.share(blocks)
        self.order = [block for block in self.order if block not in blocks]
        self.kept -= set(blocks)
        self.tables.append(list(blocks))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def name(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.keyed |= set(data.draw(st.sets(st.sampled_from(table)))) if table else set()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(reversed(table), self.keyed)
        for block in reversed(table):
            if any(block in other for other in self.tables):
                continue
            self.freed_at[block // SPAN] = self.pool.now
            if block in self.keyed:
                self.order.append(block)
                self.kept.add(block)
            else:
                self.order.insert(0, block)

    @rule(blocks=st.sets(st.integers(0, NUM_BLOCKS - 1)))
    def forsake(self, blocks: set[int]) -> None:
        given = sorted(blocks)
        self.pool.forsake(given)
        for block in given:
            if block in self.order and block in self.kept:
                self.order.remove(block)
                self.order.insert(0, block)
                self.kept.discard(block)
                self.keyed.discard(block)

    @rule(
        keep=st.integers(0, NUM_BLOCKS),
        min_age=st.integers(0, 3),
        most_spans=st.integers(1, 3),
        rounds=st.integers(0, 2),
    )
    def take_spare(self, keep: int, min_age: int, most_spans: int, rounds: int) -> None:
        self.pool.now += rounds
        spans = []
        for span, freed_at in self.freed_at.items():
            blocks = set(range(span * SPAN, min((span + 1) * SPAN, NUM_BLOCKS)))
            if blocks <= set(self.order) and blocks & self.written and self.pool.now - freed_at >= min_age:
                spans.append((freed_at, span, blocks & self.written))
        want: set[int] = set()
        for *_, held in sorted(spans)[:most_spans]:
            if len((self.written & set(self.order)) - want - held) < keep:
                break
            want |= held
        got = self.pool.take_spare(keep, min_age, most_spans)
        assert got.dtype == np.int32 and got.tolist() == sorted(want)
        self.written -= want
        self.kept -= want
        self.keyed -= want
        # Behind those that were used before and hold nothing, before those that hold something.
        blank = [block for block in self.order if block in self.written - self.kept]
        unused = sorted(set(self.order) - self.written)
        self.order = blank + unused + [block for block in self.order if block in self.kept]

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def release_a_free_one(self, block: int) -> None:
        if block in self.order:
            with pytest.raises(ValueError, match="free already"):
                self.pool.release([block])

    @invariant()
    def adds_up(self) -> None:
        self.pool.check_integrity(self.tables)
        assert self.pool.num_free == len(self.order) and self.pool.num_kept == len(self.kept)
        assert self.pool.num_with_memory == len(self.written)
        assert self.pool.num_used + self.pool.num_free == NUM_BLOCKS


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_integrity_notices_a_lost_block() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    assert blocks is not None
    with pytest.raises(RuntimeError, match="references differ"):
        pool.check_integrity([blocks[:1]])
    pool._references[3] = 1
    with pytest.raises(RuntimeError, match="neither free nor used"):
        pool.check_integrity([blocks, [3]])


def test_keys_depend_on_everything_before() -> None:
    root = root_key("m", None, None)
    tokens = np.arange(4, dtype=np.int32)
    assert block_key(root, tokens) == block_key(root, tokens.tolist())
    assert block_key(root, tokens) != block_key(block_key(root, tokens), tokens)
    roots = {
        root_key(*parts)
        for parts in (
            ("a", "b", "c"),
            ("ab", None, "c"),
            ("a", "bc", None),
            ("a", "b", None),
            ("a", None, "b"),
        )
    }
    assert len(roots) == 5
    assert root_key("a", None, "-") != root_key("a", "-", None)
    # Where the second text of a pair begins changes the KV of all tokens that see it.
    pairs = {root_key("a", None, None, segment) for segment in (None, 0, 1, 2**20)}
    assert len(pairs) == 4 and root_key("a", None, None) in pairs


def test_the_first_of_two_blocks_with_one_content_counts() -> None:
    cache, root = PrefixCache(), root_key("m", None, None)
    key, other = block_key(root, [1]), block_key(root, [2])
    cache.add(key, 5)
    cache.add(key, 6)
    cache.add(other, 7)
    assert cache.find([key, other]) == [5, 7] and cache.find([b"?", key]) == []
    cache.forget([6])
    assert cache.find([key]) == [5]
    cache.withdraw([key, b"unknown"])
    assert cache.find([key]) == [] and 5 not in cache.blocks
    cache.check_integrity()
    cache.blocks[1] = b"x"
    with pytest.raises(RuntimeError, match="differ"):
        cache.check_integrity()
