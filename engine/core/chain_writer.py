"""`ChainWriter`: KV blocks of ended sequences go to disk, a file of a chain after the other.

    ended sequence -> queue -> blocks that are found and sealed -> copy -> still the same seals? -> file

No block is held for it: what was reused before its turn is left out, and a copy during which a step was submitted that may write
to its blocks is dropped. Part of `DiskTier`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.core.inbox import Inbox
from engine.core.sequences import Sequences
from engine.kv.disk.directory import FILE_STEP, buffer
from engine.kv.disk.disk import Disk, Runner, TierStats
from engine.kv.disk.format import Chain, Entry, padded
from engine.sequence import Sequence
from executors.contract import BlockMemory, Int32Array, ModelExecutor

_log = logging.getLogger("cohort.engine")

FILE_BYTES = 64 << 20
"""A file holds at most so many bytes of blocks, and one block at least."""
LEAST_TOKENS = 256
"""Shorter chains, and shorter additions to a chain on disk, are not written."""
MOST_ENDED = 256
"""Ended sequences that wait to be written; older ones are given up."""


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
    least_tokens: int = LEAST_TOKENS

    def __post_init__(self) -> None:
        self._kv = self.sequences.kv
        self._size = self._kv.layout.block_size
        self._ended: deque[_Ended] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._flushing = asyncio.Event()

    def ended(self, seq: Sequence) -> None:
        """A sequence has ended, or its executor is about to: its blocks are written, once it is their turn."""
        kv = self._kv
        count = seq.num_keyed_blocks
        if count * self._size < self.least_tokens or not kv.prefix_caching or seq.suspected:
            return
        keys = seq.block_keys[:count]
        if len(keys) < count:
            return
        if self.disk.find(self.executor.kv_layout().content, kv.naming.index, keys[-1]) is not None:
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

    async def run(self) -> None:
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
        sources = await self.inbox.ask(lambda: self._collect(ended))
        if not sources:
            return False
        entries = tuple(source.entry for source in sources)
        end = (max(entry.number for entry in entries) + 1) * self._size
        chain = Chain(
            self.executor.kv_layout().content, ended.root, self._size, self.memory.sizes, ended.tokens[:end], entries,
            self.model, ended.adapter, ended.salt,
        )  # fmt: skip
        data = buffer(chain.data_bytes)
        await self.copier.run(lambda: self._copy_out(sources, data))
        if not await self.inbox.ask(lambda: self._are_sealed(sources)):
            return False  # a step was submitted meanwhile that may have written to them
        if not await self.disk.write(chain, data, ended.used):
            return False
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
        kv, sources, num_bytes = self._kv, list[_Source](), 0
        full = [group.index for group in kv.groups if group.window is None]
        if not ended.index:
            before = self._files_of(ended.keys)
            self.disk.touch(before)
            ended.used = time.time() - FILE_STEP * len(before)
            num_new = sum(
                self.disk.find(self.executor.kv_layout().content, kv.naming.index, key) is None
                for key in ended.keys
            )
            if num_new * self._size < self.least_tokens:
                return []
        while ended.index < len(ended.keys):
            key = ended.keys[ended.index]
            some = list(self._sources(key, ended.index))
            if any(not self._on_disk_or(some, group, key) for group in full):
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
        content, group = self.executor.kv_layout().content, self._kv.naming.index
        places = (self.disk.find(content, group, key) for key in keys)
        return list(dict.fromkeys(place.path for place in places if place is not None))

    def _on_disk_or(self, some: list[_Source], group: int, key: bytes) -> bool:
        return any(one.entry.group == group for one in some) or (
            self.disk.find(self.executor.kv_layout().content, group, key) is not None
        )

    def _sources(self, key: bytes, index: int) -> Iterator[_Source]:
        """Where a key's blocks, and the snapshot behind it, lie in memory, of those that are not on disk."""
        kv = self._kv
        for group in kv.groups:
            block = group.cache.block_of(key)
            checksum = None if block is None else group.seals.checksums.get(block)
            on_disk = self.disk.find(self.executor.kv_layout().content, group.index, key) is not None
            if block is not None and checksum is not None and not on_disk:
                yield _Source(Entry(group.index, index, checksum), block)
        if kv.states is not None and (slot := kv.states.find(key)) is not None:
            checksum = kv.states.seals.checksums.get(slot)
            group_index = kv.layout.state_group
            if (
                checksum is not None
                and self.disk.find(self.executor.kv_layout().content, group_index, key) is None
            ):
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
