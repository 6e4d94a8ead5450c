"""A process stands by for the next life: it becomes that life, and costs a start at most when it is gone, stuck or not ready."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError, ExecutorDied, ParallelConfig
from executors.process import connect
from executors.process.children import Begun
from executors.process.standby import StandbyChild, StandbyTimes
from executors.process.watch import Limits
from tests.executors.process import stub
from tests.executors.process.helpers import (
    QUICK,
    STUB,
    CountedExecutor,
    config,
    living_children,
    open_files,
    state_of,
    step,
    title_of,
    until,
)

SOON = StandbyTimes(after_s=0.05, answer_s=5.0, again_s=0.2)

Standing = Callable[..., CountedExecutor]


@pytest.fixture
async def standing() -> AsyncIterator[Standing]:
    """Makes executors with a process that stands by; the option `imports` is as `RemoteExecutor`'s."""
    made: list[CountedExecutor] = []

    def make(
        kind: str = "imports",
        times: StandbyTimes = SOON,
        imports: tuple[str, ...] = (),
        ranks: int = 1,
        **options: Any,
    ) -> CountedExecutor:
        chosen = replace(config(**options), parallel=ParallelConfig(tensor_parallel_size=ranks))
        made.append(CountedExecutor(chosen, limits=QUICK, imports=imports, standby=kind, standby_times=times))
        return made[-1]

    yield make
    for executor in made:
        await executor.shutdown()


def file_of(pid: int | None, name: str) -> str:
    """A file of /proc about a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


async def ready(executor: CountedExecutor) -> tuple[int, ...]:
    """The processes that stand by, once they are ready."""
    ranks = executor.config.parallel.world_size
    await until(lambda: len(executor._standbys.pids) == ranks, 30.0)
    return executor._standbys.pids


async def killed(executor: CountedExecutor, epoch: int = 2) -> None:
    """Kill the life and begin the next one, which computes."""
    executor.kill()
    await executor.wait_dead()
    await executor.begin_epoch(epoch)
    assert (await executor.unified_decode(step(7, epoch=epoch))).token_ids.tolist() == [8]


async def test_it_becomes_the_next_life_and_another_one_stands_by(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    first = executor.pid
    [standby] = await ready(executor)
    assert "standby executor" in file_of(standby, "cmdline")
    assert int(file_of(standby, "oom_score_adj")) > int(file_of(first, "oom_score_adj"))
    assert executor.status().notes[-1] == f"standby: process {standby}, with all imports done"
    await killed(executor)
    assert executor.pid == standby and state_of(first) is None
    assert "rank 0" in title_of(executor)
    assert int(file_of(standby, "oom_score_adj")) == 500
    [second] = await ready(executor)
    assert second not in (first, standby)
    await killed(executor, 3)
    assert executor.pid == second and executor.restarts == {"signal": 2}


async def test_the_next_life_gets_what_the_first_has_found(standing: Standing) -> None:
    """The configuration goes to it when it is needed, not when it was begun."""
    executor = standing()
    await executor.warmup()
    await ready(executor)
    executor.config = replace(executor.config, max_num_seqs=3)
    await killed(executor)
    beat = executor._beat
    await until(lambda: executor._beat is not beat)
    snapshot = executor.cache_metrics_snapshot()
    assert snapshot is not None and snapshot["told_pace"] == 0.25 and snapshot["told_checks"] == 1
    assert snapshot["log"] == "epoch2 step0" and executor.config.max_num_seqs == 3


async def test_a_hang_is_followed_by_it(standing: Standing) -> None:
    executor = standing()
    executor._limits = Limits(heartbeat_s=0.05, slow_call_s=3.0)
    await executor.warmup()
    [standby] = await ready(executor)
    with pytest.raises(ExecutorDied, match="executor process"):
        await executor.unified_decode(step(stub.SLEEP))
    await executor.begin_epoch(2)
    assert executor.pid == standby and executor.restarts == {"hang": 1}


async def test_streams_go_on_if_it_was_killed_before(standing: Standing) -> None:
    executor = standing(times=replace(SOON, again_s=60.0))
    await executor.warmup()
    [standby] = await ready(executor)
    os.kill(standby, signal.SIGKILL)
    await until(lambda: state_of(standby) is None)
    assert executor.status().notes == ()
    await killed(executor)
    assert executor.pid != standby


async def test_it_is_killed_in_the_same_moment_as_the_life(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    [standby] = await ready(executor)
    os.kill(standby, signal.SIGKILL)
    await killed(executor)
    assert executor.pid != standby and state_of(standby) is None


async def test_one_that_has_ended_is_replaced_after_a_pause(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    [standby] = await ready(executor)
    os.kill(standby, signal.SIGKILL)
    await until(lambda: executor._standbys.pids not in ((), (standby,)), 30.0)
    assert executor._standbys._pause_s == 2 * SOON.again_s
    [second] = executor._standbys.pids
    await killed(executor)
    assert executor.pid == second and executor._standbys._pause_s == SOON.again_s


async def test_one_that_stands_still_costs_a_start(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    [standby] = await ready(executor)
    os.kill(standby, signal.SIGSTOP)
    began = time.monotonic()
    await killed(executor)
    assert executor.pid != standby and executor.restarts.total() == 1
    assert SOON.answer_s <= time.monotonic() - began < 60.0
    await until(lambda: state_of(standby) is None)


async def test_one_that_is_not_ready_is_not_waited_for(standing: Standing) -> None:
    executor = standing(stands_by="slow")
    await executor.warmup()
    await until(lambda: len(living_children()) == 2)
    [standby] = living_children() - {executor.pid}
    await killed(executor)
    assert executor.pid != standby and state_of(standby) in (None, "Z")


async def test_one_that_is_never_ready_is_ended(standing: Standing) -> None:
    executor = standing(times=replace(SOON, begin_s=0.3, again_s=60.0), stands_by="slow")
    await executor.warmup()
    await until(lambda: executor._standbys._pause_s == 120.0)
    await until(lambda: living_children() == {executor.pid})


@pytest.mark.parametrize("how", ["crash", "exit"])
async def test_one_that_fails_leaves_the_life_alone(standing: Standing, how: str) -> None:
    executor = standing(times=replace(SOON, again_s=60.0), stands_by=how)
    await executor.warmup()
    await until(lambda: executor._standbys._pause_s == 120.0)
    await until(lambda: living_children() == {executor.pid})
    await killed(executor)


async def test_two_kills_in_quick_succession(standing: Standing) -> None:
    executor = standing(times=replace(SOON, after_s=0.5))
    await executor.warmup()
    [standby] = await ready(executor)
    await killed(executor)
    assert executor.pid == standby
    await killed(executor, 3)
    assert executor.pid != standby
    [third] = await ready(executor)
    await killed(executor, 4)
    assert executor.pid == third and executor.restarts == {"signal": 3}


async def test_none_is_begun_beside_a_load(standing: Standing) -> None:
    executor = standing(times=replace(SOON, after_s=0.0), load="half a second")
    seen: list[int] = []
    begun = executor._standbys._begin

    async def watched(*arguments: Any) -> Begun:
        seen.append(executor._life is not None and executor._life.is_ready)
        return await begun(*arguments)

    executor._standbys._begin = watched
    await executor.warmup()
    for epoch in range(2, 5):
        await killed(executor, epoch)
    await ready(executor)
    assert seen and all(seen)


async def test_one_of_another_configuration_is_not_taken(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    [standby] = await ready(executor)
    executor.config = replace(executor.config, device="cuda:7")
    await killed(executor)
    assert executor.pid != standby and executor.config.device == "cuda:7"


async def test_it_is_taken_once(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    [standby] = await ready(executor)
    executor.kill()
    await executor.wait_dead()
    await asyncio.gather(*(executor.warmup() for _ in range(3)))
    assert executor.pid == standby and executor.restarts.total() == 1
    assert executor._standbys.take(0) is None


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.1])
async def test_a_start_that_is_cancelled_leaves_nothing_behind(standing: Standing, delay: float) -> None:
    executor = standing()
    await executor.warmup()
    [standby] = await ready(executor)
    executor.kill()
    await executor.wait_dead()
    warming = asyncio.ensure_future(executor.warmup())
    await asyncio.sleep(delay)
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    await executor.begin_epoch(2)
    assert executor.pid == standby
    await ready(executor)
    assert living_children() == {standby, *executor._standbys.pids}


@pytest.mark.parametrize("when", ["ready", "being begun", "not begun"])
async def test_nothing_is_left_after_the_end(when: str) -> None:
    before = open_files()
    times = replace(SOON, after_s=30.0) if when == "not begun" else SOON
    options = {"stands_by": "slow"} if when == "being begun" else {}
    executor = CountedExecutor(config(**options), limits=QUICK, standby="imports", standby_times=times)
    await executor.warmup()
    if when == "ready":
        await ready(executor)
    elif when == "being begun":
        await until(lambda: len(living_children()) == 2)
    await executor.shutdown()
    assert not living_children() and open_files() == before


async def test_nothing_is_left_of_ten_lives_but_the_last(standing: Standing) -> None:
    executor = standing(times=replace(SOON, after_s=0.0))
    await executor.warmup()
    await ready(executor)
    before = open_files()
    for epoch in range(2, 12):
        [standby] = await ready(executor)
        await killed(executor, epoch)
        assert executor.pid == standby
    await ready(executor)
    assert (
        len(open_files()) <= len(before) and len(living_children()) == 2
    )  # files of tests before may have gone since


async def test_a_suspended_executor_has_none(standing: Standing) -> None:
    executor = standing()
    await executor.warmup()
    await ready(executor)
    await executor.suspend()
    assert not living_children()
    await executor.begin_epoch(2)
    await ready(executor)


async def test_each_rank_has_its_own(standing: Standing) -> None:
    executor = standing(ranks=2)
    await executor.warmup()
    standbys = await ready(executor)
    await killed(executor)
    assert executor.pids == standbys
    [_, second] = await ready(executor)
    os.kill(second, signal.SIGSTOP)
    standbys = executor._standbys.pids
    await killed(executor, 3)
    assert executor.pids[0] == standbys[0] and executor.pids[1] != standbys[1]


# -- beside a fork server ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("auto", {}, None),
        ("imports", {}, "it is forked from a process that has imported everything"),
        ("device", {"shared": ""}, "it is forked with its weights"),
        ("device", {}, "there is no device to open before"),
        ("off", {}, None),
    ],
)
async def test_a_fork_that_has_it_all_needs_none(
    standing: Standing, caplog: pytest.LogCaptureFixture, kind: str, options: dict[str, Any], said: str | None
) -> None:
    caplog.set_level("INFO")
    executor = standing(kind, imports=(STUB,), **options)
    await executor.warmup()
    if said is not None:
        await until(lambda: said in caplog.text)
    for epoch in (2, 3):
        await killed(executor, epoch)
        await asyncio.sleep(0.2)
    assert executor._standbys.pids == () and caplog.text.count("nothing stands by") == (said is not None)
    await until(lambda: living_children() == {executor._fork_server.pid})  # type: ignore[union-attr]


async def test_it_is_forked_to_open_a_device(standing: Standing) -> None:
    executor = standing("device", imports=(STUB,), stands_by="opens")
    await executor.warmup()
    [standby] = await ready(executor)
    assert executor.status().notes[-1] == f"standby: process {standby}, with stub:0 open"
    parent = int(file_of(standby, "stat").rpartition(")")[2].split()[1])
    assert executor._fork_server is not None and parent == executor._fork_server.pid
    await killed(executor)
    assert executor.pid == standby
    [second] = await ready(executor)
    os.kill(executor._fork_server.pid, signal.SIGKILL)
    await executor.wait_dead()
    await executor.begin_epoch(3)
    assert executor.pid != second and state_of(second) in (None, "Z")
    assert (await executor.unified_decode(step(7, epoch=3))).token_ids.tolist() == [8]


async def test_a_fork_server_that_stands_still_ends_no_life(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("executors.process.forks._FORK_S", 0.3)
    executor = standing(
        "device", times=replace(SOON, after_s=0.5, again_s=0.5), imports=(STUB,), stands_by="opens"
    )
    await executor.warmup()
    assert executor._fork_server is not None
    os.kill(executor._fork_server.pid, signal.SIGSTOP)
    await until(lambda: "the fork server does not answer" in caplog.text)
    assert (await executor.unified_decode(step(7))).token_ids.tolist() == [8]
    os.kill(executor._fork_server.pid, signal.SIGCONT)
    [standby] = await ready(executor)
    await until(lambda: len(executor._fork_server._children) == 2)  # type: ignore[union-attr]
    await killed(executor)
    assert executor.pid == standby


async def test_it_takes_over_where_forks_are_given_up(standing: Standing) -> None:
    executor = standing("auto", imports=("no_such_module",))
    await executor.warmup()
    [standby] = await ready(executor)
    await killed(executor)
    assert executor.pid == standby


async def test_an_executor_whose_imports_are_not_known_has_none_by_itself(standing: Standing) -> None:
    executor = standing("auto")
    await executor.warmup()
    await asyncio.sleep(0.3)
    assert living_children() == {executor.pid}


# -- other ways ------------------------------------------------------------------------------------------------------------


def test_a_thread_has_none() -> None:
    with pytest.raises(ConfigError, match="standby_executor device: no process stands by for a thread"):
        connect(config(), "inline", standby="device")
    connect(config(), "inline", standby="auto")


PARENT = """
import asyncio
from executors.process.standby import StandbyTimes
from tests.executors.process.helpers import CountedExecutor, config

async def main():
    executor = CountedExecutor(config(), standby="imports", standby_times=StandbyTimes(after_s=0.0))
    await executor.warmup()
    while not executor._standbys.pids:
        await asyncio.sleep(0.01)
    print(executor.pid, *executor._standbys.pids, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_server_leaves_neither_behind() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = [int(word) for word in (await parent.stdout.readline()).split()]
    assert len(pids) == 2 and all(state_of(pid) not in (None, "Z") for pid in pids)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: all(state_of(pid) in (None, "Z") for pid in pids), 2.0)
    parent._transport.close()  # type: ignore[attr-defined]


# -- mutants ---------------------------------------------------------------------------------------------------------------


async def test_a_standby_of_another_configuration_is_caught(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandbyChild, "fits", lambda self, config: True)
    with pytest.raises(AssertionError):
        await test_one_of_another_configuration_is_not_taken(standing)


@pytest.mark.long
async def test_one_that_is_not_asked_whether_it_answers_is_caught(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = StandbyChild.ask
    monkeypatch.setattr(StandbyChild, "ask", lambda self: None if self.opened is not None else asked(self))
    with pytest.raises((AssertionError, ExecutorDied)):
        await test_one_that_stands_still_costs_a_start(standing)
