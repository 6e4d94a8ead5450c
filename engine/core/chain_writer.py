"""`ChainWriter`: KV blocks of sequences go to disk, a file of a chain after the other.

    ended sequence ----------.
    running one, each time   +-> queue -> blocks that are found and sealed -> copy -> still the same seals? -> file
    it has filled a file ----'

No block is held for it. A running sequence holds its own, so most of a long prompt is on disk by the time others may take its
blocks. What was reused before its turn is left out, and a copy during which a step was submitted that may write to its blocks is
dropped. Part of `DiskTier`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.core.inbox import Inbox
from engine.core.sequences import Sequences
from engine.kv.disk.directory import FILE_STEP, buffer
from engine.kv.disk.disk import Disk, Runner, TierStats
from engine.kv.disk.format import Chain, Entry, padded
from engine.kv.hit import reach
from engine.sequence import Sequence
from executors.contract import BlockMemory, Int32Array, ModelExecutor

_log = logging.getLogger("cohort.engine")

FILE_BYTES = 64 << 20
"""A file holds at most so many bytes of blocks, and one block at least."""
LEAST_TOKENS = 256
"""Shorter chains are not written, and additions to a chain on disk once they are as long."""
MOST_ENDED = 256
"""Chains that wait to be written; older ones are given up."""
STALLED = 60.0
"""Seconds without a file after which no memory is kept for what is queued: the disk hangs."""
LOOK_EVERY = 1.0
"""Seconds between two looks at what running sequences have filled."""


@dataclass(eq=False, slots=True)
class _Ended:
    """A chain that may be written."""

    keys: list[bytes]
    root: bytes
    tokens: Int32Array
    adapter: str
    salt: str
    is_running: bool = False
    """The sequence had not ended: what its windows leave and what they read is written at its end."""
    index: int = 0
    """Blocks before it are done."""
    used: float = 0.0
    """Time of use of the next file, seconds since 1970."""


class _Source(NamedTuple):
    entry: Entry
    block: int


@dataclass(eq=False)
class ChainWriter:
    """See the module. `copier` runs copies between the memory file and buffers, which never wait for a disk."""

    disk: Disk
    executor: ModelExecutor
    memory: BlockMemory
    sequences: Sequences
    inbox: Inbox
    model: str
    stats: TierStats
    copier: Runner
    clock: Callable[[], float]
    least_tokens: int = LEAST_TOKENS

    def __post_init__(self) -> None:
        self._kv = self.sequences.kv
        self._size = self._kv.layout.block_size
        self._ended: deque[_Ended] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._flushing = asyncio.Event()
        self._full = [group for group in self._kv.groups if group.window is None]
        self._blocks_alone = self._kv.states is None and len(self._full) == len(self._kv.groups)
        """Whether a prompt can begin behind any of its blocks."""
        self._content = ""
        """What the bytes of blocks of the executor's present life depend on, as of the latest command."""
        self._looks_at = 0.0
        self._wrote_at = self.clock()
        self._queued_blocks: weakref.WeakKeyDictionary[Sequence, int] = weakref.WeakKeyDictionary()
        """Of running sequences: blocks before it were queued."""

    def look(self) -> None:
        """Between two steps: queue what running sequences have filled, once no ended one waits: those may lose their blocks."""
        now = self.clock()
        if now < self._looks_at:
            return
        self._looks_at = now + LOOK_EVERY
        if self._ended or not self._full or not self.disk.takes_writes:
            return
        row_bytes = sum(padded(self.memory.sizes[group.index]) for group in self._full)
        in_file = max(FILE_BYTES // row_bytes, self.least_tokens // self._size, 1)
        for seq in self.sequences.running:
            begin = self._queued_blocks.get(seq, seq.num_cached_tokens // self._size)
            count = max(0, seq.num_keyed_blocks - begin) // in_file * in_file
            if count:
                self._queued_blocks[seq] = begin + count
                self._queue(seq, begin + count, is_running=True)

    def is_writing(self) -> bool:
        """Whether chains wait, and the disk takes them."""
        return bool(self._ended) and self.clock() - self._wrote_at < STALLED

    def ended(self, seq: Sequence) -> None:
        """A sequence has ended, or its executor is about to: its blocks are written, once it is their turn."""
        self._queue(seq, seq.num_keyed_blocks, is_running=False)

    def _queue(self, seq: Sequence, count: int, is_running: bool) -> None:
        """Let a sequence's first `count` blocks be written."""
        kv = self._kv
        if count * self._size < self.least_tokens or not kv.prefix_caching or seq.suspected:
            return
        keys = seq.block_keys[:count]
        if len(keys) < count:
            return
        self._content = self.executor.kv_layout().content
        if self._blocks_alone and self._on_disk(kv.naming.index, keys[-1]):
            self.disk.touch(self._files_of(keys))
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
                is_running,
            )
        )
        if len(self._ended) == 1:
            self._wrote_at = self.clock()
        elif len(self._ended) > MOST_ENDED:
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

    async def run(self) -> None:
        """Write the chains that are queued, one file after the other."""
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
        sources = await self.inbox.ask(lambda: self._collect(ended))
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
        if not await self.inbox.ask(lambda: self._are_sealed(sources)):
            return False  # a step was submitted meanwhile that may have written to them
        if not await self.disk.write(chain, data, ended.used):
            return False
        self._wrote_at = self.clock()
        ended.used -= FILE_STEP
        if not self._flushing.is_set():
            seconds = chain.data_bytes / self.disk.write_rate
            try:
                async with asyncio.timeout(seconds):
                    await self._flushing.wait()
            except TimeoutError:
                pass  # its share of the time is over
        return True

    def _collect(self, ended: _Ended) -> list[_Source]:
        """The next blocks of a chain that are found and sealed, and not on the disk yet: as many as a file takes. Between two
        steps."""
        sources, num_bytes = list[_Source](), 0
        self._content = self.executor.kv_layout().content
        if not ended.index:
            before = self._files_of(ended.keys)
            self.disk.touch(before)
            ended.used = time.time() - FILE_STEP * len(before)
            if self._gain(ended) * self._size < self.least_tokens:
                return []
        while ended.index < len(ended.keys):
            key = ended.keys[ended.index]
            some = list(self._sources(key, ended))
            groups = {one.entry.group for one in some}
            if not all(group.index in groups or self._on_disk(group.index, key) for group in self._full):
                ended.index = len(ended.keys)  # what follows a gap cannot be used
                break
            size = sum(padded(self.memory.sizes[one.entry.group]) for one in some)
            if sources and num_bytes + size > FILE_BYTES:
                break
            sources += some
            num_bytes += size
            ended.index += 1
        return sources

    def _files_of(self, keys: list[bytes]) -> list[str]:
        """The files that hold a chain's blocks, in their order."""
        places = (self.disk.find(self._content, self._kv.naming.index, key) for key in keys)
        return list(dict.fromkeys(place.path for place in places if place is not None))

    def _gain(self, ended: _Ended) -> int:
        """Blocks by which a later prompt with this chain can begin further on once it is written. While its sequence runs: blocks
        that are not on disk."""
        kv = self._kv
        if ended.is_running:
            return sum(not self._on_disk(kv.naming.index, key) for key in ended.keys)
        before = reach(kv.groups, kv.states, ended.keys, self._size, self._on_disk)
        return reach(kv.groups, kv.states, ended.keys, self._size, self._writable) - before

    def _on_disk(self, group: int, key: bytes) -> bool:
        return self.disk.find(self._content, group, key) is not None

    def _writable(self, group: int, key: bytes) -> bool:
        return self._sealed(group, key) is not None or self._on_disk(group, key)

    def _sealed(self, group: int, key: bytes) -> tuple[int, int] | None:
        """The block, or slot of a snapshot, that a key names in memory, and its seal; None if it is not sealed."""
        kv = self._kv
        if group < len(kv.groups):
            block, seals = kv.groups[group].cache.block_of(key), kv.groups[group].seals
        else:
            assert kv.states is not None, "the group behind the last is that of states"
            block, seals = kv.states.find(key), kv.states.seals
        checksum = None if block is None else seals.checksums.get(block)
        return None if block is None or checksum is None else (block, checksum)

    def _sources(self, key: bytes, ended: _Ended) -> Iterator[_Source]:
        """Where a key's blocks, and the snapshot behind it, lie in memory, of those that are not on disk."""
        kv = self._kv
        groups = [group.index for group in (self._full if ended.is_running else kv.groups)]
        if kv.states is not None:
            groups.append(kv.layout.state_group)
        for group in groups:
            sealed = self._sealed(group, key)
            if sealed is not None and not self._on_disk(group, key):
                yield _Source(Entry(group, ended.index, sealed[1]), sealed[0])

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
