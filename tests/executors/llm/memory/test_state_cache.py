"""Slots of states: where they lie, what is sealed of them and given back, and from which of them a step may begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from executors.contract import InvalidInput, KvGroup, SealedBlocks, StateLayout
from executors.llm.memory.arena import KvArena
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.memory.seals import BlockSeals
from executors.llm.memory.state_cache import StateCache
from executors.llm.model.caches import KvSpec, StateSpec
from executors.memory_file import MemoryFile

CPU = torch.device("cpu")
KV = KvSpec(2, 2, 1, 16, torch.float32, CPU, 1.0, None, (None, None))
SPEC = StateSpec(3, (5, 70), CPU)
SLOTS, BLOCKS = 6, 4
LAYOUT = StateLayout(SPEC.bytes_per_slot(), SLOTS, 8)


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile.create("test")
    yield made
    made.close()


def life(file: MemoryFile) -> tuple[BlockSeals, StateCache]:
    arena = KvArena(file)
    kv = PagedKv(KV, [KvGroup(BLOCKS, 0)], 4, arena.take)
    states = StateCache(SPEC, LAYOUT, arena.take)
    arena.share()
    return BlockSeals("f", kv, arena, None, lambda: 1, lambda sums: sums, states=states), states


def sealed(seals: BlockSeals, *slots: int) -> SealedBlocks:
    places = np.array([(1, slot) for slot in slots], np.int32)
    return SealedBlocks("f", places[:, 0].copy(), places[:, 1].copy(), seals.checksums(places))


def test_a_slot_is_one_range_with_a_contiguous_row_for_each_layer() -> None:
    cache = StateCache(SPEC, LAYOUT)
    assert cache.slots is not None and cache.slots.shape == (SLOTS, 8192) and cache.num_bytes == SLOTS * 8192
    for number, layer in enumerate(cache.layers, 1):
        assert layer.shape == (SLOTS, 5, 70) and layer[2].is_contiguous()
        layer[2] = number
    values = cache.slots.view(np.float32)
    assert values[2, : 3 * 350].tolist() == [1.0] * 350 + [2.0] * 350 + [3.0] * 350
    assert not values[[0, 1, 3, 4, 5]].any() and not values[2, 3 * 350 :].any()


def test_a_device_has_a_tensor_for_each_layer() -> None:
    cache = StateCache(StateSpec(2, (5,), torch.device("meta")), StateLayout(40, SLOTS, 8))
    assert cache.slots is None and [layer.stride() for layer in cache.layers] == [(5, 1)] * 2
    cache.give_back(np.arange(2))
    assert cache.num_bytes == SLOTS * 40


def test_slots_are_adopted_alone_and_the_rest_is_given_back(file: MemoryFile) -> None:
    seals, states = life(file)
    for layer in states.layers:
        layer.normal_()
    offered = sealed(seals, 4, 0, 3)
    assert len(set(offered.checksums.tolist())) == 3
    content = [layer[4].clone() for layer in states.layers]

    later, new = life(file)
    assert later.begin(offered).tolist() == [0, 1, 2]
    assert file.resident_bytes == 3 * SPEC.bytes_per_slot()
    assert all(torch.equal(layer[4], old) for layer, old in zip(new.layers, content, strict=True))
    new.layers[2][0, 4, 69] += 1  # its last number
    assert later.begin(offered).tolist() == [0, 2]
    assert file.resident_bytes == 2 * SPEC.bytes_per_slot()
    assert later.begin(None).tolist() == [] and file.resident_bytes == 0


def test_equal_bytes_of_a_block_and_a_slot_have_different_checksums(file: MemoryFile) -> None:
    seals, _ = life(file)
    sums = seals.checksums(np.array([(0, 1), (1, 1)], np.int32))
    assert sums[0] != sums[1]


def test_slots_that_do_not_exist_are_refused(file: MemoryFile) -> None:
    seals, states = life(file)
    one = np.array([SLOTS], np.int32)
    with pytest.raises(InvalidInput, match="does not exist"):
        seals.begin(SealedBlocks("f", np.ones(1, np.int32), one, np.zeros(1, np.uint64)))
    with pytest.raises(InvalidInput, match="outside"):
        states.give_back(one)


def test_a_slot_that_was_given_back_reads_as_zeros(file: MemoryFile) -> None:
    _, states = life(file)
    states.layers[1].fill_(1.0)
    states.give_back(np.array([1, 2, 5], np.int32))
    assert states.layers[1].flatten(1).sum(1).tolist() == [350, 0, 0, 350, 350, 0]
