"""A server with two replicas on a real Ray of this machine, and a server without, for what both must answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.conftest import EXACT
from tests.e2e.server_process import ServerProcess, server_of

READY_WITHIN = 300.0
"""Ray's own processes take ten seconds of CPU to start, on machines where others work as well."""


class RayServer(ServerProcess):
    """`cohort ray serve`. A signal to a replica goes to the process that holds its engine, Ray's worker."""

    def __init__(
        self, args: Sequence[str], folder: Path, replicas: int = 2, env: Mapping[str, str] | None = None
    ) -> None:
        self.replicas = replicas
        given = [*args, "--replicas", str(replicas)]
        super().__init__(given, folder, env=env, ready_within=READY_WITHIN, verb=("ray", "serve"))

    def wait_until_ready(self) -> float:
        seconds = super().wait_until_ready()
        self.wait_for_replicas(self.replicas)
        return seconds

    @property
    def url(self) -> str:
        deadline = time.monotonic() + READY_WITHIN
        while "listening on" not in self.log():
            self.check_alive()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        return super().url

    def cards(self) -> list[dict[str, Any]]:
        """Executors, one for each replica."""
        answer = self.get("/v1/executors", timeout=20)
        return answer.json()["data"] if answer.status_code == 200 else []

    def wait_for_replicas(
        self, count: int, besides: Sequence[int] = (), within: float = READY_WITHIN
    ) -> dict[str, int]:
        """Process ids of replicas by their names, once there are so many, none of them of `besides`."""
        deadline = time.monotonic() + within
        while True:
            found = self.pids()
            if len(found) == count and not set(found.values()) & set(besides):
                return found
            self.check_alive()
            assert time.monotonic() < deadline, f"{found}, not {count} others\n{self.log()[-5000:]}"
            time.sleep(0.2)

    def pids(self) -> dict[str, int]:
        """Process ids of replicas by their names."""
        found = {}
        for card in self.cards():
            with contextlib.suppress(OSError, IndexError):
                found[card["replica"]] = server_of(card["pid"])
        return found

    def executors(self) -> list[int]:
        """Process ids of executors."""
        return [card["pid"] for card in self.cards()]

    def descendants(self) -> list[int]:
        """This process and all below it, Ray's included."""
        parents = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        found, more = {self.pid}, {self.pid}
        while more:
            more = {pid for pid, parent in parents.items() if parent in more}
            found |= more
        return sorted(found)


def kill(pid: int) -> float:
    """SIGKILL; returns when."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


async def until_gone(pids: Sequence[int], within: float = 20.0) -> None:
    """Wait until none of these processes is left."""
    async with asyncio.timeout(within):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110  # other processes
            await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def listeners(pid: int) -> list[tuple[str, int]]:
    """Address and port of each TCP socket on which a process listens."""
    import psutil

    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        return [(one.laddr.ip, one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN]
    return []


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(["cohort-tiny", *EXACT], tmp_path_factory.mktemp("single")) as running:
        yield running


@pytest.fixture(scope="session")
def ray_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    with RayServer(["cohort-tiny", *EXACT], tmp_path_factory.mktemp("ray")) as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Ray's processes end with the servers that started them."""
    yield
    deadline = time.monotonic() + 20
    while left := subprocess.run(
        ["pgrep", "-f", str(Path(__file__).parents[2]) + ".*raylet"], capture_output=True
    ).stdout:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
