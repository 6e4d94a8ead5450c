"""`Disk`: the index of what the directory's files hold, and threads that read and write them beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from engine.kv.disk.directory import CacheDirectory, StoredFile, buffer
from engine.kv.disk.format import BadFile, Chain, padded
from executors.contract import Int32Array

_log = logging.getLogger("cohort.engine")

R = TypeVar("R")
FIRST_READ_RATE = 200e6
"""Bytes a second that a disk is taken to read until the first read was measured."""
WRITE_PAUSE = 60.0
"""Seconds without a write after one has failed: the disk is full, or must not be written."""
_SCAN_EVERY = 30.0
"""Seconds between two looks for files of other servers."""
_MEASURED_BYTES = 32 << 20
_MEASURE_SECONDS = 2.0
"""Longest wait for that at the start."""
_OPEN_SECONDS = 60.0
"""Longest wait for a look at all headers."""
_LATEST = 0.3
"""Weight of the latest read in the measured rate."""


class Runner(Protocol):
    """Runs functions that block, one after the other, beside the event loop."""

    def run(self, work: Callable[[], R]) -> asyncio.Future[R]:
        """Return a future of the function's result or exception."""

    def close(self) -> None:
        """Run nothing more."""


class ThreadRunner:
    """A `Runner` with a thread. It is a daemon, so a disk that hangs does not hold up the end of the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[[], R]) -> asyncio.Future[R]:
        """See `Runner`."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._jobs.put((work, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """Let the thread end once its jobs are done."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            result, error = None, None
            try:
                result = work()
            except Exception as raised:
                error = raised
            del work
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del job, future, result, error


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Place(NamedTuple):
    """Where a block is on the disk: `number` of its entry in the file, and its seal."""

    path: str
    number: int
    checksum: int


@dataclass(slots=True)
class DiskStats:
    """Figures of a disk since it was opened."""

    num_files: int = 0
    num_bytes: int = 0
    """Of files that this server may delete."""
    limit: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    failed_writes: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Files that could not be used, by reason."""
    read_rate: float = FIRST_READ_RATE
    """Bytes a second, as measured."""


@dataclass(slots=True)
class TierStats:
    """What the tier did since the engine started."""

    hit_tokens: int = 0
    """Tokens of prompts that came from disk."""
    fetches: int = 0
    given_up: int = 0
    """Prompts that were computed because their read failed or took too long."""
    slower: int = 0
    """Prompts that were computed because a read would have taken longer."""
    waiting: int = 0
    """Sequences that wait for a read."""
    queued: int = 0
    """Ended sequences whose blocks are not written yet."""


class Disk:
    """One for a process: the engines of its models share it. All methods belong to the event loop and never wait for the disk
    but by `await`.

    `write_rate`: bytes a second that are written at most.
    """

    def __init__(
        self,
        directory: CacheDirectory,
        write_rate: float,
        reader: Runner | None = None,
        writer: Runner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.write_rate = write_rate
        self._directory = directory
        self._reader = reader or ThreadRunner("disk-read")
        self._writer = writer or ThreadRunner("disk-write")
        self._clock = clock
        self._places: dict[tuple[str, int, bytes], Place] = {}
        """By fingerprint, group and key."""
        self._names_of: dict[str, list[tuple[str, int, bytes]]] = {}
        """Places of each file."""
        self._next: dict[tuple[str, bytes], tuple[str, Chain, int]] = {}
        """By fingerprint and key: the latest file with a block behind the one with this key, its chain, the block's number."""
        self._nexts_of: dict[str, list[tuple[str, bytes]]] = {}
        """The same of each file."""
        self._paused_until = 0.0
        self._scanned_at = clock()
        self._scan: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._stats = DiskStats(limit=directory.limit)
        self.is_open = False

    @property
    def stats(self) -> DiskStats:
        """Figures as of now."""
        stats = self._stats
        stats.num_files, stats.num_bytes = len(self._directory.files), self._directory.num_bytes
        stats.refused = dict(self._directory.refused)
        return stats

    @property
    def read_rate(self) -> float:
        """Bytes a second that reads have taken lately."""
        return self._stats.read_rate

    async def open(self) -> None:
        """Find the files that are there, and measure how fast one is read. Raises OSError for a directory that cannot be used.
        Does nothing for one that is open."""
        async with self._opening:
            if not self.is_open:
                await self._open()

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                files = await self._reader.run(self._directory.open)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "it does not answer", str(self._directory.path)) from None
        self._learn(files)
        self.is_open = True
        if files:
            largest = max(files, key=lambda file: file.num_bytes)
            try:
                async with asyncio.timeout(_MEASURE_SECONDS):
                    await self._measure(largest)
            except TimeoutError:
                self._stats.read_rate = _MEASURED_BYTES / _MEASURE_SECONDS / 10
            except (OSError, BadFile):
                pass  # its turn comes when a prompt needs it

    async def _measure(self, file: StoredFile) -> None:
        sizes, numbers, total = file.chain.sizes, [], 0
        for number, entry in enumerate(file.chain.entries):
            total += padded(sizes[entry.group])
            if total > _MEASURED_BYTES:
                break
            numbers.append(number)
        await self.read(file.path, numbers, buffer(min(total, _MEASURED_BYTES)))

    def close(self) -> None:
        """Give up the locks. A read or write that hangs is left behind."""
        self.is_open = False
        if self._scan is not None:
            self._scan.cancel()
        self._directory.close()
        self._reader.close()
        self._writer.close()

    # -- the index -----------------------------------------------------------------------------------------------------

    def find(self, fingerprint: str, group: int, key: bytes) -> Place | None:
        """Where a block is, if a file is known to hold it."""
        return self._places.get((fingerprint, group, key))

    def followed(self, fingerprint: str, before: bytes) -> Int32Array | None:
        """int32 [block_size]: tokens of the block behind the one with key `before`, of the chain that was written or found last;
        None if no file is known to hold one."""
        place = self._next.get((fingerprint, before))
        if place is None:
            return None
        _, chain, number = place
        return chain.tokens[number * chain.block_size : (number + 1) * chain.block_size]

    def _learn(self, files: Sequence[StoredFile]) -> None:
        paths = {file.path for file in files}
        for path in self._names_of.keys() - paths:
            self.forget(path)
        for file in files:
            if file.path not in self._names_of:
                self._add(file)

    def _add(self, file: StoredFile) -> None:
        chain = file.chain
        keys = chain.keys()
        names = self._names_of[file.path] = []
        nexts = dict[tuple[str, bytes], None]()
        for number, entry in enumerate(chain.entries):
            name = chain.fingerprint, entry.group, keys[entry.number]
            if name not in self._places:
                self._places[name] = Place(file.path, number, entry.checksum)
                names.append(name)
            before = chain.fingerprint, keys[entry.number - 1] if entry.number else chain.root
            self._next[before] = file.path, chain, entry.number
            nexts[before] = None
        self._nexts_of[file.path] = list(nexts)

    def forget(self, path: str) -> None:
        """A file is gone."""
        for name in self._names_of.pop(path, ()):
            self._places.pop(name, None)
        for before in self._nexts_of.pop(path, ()):
            place = self._next.get(before)
            if place is not None and place[0] == path:  # no later file has taken its place
                del self._next[before]

    def refuse(self, path: str, reason: str) -> None:
        """A file holds something else than it should: it is not read again."""
        _log.warning("a file of the prompt cache is not used, %s: %s", reason, path)
        self.forget(path)
        self._reader.run(lambda: self._directory.refuse(path, reason)).add_done_callback(_ignore)

    def look_around(self) -> None:
        """Learn what other servers have written, now and then."""
        if self.is_open and self._clock() - self._scanned_at > _SCAN_EVERY and self._scan is None:
            self._scanned_at = self._clock()
            self._scan = asyncio.get_running_loop().create_task(self._rescan())

    async def _rescan(self) -> None:
        try:
            with contextlib.suppress(OSError):
                self._learn(await self._reader.run(self._directory.scan))
        finally:
            self._scan = None

    # -- bytes ---------------------------------------------------------------------------------------------------------

    async def read(self, path: str, numbers: Sequence[int], into: memoryview) -> Chain:
        """See `CacheDirectory.read`. Raises OSError and BadFile."""
        began = self._clock()
        chain = await self._reader.run(lambda: self._directory.read(path, numbers, into))
        num_bytes = sum(padded(chain.sizes[chain.entries[number].group]) for number in numbers)
        self._stats.read_bytes += num_bytes
        if (seconds := self._clock() - began) > 0 and num_bytes >= 1 << 20:
            rate = num_bytes / seconds
            self._stats.read_rate += _LATEST * (rate - self._stats.read_rate)
        return chain

    def touch(self, paths: Sequence[str]) -> None:
        """Count files as used, the first one last; at once, so that no write that follows makes room by them."""
        if used := self._directory.use(paths):
            self._reader.run(lambda: self._directory.stamp(used)).add_done_callback(_ignore)

    @property
    def takes_writes(self) -> bool:
        """Whether a write would be tried now."""
        return self.is_open and self._clock() >= self._paused_until

    async def write(self, chain: Chain, data: memoryview, used: float) -> bool:
        """Write a file, see `CacheDirectory.write`. False if there is no room, or that failed: nothing is written for a while
        then."""
        if not self.takes_writes:
            return False
        try:
            file, evicted = await self._writer.run(lambda: self._directory.write(chain, data, used))
        except OSError as error:
            self._stats.failed_writes += 1
            self._paused_until = self._clock() + WRITE_PAUSE
            _log.warning("the prompt cache is not written for %.0f s: %s", WRITE_PAUSE, error)
            return False
        for path in evicted:
            self.forget(path)
        if file is None:
            return False
        self._add(file)
        self._stats.written_bytes += file.num_bytes
        return True


def _ignore(future: asyncio.Future[Any]) -> None:
    """What it came to does not matter."""
    if not future.cancelled():
        future.exception()
