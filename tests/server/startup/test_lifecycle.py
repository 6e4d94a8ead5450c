"""Start and end of the serving process: order of events, signals, sockets, reaping."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace

import httpx
import pytest

from engine.request import Stage
from executors.contract import ConfigError, KvLayout
from server.http.listener import listen
from server.settings.load import SettingsError
from server.startup import banner, lifecycle, loading
from server.startup.lifecycle import EngineGone, serve
from server.system.reaper import Reaper
from server.system.signals import Signals
from tests.server.fakes import INFO, House


@dataclass
class Core:
    """Records what is done to it; `work` is what a drain waits for."""

    log: list[str] = field(default_factory=list)
    work: asyncio.Event = field(default_factory=asyncio.Event)
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    async def drain(self, timeout: float) -> bool:
        self.log.append("drain")
        try:
            await asyncio.wait_for(self.work.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        self.log.append("stop")


@dataclass
class Running:
    house: House
    core: Core
    signals: Signals
    url: str
    task: asyncio.Task[None]
    loads: asyncio.Event

    async def get(self, path: str) -> int:
        async with httpx.AsyncClient(base_url=self.url) as client:
            return (await client.get(path)).status_code

    async def until(self, path: str, status: int) -> None:
        for _ in range(500):
            if await self.get(path) == status:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{path} never answered {status}")


def run(house: House, *, drain_timeout: float = 5.0, load_error: Exception | None = None) -> Running:
    core, signals, listener = Core(), Signals(), listen("127.0.0.1", 0)
    model, house.state.model = house.state.model, None
    loads = asyncio.Event()

    async def load() -> None:
        await loads.wait()
        if load_error is not None:
            raise load_error
        house.state.model = model

    serving = serve(
        house.app, house.state, listener, core, load, drain_timeout=drain_timeout, signals=signals
    )
    url = banner.url_of("127.0.0.1", listener.port)
    return Running(house, core, signals, url, asyncio.create_task(serving), loads)


async def test_opens_loads_drains_and_ends(house: House) -> None:
    running = run(house)
    assert await running.get("/live") == 200
    assert await running.get("/ready") == 503
    running.loads.set()
    await running.until("/ready", 200)
    running.signals.arrived()
    await running.until("/ready", 503)
    assert await running.get("/live") == 200, "a draining server is alive"
    running.core.work.set()
    await asyncio.wait_for(running.task, 5)
    assert running.core.log == ["drain", "stop"]
    with pytest.raises(httpx.ConnectError):
        await running.get("/live")


async def test_the_log_ends_with_the_last_stage(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor stops in less time than lies between two looks at the stage."""
    lines: list[str] = []
    monkeypatch.setattr(lifecycle.log, "info", lambda event, **_: lines.append(event))

    async def stop() -> None:
        house.core.stage = Stage.STOPPED

    running = run(house)
    monkeypatch.setattr(running.core, "stop", stop)
    running.loads.set()
    await running.until("/ready", 200)
    running.signals.arrived()
    running.core.work.set()
    await asyncio.wait_for(running.task, 5)
    assert lines[-1] == "stage: stopped"


async def test_an_engine_that_gave_up_ends_the_server(house: House) -> None:
    running = run(house)
    running.loads.set()
    await running.until("/ready", 200)
    running.core.failed.set()
    with pytest.raises(EngineGone):
        await asyncio.wait_for(running.task, 5)
    assert running.core.log == ["stop"]


async def test_a_signal_while_loading_ends_it(house: House) -> None:
    running = run(house)
    running.core.work.set()
    running.signals.arrived()
    await asyncio.wait_for(running.task, 5)
    assert house.state.model is None
    assert running.core.log[-1] == "stop"


@pytest.mark.parametrize("hurry", ["timeout", "second signal"])
async def test_a_drain_has_an_end(house: House, hurry: str) -> None:
    running = run(house, drain_timeout=0.1 if hurry == "timeout" else 60)
    running.loads.set()
    await running.until("/ready", 200)
    running.signals.arrived()
    if hurry == "second signal":
        await running.until("/ready", 503)
        running.signals.arrived()
    await asyncio.wait_for(running.task, 5)
    assert running.core.log == ["drain", "stop"]


async def test_an_error_while_loading_ends_the_server(house: House) -> None:
    running = run(house, load_error=ConfigError("no such model"))
    running.loads.set()
    with pytest.raises(ConfigError, match="no such model"):
        await asyncio.wait_for(running.task, 5)
    assert running.core.log == ["stop"]


async def test_hang_ups_begin_a_drain_and_never_cut_it_short() -> None:
    signals = Signals()
    signals.hung_up()
    signals.hung_up()
    assert signals.first.is_set() and not signals.second.is_set()
    signals.arrived()
    assert signals.second.is_set()
    signals = Signals()
    signals.arrived()
    signals.hung_up()
    assert not signals.second.is_set()


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError) as caught:
            listen("127.0.0.1", port)
    assert (
        str(caught.value)
        == f"cannot listen on 127.0.0.1:{port}: address already in use; end the process that has it, or take another with --port"
    )
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
    with pytest.raises(SettingsError, match="not an address"):
        listen("no.such.host.invalid", 0)


def test_listens_on_ipv6_too() -> None:
    with listen("::1", 0) as listener:
        assert [one.family for one in listener.sockets] == [socket.AF_INET6]


def test_orphans_are_reaped_but_not_the_children_of_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    reaper = Reaper(os.getpid())
    deadline = time.monotonic() + 10
    while child.pid not in reaper._zombies:
        assert time.monotonic() < deadline
        assert child.pid not in reaper.look(), "nothing is taken at first sight"
        time.sleep(0.01)
    assert child.pid in reaper.look()
    assert child.pid not in reaper.look()
    child.wait()  # it finds nothing to wait for, and says 0


def test_banner_says_where_what_and_how() -> None:
    layout = KvLayout.of(block_size=16, num_blocks=2048, bytes_per_block=1)
    text = banner.Facts(
        url="http://127.0.0.1:8000",
        name="it's",
        info=INFO,
        layout=layout,
        weight_bytes=1,
        max_model_len=512,
        needs_key=True,
    ).text()
    assert "  console   http://127.0.0.1:8000/" in text.splitlines()
    for words in ("http://127.0.0.1:8000", "fake, float32", "device    cpu", "32,768 tokens", "YOUR_KEY"):
        assert words in text
    curl = text.splitlines()[-1]
    assert subprocess.run(["sh", "-nc", curl], check=True).returncode == 0
    assert "/v1/chat/completions" in curl and "embeddings" not in text


@pytest.mark.parametrize(
    ("span", "how"), [(170, "KV is taken as it is used"), (0, "KV is reserved at the start")]
)
def test_banner_says_how_much_memory_it_takes(span: int, how: str) -> None:
    layout = KvLayout.of(
        block_size=16, num_blocks=32768, bytes_per_block=3 * 2**17 - 2**15, blocks_per_span=span
    )
    text = banner.Facts(
        url="http://x",
        name="e",
        info=INFO,
        layout=layout,
        weight_bytes=257 * 2**20,
        max_model_len=512,
        needs_key=False,
    ).text()
    (line,) = [line for line in text.splitlines() if line.startswith("  memory ")]
    assert "0.25 GiB weights + 11.00 GiB KV = 11.25 GiB" in line
    assert how in line and "--kv-cache-memory-bytes" in line


def test_banner_shows_a_key_in_the_fragment_of_the_consoles_address() -> None:
    text = banner.Facts(
        url="http://x",
        name="e",
        info=INFO,
        layout=KvLayout.of(16, 32, 1),
        weight_bytes=0,
        max_model_len=512,
        needs_key=False,
        admin_key="a b#c",
    ).text()
    assert "  console   http://x/#admin_key=a%20b%23c" in text.splitlines()


def test_banner_of_a_model_that_makes_embeddings_only() -> None:
    layout = KvLayout.of(block_size=16, num_blocks=2048, bytes_per_block=1)
    info = replace(INFO, generates=False)
    text = banner.Facts(
        url="http://x",
        name="e",
        info=info,
        layout=layout,
        weight_bytes=0,
        max_model_len=512,
        needs_key=False,
    ).text()
    assert "serves    embeddings only: the checkpoint has no lm_head" in text
    curl = text.splitlines()[-1]
    assert (
        "http://x/v1/embeddings" in curl and '{"model": "e", "input": "What is the capital of Peru?"}' in curl
    )


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:5"), ("0.0.0.0", "http://localhost:5"), ("::1", "http://[::1]:5")],
)
def test_urls(host: str, url: str) -> None:
    assert banner.url_of(host, 5) == url


def test_progress_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    display = loading.LoadingLog()
    for done in range(1000):
        display.report("weights", done, 1000)
    display.report("warmup", 0, 0)
    display.close()
    first, second = capsys.readouterr().out.splitlines()
    assert "loading weights 0%" in first and "warming up" in second


def test_the_bar_goes_on_after_a_stage_has_ended() -> None:
    """The time does not stand still, and a stage of unknown length shows no share."""
    bar = loading.LoadingBar()
    try:
        bar.report("weights", 100, 100)
        bar.report("checking kernels", 0, 0)
        task = bar._bar.tasks[0]
        assert task.total is None and not task.finished
    finally:
        bar.close()


def test_a_bar_on_a_terminal() -> None:
    bar = loading.LoadingBar()
    bar.report("weights", 5, 10)
    bar.report("warmup", 0, 0)
    bar.close()


def test_nobody_has_to_see_the_banner() -> None:
    """Nor the log."""
    code = (
        "from server.startup import banner; from server.system import logs; logs.configure(); "
        "banner.show('x' * 100); banner.show('y'); import logging;"
        "banner.log.info('a'); logging.getLogger('x').info('b'); import sys; sys.exit(0)"
    )
    for redirection in (">/dev/full", ">&-", ">/dev/full 2>&1"):
        command = f'"$0" -c "$1" {redirection}'
        done = subprocess.run(["sh", "-c", command, sys.executable, code], capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done


def test_a_banner_that_is_not_read_holds_up_neither_the_start_nor_the_end() -> None:
    code = "from server.startup import banner; banner.show('x' * 200_000); import sys; print('on', file=sys.stderr)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.wait(10) == 0
        assert process.stderr is not None and process.stderr.read() == "on\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_anything_is_imported(number: signal.Signals) -> None:
    """The import of the verbs is held up here: it is the largest one before the event loop takes signals over."""
    code = (
        "import sys, time; from server import cli\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'cohort_server.command_line': print(flush=True); time.sleep(30)\n"
        "sys.meta_path.insert(0, Slow()); assert 'typer' not in sys.modules; cli.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(10) == 0
