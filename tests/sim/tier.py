"""Runs with a disk: the scenario's streams on one engine, then on another over the files of the first.

The disk takes time, fails, gives other bytes, finds other files under a key, and evicts; no token may be another for it.
"""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.core import chain_writer, disk_tier
from engine.core.engine import EngineCore
from engine.kv import cache_points
from engine.kv.disk.directory import CacheDirectory
from engine.kv.disk.disk import Disk, Place, Runner
from engine.kv.disk.format import Chain, padded
from executors.testing.fakes.sealing import SealingFake
from tests.sim.executor import Faults
from tests.sim.scenario import Broken, Run, Scenario, draw
from tests.sim.virtual_loop import run


class SimRunner:
    """Runs work in its turn after some virtual time; now and then never."""

    def __init__(self, rng: random.Random, slowest: float, hangs: float = 0.0) -> None:
        self._rng = rng
        self._slowest = slowest
        self.hangs = hangs
        self._free_at = 0.0

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """See `Runner`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._rng.random() < self.hangs:
            return future
        self._free_at = max(loop.time(), self._free_at) + self._rng.random() * self._slowest
        loop.call_at(self._free_at, _carry_out, future, work)
        return future

    def close(self) -> None:
        """See `Runner`."""


def _carry_out(future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
        return
    if not future.done():
        future.set_result(result)


class BadDirectory(CacheDirectory):
    """A directory whose files may be damaged, and whose disk may be full."""

    def __init__(self, path: Path, limit: int, rng: random.Random, wrong: float) -> None:
        super().__init__(path, limit)
        self._rng = rng
        self._wrong = wrong

    def read(self, path: str, at: Any, into: memoryview) -> Chain:
        chain = super().read(path, at, into)
        if self._rng.random() < self._wrong and len(at):
            if self._rng.random() < 0.3:
                raise OSError(errno.EIO, "broken")
            sizes = [chain.sizes[chain.entries[number].group] for number in at]
            chosen = self._rng.randrange(len(sizes))
            begin = sum(map(padded, sizes[:chosen]))  # a bit of a block, not of what pads it
            into[begin + self._rng.randrange(sizes[chosen])] ^= 1 << self._rng.randrange(8)
        return chain

    def write(self, chain: Chain, data: memoryview, used: float) -> Any:
        if self._rng.random() < self._wrong / 2:
            raise OSError(errno.ENOSPC, "full")
        return super().write(chain, data, used)


class SimDisk(Disk):
    """A disk whose index finds another block under a key now and then, as if two prompts had one hash."""

    def __init__(
        self, directory: CacheDirectory, reader: Runner, writer: Runner, rng: random.Random, wrong: float
    ) -> None:
        super().__init__(directory, 1e9, reader, writer, asyncio.get_running_loop().time)
        self._rng = rng
        self._wrong = wrong

    def find(self, fingerprint: str, group: int, key: bytes) -> Place | None:
        place = super().find(fingerprint, group, key)
        if place is not None and self._rng.random() < self._wrong:
            others = [one for name, one in self._places.items() if name[:2] == (fingerprint, group)]
            return self._rng.choice(others)
        return place


class TierRun(Run):
    """A `Run` with a disk in a directory."""

    def __init__(self, scenario: Scenario, path: Path, part: int) -> None:
        super().__init__(scenario)
        self._path = path
        self._rng = random.Random(f"tier {scenario.seed} {part}")
        self.hit_tokens = 0

    def disk(self) -> Disk:
        rng = self._rng
        wrong = rng.choice((0.0, 0.0, 0.1, 0.4))
        limit = rng.choice((1 << 30, 1 << 30, 200_000, 60_000))
        directory = BadDirectory(self._path, limit, rng, wrong)
        slowest = rng.choice((0.0005, 0.005, 0.05))
        reader = _OpensFirst(SimRunner(rng, slowest), rng.choice((0.0, 0.0, 0.05)))
        collides = rng.choice((0.0, 0.0, 0.02, 0.1))
        return SimDisk(directory, reader, SimRunner(rng, slowest), rng, collides)

    def started(self, core: EngineCore) -> None:
        tier = core._tier
        assert tier is not None
        self._tier = tier
        tier.writer.least_tokens = self.scenario.block_size
        tier.copier = tier.writer.copier = SimRunner(self._rng, 0.003)

    async def run(self) -> EngineCore:
        core = await super().run()
        disk = core._disk
        assert isinstance(disk, SimDisk)
        known = {place.path for place in disk._places.values()}
        if gone := known - disk._directory.files.keys():
            raise Broken(f"{len(gone)} files are in the index that were evicted")
        self.hit_tokens = self._tier.stats.hit_tokens
        disk.close()
        return core


class _OpensFirst:
    """Lets the first job through: the directory opens. Of those behind it some hang."""

    def __init__(self, runner: SimRunner, hangs: float) -> None:
        self._runner = runner
        self._hangs = hangs

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future = self._runner.run(work)
        self._runner.hangs = self._hangs
        return future

    def close(self) -> None:
        """See `Runner`."""


def concerns(scenario: Scenario) -> bool:
    """Whether a scenario can run with a disk."""
    return bool(scenario.fingerprint) and scenario.prefix_caching and not scenario.poisoned


def simulate_tier(seed: int) -> int:
    """Run the scenario of a seed twice, over the same files. Returns the prompt tokens that came from disk."""
    rolling, longest, size = cache_points.ROLLING, disk_tier._LONGEST_WAIT, chain_writer.FILE_BYTES
    look_every = chain_writer.LOOK_EVERY
    chain_writer.LOOK_EVERY = random.Random(f"look {seed}").choice((0.0, 0.01, 1e9))
    disk_tier._LONGEST_WAIT = 0.2
    chain_writer.FILE_BYTES = random.Random(seed).choice((1, 3 * 4096, 64 << 20))
    hits = 0
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
            for part in range(2):
                scenario = draw(seed)
                if part:  # of another run, whose executor does not fail in the same places
                    rng = random.Random(f"part {seed}")
                    scenario = replace(scenario, faults=rng.choice((Faults(), scenario.faults)))
                cache_points.ROLLING = scenario.rolling
                one = TierRun(scenario, Path(path), part)
                run(one.run())
                hits += one.hit_tokens
    finally:
        cache_points.ROLLING = rolling
        disk_tier._LONGEST_WAIT, chain_writer.FILE_BYTES = longest, size
        chain_writer.LOOK_EVERY = look_every
    return hits


# -- mistakes ----------------------------------------------------------------------------------------------------------


def _tokens_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A file is taken for what its place in the index says."""

    async def read(self: disk_tier.DiskTier, fetch: Any, piece: Any) -> memoryview | None:
        data = disk_tier.buffer(sum(disk_tier.padded(self.memory.sizes[one.group]) for one in piece))
        try:
            await self.disk.read(piece[0].place.path, [one.place.number for one in piece], data)
        except (OSError, disk_tier.BadFile):
            return None
        return data

    patch.setattr(disk_tier.DiskTier, "_read", read)


def _used_before_its_read_is_answered(patch: pytest.MonkeyPatch) -> None:
    """Blocks are found as soon as they are taken from the pool."""
    reserve = disk_tier.DiskTier._reserve

    def early(self: disk_tier.DiskTier, fetch: Any, piece: Any) -> Any:
        reserved = reserve(self, fetch, piece)
        if reserved is not None:
            for one, block in zip(reserved.needs, reserved.blocks, strict=True):
                if one.group < len(self._kv.groups):
                    self._kv.groups[one.group].cache.keep(one.key, block)
        return reserved

    patch.setattr(disk_tier.DiskTier, "_reserve", early)


def _evicted_files_stay_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """Files that leave are looked for again."""
    patch.setattr(Disk, "forget", lambda self, path: None)


def _seals_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Whatever was read is taken for what was sealed."""

    async def adopt_blocks(self: Any, sealed: Any) -> Any:
        return np.arange(len(sealed), dtype=np.int32)

    patch.setattr(SealingFake, "adopt_blocks", adopt_blocks)


def _steps_in_flight_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A copy is made into blocks that a step in flight may still read."""

    def look_at(self: disk_tier.DiskTier, one: Any) -> None:
        if not one.landed.done():
            one.landed.set_result(None)

    patch.setattr(disk_tier.DiskTier, "_look_at", look_at)


def _another_life_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """Blocks that the executor adopted before its death are found after it."""
    settle = disk_tier.DiskTier._settle

    def always(self: disk_tier.DiskTier, fetch: Any, reserved: Any, good: set[int]) -> bool:
        reserved.epoch, reserved.fingerprint = self.sequences.journal.epoch, self._kv.seals.fingerprint
        return settle(self, fetch, reserved, good)

    patch.setattr(disk_tier.DiskTier, "_settle", always)


TIER_MUTANTS = {
    one.__name__.strip("_"): one
    for one in (
        _tokens_not_compared,
        _used_before_its_read_is_answered,
        _evicted_files_stay_in_the_index,
        _seals_not_compared,
        _another_life_not_noticed,
        _steps_in_flight_not_waited_for,
    )
}
