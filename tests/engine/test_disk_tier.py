"""KV on disk: found again by the next engine, never trusted, and never waited for by a step."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core import chain_writer, disk_tier, spare_memory
from engine.core.engine import EngineCore
from engine.kv import kv_cache_manager, prefix_cache
from engine.kv.disk import format as disk_format
from engine.kv.disk.directory import CacheDirectory
from engine.kv.disk.disk import Disk
from engine.request import Request, RequestContext, Stage
from engine.stop_limits import FLUSH_SECONDS, STOP_SECONDS
from engine.story import Lost, Missed, PrefixMatch
from executors.contract import ConfigError, ExecutorState, Int32Array, SealedBlocks
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, fake, run
from tests.sim.tier import SimRunner
from tests.sim.virtual_loop import in_virtual_time
from tests.tiers import sweep

PROMPT = [7 * i % 50 for i in range(41)]
COUNT = 6


@pytest.fixture(autouse=True)
def _short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_writer, "LEAST_TOKENS", 8)
    monkeypatch.setattr(chain_writer, "FILE_BYTES", 3 * 4096)  # several files for a prompt


def made(executor: str = "paged_fake", **options: Any) -> FakeExecutor:
    return fake(executor, **{"fingerprint": "a", **options})


@asynccontextmanager
async def serving(
    path: Path,
    executor: FakeExecutor | None = None,
    limit: int = 1 << 30,
    disk: Disk | None = None,
    **settings: Any,
) -> AsyncIterator[EngineCore]:
    """An engine over a directory, as a server has it."""
    disk = disk or Disk(CacheDirectory(path, limit), 1e9)
    await disk.open()
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=32, restart_pause=0.01, **settings)
    clock = asyncio.get_running_loop().time
    core = EngineCore(executor or made(), config, clock=clock, disk=disk)
    await core.start()
    assert core._tier is not None
    core._tier.writer.least_tokens = 8
    if isinstance(disk._writer, SimRunner):
        core._tier.copier = core._tier.writer.copier = disk._writer
    try:
        yield core
    finally:
        await core.stop()
        disk.close()
    core.check_integrity()


def virtual_disk(path: Path, write_rate: float = 1e9) -> Disk:
    """A disk that takes a few milliseconds of the virtual clock for each file."""
    reader, writer = (SimRunner(random.Random(seed), 0.005) for seed in range(2))
    return Disk(CacheDirectory(path, 1 << 30), write_rate, reader, writer, asyncio.get_running_loop().time)


def asked(prompt: list[int], salt: str | None = None, adapter: str | None = None) -> Request:
    context = RequestContext("test", 0.0, cache_salt=salt)
    return Request(context, np.array(prompt, np.int32), GREEDY, COUNT, adapter=adapter)


def files_of(path: Path, pattern: str = "*/*.kv") -> list[str]:
    return sorted(map(str, path.glob(pattern)))


async def flushed(core: EngineCore) -> None:
    assert core._tier is not None
    await core._tier.writer.flush(60)


async def answered(core: EngineCore, prompt: list[int], salt: str | None = None) -> int:
    """Run a prompt, whose tokens must be the oracle's; returns how many tokens of it came from disk."""
    request = asked(prompt, salt)
    tokens, _ = await run(core, request)
    windows = tuple(core.executor.windows)  # type: ignore[attr-defined]
    assert tokens == expected_tokens(prompt, COUNT, windows=windows)
    return request.context.story.disk_tokens


@pytest.mark.parametrize("look_every", [0.0, 1e9], ids=["while it runs", "at its end"])
@pytest.mark.parametrize(
    ("executor", "options"),
    [
        ("paged_fake", {}),
        ("paged_fake", {"window": 8}),
        ("paged_fake", {"window": "8"}),
        ("state_fake", {}),
        ("state_fake", {"window": "full,8"}),
    ],
)
async def test_the_next_server_finds_a_prompt(
    tmp_path: Path,
    executor: str,
    options: dict[str, Any],
    look_every: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain_writer, "LOOK_EVERY", look_every)
    async with serving(tmp_path, made(executor, **options)) as core:
        assert await answered(core, PROMPT) == 0
    async with serving(tmp_path, made(executor, **options)) as core:
        assert await answered(core, PROMPT) == 40
        stats = core.disk_stats()
        assert stats is not None and stats[1].hit_tokens == 40 and not stats[0].refused
        assert core.stats().prefix_hits == 40
        core.check_integrity()
        # What came from disk is as good as what was computed: it outlives the executor, and is shared.
        assert await answered(core, [*PROMPT[:-1], 3]) == 0
        assert core.stats().prefix_hits >= 72


async def test_a_longer_prompt_takes_what_is_there_and_adds_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT[:21])
    async with serving(tmp_path) as core:
        assert await answered(core, PROMPT) == 20
    async with serving(tmp_path) as core:
        assert await answered(core, PROMPT) == 40
        assert await answered(core, [*PROMPT[:13], 1, 2, 3, 4, 5, 6, 7]) == 0  # in memory by now
    async with serving(tmp_path) as core:
        assert await answered(core, [*PROMPT[:13], 1, 2, 3, 4, 5, 6, 7]) == 20 - 4


@in_virtual_time
async def test_a_prompt_that_the_next_one_evicts_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool for one prompt: the next one takes its blocks in the very turn in which it ends."""
    monkeypatch.setattr(chain_writer, "LOOK_EVERY", 0.0)
    others = [n + 1 for n in PROMPT]
    executor = made(num_blocks=12, step_delay_ms=20.0)
    async with serving(tmp_path, executor, disk=virtual_disk(tmp_path)) as core:
        assert await asyncio.gather(answered(core, PROMPT), answered(core, others)) == [0, 0]
        # Files of three blocks: at its end one that is not full is lost, and what was computed in the last step.
        assert await answered(core, PROMPT) >= 24
        assert await answered(core, others) >= 24


@in_virtual_time
async def test_a_preempted_sequence_reads_what_others_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams outgrow the pool: the one that gives way finds its end on disk once the other has ended."""
    monkeypatch.setattr(chain_writer, "LOOK_EVERY", 0.0)
    both = [replace(asked([n + first for n in PROMPT]), max_tokens=30) for first in range(2)]
    executor = made(num_blocks=26, step_delay_ms=20.0)
    async with serving(tmp_path, executor, disk=virtual_disk(tmp_path)) as core:
        for request, (tokens, _) in zip(
            both, await asyncio.gather(*(run(core, request) for request in both)), strict=True
        ):
            assert tokens == expected_tokens(request.prompt_token_ids.tolist(), 30)
        assert sum(request.context.story.disk_tokens for request in both) >= 12


@in_virtual_time
async def test_memory_is_given_back_once_its_blocks_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server at rest whose writes are limited gives memory back later than it would without a disk; a disk that hangs does
    not keep it."""
    monkeypatch.setattr(spare_memory, "_LOOK_EVERY", 0.01)
    rest = {"integrity_check_after": 0.01, "give_back_after": 0.02, "kept_kv_bytes": 0}
    disk = virtual_disk(tmp_path, 3 * 4096 / 0.2)  # a file in 0.2 s
    executor = made(blocks_per_span=2)
    async with serving(tmp_path, executor, disk=disk, **rest) as core:
        await answered(core, PROMPT)
        await asyncio.sleep(0.6)
        assert not executor.num_released and core._tier is not None and core._tier.writer.is_writing()
        await asyncio.sleep(2)
        assert executor.num_released >= 10
    async with serving(tmp_path, disk=virtual_disk(tmp_path)) as core:
        assert await answered(core, PROMPT) == 40
    monkeypatch.setattr(chain_writer, "STALLED", 0.1)
    monkeypatch.setattr("engine.core.engine.FLUSH_SECONDS", 0.05)
    disk, executor = virtual_disk(tmp_path), made(blocks_per_span=2)
    async with serving(tmp_path, executor, disk=disk, **rest) as core:
        disk._writer = Hanging()
        await answered(core, [3] * 41)
        await asyncio.sleep(1)
        assert executor.num_released >= 10


async def test_files_follow_a_chat_of_short_turns(tmp_path: Path) -> None:
    """Each turn adds less than a file is written for."""
    chat = PROMPT[:21]
    async with serving(tmp_path, made(num_blocks=200)) as core:
        for _ in range(12):
            await answered(core, chat)
            await flushed(core)
            chat = [*chat, 9, 9]
        assert core._tier is not None and not core._tier.stats.queued
    async with serving(tmp_path) as core:
        assert await answered(core, chat) > len(chat) - 3 - 8


async def test_a_snapshot_alone_is_written_where_it_saves_enough(tmp_path: Path) -> None:
    """Prompts that part where no snapshot is on disk: the second one leaves a snapshot there, and few tokens of its own."""
    parting = PROMPT[:29]
    async with serving(tmp_path, made("state_fake")) as core:
        await answered(core, PROMPT)
        await flushed(core)
        assert core._tier is not None
        core._tier.writer.least_tokens = 16
        await answered(core, [*parting, 1, 2])
    async with serving(tmp_path, made("state_fake")) as core:
        assert await answered(core, [*parting, 3, 4]) == 28


async def matched(core: EngineCore, prompt: list[int], salt: str | None = None) -> PrefixMatch:
    """Run a prompt; returns what its story says of the prefix."""
    request = asked(prompt, salt)
    await run(core, request)
    assert request.context.story.prefix is not None
    return request.context.story.prefix


async def test_a_story_names_the_first_difference_from_a_prompt_on_disk(tmp_path: Path) -> None:
    parted = [*PROMPT[:22], 49, *PROMPT[23:]]
    async with serving(tmp_path) as core:
        await answered(core, PROMPT)
    async with serving(tmp_path) as core:
        assert await matched(core, [PROMPT[0], 49, *PROMPT[2:]]) == PrefixMatch(0, Missed.DIFFERS, 1)
        assert await matched(core, PROMPT, "another caller") == PrefixMatch(0, Missed.NEW)
        assert await matched(core, parted) == PrefixMatch(20, Missed.DIFFERS, 22)
        assert await matched(core, PROMPT) == PrefixMatch(40)
    async with serving(tmp_path) as core:
        assert core._tier is not None and core._disk is not None
        core._tier._token_seconds = 1e-12  # computing is faster than any disk
        assert await matched(core, [*PROMPT[:30], 49, 49, 49, 49]) == PrefixMatch(
            0, Missed.ON_DISK, 30, unread_tokens=28
        )
        core._disk._learn([])  # other servers have deleted all files
        assert not core._disk._next and not core._disk._nexts_of
        assert await matched(core, [*PROMPT[:5], 48] * 4) == PrefixMatch(4, Missed.DIFFERS, 5)  # in memory
        assert await matched(core, [3] * 30) == PrefixMatch(0, Missed.DIFFERS, 0)
    async with serving(tmp_path, made(num_blocks=14)) as core:
        assert core._tier is not None
        await answered(core, PROMPT)
        await answered(core, [3] * 41)  # takes its blocks
        core._tier._token_seconds = 1e-12
        found = await matched(core, PROMPT)
        assert (found.missed, found.evicted_by) == (Missed.EVICTED, Lost.ROOM)
        assert found.unread_tokens == 40 - found.matched_tokens


async def test_several_sequences_wait_for_one_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT)
    async with serving(tmp_path) as core:
        found = await asyncio.gather(*(answered(core, [*PROMPT, n]) for n in range(5)))
        assert sorted(found) == [0, 0, 0, 0, 40]
        assert core.stats().prefix_hits == 5 * 40


async def test_callers_with_other_salts_share_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT, "one")
    async with serving(tmp_path) as core:
        assert await answered(core, PROMPT, "other") == 0
        assert await answered(core, PROMPT) == 0
        assert core.stats().prefix_hits == 0
    async with serving(tmp_path) as core:
        assert await answered(core, PROMPT, "one") == 40


async def test_another_model_finds_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT)
    async with serving(tmp_path, made(fingerprint="b")) as core:
        assert await answered(core, PROMPT) == 0
        assert core.disk_stats()[0].num_files > 0  # type: ignore[index]


async def test_two_servers_share_a_directory(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        await answered(first, PROMPT)
        assert first._tier is not None
        await first._tier.writer.flush(5)
        async with serving(tmp_path) as second:
            assert await answered(second, PROMPT) == 40
            await answered(second, [9] * 30)
    async with serving(tmp_path) as third:
        assert await answered(third, PROMPT) == 40
        assert await answered(third, [9] * 30) == 28


async def test_what_a_key_names_is_compared_by_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that two prompts share, as if one of them had been forged."""

    def colliding(before: bytes, tokens: Any) -> bytes:
        return prefix_cache.hashlib.sha256(before[:1] + bytes([len(np.asarray(tokens))])).digest()

    for module in (kv_cache_manager, disk_format):
        monkeypatch.setattr(module, "block_key", colliding)
    async with serving(tmp_path) as core:
        await answered(core, PROMPT)
    async with serving(tmp_path) as core:
        assert await answered(core, [n + 1 for n in PROMPT]) == 0
        await asyncio.sleep(0.05)
        assert core.disk_stats()[0].refused == {"other_tokens": 1}  # type: ignore[index]


class Hanging:
    """A disk that never answers."""

    def __init__(self) -> None:
        self.calls = 0
        self._waiting: list[asyncio.Future[Any]] = []

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        self.calls += 1
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    def answer(self, error: Exception) -> None:
        """Answer what waits, late."""
        for one in self._waiting:
            if not one.done():
                one.set_exception(error)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("which", ["_reader", "_writer"])
async def test_no_stream_waits_for_a_disk_that_hangs(
    tmp_path: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT)
    monkeypatch.setattr(disk_tier, "_LONGEST_WAIT", 2.0)
    monkeypatch.setattr("engine.core.engine.FLUSH_SECONDS", 0.05)
    disk = Disk(CacheDirectory(tmp_path, 1 << 30), 1e9)
    hanging = Hanging()
    async with serving(tmp_path, disk=disk) as core:
        setattr(disk, which, hanging)
        began = time.monotonic()
        waiting = asyncio.create_task(answered(core, PROMPT))
        for number in range(20):  # while it waits, others pass
            await answered(core, [number, 1, 2, 3])
        if which == "_reader":
            assert not waiting.done(), "the others took longer than a disk is waited for"
        await waiting
        for number in range(5):
            await answered(core, [number] * 30)
        assert hanging.calls
    assert time.monotonic() - began < 10


async def test_a_disk_that_answers_no_read_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[number, *PROMPT[1:]] for number in range(4)]
    async with serving(tmp_path) as core:
        for prompt in prompts:
            await answered(core, prompt)
    monkeypatch.setattr(disk_tier, "_LONGEST_WAIT", 1.0)
    monkeypatch.setattr("engine.core.engine.FLUSH_SECONDS", 0.05)
    disk = Disk(CacheDirectory(tmp_path, 1 << 30), 1e9)
    async with serving(tmp_path, disk=disk) as core:
        reader = disk._reader
        disk._reader = hanging = Hanging()
        began = time.monotonic()
        await answered(core, prompts[0])
        first = time.monotonic() - began
        for prompt in prompts[1:3]:
            await answered(core, prompt)
        assert time.monotonic() - began - first < first
        hanging.answer(OSError("the cable is back"))
        disk._reader = reader
        await asyncio.sleep(0)
        before = core._tier.stats.hit_tokens if core._tier else 0
        await answered(core, prompts[3])
        assert core._tier is not None and core._tier.stats.hit_tokens > before


async def test_a_stop_that_is_not_waited_for_ends_the_executor(tmp_path: Path) -> None:
    disk = Disk(CacheDirectory(tmp_path, 1 << 30), 1e9)
    await disk.open()
    executor = made()
    core = EngineCore(executor, EngineConfig(max_num_seqs=8, max_num_batched_tokens=32), disk=disk)
    await core.start()
    assert core._tier is not None
    core._tier.writer.least_tokens = 8
    disk._writer = Hanging()
    await answered(core, PROMPT)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await core.stop()
    assert executor.status().state is ExecutorState.SHUTDOWN and core.stage is Stage.STOPPED
    disk.close()


def test_a_stop_has_time_for_what_is_written() -> None:
    assert STOP_SECONDS >= FLUSH_SECONDS + 5


@pytest.mark.parametrize("number", [28, 30], ids=["full", "read-only"])
async def test_a_disk_that_cannot_be_written_stops_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    async with serving(tmp_path) as core:
        monkeypatch.setattr(os, "posix_fallocate", fails)
        for n in range(4):
            await answered(core, [n] * 30)
        assert core._tier is not None
        await core._tier.writer.flush(5)
        stats = core.disk_stats()
        assert stats is not None and stats[0].failed_writes == 1 and stats[0].written_bytes == 0
    assert not files_of(tmp_path, "*/.*.tmp")


async def test_the_limit_holds_and_evicted_files_are_not_looked_for(tmp_path: Path) -> None:
    limit = 120 << 10  # two prompts of four files
    async with serving(tmp_path, limit=limit) as core:
        for n in range(12):
            await answered(core, [n] * 40)
            await flushed(core)
        stats = core.disk_stats()
        assert stats is not None and 0 < stats[0].num_bytes <= limit
        paths = set(files_of(tmp_path))
        assert {place.path for place in core._disk._places.values()} == paths  # type: ignore[union-attr]
    async with serving(tmp_path, limit=limit) as core:
        assert [await answered(core, [n] * 40) for n in (0, 11)] == [0, 36]
        assert not core.disk_stats()[0].refused  # type: ignore[index]


async def test_of_a_prompt_its_end_leaves_first(tmp_path: Path) -> None:
    limit = 90 << 10  # a prompt and the first half of another one
    async with serving(tmp_path, limit=limit) as core:
        for n in range(3):
            await answered(core, [n] * 40)
            await flushed(core)
    for n, num_tokens in (
        (2, 36),
        (1, 12),
    ):  # the next server writes the rest of the second one, and makes room for it
        async with serving(tmp_path, limit=limit) as core:
            assert await answered(core, [n] * 40) == num_tokens


async def test_a_prompt_that_does_not_fit_the_limit_keeps_its_beginning(tmp_path: Path) -> None:
    limit = 40 << 10  # half of a prompt
    async with serving(tmp_path, limit=limit) as core:
        await answered(core, PROMPT)
        await flushed(core)
        assert core.disk_stats()[0].num_files == 2  # type: ignore[index]
    async with serving(tmp_path, limit=limit) as core:
        assert await answered(core, PROMPT) == 24


async def test_use_of_a_prompt_in_memory_keeps_its_files(tmp_path: Path) -> None:
    """Each turn of a chat finds the one before it in memory; its first file is as new as its last one."""
    limit = 130 << 10
    async with serving(tmp_path, limit=limit) as core:
        for turn in range(1, 9):
            await answered(core, [*PROMPT, *[9] * 4 * turn])
            await flushed(core)
            await answered(core, [turn] * 24)
            await flushed(core)
    async with serving(tmp_path, limit=limit) as core:
        # Without its first file nothing is found. How many of the last ones stay depends on which thread was first.
        assert await answered(core, [*PROMPT, *[9] * 4 * 8]) >= 24


async def test_a_read_is_dropped_that_the_executor_did_not_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT)
    executor = made()
    adopt = executor.adopt_blocks  # type: ignore[attr-defined]

    async def die_first(sealed: SealedBlocks) -> Int32Array:
        found = await adopt(sealed)
        core.journal.open_epoch()  # a failure was noticed meanwhile
        core.journal.epoch -= 0
        await core.executor.begin_epoch(core.journal.epoch)
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr(executor, "adopt_blocks", die_first)
    async with serving(tmp_path, executor) as core:
        assert await answered(core, PROMPT) == 0


async def test_what_cannot_be_kept_on_disk_is_refused(tmp_path: Path) -> None:
    disk = Disk(CacheDirectory(tmp_path, 1 << 20), 1e9)
    core = EngineCore(made(fingerprint=""), EngineConfig(), disk=disk)
    with pytest.raises(ConfigError, match="does not reach this executor's KV"):
        await core.start()
    await core.stop()
    core = EngineCore(made(), EngineConfig(prefix_caching=False), disk=disk)
    with pytest.raises(ConfigError, match="no prefix cache"):
        await core.start()
    await core.stop()


def _corrupt(rng: random.Random, files: list[Path]) -> None:
    """One thing that happens to files."""
    path, other = rng.choice(files), rng.choice(files)
    content = bytearray(path.read_bytes())
    kind = rng.randrange(6)
    if kind == 0:
        for _ in range(rng.choice((1, 1, 8))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del content[rng.randrange(len(content)) :]
    elif kind == 2:
        begin = rng.randrange(len(content))
        end = min(len(content), begin + rng.choice((8, 512, 4096)))
        content[begin:end] = bytes(rng.randrange(256) for _ in range(end - begin))
    elif kind == 3:  # the whole of another file
        content = bytearray(other.read_bytes())
    elif kind == 4:  # the data of another file under this one's header
        header, theirs = disk_format.header_size(bytes(content)), other.read_bytes()
        begin = disk_format.header_size(theirs)
        data = theirs[begin:]
        content[header:] = (data * 9)[: len(content) - header]
    else:  # two blocks that change places, or zeros
        header = disk_format.header_size(bytes(content))
        if len(content) - header >= 8192:
            one, two = content[header : header + 4096], content[header + 4096 : header + 8192]
            content[header : header + 8192] = two + one
        else:
            content[header:] = bytes(len(content) - header)
    path.write_bytes(content)


@sweep(every=10)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("executor", ["paged_fake", "state_fake"])
async def test_random_corruptions_give_no_wrong_token(tmp_path: Path, executor: str, seed: int) -> None:
    """A thousand in all cases. Each time a server finds damaged files, and gives the tokens of the oracle."""
    whole = tmp_path / "whole"
    prompts = [PROMPT, [*PROMPT[:21], *range(20)], [5] * 41]
    async with serving(whole, made(executor)) as core:
        for prompt in prompts:
            await answered(core, prompt)
    rng = random.Random(seed)
    refused = from_disk = 0
    for number in range(25):
        path = tmp_path / str(number)
        shutil.copytree(whole, path)
        files = [Path(file) for file in files_of(path)]
        early = rng.random() < 0.5
        if early:
            _corrupt(rng, files)
        async with serving(path, made(executor)) as core:
            if not early:  # after the headers were read
                _corrupt(rng, files)
            for prompt in prompts:
                from_disk += await answered(core, prompt)
            stats = core.disk_stats()
            assert stats is not None
            refused += sum(stats[0].refused.values())
    assert refused >= 5 and from_disk > 25 * 40


async def test_a_chain_says_who_may_read_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as core:
        await answered(core, PROMPT, "secret")
    directory = CacheDirectory(tmp_path, 1 << 30)
    [salt] = {file.chain.salt for file in directory.open()}
    assert len(salt) == 16 and "secret" not in salt
    assert replace(next(iter(directory.files.values())).chain, salt="").salt == ""
