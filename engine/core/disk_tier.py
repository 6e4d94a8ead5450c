"""`DiskTier`: KV blocks of sequences go to disk, and those of a waiting prompt come back from it.

    ended   sequence, or one that has filled a file -> `ChainWriter` -> files
    waits   prompt -> what memory and disk hold together -> read -> blocks of the pool -> copy -> the executor adopts -> keys

No step waits for a disk: a sequence that waits for one is passed over, and computed when its time is over. Blocks are taken from
the pool once their bytes are in memory, for as long as a copy within it takes. What a file holds is compared twice: its tokens
with the prompt's, and each block's seal by the executor, behind all that it was told before. So no file is ever trusted.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from engine.core.chain_writer import ChainWriter
from engine.core.inbox import Inbox
from engine.core.sequences import Sequences
from engine.kv.disk.directory import buffer
from engine.kv.disk.disk import Disk, Place, Runner, ThreadRunner, TierStats
from engine.kv.disk.format import BadFile, Entry, check_chain, padded
from engine.kv.hit import Hit, reach
from engine.sequence import Sequence
from engine.story import Missed, PrefixMatch
from executors.contract import BlockMemory, ExecutorError, Int32Array, ModelExecutor, SealedBlocks

_log = logging.getLogger("cohort.engine")

R = TypeVar("R")
MOST_FETCHES = 2
"""Prompts whose blocks are read at once; others wait for their turn."""
_LONGEST_WAIT = 60.0
"""Seconds that a sequence waits for a disk at most."""


class Need(NamedTuple):
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
    """int32: of all blocks up to the last one that is needed."""
    pieces: list[list[Need]]
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
    needs: list[Need]
    at: list[int]
    """Where each one lies in the bytes that were read."""
    blocks: list[int]
    landed: asyncio.Future[None]
    steps: set[int]
    """Steps that were in flight: they may read what the blocks held."""


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
        self._num_unanswered = 0
        """Fetches that were given up, and whose read the disk has not answered yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.writer = ChainWriter(
            self.disk,
            self.executor,
            self.memory,
            self.sequences,
            self.inbox,
            self.model,
            self.stats,
            self.copier,
            self.clock,
        )
        self._begin(self.writer.run())

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
        needs, num_blocks = self._missing(seq, hit)
        if not needs:
            self._looked.add(seq)
            return False
        for fetch in self._fetches:
            if needs[0].place.path in {piece[0].place.path for piece in fetch.pieces}:
                self._waits[seq] = fetch  # it looks again afterwards, for what is left
                return True
        if self._num_unanswered:  # it would be waited for in vain again
            return False
        gain = num_blocks * self._size - hit.num_tokens
        num_bytes = sum(self.memory.sizes[one.group] for one in needs)
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
            _by_file(needs, self._kv.layout.state_group),
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
            self._num_unanswered += 1

    def _end(self, fetch: Fetch) -> None:
        fetch.over = True
        if fetch in self._fetches:
            self._fetches.remove(fetch)
        self.inbox.wake()

    def look(self) -> None:
        """Between two steps: steps may have landed for which a copy waits, and blocks of running sequences may be written."""
        self.writer.look()
        if self._reserved:
            for one in self._reserved:
                self._look_at(one)
            self._reserved = [one for one in self._reserved if not one.landed.done()]

    def _look_at(self, one: _Reserved) -> None:
        if one.steps.isdisjoint(self.sequences.by_step) and not one.landed.done():
            one.landed.set_result(None)

    def ended(self, seq: Sequence) -> None:
        """See `ChainWriter`."""
        self.writer.ended(seq)

    def preempted(self, seq: Sequence) -> None:
        """Look for its blocks again once it can be admitted: they may have been written while it ran."""
        self._looked.discard(seq)

    def explain(self, seq: Sequence, hit: Hit, match: PrefixMatch) -> PrefixMatch:
        """Why memory gave a sequence no more than `hit`, with what the disk has: `match` is what memory knows of it. By the index
        alone, within one root: other callers' prompts are not looked at."""
        if match.missed not in (Missed.NEW, Missed.DIFFERS, Missed.EVICTED):
            return match
        kv, size, content = self._kv, self._size, self._content
        matched = hit.num_blocks if kv.states is None or hit.missed is not None else hit.num_in_full_groups
        keys = kv.keys_of(seq, (seq.num_known_tokens - 1) // size)
        end, group = matched, kv.naming.index
        while end < len(keys) and self.disk.find(content, group, keys[end]) is not None:
            end += 1
        unread = (end - matched) * size
        if match.missed is Missed.EVICTED:
            return replace(match, unread_tokens=unread)
        if match.missed is Missed.DIFFERS and not unread:
            return match
        first = None
        if end < len(keys):
            stored = self.disk.followed(content, keys[end - 1] if end else kv.root_of(seq))
            if stored is not None:
                differ = np.flatnonzero(
                    stored != np.array(seq.token_ids(end * size, (end + 1) * size), np.int32)
                )
                first = end * size + int(differ[0]) if differ.size else None
        if unread:
            return PrefixMatch(match.matched_tokens, Missed.ON_DISK, first, unread_tokens=unread)
        return match if first is None else PrefixMatch(match.matched_tokens, Missed.DIFFERS, first)

    # -- from disk -----------------------------------------------------------------------------------------------------

    def _missing(self, seq: Sequence, hit: Hit) -> tuple[list[Need], int]:
        """What memory lacks, and the disk has, of the deepest place where a sequence could begin; and the blocks before it."""
        kv = self._kv
        most = (seq.num_known_tokens - 1) // self._size
        keys = kv.keys_of(seq, most)
        num_blocks = reach(kv.groups, kv.states, keys, self._size, self._has)
        if num_blocks <= hit.num_blocks:
            return [], 0
        numbers = list[tuple[int, int]]()
        for group in kv.groups:
            for index in range(group.lowest(num_blocks * self._size), num_blocks):
                if group.cache.block_of(keys[index]) is None:
                    numbers.append((group.index, index))
        if kv.states is not None and kv.states.find(keys[num_blocks - 1]) is None:
            numbers.append((kv.layout.state_group, num_blocks - 1))
        needs = []
        for number, index in numbers:
            place = self.disk.find(self._content, number, keys[index])
            assert place is not None, "what neither memory nor disk has is not counted"
            needs.append(Need(number, index, keys[index], place))
        return needs, num_blocks

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
            if fetch.over:
                self._num_unanswered -= 1
            else:
                self.stats.given_up += not complete
                seconds = self.clock() - fetch.began
                tokens = len(fetch.tokens) - fetch.num_cached
                if complete:
                    self.stats.hit_tokens += tokens
                    self.disk.touch(list(dict.fromkeys(piece[0].place.path for piece in fetch.pieces)))
                now, num_tokens = self.clock(), tokens if complete else 0
                self.sequences.observer.kv_fetched(seq, num_tokens, fetch.num_read, seconds, now)
            self._end(fetch)

    async def _read(self, fetch: Fetch, piece: list[Need]) -> memoryview | None:
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

    async def _adopt(self, fetch: Fetch, piece: list[Need], data: memoryview) -> bool:
        """Copy what was read into blocks of the pool, and let them be found. False: there is no room, or some are damaged."""
        reserved = await self.inbox.ask(lambda: self._reserve(fetch, piece))
        if reserved is None:
            return False
        adopted: Int32Array | None = None
        try:
            await reserved.landed
            await self.copier.run(lambda: self._copy_in(reserved, data))
            if reserved.needs:
                adopted = await self.executor.adopt_blocks(
                    SealedBlocks(
                        reserved.fingerprint,
                        np.array([one.group for one in reserved.needs], np.int32),
                        np.array(reserved.blocks, np.int32),
                        np.array([one.place.checksum for one in reserved.needs], np.uint64),
                    )
                )
        except (ExecutorError, OSError) as error:
            _log.warning("blocks that were read from disk are not used: %s", error)
        good = set() if adopted is None else set(adopted.tolist())
        is_same_life = await self.inbox.ask(lambda: self._settle(fetch, reserved, good))
        if adopted is not None and len(good) < len(reserved.needs) and is_same_life:
            self.disk.refuse(piece[0].place.path, "damaged")
            return False
        fetch.num_read += sum(self.memory.sizes[one.group] for one in reserved.needs)
        return is_same_life and len(good) == len(reserved.needs)

    def _reserve(self, fetch: Fetch, piece: list[Need]) -> _Reserved | None:
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
                reserved.needs.append(one)
                reserved.at.append(begin)
            begin += padded(self.memory.sizes[one.group])
        blocks = kv.hold_for_fetch(
            [one.group for one in reserved.needs], fetch.keys, len(self.sequences.running)
        )
        if blocks is None:
            return None
        reserved.blocks = blocks
        self._look_at(reserved)
        if not landed.done():
            self._reserved.append(reserved)
        return reserved

    def _copy_in(self, reserved: _Reserved, data: memoryview) -> None:
        for one, at, block in zip(reserved.needs, reserved.at, reserved.blocks, strict=True):
            self.memory.write(one.group, block, data[at:])

    def _settle(self, fetch: Fetch, reserved: _Reserved, good: set[int]) -> bool:
        """Let the blocks be found that the executor has adopted, and free all. Returns whether it is still the same life. Between
        two steps."""
        kv = self._kv
        same = reserved.epoch == self.sequences.journal.epoch and reserved.fingerprint == kv.seals.fingerprint
        for number, (one, block) in enumerate(zip(reserved.needs, reserved.blocks, strict=True)):
            checksum = one.place.checksum if same and number in good else None
            begin = one.number * self._size
            before = fetch.keys[one.number - 1] if one.number else fetch.root
            kv.take_fetched(
                one.group, block, one.key, checksum, before, fetch.tokens[begin : begin + self._size]
            )
        return same


def _by_file(needs: list[Need], state_group: int) -> list[list[Need]]:
    """Blocks by file, in the order of the first of each; states last, for a snapshot is found with its block."""
    pieces: dict[tuple[bool, str], list[Need]] = {}
    for one in sorted(needs, key=lambda one: one.number):
        pieces.setdefault((one.group == state_group, one.place.path), []).append(one)
    for piece in pieces.values():
        piece.sort(key=lambda one: one.place.number)
    return [
        pieces[name]
        for name in sorted(pieces, key=lambda name: (name[0], min(one.number for one in pieces[name])))
    ]
