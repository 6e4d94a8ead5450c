"""`DiskTier`: KV blocks of ended sequences go to disk, and those of a waiting prompt come back from it.

    ended   sequence -> queue -> blocks that are found and sealed -> copy -> still the same seals? -> file
    waits   prompt -> what memory and disk hold together -> read -> blocks of the pool -> copy -> the executor adopts -> keys

No step waits for a disk: a sequence that waits for one is passed over, and computed when its time is over. Blocks are taken from
the pool once their bytes are in memory, for as long as a copy within it takes. What a file holds is compared twice: its tokens
with the prompt's, and each block's seal by the executor, behind all that it was told before. So no file is ever trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engine.core.inbox import Inbox
from engine.core.sequences import Sequences
from engine.kv.disk.directory import buffer
from engine.kv.disk.disk import Disk, Place, Runner, ThreadRunner
from engine.kv.disk.format import BadFile, Chain, Entry, check_chain, padded
from engine.kv.hit import Hit
from engine.sequence import Sequence
from executors.contract import BlockMemory, ExecutorError, Int32Array, ModelExecutor, SealedBlocks

_log = logging.getLogger("cohort.engine")

R = TypeVar("R")
FILE_BYTES = 64 << 20
"""A file holds at most so many bytes of blocks, and one block at least."""
LEAST_TOKENS = 256
"""Shorter chains, and shorter additions to a chain on disk, are not written."""
MOST_FETCHES = 2
"""Prompts whose blocks are read at once; others wait for their turn."""
MOST_ENDED = 256
"""Ended sequences that wait to be written; older ones are given up."""
_LONGEST_WAIT = 60.0
"""Seconds that a sequence waits for a disk at most."""


class Wanted(NamedTuple):
    """A block that a prompt needs from the disk."""

    group: int
    number: int
    """Its place in the chain."""
    key: bytes
    place: Place


@dataclass(eq=False, slots=True)
class Fetch:
    """The blocks that one prompt needs."""

    content: str
    """As of the life for which it was begun."""
    keys: list[bytes]
    root: bytes
    tokens: Int32Array
    """int32: of all blocks up to the last one that is wanted."""
    pieces: list[list[Wanted]]
    """By file."""
    num_cached: int
    """Tokens that were found in memory."""
    num_bytes: int
    began: float
    over: bool = False
    num_read: int = 0
    """Bytes that the executor has adopted."""


@dataclass(eq=False, slots=True)
class _Reserved:
    """Blocks of the pool that a copy from a file fills."""

    epoch: int
    fingerprint: str
    wanted: list[Wanted]
    at: list[int]
    """Where each one lies in the bytes that were read."""
    blocks: list[int]
    landed: asyncio.Future[None]
    steps: set[int]
    """Steps that were in flight: they may read what the blocks held."""


@dataclass(eq=False, slots=True)
class _Ended:
    """A chain that may be written."""

    keys: list[bytes]
    root: bytes
    tokens: Int32Array
    adapter: str
    salt: str
    index: int = 0
    """Blocks before it are done."""
    num_files: int = 0


class _Source(NamedTuple):
    entry: Entry
    block: int


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


@dataclass(eq=False)
class DiskTier:
    """See the module. Its tasks change KV state by commands in the inbox only, as all other code does.

    `copier` runs copies between memory files and buffers, which never wait for a disk.
    """

    disk: Disk
    executor: ModelExecutor
    memory: BlockMemory
    sequences: Sequences
    inbox: Inbox
    clock: Callable[[], float]
    model: str
    least_tokens: int = LEAST_TOKENS
    copier: Runner = field(default_factory=lambda: ThreadRunner("disk-copy"))

    def __post_init__(self) -> None:
        self.stats = TierStats()
        self._kv = self.sequences.kv
        self._size = self._kv.layout.block_size
        pace = self.executor.pace()
        self._token_seconds = None if pace is None else pace.prompt_token
        self._fetches: list[Fetch] = []
        self._waits: weakref.WeakKeyDictionary[Sequence, Fetch] = weakref.WeakKeyDictionary()
        self._looked: weakref.WeakSet[Sequence] = weakref.WeakSet()
        """Sequences that the disk has nothing for, or has given all it could."""
        self._reserved: list[_Reserved] = []
        self._ended: deque[_Ended] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._flushing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin(self._store())

    @property
    def _content(self) -> str:
        """What the bytes of blocks of the executor's present life depend on, beside tokens."""
        return self.executor.kv_layout().content

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End all tasks; threads that a disk keeps are left behind."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.copier.close()

    # -- for the loop --------------------------------------------------------------------------------------------------

    def waits(self, seq: Sequence) -> bool:
        """Whether a sequence waits for a read that has begun."""
        fetch = self._waits.get(seq)
        if fetch is None:
            return False
        if not fetch.over:
            return True
        del self._waits[seq]
        return False

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a read."""
        return sum(not fetch.over for fetch in self._waits.values())

    def begins(self, seq: Sequence, hit: Hit) -> bool:
        """Begin to read what memory lacks of a sequence's prompt, where that is faster than computing it. True: the sequence
        waits."""
        if seq in self._looked or not self.disk.is_open or not self._kv.seals.active:
            return False
        if not hit.looked_up or not self._kv.fits(seq, hit):
            return False
        self.disk.look_around()
        wanted, num_blocks = self._missing(seq, hit)
        if not wanted:
            self._looked.add(seq)
            return False
        for fetch in self._fetches:
            if wanted[0].place.path in {piece[0].place.path for piece in fetch.pieces}:
                self._waits[seq] = fetch  # it looks again afterwards, for what is left
                return True
        gain = num_blocks * self._size - hit.num_tokens
        num_bytes = sum(self.memory.sizes[one.group] for one in wanted)
        seconds = self._compute_seconds(gain)
        if seconds is not None and num_bytes / self.disk.read_rate >= seconds:
            self._looked.add(seq)
            self.stats.slower += 1
            return False
        if len(self._fetches) >= MOST_FETCHES:
            return True
        self._looked.add(seq)
        end = num_blocks * self._size
        fetch = Fetch(
            self._content,
            list(self._kv.keys_of(seq, num_blocks)),
            self._kv.root_of(seq),
            np.array(seq.token_ids(0, end), np.int32),
            _by_file(wanted, self._kv.layout.state_group),
            hit.num_tokens,
            num_bytes,
            self.clock(),
        )
        self._waits[seq] = fetch
        self._fetches.append(fetch)
        self.stats.fetches += 1
        limit = _LONGEST_WAIT if seconds is None else min(seconds, _LONGEST_WAIT)
        asyncio.get_running_loop().call_later(limit, self._expire, fetch)
        self._begin(self._fetch(fetch, seq))
        return True

    def _compute_seconds(self, num_tokens: int) -> float | None:
        return None if self._token_seconds is None else num_tokens * self._token_seconds

    def _expire(self, fetch: Fetch) -> None:
        if not fetch.over:
            self._end(fetch)
            self.stats.given_up += 1

    def _end(self, fetch: Fetch) -> None:
        fetch.over = True
        if fetch in self._fetches:
            self._fetches.remove(fetch)
        self.inbox.wake()

    def look(self) -> None:
        """Between two steps: steps may have landed for which a copy waits."""
        if self._reserved:
            for one in self._reserved:
                self._look_at(one)
            self._reserved = [one for one in self._reserved if not one.landed.done()]

    def _look_at(self, one: _Reserved) -> None:
        if one.steps.isdisjoint(self.sequences.by_step) and not one.landed.done():
            one.landed.set_result(None)

    def ended(self, seq: Sequence) -> None:
        """A sequence has ended, or its executor is about to: its blocks are written, once it is their turn."""
        kv = self._kv
        count = seq.num_keyed_blocks
        if count * self._size < self.least_tokens or not kv.prefix_caching or seq.suspected:
            return
        keys = seq.block_keys[:count]
        if len(keys) < count or self.disk.find(self._content, kv.naming.index, keys[-1]) is not None:
            return
        prompt = seq.request.prompt_token_ids[: count * self._size]
        rest = np.array(seq.output_token_ids[: count * self._size - len(prompt)], np.int32)
        salt = seq.context.cache_salt
        self._ended.append(
            _Ended(
                list(keys),
                kv.root_of(seq),
                np.concatenate((prompt, rest)).astype(np.int32),
                seq.request.adapter or "",
                "" if salt is None else hashlib.sha256(salt.encode(errors="surrogatepass")).hexdigest()[:16],
            )
        )
        if len(self._ended) > MOST_ENDED:
            self._ended.popleft()
        self.stats.queued = len(self._ended)
        self._idle.clear()
        self._news.set()

    async def flush(self, seconds: float) -> None:
        """Write what is queued, and what running sequences have, within so many seconds and at any rate."""
        for seq in list(self.sequences.running):
            self.ended(seq)
        self._flushing.set()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("%d prompts were not written to the cache in %.0f s", len(self._ended), seconds)
            self._ended.clear()
        finally:
            self._flushing.clear()

    async def _in_loop(self, command: Callable[[], R]) -> R:
        """Run a function between two steps."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(command())
            except Exception as error:
                future.set_exception(error)

        self.inbox.put(run)
        return await future

    # -- from disk -----------------------------------------------------------------------------------------------------

    def _missing(self, seq: Sequence, hit: Hit) -> tuple[list[Wanted], int]:
        """What memory lacks, and the disk has, of the deepest place where a sequence could begin; and the blocks before it."""
        kv = self._kv
        most = (seq.num_known_tokens - 1) // self._size
        keys = kv.keys_of(seq, most)
        full = [group.index for group in kv.groups if group.window is None]
        num_blocks = next(
            (index for index, key in enumerate(keys) if not all(self._has(group, key) for group in full)),
            most,
        )
        before = -1
        while num_blocks != before:
            before = num_blocks
            for group in kv.groups:
                if group.window is None:
                    continue
                while num_blocks:
                    low = group.lowest(num_blocks * self._size)
                    gap = next(
                        (
                            i
                            for i in range(num_blocks - 1, low - 1, -1)
                            if not self._has(group.index, keys[i])
                        ),
                        None,
                    )
                    if gap is None:
                        break
                    num_blocks = gap
            if kv.states is not None:
                num_blocks = kv.states.round_down(num_blocks)
                while num_blocks and not self._has(kv.layout.state_group, keys[num_blocks - 1]):
                    num_blocks = kv.states.round_down(num_blocks - 1)
        if num_blocks <= hit.num_blocks:
            return [], 0
        wanted = []
        for group in kv.groups:
            for index in range(group.lowest(num_blocks * self._size), num_blocks):
                if group.cache.block_of(keys[index]) is None:
                    wanted.append((group.index, index))
        if kv.states is not None and kv.states.find(keys[num_blocks - 1]) is None:
            wanted.append((kv.layout.state_group, num_blocks - 1))
        found = []
        for number, index in wanted:
            place = self.disk.find(self._content, number, keys[index])
            assert place is not None, "what neither memory nor disk has is not counted"
            found.append(Wanted(number, index, keys[index], place))
        return found, num_blocks

    def _has(self, group: int, key: bytes) -> bool:
        return self._in_memory(group, key) or self.disk.find(self._content, group, key) is not None

    def _in_memory(self, group: int, key: bytes) -> bool:
        kv = self._kv
        if group == kv.layout.state_group:
            return kv.states is not None and kv.states.find(key) is not None
        return kv.groups[group].cache.block_of(key) is not None

    async def _fetch(self, fetch: Fetch, seq: Sequence) -> None:
        """Bring one file's blocks after the other into the prefix cache; while one is copied the next is read."""
        loop = asyncio.get_running_loop()
        complete = False
        reading = loop.create_task(self._read(fetch, fetch.pieces[0]))
        try:
            for number, piece in enumerate(fetch.pieces, 1):
                data = await reading
                if data is None or fetch.over:
                    break
                if number < len(fetch.pieces):
                    reading = loop.create_task(self._read(fetch, fetch.pieces[number]))
                if not await self._adopt(fetch, piece, data):
                    break
            else:
                complete = True
        finally:
            reading.cancel()
            if not fetch.over:
                self.stats.given_up += not complete
                seconds = self.clock() - fetch.began
                tokens = len(fetch.tokens) - fetch.num_cached
                if complete:
                    self.stats.hit_tokens += tokens
                    self.disk.touch(list(dict.fromkeys(piece[0].place.path for piece in fetch.pieces)))
                now, got = self.clock(), tokens if complete else 0
                self.sequences.observer.kv_fetched(seq, got, fetch.num_read, seconds, now)
            self._end(fetch)

    async def _read(self, fetch: Fetch, piece: list[Wanted]) -> memoryview | None:
        """Read a file's blocks, and compare what it says of them with what the prompt needs. None: it cannot be used."""
        path = piece[0].place.path
        data = buffer(sum(padded(self.memory.sizes[one.group]) for one in piece))
        try:
            chain = await self.disk.read(path, [one.place.number for one in piece], data)
            end = (max(one.number for one in piece) + 1) * self._size
            check_chain(chain, fetch.content, fetch.root, self.memory.sizes, fetch.tokens[:end], self._size)
            for one in piece:
                if chain.entries[one.place.number] != Entry(one.group, one.number, one.place.checksum):
                    raise BadFile("other_tokens", "another block in the same place")
        except BadFile as error:
            self.disk.refuse(path, error.reason)
            return None
        except OSError as error:  # another server has deleted it, or the disk is broken
            _log.warning("a file of the prompt cache cannot be read: %s", error)
            self.disk.forget(path)
            return None
        return data

    async def _adopt(self, fetch: Fetch, piece: list[Wanted], data: memoryview) -> bool:
        """Copy what was read into blocks of the pool, and let them be found. False: there is no room, or some are damaged."""
        reserved = await self._in_loop(lambda: self._reserve(fetch, piece))
        if reserved is None:
            return False
        adopted: Int32Array | None = None
        try:
            await reserved.landed
            await self.copier.run(lambda: self._copy_in(reserved, data))
            if reserved.wanted:
                adopted = await self.executor.adopt_blocks(
                    SealedBlocks(
                        reserved.fingerprint,
                        np.array([one.group for one in reserved.wanted], np.int32),
                        np.array(reserved.blocks, np.int32),
                        np.array([one.place.checksum for one in reserved.wanted], np.uint64),
                    )
                )
        except (ExecutorError, OSError) as error:
            _log.warning("blocks that were read from disk are not used: %s", error)
        good = set() if adopted is None else set(adopted.tolist())
        kept = await self._in_loop(lambda: self._settle(fetch, reserved, good))
        if adopted is not None and len(good) < len(reserved.wanted) and kept:
            self.disk.refuse(piece[0].place.path, "damaged")
            return False
        fetch.num_read += sum(self.memory.sizes[one.group] for one in reserved.wanted)
        return kept and len(good) == len(reserved.wanted)

    def _reserve(self, fetch: Fetch, piece: list[Wanted]) -> _Reserved | None:
        """Take blocks of the pool; None if that would take those of others. Between two steps."""
        kv = self._kv
        if fetch.over or not kv.seals.active or fetch.content != self._content:
            return None
        landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        steps = set(self.sequences.by_step)
        reserved = _Reserved(self.sequences.journal.epoch, kv.seals.fingerprint, [], [], [], landed, steps)
        begin = 0
        for one in piece:
            if not self._in_memory(one.group, one.key):
                reserved.wanted.append(one)
                reserved.at.append(begin)
            begin += padded(self.memory.sizes[one.group])
        blocks = kv.hold_for_fetch(
            [one.group for one in reserved.wanted], fetch.keys, len(self.sequences.running)
        )
        if blocks is None:
            return None
        reserved.blocks = blocks
        self._look_at(reserved)
        if not landed.done():
            self._reserved.append(reserved)
        return reserved

    def _copy_in(self, reserved: _Reserved, data: memoryview) -> None:
        for one, at, block in zip(reserved.wanted, reserved.at, reserved.blocks, strict=True):
            self.memory.write(one.group, block, data[at:])

    def _settle(self, fetch: Fetch, reserved: _Reserved, good: set[int]) -> bool:
        """Let the blocks be found that the executor has adopted, and free all. Returns whether it is still the same life. Between
        two steps."""
        kv = self._kv
        same = reserved.epoch == self.sequences.journal.epoch and reserved.fingerprint == kv.seals.fingerprint
        for number, (one, block) in enumerate(zip(reserved.wanted, reserved.blocks, strict=True)):
            checksum = one.place.checksum if same and number in good else None
            begin = one.number * self._size
            before = fetch.keys[one.number - 1] if one.number else fetch.root
            kv.take_fetched(
                one.group, block, one.key, checksum, before, fetch.tokens[begin : begin + self._size]
            )
        return same

    # -- to disk -------------------------------------------------------------------------------------------------------

    async def _store(self) -> None:
        """Write the chains of ended sequences, one file after the other."""
        while True:
            if not self._ended:
                self._idle.set()
                self._news.clear()
                await self._news.wait()
                continue
            chain = self._ended[0]
            try:
                while await self._store_file(chain):
                    pass
            except Exception:  # no later prompt is to be lost for it
                _log.exception("a prompt is not written to the cache")
            if self._ended and self._ended[0] is chain:
                self._ended.popleft()
            self.stats.queued = len(self._ended)

    async def _store_file(self, ended: _Ended) -> bool:
        """Write the next file of a chain. False if there is none, or it cannot be written."""
        if not self.disk.takes_writes:
            return False
        sources = await self._in_loop(lambda: self._collect(ended))
        if not sources:
            return False
        entries = tuple(source.entry for source in sources)
        end = (max(entry.number for entry in entries) + 1) * self._size
        chain = Chain(
            self._content, ended.root, self._size, self.memory.sizes, ended.tokens[:end], entries,
            self.model, ended.adapter, ended.salt,
        )  # fmt: skip
        data = buffer(chain.data_bytes)
        await self.copier.run(lambda: self._copy_out(sources, data))
        if not await self._in_loop(lambda: self._are_sealed(sources)):
            return False  # a step was submitted meanwhile that may have written to them
        if not await self.disk.write(chain, data, 1e-3 * ended.num_files):
            return False
        ended.num_files += 1
        if not self._flushing.is_set():
            seconds = chain.data_bytes / self.disk.write_rate
            try:
                async with asyncio.timeout(seconds):
                    await self._flushing.wait()
            except TimeoutError:
                pass
        return True

    def _collect(self, ended: _Ended) -> list[_Source]:
        """The next blocks of a chain that are found and sealed, and not on the disk yet: as many as a file takes. Between two
        steps."""
        kv, sources, num_bytes = self._kv, list[_Source](), 0
        full = [group.index for group in kv.groups if group.window is None]
        if not ended.index:
            num_new = sum(self.disk.find(self._content, kv.naming.index, key) is None for key in ended.keys)
            if num_new * self._size < self.least_tokens:
                return []
        while ended.index < len(ended.keys):
            key = ended.keys[ended.index]
            found = list(self._sources(key, ended.index))
            if any(not self._on_disk_or(found, group, key) for group in full):
                ended.index = len(ended.keys)  # what follows a gap cannot be used
                break
            size = sum(padded(self.memory.sizes[one.entry.group]) for one in found)
            if sources and num_bytes + size > FILE_BYTES:
                break
            sources += found
            num_bytes += size
            ended.index += 1
        return sources

    def _on_disk_or(self, found: list[_Source], group: int, key: bytes) -> bool:
        return any(one.entry.group == group for one in found) or (
            self.disk.find(self._content, group, key) is not None
        )

    def _sources(self, key: bytes, index: int) -> Iterator[_Source]:
        """Where a key's blocks, and the snapshot behind it, lie in memory, of those that are not on disk."""
        kv = self._kv
        for group in kv.groups:
            block = group.cache.block_of(key)
            checksum = None if block is None else group.seals.checksums.get(block)
            on_disk = self.disk.find(self._content, group.index, key) is not None
            if block is not None and checksum is not None and not on_disk:
                yield _Source(Entry(group.index, index, checksum), block)
        if kv.states is not None and (slot := kv.states.find(key)) is not None:
            checksum = kv.states.seals.checksums.get(slot)
            group_index = kv.layout.state_group
            if checksum is not None and self.disk.find(self._content, group_index, key) is None:
                yield _Source(Entry(group_index, index, checksum), slot)

    def _copy_out(self, sources: list[_Source], data: memoryview) -> None:
        begin = 0
        for source in sources:
            self.memory.read(source.entry.group, source.block, data[begin:])
            begin += padded(self.memory.sizes[source.entry.group])

    def _are_sealed(self, sources: list[_Source]) -> bool:
        """Whether no step that may write to these blocks was submitted since they were collected. Between two steps."""
        kv = self._kv
        for entry, block in sources:
            states = kv.states
            of_state = states is not None and entry.group == kv.layout.state_group
            seals = states.seals if of_state and states is not None else kv.groups[entry.group].seals
            if seals.checksums.get(block) != entry.checksum:
                return False
        return True


def _by_file(wanted: list[Wanted], state_group: int) -> list[list[Wanted]]:
    """Blocks by file, in the order of the first of each; states last, for a snapshot is found with its block."""
    pieces: dict[tuple[bool, str], list[Wanted]] = {}
    for one in sorted(wanted, key=lambda one: one.number):
        pieces.setdefault((one.group == state_group, one.place.path), []).append(one)
    for piece in pieces.values():
        piece.sort(key=lambda one: one.place.number)
    return [
        pieces[name]
        for name in sorted(pieces, key=lambda name: (name[0], min(one.number for one in pieces[name])))
    ]
