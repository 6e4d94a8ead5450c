"""Children that are forked: what their server sees when one ends, when the fork server does, and when it cannot work."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ConfigError, ExecutorDied, NotReady
from executors.memory_file import MemoryFile
from executors.process import fork_messages, forks
from executors.process.children import Descriptors
from executors.process.forks import ForkServer
from executors.process.watch import Limits
from tests.executors.process import stub
from tests.executors.process.helpers import (
    QUICK,
    SHORT,
    STUB,
    CountedExecutor,
    config,
    living_children,
    log_of,
    open_files,
    state_of,
    step,
    until,
)


@pytest.fixture
async def executor() -> AsyncIterator[CountedExecutor]:
    made = CountedExecutor(config(), limits=QUICK, imports=(STUB,))
    yield made
    await made.shutdown()


def fork_server_of(executor: CountedExecutor) -> ForkServer:
    """The one that is alive."""
    assert executor._fork_server is not None and executor._fork_server.alive
    return executor._fork_server


def parent_of(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descriptors_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


def links_of(pid: int) -> list[str]:
    """What its descriptors are. A process at work closes some between the listing and the look."""
    found = []
    for descriptor in descriptors_of(pid):
        with contextlib.suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


async def test_lives_are_forked_by_one_process_that_imports_once(executor: CountedExecutor) -> None:
    await executor.warmup()
    server, first = fork_server_of(executor).pid, executor.pid
    assert first is not None and parent_of(first) == server and parent_of(server) == os.getpid()
    os.kill(first, signal.SIGKILL)
    death = await executor.wait_dead()
    assert death is not None and death.cause == "signal" and "SIGKILL" in str(death)
    await executor.begin_epoch(2)
    assert state_of(first) is None  # reaped
    assert executor.pid != first and parent_of(executor.pid) == server == fork_server_of(executor).pid
    assert (await executor.unified_decode(step(7, epoch=2))).token_ids.tolist() == [8]


@pytest.mark.parametrize(("token", "told"), [(stub.EXIT, "exit code 9"), (stub.DIE, "gave up")])
async def test_how_it_ended_is_known(executor: CountedExecutor, token: int, told: str) -> None:
    await executor.warmup()
    with pytest.raises(ExecutorDied, match=told):
        await executor.unified_decode(step(token))


async def test_streams_go_on_when_the_fork_server_is_killed(executor: CountedExecutor) -> None:
    await executor.warmup()
    server, first = fork_server_of(executor).pid, executor.pid
    os.kill(server, signal.SIGKILL)
    death = await executor.wait_dead()
    assert death is not None and death.cause == "signal"
    await executor.begin_epoch(2)
    assert fork_server_of(executor).pid != server and parent_of(executor.pid) == fork_server_of(executor).pid
    assert state_of(server) is None and state_of(first) in (None, "Z")  # as init gets to it
    assert (await executor.unified_decode(step(7, epoch=2))).token_ids.tolist() == [8]


@pytest.mark.long
async def test_a_fork_server_that_stands_still_holds_up_no_recovery(executor: CountedExecutor) -> None:
    await executor.warmup()
    server, first = fork_server_of(executor).pid, executor.pid
    assert first is not None
    os.kill(server, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    began = time.monotonic()
    await executor.wait_dead()
    await executor.begin_epoch(2)
    assert time.monotonic() - began < 15.0 and executor.restarts.total() == 1
    assert parent_of(executor.pid) == fork_server_of(executor).pid != server


@pytest.mark.long
async def test_a_fork_that_is_not_answered_is_a_start_by_command(
    executor: CountedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors.process.forks._FORK_S", 0.3)
    executor._progressed = lambda *report: None  # type: ignore[method-assign]
    begin = await executor._begin()
    os.kill(fork_server_of(executor).pid, signal.SIGSTOP)
    executor._start(begin)
    await executor._life.ready()  # type: ignore[union-attr]
    assert parent_of(executor.pid) == os.getpid()


@pytest.mark.parametrize("imports", ["no_such_module", "sys.exit"])
async def test_what_cannot_be_imported_is_the_executors_to_tell(imports: str) -> None:
    executor = CountedExecutor(config(load="config"), limits=QUICK, imports=(imports,))
    with pytest.raises(Exception, match="no such folder"):
        await executor.warmup()
    await executor.shutdown()
    assert not living_children()


@pytest.mark.long
async def test_imports_that_take_for_ever_are_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    executor = CountedExecutor(config(), limits=Limits(loading_silence_s=3.0), imports=("endless",))
    await executor.warmup()
    assert parent_of(executor.pid) == os.getpid()
    await executor.shutdown()


async def test_a_shutdown_while_it_imports_is_quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    executor = CountedExecutor(config(), limits=QUICK, imports=("endless",))
    warming = asyncio.ensure_future(executor.warmup())
    await until(lambda: executor._fork_server is not None)
    assert executor.stage() == "importing"
    began = time.monotonic()
    await executor.shutdown()
    with pytest.raises(NotReady):
        await warming
    assert time.monotonic() - began < 1.0 and executor.pid is None and not living_children()


async def test_a_warmup_that_is_cancelled_while_it_imports_goes_on(executor: CountedExecutor) -> None:
    warming = asyncio.ensure_future(executor.warmup())
    await until(lambda: executor._fork_server is not None)
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    server = fork_server_of(executor).pid
    await asyncio.gather(executor.warmup(), executor.warmup())
    assert fork_server_of(executor).pid == server == parent_of(executor.pid)


async def test_a_child_has_its_own_descriptors_and_no_others(executor: CountedExecutor) -> None:
    await executor.warmup()
    server = fork_server_of(executor)
    memory = MemoryFile.create("test")
    before = len(descriptors_of(server.pid))
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    child = server.fork(Descriptors(theirs.fileno(), writing, memory.descriptor))
    theirs.close()
    os.close(writing)
    await until(lambda: "executor rank" in Path(f"/proc/{child.pid}/cmdline").read_text())
    links = links_of(child.pid)
    assert sum(link.startswith("socket:") for link in links) <= 3  # its own, and the pair of its loop
    assert sum("memfd:test" in link for link in links) == 1
    assert sum(link.startswith("pipe:") for link in links) == 2  # stdout and stderr
    await until(lambda: len(descriptors_of(server.pid)) == before + 1)  # its pidfd
    ended = asyncio.Event()
    child.watch(ended.set)
    ours.close()
    await asyncio.wait_for(ended.wait(), 5.0)
    assert child.poll() == 0 and child.ended
    await until(lambda: len(descriptors_of(server.pid)) == before)
    os.close(reading)
    memory.close()


async def test_nothing_is_left_of_twenty_lives() -> None:
    before = open_files()
    executor = CountedExecutor(config(), limits=SHORT, imports=(STUB,))
    await executor.warmup()
    server = fork_server_of(executor).pid
    in_use = len(descriptors_of(server))
    for epoch in range(2, 22):
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGKILL)
        await executor.wait_dead()
        await executor.begin_epoch(epoch)
    assert len(descriptors_of(server)) == in_use
    await executor.shutdown()
    assert not living_children() and open_files() == before and state_of(server) is None


# -- what lives share ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def sharing() -> AsyncIterator[Callable[..., CountedExecutor]]:
    """Makes executors: `sharing("slow")`, where the option says how the load of what they share goes."""
    made: list[CountedExecutor] = []

    def make(how: str, limits: Limits = QUICK, **options: Any) -> CountedExecutor:
        made.append(CountedExecutor(config(shared=how, **options), limits=limits, imports=(STUB,)))
        return made[-1]

    yield make
    for one in made:
        await one.shutdown()


async def loaded_by(executor: CountedExecutor) -> int | None:
    """The process that has loaded what the executor shares, None if it has loaded by itself."""
    await log_of(executor)
    return (executor.cache_metrics_snapshot() or {}).get("loaded_by")  # type: ignore[return-value]


Sharing = Callable[..., CountedExecutor]


async def test_lives_share_what_was_loaded_once(sharing: Sharing) -> None:
    executor = sharing("")
    seen: list[tuple[str, int, int]] = []
    executor.set_progress(lambda *report: seen.append(report))
    await executor.warmup()
    server = fork_server_of(executor).pid
    assert ("weights", 1, 2) in seen and seen.index(("importing", 0, 0)) < seen.index(("weights", 1, 2))
    assert await loaded_by(executor) == server
    seen.clear()
    executor.kill()
    await executor.wait_dead()
    await executor.begin_epoch(2)
    assert await loaded_by(executor) == server and ("weights", 1, 2) not in seen
    os.kill(server, signal.SIGKILL)
    await executor.wait_dead()
    await executor.begin_epoch(3)
    assert await loaded_by(executor) == fork_server_of(executor).pid != server
    assert ("weights", 1, 2) in seen


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("config", ConfigError, "^model: no such folder$"),
        ("crash", ExecutorDied, "^KeyError: 'unforeseen'$"),
    ],
)
async def test_a_load_that_fails_is_told_once(
    sharing: Sharing, how: str, error: type[Exception], message: str
) -> None:
    executor = sharing(how)
    for _ in range(2):  # it is tried again when asked again
        with pytest.raises(error, match=message) as caught:
            await executor.warmup()
        assert executor.pid is None
        assert not isinstance(caught.value, ExecutorDied) or caught.value.cause == "load"


@pytest.mark.parametrize(
    ("how", "limits"),
    [("exit", QUICK), pytest.param("hold", Limits(loading_silence_s=2.0), marks=pytest.mark.long)],
)
async def test_a_fork_server_that_dies_or_hangs_in_a_load_leaves_it_to_the_executor(
    sharing: Sharing, how: str, limits: Limits
) -> None:
    executor = sharing(how, limits)
    await executor.warmup()
    assert parent_of(executor.pid) == os.getpid() and len(living_children()) == 1


@pytest.mark.long
async def test_a_load_may_take_longer_than_silence_may(sharing: Sharing) -> None:
    executor = sharing("slow", Limits(heartbeat_s=0.05, loading_silence_s=1.6))
    await executor.warmup()
    assert await loaded_by(executor) == fork_server_of(executor).pid


@pytest.mark.long
async def test_threads_that_a_load_leaves_forbid_forks(
    sharing: Sharing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        forks._FORK_S >= fork_messages.THREADS_END_S + 1.0
    )  # else the refusal comes too late, without its reason
    monkeypatch.setattr(forks, "_FORK_S", 60.0)  # two busy cores
    executor = sharing("threads")
    await executor.warmup()
    assert parent_of(executor.pid) == os.getpid() and await loaded_by(executor) is None
    assert "threads of a library stay" in caplog.text
    executor.kill()
    await executor.wait_dead()
    await executor.begin_epoch(2)  # what was loaded was given up, and is not loaded in vain again
    assert living_children() == {executor.pid}


@pytest.mark.long
async def test_a_warmup_that_is_cancelled_while_it_loads_goes_on(sharing: Sharing) -> None:
    executor = sharing("slow")
    warming = asyncio.ensure_future(executor.warmup())
    await until(lambda: executor.stage() == "weights")
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    server = fork_server_of(executor).pid
    await asyncio.gather(executor.warmup(), executor.warmup())
    assert await loaded_by(executor) == server


async def test_a_shutdown_while_it_loads_is_quick(sharing: Sharing) -> None:
    executor = sharing("hold")
    warming = asyncio.ensure_future(executor.warmup())
    await until(lambda: executor.stage() == "weights")
    began = time.monotonic()
    await executor.shutdown()
    with pytest.raises(NotReady):
        await warming
    assert time.monotonic() - began < 1.0 and not living_children()


# -- its end -------------------------------------------------------------------------------------------------------------

PARENT = """
import asyncio
from tests.executors.process.helpers import STUB, CountedExecutor, config

async def main():
    executor = CountedExecutor(config(), imports=(STUB,))
    await executor.warmup()
    print(executor.pid, executor._fork_server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.long
async def test_a_killed_server_leaves_neither_behind() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = [int(word) for word in (await parent.stdout.readline()).split()]
    assert len(pids) == 2 and all(state_of(pid) not in (None, "Z") for pid in pids)
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await until(lambda: all(state_of(pid) in (None, "Z") for pid in pids), 1.0)
    parent._transport.close()  # type: ignore[attr-defined]
