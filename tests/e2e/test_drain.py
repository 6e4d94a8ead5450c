"""How it ends: what SIGTERM leaves to finish, what it cuts short and how that is told, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ECHO
from tests.e2e.returning_executor import MARK
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

SLOW = [*ECHO, "--executor-option", "step_delay_ms=20"]
BODY: dict[str, Any] = {"prompt": "Hi", "max_tokens": 40, "ignore_eos": True, "seed": 1}


@asynccontextmanager
async def talking(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=30, limits=limits) as client:
        yield client


async def running(server: ServerProcess, count: int = 1, waiting: int = 0) -> None:
    """Wait until so many sequences run and wait."""
    deadline = time.monotonic() + 20
    while (
        server.metric("cohort_requests_running") != count
        or server.metric("cohort_requests_waiting") != waiting
    ):
        assert time.monotonic() < deadline, server.log()
        await asyncio.sleep(0.02)


def recovering(server: ServerProcess) -> None:
    """Wait until it says so."""
    deadline = time.monotonic() + 20
    while server.get("/ready").json()["status"] != "recovering":
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_what_was_taken_in_finishes_queued_requests_too(tokenizer_dir: Path, tmp_path: Path) -> None:
    """A request that waits in the queue was accepted: it is answered. One that comes later is told to come back."""
    with ServerProcess([str(tokenizer_dir), *SLOW, "--max-num-seqs", "1"], tmp_path) as server:
        async with talking(server) as client:
            tasks = [asyncio.create_task(client.post("/v1/completions", json=BODY)) for _ in range(3)]
            await running(server, 1, waiting=2)
            server.process.send_signal(signal.SIGTERM)
            assert server.wait_until("/ready", 503).json()["status"] == "draining"
            assert server.get("/live").status_code == 200
            late = await client.post("/v1/completions", json=BODY)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "service_unavailable")
            assert int(late.headers["retry-after"]) > 0
            answers = await asyncio.gather(*tasks)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [40] * 3
        assert server.process.wait(10) == 0


async def test_an_idle_connection_does_not_hold_it_up_and_is_closed(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess([str(tokenizer_dir), *ECHO], tmp_path) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as idle:
            idle.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(12) == b"HTTP/1.1 200"
            begun = time.monotonic()
            assert server.stop(within=10) == 0
            while part := idle.recv(65536):
                assert b"\r\nHTTP/1.1" not in part
        assert time.monotonic() - begun < 3


async def test_what_outlasts_the_drain_ends_with_a_typed_error(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Not with a cut socket: a stream ends with an error event, a whole answer and a queued one are a 503. Exit code 0: it
    was told to end."""
    args = [str(tokenizer_dir), *SLOW, "--max-num-seqs", "2", "--drain-timeout", "0.5"]
    long = BODY | {"max_tokens": 2000}
    with ServerProcess(args, tmp_path) as server:
        async with talking(server) as client:
            begun = asyncio.Event()

            async def stream() -> list[str]:
                async with client.stream("POST", "/v1/completions", json=long | {"stream": True}) as response:
                    assert response.status_code == 200
                    begun.set()
                    return [line async for line in response.aiter_lines() if line]

            streamed = asyncio.create_task(stream())
            await begun.wait()
            whole = [asyncio.create_task(client.post("/v1/completions", json=long)) for _ in range(2)]
            await running(server, 2, waiting=1)
            child = server.children()[0]
            server.process.send_signal(signal.SIGTERM)
            lines = await streamed
            answers = await asyncio.gather(*whole)
        [told] = [line for line in lines if '"error"' in line]
        error = json.loads(told.removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("service_unavailable", "service_unavailable")
        assert lines.index(told) >= len(lines) - 2, "it is the last but for the end mark"
        for answer in answers:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "service_unavailable"
        assert server.process.wait(10) == 0
        assert not alive(child)
        assert "the drain timeout has passed" in server.log()


@pytest.mark.long(every=2)
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_now(
    tokenizer_dir: Path, tmp_path: Path, second: signal.Signals
) -> None:
    """Even where the executor does not answer any more."""
    with ServerProcess([str(tokenizer_dir), *SLOW, "--drain-timeout", "60"], tmp_path) as server:
        async with talking(server) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json=BODY | {"max_tokens": 2000}))
            await running(server)
            [child] = server.children()
            os.kill(child, signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            server.wait_until("/ready", 503)
            begun = time.monotonic()
            server.process.send_signal(second)
            assert server.process.wait(8) == 0, server.log()
            assert time.monotonic() - begun < 4
            assert not alive(child)
            [ended] = await asyncio.gather(asked, return_exceptions=True)
            assert isinstance(ended, httpx.Response) and ended.status_code == 503, ended


async def test_a_signal_while_recovering_lets_streams_finish(tokenizer_dir: Path, tmp_path: Path) -> None:
    executor = f"{__name__.replace('test_drain', 'returning_executor')}:ReturningFactory"
    args = [str(tokenizer_dir), "--executor", executor, *SLOW[2:]]
    with ServerProcess(args, tmp_path, env={MARK: str(tmp_path / "mark")}) as server:
        async with talking(server) as client:
            undisturbed = (await client.post("/v1/completions", json=BODY)).json()
            asked = asyncio.create_task(client.post("/v1/completions", json=BODY))
            await running(server)
            os.kill(server.children()[0], signal.SIGKILL)
            recovering(server)
            server.process.send_signal(signal.SIGTERM)
            server.wait_until("/ready", 503)
            assert server.get("/live").status_code == 200
            answer = (await asked).json()
        assert answer["choices"][0]["text"] == undisturbed["choices"][0]["text"]
        assert server.process.wait(10) == 0


@pytest.mark.long(extended=True)
async def test_two_signals_while_recovering_end_it_now(tokenizer_dir: Path, tmp_path: Path) -> None:
    executor = f"{__name__.replace('test_drain', 'returning_executor')}:ReturningFactory"
    args = [str(tokenizer_dir), "--executor", executor, *SLOW[2:]]
    with ServerProcess(args, tmp_path, env={MARK: str(tmp_path / "mark")}) as server:
        async with talking(server) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json=BODY | {"max_tokens": 500}))
            await running(server)
            os.kill(server.children()[0], signal.SIGKILL)
            recovering(server)
            server.process.send_signal(signal.SIGTERM)
            server.wait_until("/ready", 503)
            begun = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(8) == 0, server.log()
            assert time.monotonic() - begun < 4
            [ended] = await asyncio.gather(asked, return_exceptions=True)
            assert isinstance(ended, httpx.Response) and ended.status_code == 503, ended
