"""Deaths and hangs of the child: each has a cause, every outstanding call an answer, and the next epoch a new child."""

import asyncio
import contextlib
import os
import signal
import sys
import time

import pytest

from executors.contract import ExecutorDied, ExecutorState, KvCacheHandle, NotReady
from executors.process.client import RemoteExecutor
from executors.process.messages import Ready
from executors.process.watch import Limits
from tests.executors.process import stub
from tests.executors.process.helpers import (
    QUICK,
    SHORT,
    Make,
    config,
    living_children,
    open_files,
    state_of,
    step,
    until,
)

pytestmark = pytest.mark.long


async def outcome(executor: RemoteExecutor, *tokens: int) -> ExecutorDied:
    """How a step ended that must end with a death."""
    with pytest.raises(ExecutorDied) as caught:
        await executor.unified_decode(step(*tokens))
    return caught.value


async def revived(executor: RemoteExecutor) -> None:
    await executor.begin_epoch(2)
    assert (await executor.unified_decode(step(5, epoch=2))).token_ids.tolist() == [6]


@pytest.mark.parametrize("idle", [True, False])
async def test_a_kill_fails_all_outstanding_calls_and_the_next_epoch_starts_anew(
    remote: Make, idle: bool
) -> None:
    deaths: list[ExecutorDied] = []
    executor = remote(on_death=deaths.append)
    await executor.warmup()
    watching = asyncio.ensure_future(executor.wait_dead())
    calls = [] if idle else [asyncio.ensure_future(outcome(executor, stub.SLEEP)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGKILL)
    death = await watching
    assert death is not None and death.cause == "signal" and "SIGKILL" in str(death) and deaths == [death]
    assert [(await call).cause for call in calls] == ["signal"] * len(calls)
    assert executor.status().state is ExecutorState.ERROR and executor.info().name == "stub"
    executor.release_cache(1)
    executor.truncate_kv(KvCacheHandle(1), 0)
    assert (await outcome(executor, 1)).cause == "signal"
    before = executor.pid
    await revived(executor)
    assert executor.pid != before and executor.restarts == {"signal": 1} and executor.status().is_ready
    assert state_of(before) is None


async def test_a_kill_on_request_is_noticed_like_any_other(remote: Make) -> None:
    executor = remote()
    with pytest.raises(NotReady):
        executor.kill()
    await executor.warmup()
    step = asyncio.ensure_future(outcome(executor, stub.SLEEP))
    await asyncio.sleep(0.01)
    assert executor.kill() == executor.pid
    death = await step
    assert death.cause == "signal" and death.from_outside and "SIGKILL" in str(death)
    with pytest.raises(NotReady):
        executor.kill()
    await revived(executor)
    assert executor.restarts == {"signal": 1}


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("action", "cause", "message"),
    [
        (stub.EXIT, "exit", "exit code 9"),
        (stub.DIE, "exit", "gave up"),
        (stub.CUDA, "device", "CUDA error: an illegal memory access"),
    ],
)
async def test_a_child_that_gives_up(remote: Make, action: int, cause: str, message: str) -> None:
    executor = remote()
    await executor.warmup()
    calls = [asyncio.ensure_future(outcome(executor, token)) for token in (action, 1)]
    for call in calls:
        death = await call
        assert death.cause == cause and message in str(death)
    await revived(executor)
    assert executor.restarts == {cause: 1}


async def test_a_device_that_is_lost_beside_steps_ends_the_child(remote: Make) -> None:
    """The thread of the heartbeat meets the error first, when it asks for figures; no step is asked for."""
    deaths: list[ExecutorDied] = []
    executor = remote(limits=QUICK, on_death=deaths.append)
    await executor.warmup()
    watching = asyncio.ensure_future(executor.wait_dead())
    with contextlib.suppress(ExecutorDied):  # a snapshot may follow the very answer
        await executor.unified_decode(step(stub.LOSE))
    death = await asyncio.wait_for(watching, 20)
    assert death is not None and death.cause == "device" and "its device was lost" in str(death)
    await revived(executor)
    assert executor.restarts == {"device": 1}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("idle", [True, False])
async def test_a_stopped_child_blocks_nothing_and_is_found_out(remote: Make, idle: bool) -> None:
    executor = remote(limits=SHORT)
    await executor.warmup()
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGSTOP)
    await until(lambda: state_of(executor.pid) == "T")
    calls = [] if idle else [asyncio.ensure_future(outcome(executor, 1, 2)) for _ in range(2)]
    times = []
    for _ in range(20):
        began = time.perf_counter()
        executor.status(), executor.metrics(), executor.cache_metrics_snapshot(), executor.kv_layout()
        executor.release_cache(1)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)
    assert sorted(times)[10] < 0.01 and executor.snapshot_age() > 0.05
    death = await executor.wait_dead()
    assert death is not None and death.cause == "hang" and "no heartbeat" in str(death)
    assert [(await call).cause for call in calls] == ["hang"] * len(calls)
    await revived(executor)
    assert executor.restarts == {"hang": 1}


async def test_a_stopped_child_cannot_make_the_server_wait_for_its_socket(remote: Make) -> None:
    executor = remote(limits=SHORT)
    await executor.warmup()
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGSTOP)
    large = step(*range(1, 200_000))
    began = time.perf_counter()
    calls = [asyncio.ensure_future(executor.unified_decode(large)) for _ in range(4)]
    await asyncio.sleep(0)
    assert time.perf_counter() - began < 1.0
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, ExecutorDied) and answer.cause == "hang"


@pytest.mark.parametrize("action", [stub.SLEEP, stub.NEVER])
async def test_a_step_past_its_deadline_is_a_hang_though_the_heart_beats(remote: Make, action: int) -> None:
    executor = remote(limits=SHORT)
    await executor.warmup()
    await executor.unified_decode(step(1))  # measures what a token costs
    death = await outcome(executor, action)
    assert death.cause == "hang" and "deadline of 0.3 s" in str(death)
    assert (executor.running_seconds() or 0) > 0.1
    await revived(executor)


async def test_compilation_does_not_count_against_a_step(remote: Make) -> None:
    executor = remote(limits=SHORT)
    await executor.warmup()
    await executor.unified_decode(step(1))
    call = asyncio.ensure_future(
        executor.unified_decode(step(stub.COMPILE))
    )  # takes 0.6 s, the deadline is 0.3 s
    await until(lambda: executor.stage() == "compile")
    await call
    assert executor.restarts == {}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("silent_s", [0.3, 20.0])
@pytest.mark.parametrize("remote", ["command"], indirect=True)
async def test_a_load_may_be_silent_for_longer_but_not_for_ever(remote: Make, silent_s: float) -> None:
    limits = Limits(heartbeat_s=0.05, tick_s=0.05, silence_s=0.1, loading_silence_s=3.0)
    executor = remote(limits=limits)
    loading = asyncio.ensure_future(executor.warmup())
    await asyncio.sleep(0)
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGSTOP)
    await asyncio.wait((loading,), timeout=silent_s)
    assert loading.done() == (silent_s > limits.loading_silence_s)
    if not loading.done():
        os.kill(executor.pid, signal.SIGCONT)
        await loading
        return
    with pytest.raises(ExecutorDied, match="no heartbeat") as caught:
        await loading
    assert caught.value.cause == "load"


async def test_a_load_that_stands_still_after_a_death_is_soon_tried_again(remote: Make) -> None:
    limits = Limits(heartbeat_s=0.05, tick_s=0.05, reloading_silence_s=2.0)
    executor = remote(
        limits=limits, load="half a second"
    )  # a forked one would be loaded before it is stopped
    await executor.warmup()
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGKILL)
    await executor.wait_dead()
    loading = asyncio.ensure_future(executor.begin_epoch(2))
    first = executor.pid
    await until(lambda: executor.pid != first)
    os.kill(executor.pid, signal.SIGSTOP)
    async with asyncio.timeout(40):
        with pytest.raises(ExecutorDied, match="no heartbeat"):
            await loading
        while not executor.status().is_ready:
            with contextlib.suppress(ExecutorDied):  # a busy machine may need more than one try
                await executor.begin_epoch(2)
    assert executor.restarts["signal"] == 1 <= executor.restarts["load"]


async def test_a_load_that_is_given_up_leaves_no_process() -> None:
    executor = RemoteExecutor(config(load="slow"), limits=QUICK)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await executor.begin_epoch(1)
    pid = executor.pid
    assert pid in living_children()
    await executor.shutdown()
    assert state_of(pid) is None


async def test_a_server_that_stood_still_does_not_blame_its_child() -> None:
    jump = 0.0
    executor = RemoteExecutor(config(), limits=SHORT, clock=lambda: time.monotonic() + jump)
    await executor.warmup()
    call = asyncio.ensure_future(executor.unified_decode(step(stub.NEVER)))
    await asyncio.sleep(0)
    jump = 1000.0
    await asyncio.sleep(0.2)
    assert not call.done() and executor.status().is_ready
    assert await asyncio.gather(call, executor.shutdown(), return_exceptions=True)


async def test_signals_of_the_terminal_and_of_a_service_manager_are_not_the_childs(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    assert executor.pid is not None and os.getpgid(executor.pid) != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(executor.pid, number)
    assert (await executor.unified_decode(step(5))).token_ids.tolist() == [6]


def talking(code: str) -> "list[str]":
    """A child that says something else than the protocol."""
    start = "import socket, struct, sys, time; s = socket.socket(fileno=int(sys.argv[1]));"
    return [sys.executable, "-c", start + code]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("s.send(b'hello, parent'); time.sleep(60)", "sent garbage: a frame of"),
        ("s.send(struct.pack('<I', 5) + b'hello'); time.sleep(60)", "sent garbage: not a message"),
        ("s.send(struct.pack('<I', 2**31)); time.sleep(60)", "a frame of 2147483648 bytes is refused"),
        (
            r"s.send(struct.pack('<I', 4) + b'\x93\x0a\x01\x00'); time.sleep(60)",
            "answered call 1, which was not its turn",
        ),
        ("s.close(); time.sleep(60)", "closed its socket"),
        ("sys.exit(6)", "ended with exit code 6"),
    ],
)
async def test_garbage_is_a_death_and_no_hang(remote: Make, code: str, message: str) -> None:
    executor = remote(command=lambda fd: [*talking(code), str(fd)])
    async with asyncio.timeout(5):
        with pytest.raises(ExecutorDied) as caught:
            await executor.warmup()
    assert message in str(caught.value) and caught.value.cause == "load"
    await executor.shutdown()
    assert executor.pid not in living_children()


async def test_garbage_after_loading_has_the_cause_closed(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    call = asyncio.ensure_future(outcome(executor, stub.SLEEP))
    await asyncio.sleep(0)
    assert executor._life is not None
    again = Ready(*([None] * len(Ready.__struct_fields__)))  # type: ignore[arg-type]
    executor._life._received(again)  # a second Ready changes nothing
    assert executor.info().name == "stub"
    executor._life._stream_ended("five bytes")
    assert (await call).cause == "closed"
    await revived(executor)


async def test_callbacks_that_raise_are_only_reported(remote: Make) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("not now")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context.get("exception"))
    )
    executor = remote(on_death=refuse)
    executor.set_progress(refuse)
    await executor.warmup()
    with pytest.raises(ExecutorDied):
        await executor.unified_decode(step(stub.EXIT))
    await revived(executor)
    assert len(reported) > 2 and all(isinstance(error, RuntimeError) for error in reported)


async def test_a_program_that_does_not_exist_cannot_be_started(remote: Make) -> None:
    before = open_files()
    executor = remote(command=lambda fd: ["/no/such/program"])
    with pytest.raises(ExecutorDied, match="cannot be started"):
        await executor.warmup()
    assert open_files() == before


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("remote", ["command"], indirect=True)
async def test_twenty_restarts_leave_nothing_behind(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    files, children = open_files(), living_children() - {executor.pid}
    for epoch in range(20):
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGKILL)
        await executor.wait_dead()
        await executor.begin_epoch(epoch)
    assert len(open_files()) == len(files)
    assert living_children() - {executor.pid} == children
    assert executor.restarts == {"signal": 20}
    await executor.shutdown()
    assert living_children() == children


async def test_its_own_children_end_with_it(remote: Make) -> None:
    executor = remote(
        command=lambda fd: [
            "/bin/sh",
            "-c",
            f"sleep 60 & exec {sys.executable} -m executors.process.child {fd}",
        ]
    )
    await executor.warmup()
    assert executor.pid is not None
    grandchildren = [p for p in group_of(executor.pid) if p != executor.pid]
    assert grandchildren
    os.kill(executor.pid, signal.SIGKILL)
    await executor.wait_dead()
    await until(lambda: all(state_of(pid) in (None, "Z") for pid in grandchildren))


def group_of(leader: int) -> list[int]:
    """All processes of a process group."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):  # noqa: PTH208
        try:
            if os.getpgid(pid) == leader:
                found.append(pid)
        except ProcessLookupError:
            pass
    return found
