"""`SimExecutor`: a fake behind a queue, as if it were in another process, with delays and failures drawn from a seed.

Every batch is checked when it is submitted, against what the engine owes an executor.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.core.engine import EngineCore
from engine.kv.block_group import BlockGroup
from engine.sequence import Sequence
from executors.contract import (
    ExecutorCapabilities,
    ExecutorDied,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    ModelInfo,
    OutOfMemory,
    SealedBlocks,
    Skipped,
    StepFailed,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.testing.fakes.base import FakeExecutor
from tests.sim.adoption import Broken, Lives


@dataclass(slots=True)
class Faults:
    """By step submitted, counted from 1 over all lives: what happens to it.

    refused    InvalidInput, nothing computed        failed   StepFailed; the steps behind it are Skipped
    died       ExecutorDied, all that follows too    lost     computed, but its answer never comes; the steps behind it
                                                              are computed as well and answer after the next epoch began
    """

    by_step: dict[int, str] = field(default_factory=dict)
    idle_deaths: list[float] = field(default_factory=list)
    """Virtual seconds at which the executor dies of itself."""
    failing_restarts: int = 0
    room: int | None = None
    """No memory for a step of more tokens, as long as there are faults of this kind to come: `short` of them."""
    short: int = 0


class SimExecutor:
    """Delegates to `inner`, one call after the other. Not a subclass: what it does not know goes to the fake as it is."""

    def __init__(
        self, inner: FakeExecutor, rng: random.Random, faults: Faults, max_in_flight: int, as_device: bool = False
    ) -> None:  # fmt: skip
        """`as_device`: it says that it is a device, so that the engine chooses how many steps are in flight."""
        self.inner = inner
        self.faults = faults
        self.max_in_flight = max_in_flight
        self.as_device = as_device
        self.core: EngineCore | None = None
        self.lives: Lives | None = None
        """Set if blocks outlive the lives."""
        self.submitted = 0
        self.released: Counter[int] = Counter()
        self._rng = rng
        self._queue: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._late: list[tuple[asyncio.Future[UnifiedOutput], UnifiedOutput]] = []
        self._dead = self._ghost = self._refused = False
        self.broken: Broken | None = None
        self.num_third = 0
        """Steps that were submitted to a device while two were out."""
        self.num_released = 0
        """Blocks whose memory was given back."""
        self.fired = 0
        """Faults that came about."""
        self._tables: dict[tuple[int, int], dict[int, int]] = {}
        """By slot and group: the blocks by their index."""
        self._last_step = 0
        self._worker: asyncio.Task[None] | None = None
        self._listener: Callable[[ExecutorDied], None] = lambda death: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def info(self) -> ModelInfo:
        info = self.inner.info()
        return replace(info, device="cuda:0") if self.as_device else info

    def capabilities(self) -> ExecutorCapabilities:
        return replace(self.inner.capabilities(), max_in_flight=self.max_in_flight)

    def set_death_listener(self, report: Callable[[ExecutorDied], None]) -> None:
        self._listener = report

    # -- the queue -----------------------------------------------------------------------------------------------------

    async def warmup(self) -> None:
        await self.inner.warmup()
        loop = asyncio.get_running_loop()
        self._worker = loop.create_task(self._work())
        for when in self.faults.idle_deaths:
            loop.call_at(when, self._die)

    async def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
        await self.inner.shutdown()

    async def _work(self) -> None:
        while True:
            await (await self._queue.get())()

    def _die(self) -> None:
        self._dead = True
        self.fired += 1
        self._listener(ExecutorDied("died of itself", "exit"))

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        done: asyncio.Future[Int32Array] = asyncio.get_running_loop().create_future()

        async def begin() -> None:
            if self.inner.epoch is not None and self.faults.failing_restarts:
                self.faults.failing_restarts -= 1
                done.set_exception(ExecutorDied("not yet", "load"))
                return
            if self._dead or self._ghost:
                self.inner.adapters.clear()
                self._look_at_offer(adopt)
            try:
                adopted = await self.inner.begin_epoch(epoch, adopt)
            except InvalidInput as error:
                self.broken = self.broken or Broken(f"the executor refuses an offer: {error}")
                done.set_exception(ExecutorDied("an offer that it refuses", "load"))
                return
            self._dead = self._ghost = self._refused = False
            self._tables.clear()
            done.set_result(adopted)
            for future, output in self._late:
                asyncio.get_running_loop().call_later(self._rng.random() / 50, _answer, future, output)
            self._late.clear()

        self._queue.put_nowait(begin)
        return await done

    def _look_at_offer(self, adopt: SealedBlocks | None) -> None:
        if self.lives is not None:
            self.lives.die()
            try:
                self.lives.check(adopt)
            except Broken as error:
                self.broken = self.broken or error

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        await self._told(lambda: self.inner.load_adapter(name, path, digest), 0.003)

    async def unload_adapter(self, name: str) -> None:
        await self._told(lambda: self.inner.unload_adapter(name), 0.0)

    async def _told(self, doing: Callable[[], Awaitable[None]], seconds: float) -> None:
        """In its turn behind the steps; what the fake refuses the engine must not have asked for."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def do() -> None:
            await asyncio.sleep(self._rng.random() * seconds)
            try:
                if self._dead or self._ghost:
                    raise ExecutorDied("dead", "exit")
                await doing()
                if not done.done():
                    done.set_result(None)
            except (ExecutorDied, InvalidInput, OutOfMemory) as error:
                if not isinstance(error, ExecutorDied):
                    self.broken = self.broken or Broken(f"the executor refuses an adapter: {error}")
                if not done.done():
                    done.set_exception(error)

        self._queue.put_nowait(do)
        await done

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        """In its turn, behind steps and released memory."""
        adopted = np.empty(0, np.int32)

        async def adopt() -> None:
            nonlocal adopted
            adopted = await self.inner.adopt_blocks(sealed)  # type: ignore[attr-defined]

        await self._told(adopt, 0.002)
        return adopted

    def release_cache(self, cache_id: int) -> None:
        self.released[cache_id] += 1

        async def release() -> None:
            if not self._dead:
                self.inner.release_cache(cache_id)

        self._queue.put_nowait(release)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        async def truncate() -> None:
            if not self._dead:
                self.inner.truncate_kv(handle, new_len)

        self._queue.put_nowait(truncate)
        return 0

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        assert self.core is not None and self.core._scheduler is not None
        kv, states = self.core._scheduler.kv.groups, self.core._scheduler.kv.states
        if group < len(kv):
            pool, found = kv[group].pool, kv[group].cache.blocks
            used = any(pool.num_references(block) or block in found for block in block_ids.tolist())
        else:
            assert states is not None
            used = any(states._references[slot] or slot in states._key_of for slot in block_ids.tolist())
        if used:
            raise Broken("memory is given back that is in use or can be found")
        self.num_released += len(block_ids)

        async def release() -> None:
            if not self._dead:
                self.inner.release_memory(group, block_ids)

        self._queue.put_nowait(release)

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self._check(batch)
        self.submitted += 1
        number = self.submitted
        result: asyncio.Future[UnifiedOutput] = asyncio.get_running_loop().create_future()

        async def step() -> None:
            await asyncio.sleep(self._rng.random() * 0.002 + batch.total_q_tokens() * 0.0002)
            try:
                output = await self._compute(batch, number)
            except (ExecutorDied, StepFailed, InvalidInput, Skipped) as error:
                if not result.done():
                    result.set_exception(error)
                return
            if self._ghost:
                self._late.append((result, output))
            else:
                _answer(result, output)

        self._queue.put_nowait(step)
        return await result

    async def _compute(self, batch: UnifiedBatch, number: int) -> UnifiedOutput:
        fault = self.faults.by_step.get(number)
        self.fired += fault is not None
        if fault == "died":
            self._dead = True
        if self._dead:
            raise ExecutorDied("dead", "exit")
        if fault == "refused":
            self._refused = True  # what is queued behind it builds on what was not computed
            raise InvalidInput("refused")
        if self.faults.room is not None and self.faults.short and batch.total_q_tokens() > self.faults.room:
            self.faults.short -= 1
            self.inner._stopped = Skipped
            raise OutOfMemory("too many tokens")  # not `fired`: nobody may fail of it
        if fault == "failed":
            self.inner._stopped = Skipped
            raise StepFailed("failed")
        try:
            output = await self.inner.unified_decode(batch)
        except (StepFailed, InvalidInput) as error:
            if self.inner.epoch == batch.epoch and not self._refused and not isinstance(error, Skipped):
                # Nobody asked for this: the engine sent what it must not send.
                self.broken = self.broken or Broken(f"the executor refuses step {batch.step_id}: {error}")
            raise
        if fault == "lost" and not self._ghost:
            self._ghost = True
            raise ExecutorDied("hangs", "hang")
        return output

    # -- what the engine owes --------------------------------------------------------------------------------------------

    def _check(self, batch: UnifiedBatch) -> None:
        assert self.core is not None and self.core._scheduler is not None
        scheduler = self.core._scheduler
        self.core.check_integrity()
        if not 0 < batch.total_q_tokens() <= scheduler.step_budget.tokens:
            raise Broken(f"{batch.total_q_tokens()} tokens in a step")
        if len(batch) > self.inner.num_slots:
            raise Broken(f"{len(batch)} sequences in a step")
        if batch.step_id <= self._last_step:
            raise Broken("steps out of order")
        self._last_step = batch.step_id
        self._check_depth()
        if self.inner.paged:
            self._check_blocks(batch, scheduler.kv.groups, scheduler.sequences.by_step[batch.step_id])

    def _check_depth(self) -> None:
        """No more are out than the executor takes, and, where it is a device, no third one behind a prompt."""
        assert self.core is not None
        out = list(self.core._steps.out)
        if len(out) > self.max_in_flight:
            raise Broken(f"{len(out)} steps are in flight, and it takes {self.max_in_flight}")
        if self.as_device and len(out) > 2:
            self.num_third += 1
            if any(step.batch.total_q_tokens() > len(step.batch) for step in out[:-1]):
                raise Broken("a third step is out behind one that is no decode step")

    def _check_blocks(self, batch: UnifiedBatch, kv: list[BlockGroup], seqs: list[Sequence]) -> None:
        """No block is written that two hold, or by two, or that can be found by a key of what it held before."""
        groups = self.inner.kv_layout().groups
        tables, begin = batch.tables, 0
        for start in batch.starts:
            for group in range(len(groups)):
                self._tables[start.slot, group] = {}
        for slot, group, first, count in zip(
            tables.slots.tolist(), tables.groups.tolist(), tables.starts.tolist(), tables.counts.tolist(), strict=True
        ):  # fmt: skip
            table = self._tables.setdefault((slot, group), {})
            if first > len(table) and groups[group].window is None:
                raise Broken(f"a hole in the table of slot {slot}")
            for index in [index for index in table if index >= first]:
                del table[index]
            table.update(enumerate(tables.block_ids[begin : begin + count].tolist(), first))
            begin += count
        for one in kv:
            self._check_writes(batch, one.index, one.pool._references)
            self._check_keys(batch, one, seqs)

    def _check_keys(self, batch: UnifiedBatch, group: BlockGroup, seqs: list[Sequence]) -> None:
        size = self.inner.config.attention.block_size
        for seq, pos, count in zip(
            seqs, batch.pos_offsets.tolist(), batch.num_q_tokens.tolist(), strict=True
        ):
            table = self._tables[seq.slot or 0, group.index]
            for index in range(pos // size, (pos + count - 1) // size + 1):
                key = group.cache.blocks.get(table[index])
                if key is not None and seq.block_keys[index : index + 1] != [key]:
                    raise Broken(f"block {table[index]} is written and can be found by the key of another")

    def _check_writes(self, batch: UnifiedBatch, group: int, references: list[int]) -> None:
        """Of one group."""
        size = self.inner.config.attention.block_size
        copies = batch.block_copies[batch.block_copies[:, 0] == group].tolist()
        written = [destination for _, _, destination in copies]
        if set(written) & {source for _, source, _ in copies}:
            raise Broken("a block is copied that another copy writes")
        copied = set(written)
        for slot, pos, count in zip(
            batch.slots.tolist(), batch.pos_offsets.tolist(), batch.num_q_tokens.tolist(), strict=True
        ):
            table = self._tables[slot, group]
            indices = range(pos // size, (pos + count - 1) // size + 1)
            if any(index not in table for index in indices):
                raise Broken(f"the table of slot {slot} is too short")
            written += [table[index] for index in indices if table[index] not in copied]
        if len(written) != len(set(written)):
            raise Broken("a block is written by two")
        shared = [block for block in written if references[block] != 1]
        if shared:
            raise Broken(f"blocks {shared} are written and shared")


def _answer(future: asyncio.Future[UnifiedOutput], output: UnifiedOutput) -> None:
    if not future.done():
        future.set_result(output)
