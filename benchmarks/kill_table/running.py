"""A server of the table as processes: start it, find what computes, stop it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.kill_table.subjects import ROOT, Subject

START_WITHIN = 600.0


class Running:
    """A started server, ready to serve. Raises RuntimeError with the end of its log where it does not come up.

    `enter` is called in its process before it begins, to put it into a group of processes.
    """

    def __init__(
        self, subject: Subject, log: Path, extra: Sequence[str] = (), enter: Callable[[], None] | None = None
    ) -> None:
        port = _free_port()
        self.subject, self.log, self.url = subject, log, f"http://127.0.0.1:{port}"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("COHORT_", "LLAMA_"))
        }
        began = time.monotonic()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*(word.format(port=port) for word in subject.command), *extra],
                cwd=ROOT,
                env=environment | subject.env,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=enter,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self.load_s = time.monotonic() - began

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        while not (self.answers(self.subject.ready) and self.computing()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])
                raise RuntimeError(f"{self.subject.title} did not come up; the end of {self.log}:\n{tail}")
            time.sleep(0.1)

    def answers(self, path: str) -> bool:
        """Whether it answers 200 there."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def computing(self) -> list[int]:
        """Process ids of its living children, and theirs, that compute."""
        return [pid for pid, line in _descendants(self.process.pid) if self.subject.computes(line)]

    def stop(self) -> None:
        """End it and all its children at once: what it does when it is asked to is a row of the table."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid, _ in _descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Process ids and command lines of all that live below a process."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(parents.get(pid, ()))
    for child in found:
        found += parents.get(child, ())
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            yield child, line.strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
