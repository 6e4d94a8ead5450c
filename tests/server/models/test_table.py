"""`ModelTable` over runtimes that note what is done to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from engine.errors import DeadlinePassed, ModelUnavailable, Overloaded, Unavailable
from server.models.entry import Lease, ModelEntry, ModelSpec, ModelStatus
from server.models.table import ModelTable, SwapRules

QUICK = SwapRules(swap_after=0.05, min_residency=0.0, retry_pause=0.05)


@dataclass(eq=False)
class House:
    """Runtimes of several models, and the memory that they hold: more than `budget` raises at once."""

    budget: int
    held: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    spare: dict[str, int] = field(default_factory=dict)
    """KV that a model could do without."""

    def note(self, word: str, name: str) -> None:
        self.log.append(f"{word} {name}")

    def take(self, name: str, need: int) -> None:
        assert name not in self.held, f"{name} was loaded twice"
        self.held[name] = need
        assert sum(self.held.values()) <= self.budget, self.held

    def entry(self, name: str, need: int = 1, **facts: object) -> ModelEntry:
        async def load() -> Running:
            self.note("load", name)
            if (gate := self.gates.get(name)) is not None:
                await gate.wait()
            if faults := self.faults.get(name):
                raise faults.pop(0)
            self.take(name, need)
            return Running(self, name, need)

        return ModelEntry(ModelSpec(name=name, need=need, **facts), load)  # type: ignore[arg-type]


@dataclass(eq=False)
class Running:
    house: House
    name: str
    need: int
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    given_kv_bytes: int = 0

    @property
    def busy(self) -> bool:
        return self.name in self.house.busy

    @property
    def spare_kv_bytes(self) -> int:
        return self.house.spare.get(self.name, 0)

    async def give_kv(self, num_bytes: int) -> None:
        await asyncio.sleep(0)
        given = min(num_bytes, self.house.spare[self.name])
        self.house.note(f"give {given}", self.name)
        self.given_kv_bytes += given
        self.house.spare[self.name] -= given
        self.house.held[self.name] -= given

    async def take_kv(self, num_bytes: int) -> None:
        await asyncio.sleep(0)
        self.house.note(f"take {num_bytes}", self.name)
        self.given_kv_bytes -= num_bytes
        self.house.spare[self.name] += num_bytes
        self.house.held[self.name] += num_bytes
        assert sum(self.house.held.values()) <= self.house.budget, self.house.held

    async def park(self) -> None:
        await asyncio.sleep(0)
        self.house.note("park", self.name)
        del self.house.held[self.name]

    async def resume(self) -> None:
        await asyncio.sleep(0)
        self.house.note("resume", self.name)
        self.house.take(self.name, self.need)

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.house.note("stop", self.name)
        self.house.held.pop(self.name, None)


@asynccontextmanager
async def table_of(house: House, *entries: ModelEntry, rules: SwapRules = QUICK) -> AsyncIterator[ModelTable]:
    table = ModelTable(entries, house.budget, rules)
    table.start()
    try:
        yield table
    finally:
        await table.stop()
        assert not house.held
        assert not any(entry.waiters for entry in table.entries.values())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_twenty_calls_load_a_model_once() -> None:
    house = House(1)
    a = house.entry("a")
    house.gates["a"] = asyncio.Event()
    async with table_of(house, a) as table:
        calls = [asyncio.create_task(table.acquire(a)) for _ in range(20)]
        await turns()
        assert a.status is ModelStatus.LOADING and not any(one.done() for one in calls)
        house.gates["a"].set()
        leases = await asyncio.gather(*calls)
        assert house.log == ["load a"] and a.users == 20
        for lease in leases:
            lease.release()
            lease.release()
        assert a.users == 0


@pytest.mark.parametrize("at", range(8))
async def test_a_waiter_cancelled_at_any_turn_leaves_nothing_behind(at: int) -> None:
    """Also in the turn in which it gets its lease."""
    house = House(1)
    a = house.entry("a")
    async with table_of(house, a) as table:
        leaver, stayer = (asyncio.create_task(table.acquire(a)) for _ in range(2))
        await turns(at)
        leaver.cancel()
        [result] = await asyncio.gather(leaver, return_exceptions=True)
        if isinstance(result, Lease):  # it came first
            result.release()
        lease = await stayer
        assert a.users == 1 and not a.waiters
        lease.release()
        assert a.users == 0
        assert (await table.acquire(a)).entry is a


async def test_all_waiters_may_leave_while_the_model_loads() -> None:
    house = House(1)
    a = house.entry("a")
    house.gates["a"] = asyncio.Event()
    async with table_of(house, a) as table:
        calls = [asyncio.create_task(table.acquire(a)) for _ in range(3)]
        await turns()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        house.gates["a"].set()
        await turns()
        assert a.status is ModelStatus.READY and not a.users


async def test_a_load_leaves_no_task_behind() -> None:
    house = House(1)
    a, b = house.entry("a"), house.entry("b")
    async with table_of(house, a, b) as table:
        (await table.acquire(a)).release()
        before = len(asyncio.all_tasks())
        for entry in (b, a) * 10:
            (await table.acquire(entry)).release()
        await turns()
        assert len(asyncio.all_tasks()) <= before


async def test_the_least_recently_used_idle_model_gives_way() -> None:
    house = House(2)
    a, b, c = (house.entry(name) for name in "abc")
    async with table_of(house, a, b, c) as table:
        (await table.acquire(a)).release()
        (await table.acquire(b)).release()
        await asyncio.sleep(0.002)
        (await table.acquire(a)).release()
        (await table.acquire(c)).release()
        assert house.log == ["load a", "load b", "stop b", "load c"]


async def test_no_idle_model_is_evicted_in_vain() -> None:
    """c needs all: while b runs, evicting a alone would help no call."""
    house = House(2)
    a, b, c = house.entry("a"), house.entry("b"), house.entry("c", need=2)
    async with table_of(house, a, b, c, rules=SwapRules(swap_after=60)) as table:
        (await table.acquire(a)).release()
        running = await table.acquire(b)
        waiting = asyncio.create_task(table.acquire(c))
        await turns()
        assert house.log == ["load a", "load b"]
        running.release()
        (await waiting).release()
        assert sorted(house.log[2:]) == ["load c", "stop a", "stop b"]


async def test_a_running_model_is_parked_after_swap_after_and_comes_back() -> None:
    house = House(1)
    a, b = house.entry("a"), house.entry("b")
    async with table_of(house, a, b) as table:
        stream = await table.acquire(a)
        began = asyncio.get_running_loop().time()
        lease = await table.acquire(b)
        assert asyncio.get_running_loop().time() - began >= 0.04
        assert a.status is ModelStatus.PARKED and house.log == ["load a", "park a", "load b"]
        lease.release()
        await turns()
        assert a.status is ModelStatus.READY and house.log[3:] == ["stop b", "resume a"]
        stream.release()


async def test_a_model_stays_for_its_residency_before_it_is_parked() -> None:
    house = House(1)
    a, b = house.entry("a"), house.entry("b")
    rules = SwapRules(swap_after=0.0, min_residency=0.1)
    async with table_of(house, a, b, rules=rules) as table:
        stream = await table.acquire(a)
        waiting = asyncio.create_task(table.acquire(b))
        await asyncio.sleep(0.03)
        assert a.status is ModelStatus.READY
        (await waiting).release()
        stream.release()


async def test_a_parked_model_whose_calls_have_left_is_ended() -> None:
    house = House(1)
    a, b = house.entry("a"), house.entry("b")
    async with table_of(house, a, b) as table:
        stream = await table.acquire(a)
        lease = await table.acquire(b)
        stream.release()
        await turns()
        assert a.status is ModelStatus.UNLOADED and house.log[-1] == "stop a"
        lease.release()


async def test_beside_pinned_models_a_call_is_refused_at_once() -> None:
    house = House(2)
    a, b = house.entry("a", need=2, pin=True), house.entry("b")
    async with table_of(house, a, b) as table:
        (await table.acquire(a)).release()
        with pytest.raises(ModelUnavailable, match="beside a"):
            await table.acquire(b)
        assert a.status is ModelStatus.READY and house.log == ["load a"]


async def test_a_pinned_model_stays_and_another_gives_way() -> None:
    house = House(2)
    a, b, c = house.entry("a", pin=True), house.entry("b"), house.entry("c")
    async with table_of(house, a, b, c) as table:
        for one in (a, b, c):
            (await table.acquire(one)).release()
        assert house.log[-2:] == ["stop b", "load c"]


async def test_a_failed_load_fails_its_own_calls_and_is_tried_again_later() -> None:
    house = House(2)
    a, b = house.entry("a"), house.entry("b")
    house.faults["a"] = [RuntimeError("bad file")]
    async with table_of(house, a, b) as table:
        calls = [asyncio.create_task(table.acquire(one)) for one in (a, b, a)]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(second, Lease)
        for error in (first, third):
            assert (
                isinstance(error, ModelUnavailable) and "bad file" in error.message and error.retry_after == 1
            )
        with pytest.raises(ModelUnavailable):
            await table.acquire(a)
        await asyncio.sleep(0.06)
        (await table.acquire(a)).release()
        assert house.log == ["load a", "load b", "load a"]
        second.release()


async def test_a_damaged_file_is_never_loaded() -> None:
    house = House(1)
    a = house.entry("a", problem="2 of 3 parts are missing")
    async with table_of(house, a) as table:
        with pytest.raises(ModelUnavailable, match="parts are missing"):
            await table.acquire(a)
        assert house.log == []


async def test_an_engine_that_gives_up_fails_alone_and_comes_back() -> None:
    house = House(2)
    a, b = house.entry("a"), house.entry("b")
    async with table_of(house, a, b) as table:
        leases = [await table.acquire(one) for one in (a, b)]
        assert a.runtime is not None
        a.runtime.failed.set()
        await turns()
        assert a.status is ModelStatus.FAILED and b.status is ModelStatus.READY
        leases[0].release()
        await asyncio.sleep(0.06)
        (await table.acquire(a)).release()
        leases[1].release()


async def test_idle_time_unloads_and_a_call_may_ask_for_another() -> None:
    house = House(2)
    a, b = house.entry("a", idle_unload=0.03), house.entry("b", idle_unload=0.03, pin=True)
    async with table_of(house, a, b) as table:
        (await table.acquire(b)).release()
        lease = await table.acquire(a)
        await asyncio.sleep(0.05)
        assert a.status is ModelStatus.READY, "a call uses it"
        lease.release()
        await asyncio.sleep(0.06)
        assert a.status is ModelStatus.UNLOADED and b.status is ModelStatus.READY
        (await table.acquire(a, keep=60)).release()
        await asyncio.sleep(0.06)
        assert a.status is ModelStatus.READY


async def test_unload_waits_for_calls_and_for_sequences() -> None:
    house = House(1)
    a = house.entry("a")
    async with table_of(house, a) as table:
        lease = await table.acquire(a)
        house.busy.add("a")
        table.unload(a)
        await turns()
        assert a.status is ModelStatus.READY
        lease.release()
        await turns()
        assert a.status is ModelStatus.READY, "its sequences are not freed yet"
        house.busy.clear()
        await asyncio.sleep(0.12)
        assert a.status is ModelStatus.UNLOADED


async def test_a_pinned_model_is_unloaded_on_request_alone() -> None:
    house = House(1)
    a = house.entry("a", pin=True, idle_unload=0.0)
    async with table_of(house, a) as table:
        (await table.acquire(a, keep=60)).release()
        await turns()
        assert a.status is ModelStatus.READY
        table.unload(a)
        await turns()
        assert a.status is ModelStatus.UNLOADED


async def test_a_download_holds_up_no_other_model() -> None:
    """And what a model needs is known once its files are here."""
    house = House(2)
    a, b = house.entry("a"), house.entry("b")
    arrived, fetched = asyncio.Event(), 0

    async def fetch() -> int:
        nonlocal fetched
        fetched += 1
        await arrived.wait()
        return 2

    a.fetch = fetch
    async with table_of(house, a, b) as table:
        calls = [asyncio.create_task(table.acquire(a)) for _ in range(3)]
        await turns()
        (await table.acquire(b)).release()
        assert fetched == 1 and house.log == ["load b"]
        arrived.set()
        for lease in await asyncio.gather(*calls):
            lease.release()
        assert house.log == ["load b", "stop b", "load a"] and a.spec.need == 2


async def test_parked_streams_that_can_never_go_on_are_ended() -> None:
    """A pinned model turns out, once it is downloaded, to leave no room for a model that is parked."""
    house = House(3)
    a, b, pinned = house.entry("a", 2), house.entry("b", 2), house.entry("pinned", 1, pin=True)
    arrived = asyncio.Event()

    async def fetch() -> int:
        await arrived.wait()
        return 3

    pinned.fetch = fetch
    async with table_of(house, a, b, pinned) as table:
        stream = await table.acquire(a)
        other = await table.acquire(b)
        assert a.status is ModelStatus.PARKED
        waiting = asyncio.create_task(table.acquire(pinned))
        await turns()
        arrived.set()
        await turns()
        assert a.status is ModelStatus.UNLOADED and house.log[-1] == "stop a"
        stream.release()
        other.release()
        (await waiting).release()
        with pytest.raises(ModelUnavailable, match="beside pinned"):
            await table.acquire(a)


async def test_a_download_that_fails_fails_its_own_calls_and_is_tried_again() -> None:
    house = House(1)
    a = house.entry("a")
    errors = [RuntimeError("the hub is away")]

    async def fetch() -> int:
        if errors:
            raise errors.pop()
        return 1

    a.fetch = fetch
    async with table_of(house, a) as table:
        with pytest.raises(ModelUnavailable, match="hub is away"):
            await table.acquire(a)
        await asyncio.sleep(0.06)
        (await table.acquire(a)).release()
        assert house.log == ["load a"]


async def test_deadlines_and_the_limit_of_waiting_calls() -> None:
    house = House(1)
    a = house.entry("a")
    house.gates["a"] = asyncio.Event()
    rules = SwapRules(max_waiting=1)
    async with table_of(house, a, rules=rules) as table:
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(table.acquire(a, deadline=loop.time() + 0.03))
        await turns()
        with pytest.raises(Overloaded):
            await table.acquire(a)
        with pytest.raises(DeadlinePassed):
            await waiting
        house.gates["a"].set()


async def test_stop_answers_all_calls_that_wait() -> None:
    house = House(1)
    a = house.entry("a")
    house.gates["a"] = asyncio.Event()
    table = ModelTable([a], 1, QUICK)
    table.start()
    calls = [asyncio.create_task(table.acquire(a)) for _ in range(3)]
    await turns()
    await table.stop()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, Unavailable)
    with pytest.raises(Unavailable):
        await table.acquire(a)


async def test_drain_lets_calls_end() -> None:
    house = House(1)
    a = house.entry("a")
    async with table_of(house, a) as table:
        lease = await table.acquire(a)
        assert not await table.drain(0.02)
        draining = asyncio.create_task(table.drain(5))
        await turns()
        with pytest.raises(Unavailable, match="the engine is draining"):
            await table.acquire(a)
        lease.release()
        assert await draining


async def test_a_small_model_passes_a_large_one_that_waits_for_streams() -> None:
    house = House(4)
    running, large, small = house.entry("running", 3), house.entry("large", 4), house.entry("small", 1)
    async with table_of(house, running, large, small, rules=SwapRules(swap_after=60)) as table:
        stream = await table.acquire(running)
        waiting = asyncio.create_task(table.acquire(large))
        await turns()
        (await table.acquire(small)).release()
        assert house.log == ["load running", "load small"] and not waiting.done()
        stream.release()
        (await waiting).release()


async def test_a_model_that_has_passed_does_not_hold_up_the_first() -> None:
    """The residency of a model that came later bounds nothing for the call that it passed."""
    house = House(4)
    running, large, small = house.entry("running", 3), house.entry("large", 4), house.entry("small", 1)
    async with table_of(
        house, running, large, small, rules=SwapRules(swap_after=0.1, min_residency=0.1)
    ) as table:
        streams = [await table.acquire(running)]
        began = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(table.acquire(large))
        await asyncio.sleep(0.09)
        streams.append(await table.acquire(small))
        (await waiting).release()
        assert asyncio.get_running_loop().time() - began < 0.16
        assert small.status is ModelStatus.PARKED or "park small" in house.log
        for stream in streams:
            stream.release()


async def test_none_passes_once_the_first_may_have_streams_parked() -> None:
    house = House(4)
    running, large, small = house.entry("running", 3), house.entry("large", 4), house.entry("small", 1)
    async with table_of(
        house, running, large, small, rules=SwapRules(swap_after=0.0, min_residency=0.1)
    ) as table:
        stream = await table.acquire(running)
        calls = [asyncio.create_task(table.acquire(one)) for one in (large, small)]
        await asyncio.sleep(0.05)
        assert house.log == ["load running"]
        (await calls[0]).release()
        (await calls[1]).release()
        assert house.log.index("load large") < house.log.index("load small")
        stream.release()


async def test_a_load_that_takes_too_long_fails_its_calls_and_is_tried_again() -> None:
    house = House(1)
    slow, other = house.entry("slow"), house.entry("other")
    house.gates["slow"] = asyncio.Event()
    rules = SwapRules(load_timeout=0.05, retry_pause=0.05)
    async with table_of(house, slow, other, rules=rules) as table:
        with pytest.raises(ModelUnavailable, match=r"longer than 0\.05 seconds") as error:
            await table.acquire(slow)
        assert error.value.retry_after == 1 and slow.status is ModelStatus.FAILED
        (await table.acquire(other)).release()
        house.gates["slow"].set()
        await asyncio.sleep(0.06)
        (await table.acquire(slow)).release()


async def test_unused_kv_makes_room_before_a_model_is_unloaded_and_comes_back() -> None:
    house = House(10)
    a, b, c = house.entry("a", need=6), house.entry("b", need=3), house.entry("c", need=3)
    house.spare = {"a": 2, "b": 1}
    async with table_of(house, a, b, c) as table:
        await table.load(a)
        lease = await table.acquire(b)
        await table.load(c)
        assert house.log == ["load a", "load b", "give 2 a", "load c"]
        assert (a.need, b.need, c.need) == (4, 3, 3)
        lease.release()
        table.unload(c)
        await turns()
        assert house.log[4:] == ["stop c", "take 2 a"] and a.need == 6


async def test_kv_that_is_not_enough_is_not_given() -> None:
    """An idle model goes then, as it would without."""
    house = House(10)
    a, b, c = house.entry("a", need=6), house.entry("b", need=4), house.entry("c", need=5)
    house.spare = {"a": 2, "b": 1}
    async with table_of(house, a, b, c) as table:
        await table.load(a)
        await table.load(b)
        await table.load(c)
        assert house.log == ["load a", "load b", "stop a", "load c"]


async def test_a_pinned_model_keeps_its_kv() -> None:
    house = House(6)
    a, b, c = house.entry("a", need=3, pin=True), house.entry("b", need=3), house.entry("c", need=2)
    house.spare = {"a": 2}
    async with table_of(house, a, b, c) as table:
        await table.load(a)
        await table.load(b)
        await table.load(c)
        assert house.log == ["load a", "load b", "stop b", "load c"]


async def test_a_model_that_cannot_give_makes_no_call_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(4)
    a, b = house.entry("a", need=3), house.entry("b", need=2)
    house.spare = {"a": 1}

    async def fails(self: Running, num_bytes: int) -> int:
        raise TimeoutError

    monkeypatch.setattr(Running, "give_kv", fails)
    async with table_of(house, a, b) as table:
        await table.load(a)
        await table.load(b)
        assert house.log == ["load a", "stop a", "load b"] and a.lent == 0
