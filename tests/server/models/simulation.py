"""Schedules of calls, downloads, unloads, deaths, and loads that fail or hang over a `ModelTable` in virtual time, by a seed.

A model's stream goes on while its model is loaded, and stands still while it is parked. The simulation fails
where memory is exceeded, a pinned model ends unasked, a model that loads is ended, a model is loaded before its files are here,
or a call has no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from engine.errors import EngineError, Unavailable
from server.models.entry import ModelEntry, ModelSpec, ModelStatus
from server.models.table import ModelTable, SwapRules

TOKEN = 0.01
BUDGET = 4
LOAD_TIMEOUT = 2.0
_HANG = 1000.0
"""Seconds that a hanging load takes: more than a call waits."""


class Broken(AssertionError):
    """A rule was broken."""


@dataclass(eq=False)
class Machine:
    """Memory, and what was done to models."""

    random: random.Random
    fault_share: float = 0.1
    held: dict[str, int] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    asked_to_end: set[str] = field(default_factory=set)
    failed: int = 0
    lends: int = 0
    """How often a model did without KV for another."""
    broken: list[str] = field(default_factory=list)
    """Rules that were broken: the table takes exceptions of its models for failures."""

    def take(self, spec: ModelSpec, lent: int = 0) -> None:
        if spec.name in self.held:
            self.broken.append(f"{spec.name} was loaded twice")
        self.change(spec, spec.need - lent)

    def change(self, spec: ModelSpec, need: int) -> None:
        self.held[spec.name] = need
        if sum(self.held.values()) > BUDGET:
            self.broken.append(f"too much memory: {self.held}")

    def give(self, spec: ModelSpec) -> None:
        if spec.name in self.loading:
            self.broken.append(f"{spec.name} was ended while it loaded")
        if spec.pin and spec.name not in self.asked_to_end:
            self.broken.append(f"{spec.name} is pinned and was ended")
        self.held.pop(spec.name, None)

    async def load(self, spec: ModelSpec, lent: int = 0) -> None:
        self.loading.add(spec.name)
        self.take(spec, lent)
        hangs = self.random.random() < self.fault_share / 4
        try:
            await asyncio.sleep(_HANG if hangs else self.random.uniform(0.0, 0.5))
        except asyncio.CancelledError:  # the time limit: nothing is left running
            self.failed += 1
            self.held.pop(spec.name)
            raise
        finally:
            self.loading.discard(spec.name)
        if self.random.random() < self.fault_share:
            self.failed += 1
            self.held.pop(spec.name)
            raise RuntimeError("the disk is slow")


@dataclass(eq=False)
class SimulatedModel:
    """A loaded model with streams."""

    machine: Machine
    spec: ModelSpec
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    present: bool = True
    stopped: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    given_kv_bytes: int = 0
    """Of the KV that it does without."""

    @property
    def spare_kv_bytes(self) -> int:
        """A model that needs more than one has one of it to spare, while it streams for half of the time."""
        is_used = self.busy and self.machine.random.random() < 0.5
        return 0 if is_used else min(1, self.spec.need - 1) - self.given_kv_bytes

    async def give_kv(self, num_bytes: int) -> None:
        await asyncio.sleep(self.machine.random.uniform(0.0, 0.02))
        given = min(num_bytes, self.spare_kv_bytes)
        if self.spec.pin:
            self.machine.broken.append(f"{self.spec.name} is pinned and gave KV")
        if self.failed.is_set():
            raise Unavailable("the model has ended")
        if given:
            self.machine.lends += 1
            self.given_kv_bytes += given
            self.machine.change(self.spec, self.spec.need - self.given_kv_bytes)

    async def take_kv(self, num_bytes: int) -> None:
        await asyncio.sleep(self.machine.random.uniform(0.0, 0.02))
        if self.failed.is_set():
            raise Unavailable("the model has ended")
        if num_bytes > self.given_kv_bytes:
            self.machine.broken.append(f"{self.spec.name} takes KV that it has not given")
        self.given_kv_bytes -= num_bytes
        self.machine.change(self.spec, self.spec.need - self.given_kv_bytes)

    @property
    def busy(self) -> bool:
        return bool(self.streams)

    async def park(self) -> None:
        await asyncio.sleep(self.machine.random.uniform(0.0, 0.02))
        self.present = False
        self.machine.give(self.spec)
        self._tell_streams()

    async def resume(self) -> None:
        await self.machine.load(self.spec, self.given_kv_bytes)
        self.present = True
        self._tell_streams()

    async def stop(self) -> None:
        await asyncio.sleep(self.machine.random.uniform(0.0, 0.02))
        self.stopped = True
        self._tell_streams()
        if self.present:
            if self.failed.is_set():
                self.machine.held.pop(self.spec.name, None)
            else:
                self.machine.give(self.spec)

    async def stream(self, tokens: int) -> None:
        """Go on for `tokens` times `TOKEN` seconds in which the model is loaded. Raises Unavailable if the model ends."""
        self.streams += 1
        clock, left = asyncio.get_running_loop().time, tokens * TOKEN
        try:
            while left > TOKEN / 1000:  # below that it is rounding
                began, goes_on = clock(), self.present and self.spec.name in self.machine.held
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left if goes_on else None):
                        await self.changed.wait()
                if self.stopped:
                    raise Unavailable("the model has ended")
                if goes_on:
                    left -= clock() - began
        finally:
            self.streams -= 1

    def _tell_streams(self) -> None:
        """Wake the streams: the model was parked, has come back or has ended."""
        self.changed.set()
        self.changed = asyncio.Event()


async def simulate(
    seed: int, table_type: type[ModelTable] = ModelTable, *, faults: bool = True
) -> dict[str, int]:
    """Run one schedule; returns how often what happened. Raises Broken, and Deadlock of the virtual loop."""
    chance = random.Random(seed)
    machine = Machine(chance, 0.1 if faults else 0.0)
    entries = [_entry(machine, f"m{number}", chance) for number in range(chance.randint(2, 5))]
    clock = asyncio.get_running_loop().time
    rules = SwapRules(
        swap_after=0.3, min_residency=0.2, retry_pause=0.1, max_waiting=1000, load_timeout=LOAD_TIMEOUT
    )
    table = table_type(entries, BUDGET, rules, clock)
    table.start()
    counts = {"answered": 0, "refused": 0, "left": 0, "ended": 0}
    calls = [asyncio.create_task(_call(table, entries, chance, machine, counts)) for _ in range(40)]
    if faults:
        calls.append(asyncio.create_task(_disturb(table, entries, chance, machine)))
    try:
        async with asyncio.timeout(600):
            await asyncio.gather(*calls)
    except TimeoutError:
        _look_at_task(table)
        raise Broken("a call has no answer") from None
    finally:
        machine.asked_to_end |= set(table.entries)
        machine.loading.clear()
        await table.stop()
    _look_at_task(table)
    if machine.broken:
        raise Broken(machine.broken[0])
    if any(one.users or one.waiters for one in entries):
        raise Broken("a lease or a waiter is left")
    loads = sum(one.num_loads for one in entries)
    return counts | {"loads": loads, "failed": machine.failed, "lends": machine.lends}


def _look_at_task(table: ModelTable) -> None:
    """Raise what has ended the table's task, if anything has: calls have no answer then, and that says nothing of the table. A
    test's time limit is real time, and interrupts whichever task runs."""
    task = table._task
    if task is not None and task.done() and not task.cancelled():
        task.result()


def _entry(
    machine: Machine, name: str, chance: random.Random, declared: ModelSpec | None = None
) -> ModelEntry:
    """A model whose files are here if it is `declared`; else all of it is drawn."""
    spec = declared or ModelSpec(
        name=name,
        need=chance.randint(1, 3),
        pin=name == "m0" and chance.random() < 0.5,
        idle_unload=chance.choice([0.2, 5.0]),
    )

    async def load() -> SimulatedModel:
        if entry.fetch is not None:
            machine.broken.append(f"{name} was loaded before its files were here")
        await machine.load(entry.spec)
        return SimulatedModel(machine, entry.spec)

    async def fetch() -> int:
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        if chance.random() < machine.fault_share:
            raise RuntimeError("the hub is away")
        return chance.randint(1, 3) if machine.fault_share else entry.spec.need

    entry = ModelEntry(spec, load, fetch if declared is None and chance.random() < 0.3 else None)
    return entry


async def _call(
    table: ModelTable,
    entries: list[ModelEntry],
    chance: random.Random,
    machine: Machine,
    counts: dict[str, int],
) -> None:
    await asyncio.sleep(chance.uniform(0.0, 6.0))
    entry = chance.choice(entries)
    patience = chance.uniform(0.0, 1.0) if chance.random() < 0.2 else None
    try:
        async with asyncio.timeout(patience):
            keep = chance.choice([0.0, 1.0]) if chance.random() < 0.2 else None
            if keep == 0.0:  # also a pinned model is unloaded by a call that says so
                machine.asked_to_end.add(entry.name)
            lease = await table.acquire(entry, keep=keep)
            try:
                runtime = entry.runtime
                if not isinstance(runtime, SimulatedModel) or entry.status is not ModelStatus.READY:
                    raise Broken(f"a call has {entry.name}, which is {entry.status}")
                await runtime.stream(chance.randint(1, 80))
            finally:
                lease.release()
    except TimeoutError:
        counts["left"] += 1
    except Unavailable as error:
        counts["ended" if "has ended" in error.message else "refused"] += 1
    except EngineError:
        counts["refused"] += 1
    else:
        counts["answered"] += 1


async def _disturb(
    table: ModelTable, entries: list[ModelEntry], chance: random.Random, machine: Machine
) -> None:
    """Unload models, and let engines give up."""
    for _ in range(8):
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        entry = chance.choice(entries)
        if chance.random() < 0.5:
            machine.asked_to_end.add(entry.name)
            table.unload(entry)
        elif entry.runtime is not None and entry.status is ModelStatus.READY:
            entry.runtime.failed.set()


async def simulate_pair(seed: int, table_type: type[ModelTable] = ModelTable) -> dict[str, int]:
    """A chat model with streams, an embedding model with many short calls, memory for both, and a third model that no call asks
    for: each of the two is loaded once, and neither gives way. Returns and raises as `simulate`."""
    chance = random.Random(seed)
    machine = Machine(chance, 0.0)
    chat, embed, third = (
        _entry(machine, name, chance, ModelSpec(name=name, need=need))
        for name, need in (("chat", BUDGET - 1), ("embed", 1), ("third", 1))
    )
    rules = SwapRules(swap_after=0.3, min_residency=0.2, retry_pause=0.1, load_timeout=LOAD_TIMEOUT)
    table = table_type([chat, embed, third], BUDGET, rules, asyncio.get_running_loop().time)
    table.start()

    async def calls(entry: ModelEntry, count: int, pause: float, most_tokens: int) -> int:
        """Calls of one client, one after the other."""
        for _ in range(count):
            await asyncio.sleep(chance.uniform(0.0, pause))
            lease = await table.acquire(entry)
            try:
                if not isinstance(entry.runtime, SimulatedModel):
                    raise Broken(f"a call has {entry.name}, which is {entry.status}")
                await entry.runtime.stream(chance.randint(1, most_tokens))
            finally:
                lease.release()
        return count

    try:
        async with asyncio.timeout(600):
            answered = await asyncio.gather(
                calls(chat, 6, 0.8, 80), *(calls(embed, 20, 0.2, 3) for _ in range(3))
            )
    except TimeoutError:
        _look_at_task(table)
        raise Broken("a call has no answer") from None
    finally:
        await table.stop()
    if machine.broken:
        raise Broken(machine.broken[0])
    if (chat.num_loads, embed.num_loads) != (1, 1):
        raise Broken(
            f"memory is enough for both, which were loaded {chat.num_loads} and {embed.num_loads} times"
        )
    return {"answered": sum(answered), "loads": 2}
