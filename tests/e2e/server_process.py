"""A real `cohort serve` in a process of its own, for tests: start it, wait until it is ready, stop or kill it."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from tests.metrics_text import without_model

FORK_SERVER = "cohort: fork server"
_LISTENING = re.compile(r"listening on (https?://[^\s\"]+)")


class ServerProcess:
    """`cohort serve ARGS`, on a free port unless the arguments name one.

        with ServerProcess(["--executor", "echo"], folder) as server:
            httpx.get(f"{server.url}/health")

    stdout and stderr go to files in `folder`; `output()` and `log()` read them. Entering waits until the server is ready;
    leaving stops it and asserts a clean end, unless the test ended it itself.
    """

    def __init__(
        self,
        args: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        ready_within: float = 60,
        enter: Callable[[], None] | None = None,
        verify: ssl.SSLContext | bool = True,
        verb: Sequence[str] = ("serve",),
    ) -> None:
        """`verify`: what its certificate is checked with, and which one it is shown, where it speaks TLS."""
        self._verify = verify
        self.started = time.monotonic()
        self._ready_within = ready_within
        self._out, self._err = folder / "server.out", folder / "server.err"
        port = [] if "--port" in args else ["--port", "0"]
        command = [str(Path(sys.executable).with_name("cohort")), *verb, *args, *port]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            # A session of its own: a signal to the test run does not reach it before the fixture stops it.
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=out,
                stderr=err,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                preexec_fn=enter,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        deadline = time.monotonic() + 40
        while (match := _LISTENING.search(self.log())) is None:
            self.check_alive()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.005)
        return match[1]

    def output(self) -> str:
        """What it has written to stdout."""
        return self._out.read_text("utf-8")

    def log(self) -> str:
        """What it has written to stderr."""
        return self._err.read_text("utf-8")

    def check_alive(self) -> None:
        assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.log()}"

    def wait_until_ready(self) -> float:
        """Seconds from start to ready."""
        url, deadline = self.url, time.monotonic() + self._ready_within
        while not self._is_ready(url):
            self.check_alive()
            assert time.monotonic() < deadline, f"not ready:\n{self.log()}"
            time.sleep(0.02)
        return time.monotonic() - self.started

    def wait_until(self, path: str, status: int, within: float = 30.0) -> httpx.Response:
        """Poll `path` until it answers `status`."""
        deadline = time.monotonic() + within
        while True:
            response = httpx.get(f"{self.url}{path}", timeout=10, verify=self._verify)
            if response.status_code == status:
                return response
            assert time.monotonic() < deadline, (
                f"{path}: {response.status_code} {response.text}\n{self.log()}"
            )
            time.sleep(0.02)

    def _is_ready(self, url: str) -> bool:
        try:
            return httpx.get(f"{url}/ready", timeout=10, verify=self._verify).status_code == 200
        except httpx.TransportError:
            return False

    def children(self) -> list[int]:
        """Process ids of its living children, the executor above all, which a fork server may have begun for it."""
        servers = self.fork_servers()
        found = [pid for pid in _children_of(self.pid) if pid not in servers]
        return found + [pid for one in servers for pid in _children_of(one)]

    def fork_servers(self) -> list[int]:
        """Process ids of those that fork its executors."""
        return [pid for pid in _children_of(self.pid) if FORK_SERVER in _title(pid)]

    def processes(self) -> list[int]:
        """Process ids of the server, the first, of its children and of what forks them."""
        return [self.pid, *sorted({*_children_of(self.pid), *self.children()})]

    def post(self, path: str, body: Any, timeout: float = 60) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=timeout, verify=self._verify)

    def get(self, path: str, timeout: float = 10) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=timeout, verify=self._verify)

    def metric(self, sample: str) -> float:
        """One value of /metrics, by its name with labels as it is written there, without `model`."""
        for line in without_model(self.get("/metrics").text).splitlines():
            if line.startswith(f"{sample} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {sample}")

    def stop(self, within: float = 40) -> int:
        """SIGTERM and wait; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if self.process.poll() is not None:
            return
        try:
            code = self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        if kind is None:
            assert code == 0, self.log()


def server_of(executor: int) -> int:
    """The process that has an executor, which a fork server may have begun for it. Raises OSError or IndexError for one that is
    gone."""
    parent = _parent_of(executor)
    return _parent_of(parent) if FORK_SERVER in _title(parent) else parent


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def run_until_exit(args: Sequence[str], folder: Path, within: float = 30) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `cohort serve` that is expected to give up by itself."""
    server = ServerProcess(args, folder)
    try:
        code = server.process.wait(within)
    except subprocess.TimeoutExpired:
        server.kill()
        raise AssertionError(f"it did not end:\n{server.log()}") from None
    return code, server.output(), server.log()
