"""Simulated schedules keep the rules, and tables that break one are caught."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

import pytest

import server.models.table as table_module
from server.models.entry import ModelEntry, ModelStatus
from server.models.table import ModelTable
from tests.server.models import simulated
from tests.server.models.simulated import be_silent, main, schedule
from tests.server.models.simulation import Broken, simulate, simulate_pair
from tests.sim.virtual_loop import Deadlock, run
from tests.tiers import examples

SEEDS = range(examples(200))


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "log", table_module.log)  # put back after the test
    be_silent()


@pytest.mark.timeout(600)  # seconds of a machine that does other work, too
def test_schedules_keep_the_rules() -> None:
    total: dict[str, int] = {}
    for seed in SEEDS:
        try:
            counts = schedule(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        for word, count in counts.items():
            total[word] = total.get(word, 0) + count
    assert all(total[word] for word in ("answered", "refused", "left", "ended", "failed", "lends")), total


class Alarm(BaseException):
    """As pytest's time limit raises it from a signal."""


class Interrupted(ModelTable):
    """Its task is the one that runs when the time is over."""

    async def _load(self, entry: ModelEntry) -> None:
        raise Alarm


@pytest.mark.parametrize("schedules", [simulate, simulate_pair])
def test_a_time_limit_that_interrupts_the_tables_task_is_told_as_such(
    schedules: Callable[[int, type[ModelTable]], Coroutine[None, None, dict[str, int]]],
) -> None:
    with pytest.raises(Alarm):
        run(schedules(0, Interrupted))


def test_the_program_tells_how_many_held(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["simulated", "--seeds", "3", "--jobs", "1"])
    assert main() == 0 and capsys.readouterr().out == "3 held, 0 failed\n"

    def breaks(seed: int) -> dict[str, int]:
        raise Broken("a call has no answer") if seed == 1 else RuntimeError("the disk is full")

    monkeypatch.setattr(simulated, "schedule", breaks)
    assert main() == 1
    out = capsys.readouterr().out
    assert "seed 1: Broken: a call has no answer" in out and out.endswith("0 held, 3 failed\n")


class ForgetsAWaiter(ModelTable):
    """The second of several calls that wait is not told that the model is loaded."""

    async def _load(self, entry: ModelEntry) -> None:
        forgotten = entry.waiters[1:2]
        del entry.waiters[1:2]
        await super()._load(entry)
        del forgotten


class EvictsPinned(ModelTable):
    """Takes the memory of pinned models as well."""

    async def _bring(self, entry: ModelEntry) -> bool:
        for other in self._others(entry):
            if other.spec.pin and other.is_idle and other.status is ModelStatus.READY:
                await self._unload(other)
                return True
        return await super()._bring(entry)


class EndsALoadingModel(ModelTable):
    """Loads beside what it does, so that a model may be ended that is being loaded."""

    async def _load(self, entry: ModelEntry) -> None:
        if entry.status is not ModelStatus.LOADING:
            self._loads = getattr(self, "_loads", set())
            entry.status = ModelStatus.LOADING
            task = asyncio.create_task(super()._load(entry))
            self._loads.add(task)


class ForgetsTheBudget(ModelTable):
    """Counts no model that is being unloaded or parked."""

    async def _unload(self, entry: ModelEntry) -> None:
        task = asyncio.create_task(super()._unload(entry))
        self._watchers.add(task)
        await asyncio.sleep(0)
        entry.status = ModelStatus.UNLOADED


class ForgetsTheParked(ModelTable):
    """Does not bring parked streams back."""

    async def _bring(self, entry: ModelEntry) -> bool:
        if entry.status is ModelStatus.PARKED and not entry.waiters:
            return False
        return await super()._bring(entry)


class ForgetsTheLimit(ModelTable):
    """Waits for a load however long it takes."""

    async def _load(self, entry: ModelEntry) -> None:
        rules, self.rules = self.rules, replace(self.rules, load_timeout=math.inf)
        try:
            await super()._load(entry)
        finally:
            self.rules = rules


class ForgetsTheDownload(ModelTable):
    """Loads a model whose files are on their way."""

    async def _fetch(self, entry: ModelEntry, fetch: Callable[[], Awaitable[int]]) -> None:
        await super()._fetch(entry, fetch)
        entry.fetch = fetch
        await self._load(entry)


class ForgetsTheLoan(ModelTable):
    """Loads a model beside others that could give KV, and does not ask for it."""

    async def _lend(self, entry: ModelEntry) -> bool:
        runtimes = [one.runtime for one in self._movable(entry) if one.runtime is not None]
        return self._room(entry) + sum(one.spare_kv_bytes for one in runtimes) >= entry.need


class TakesBackWithoutRoom(ModelTable):
    """Lets models use KV again that others have now."""

    async def _return_lent(self) -> bool:
        for entry in self.entries.values():
            if entry.lent and entry.is_ready and entry.runtime is not None:
                await entry.runtime.take_kv(entry.lent)
        return False


class UnloadsWhatIsIdle(ModelTable):
    """Takes the room of an idle model although there is room."""

    async def _place(self, entry: ModelEntry) -> bool:
        for other in self._movable(entry):
            if self._is_idle(other):
                await self._unload(other)
                return True
        return await super()._place(entry)


def test_a_table_that_evicts_a_chat_for_an_embedding_model_is_caught() -> None:
    with pytest.raises(Broken, match="memory is enough for both"):
        for seed in range(60):
            run(simulate_pair(seed, UnloadsWhatIsIdle))


@pytest.mark.parametrize(
    "mutant",
    [
        ForgetsAWaiter,
        EvictsPinned,
        EndsALoadingModel,
        ForgetsTheBudget,
        ForgetsTheParked,
        ForgetsTheLimit,
        ForgetsTheDownload,
        ForgetsTheLoan,
        TakesBackWithoutRoom,
    ],
)
def test_a_table_that_breaks_a_rule_is_caught(mutant: type[ModelTable]) -> None:
    for seed in range(60):
        try:
            run(simulate(seed, mutant))
        except (Broken, Deadlock, RuntimeError, AssertionError):
            return
    pytest.fail(f"{mutant.__name__} was not caught")
