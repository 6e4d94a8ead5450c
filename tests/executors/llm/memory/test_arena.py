"""Memory of KV blocks in a file that outlives its process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from executors.cgroup import count_as_available, memory_limit
from executors.contract import ConfigError, InvalidInput, KvGroup, OutOfMemory, SealedBlocks
from executors.llm.memory import arena as arenas
from executors.llm.memory.arena import KvArena
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.memory.seals import BlockSeals
from executors.llm.model.caches import KvSpec
from executors.memory_file import MemoryFile

PAGE = mmap.PAGESIZE
SPEC = KvSpec(2, 2, 1, 16, torch.float32, torch.device("cpu"), 1.0, None, (None, None))
BLOCKS = 6


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile.create("test")
    yield made
    made.close()


def test_what_is_tried_out_is_gone_and_what_is_shared_stays(file: MemoryFile) -> None:
    arena = KvArena(file)
    first, second = arena.take(3 * PAGE), arena.take(PAGE)
    assert first is not None and second is not None and len(first) == 3 * PAGE
    first[:] = 1
    assert file.resident_bytes == 0
    arena.share()
    first[0], second[-1] = 5, 6
    # Not even reading has made more of it memory.
    assert file.resident_bytes == 2 * PAGE
    assert not first[1:PAGE].any()

    later = KvArena(file)
    assert later.found_bytes == 2 * PAGE
    again, other = later.take(3 * PAGE), later.take(PAGE)
    assert again is not None and other is not None and not again.any()
    again[0] = 7
    assert first[0] == 5
    later.share()
    assert (again[0], other[-1]) == (5, 6)
    later.empty()
    assert file.resident_bytes == 0 and not again.any()


def test_a_system_that_refuses_is_a_note() -> None:
    for descriptor in (os.open("/dev/null", os.O_RDWR), 99_999):
        arena = KvArena(MemoryFile(descriptor))
        assert arena.take(PAGE) is None and arena.fault
        assert arena.note is not None and "KV ends with its process" in arena.note


def test_more_than_the_memory_is_one_line(file: MemoryFile) -> None:
    """A file is not refused for its size, as a process's own memory is."""
    arena, total = KvArena(file), memory_limit().total
    assert arena.take(PAGE) is not None
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        arena.take(total)
    assert arena.fault is None and file.size < total


def test_small_pages_are_a_note_once_they_are_used(
    file: MemoryFile, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = arenas._LARGE_PAGES.__class__(str(tmp_path)) / "shmem_enabled"
    monkeypatch.setattr(arenas, "_LARGE_PAGES", setting)
    arena = KvArena(file)
    assert arena.note is None
    arena.take(PAGE)
    for chosen, has_note in (
        ("always within_size advise [never] deny force", True),
        ("always [advise] never", False),
    ):
        setting.write_text(chosen)
        assert (arena.note is not None) is has_note
    setting.unlink()
    assert arena.note is not None and "small pages" in arena.note


def test_memory_that_cannot_be_shared_fails_the_start() -> None:
    file = MemoryFile.create("test")
    arena = KvArena(file)
    arena.take(PAGE)
    file.close()
    with pytest.raises(OutOfMemory, match="cannot be mapped"):
        arena.share()


def test_memory_of_an_earlier_life_counts_as_available() -> None:
    before = memory_limit()
    try:
        count_as_available(1 << 60)
        assert memory_limit().available == before.total
        count_as_available(before.total - before.available)
        assert memory_limit().available > before.available
    finally:
        count_as_available(0)
    assert memory_limit().available < before.total


def seals_over(file: MemoryFile, fingerprint: str = "f", rank: int = 0) -> tuple[BlockSeals, list[KvCache]]:
    arena = KvArena(file)
    count = SPEC.num_layers
    spec = replace(SPEC, num_layers=2 * count, windows=(8,) * count + (None,) * count)
    kv = PagedKv(spec, [KvGroup(BLOCKS, 0, window) for window in (8, None, 16)], 4, arena.take)
    arena.share()
    seals = BlockSeals(fingerprint, kv, arena, None, lambda: 1, lambda sums: sums, rank)
    return seals, [kv.of_group(0), kv.of_group(1)]


PAIRS = np.array([(0, 3), (1, 3), (1, 0), (0, 5)], np.int32)


def sealed(seals: BlockSeals, fingerprint: str = "f") -> SealedBlocks:
    return SealedBlocks(fingerprint, PAIRS[:, 0].copy(), PAIRS[:, 1].copy(), seals.checksums(PAIRS))


def test_blocks_are_adopted_by_group_and_the_rest_is_given_back(file: MemoryFile) -> None:
    seals, caches = seals_over(file)
    for cache in caches:
        for layer in cache.layers:
            layer.normal_()
    offered = sealed(seals)
    assert len(set(offered.checksums.tolist())) == len(PAIRS)
    # A group without layers on this rank says nothing: the others decide.
    assert seals.checksums(np.array([(2, 1), (0, 3)], np.int32)).tolist() == [0, offered.checksums[0]]
    content = caches[1].layers[1][:, 3].clone()

    later, new = seals_over(file)
    assert later.begin(offered).tolist() == [0, 1, 2, 3]
    assert torch.equal(new[1].layers[1][:, 3], content)
    assert file.resident_bytes == 4 * SPEC.bytes_per_block(4)
    new[1].layers[0][1, 3, 0, 2, 5] += 1
    assert later.begin(offered).tolist() == [0, 2, 3]
    assert (
        later.begin(
            SealedBlocks("g", *(getattr(offered, name) for name in ("groups", "blocks", "checksums")))
        ).tolist()
        == []
    )
    assert file.resident_bytes == 0


def test_equal_blocks_of_two_groups_or_ranks_have_different_checksums(file: MemoryFile) -> None:
    sums = [seals_over(file, rank=rank)[0].checksums(PAIRS[:2]).tolist() for rank in (0, 1)]
    assert len({*sums[0], *sums[1]}) == 4


def test_an_epoch_that_adopts_nothing_empties_what_earlier_ones_wrote(file: MemoryFile) -> None:
    seals, [cache, _] = seals_over(file)
    assert seals.begin(None).tolist() == []
    cache.layers[0].normal_()
    assert file.resident_bytes
    assert seals.begin(None).tolist() == [] and file.resident_bytes == 0
    cache.layers[0].normal_()
    later, _ = seals_over(file)
    assert later.begin(None).tolist() == [] and file.resident_bytes == 0


def test_blocks_that_do_not_exist_are_refused(file: MemoryFile) -> None:
    seals, _ = seals_over(file)
    one = np.array([6], np.int32)
    with pytest.raises(InvalidInput, match="does not exist"):
        seals.begin(SealedBlocks("f", one * 0, one, np.zeros(1, np.uint64)))
    # Those of another layout are not looked at.
    assert seals.begin(SealedBlocks("g", one * 0, one, np.zeros(1, np.uint64))).tolist() == []
