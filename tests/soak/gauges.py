"""What a server holds at a quiet moment, seen from outside: /proc and /metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.server_process import ServerProcess
from tests.metrics_text import without_model

_GAUGES = {
    "blocks": "cohort_kv_blocks_used",
    "running": "cohort_requests_running",
    "waiting": "cohort_requests_waiting",
    "preemptions": "cohort_preemptions_total",
    "epoch": "cohort_executor_epoch",
    "resumed": "cohort_requests_resumed_total",
}


@dataclass(frozen=True, slots=True)
class Process:
    """One process. Memory in MiB: `rss` resident, `pss` with what is shared divided by those who share it, `anon` without
    files."""

    pid: int
    rss: float
    pss: float
    anon: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """As it is now."""
        folder = Path("/proc") / str(pid)
        rollup = (folder / "smaps_rollup").read_text()
        threads = re.search(r"^Threads:\s+(\d+)", (folder / "status").read_text(), re.MULTILINE)
        assert threads is not None

        def mib(name: str) -> float:
            found = re.search(rf"^{name}:\s+(\d+) kB", rollup, re.MULTILINE)
            assert found is not None
            return int(found[1]) / 1024

        descriptors = len(list((folder / "fd").iterdir()))
        return cls(pid, mib("Rss"), mib("Pss"), mib("Anonymous"), descriptors, int(threads[1]))


@dataclass(frozen=True, slots=True)
class Sample:
    """A quiet moment. `minute` since the start; `series` of Prometheus; `calm`: nobody has struck since the sample before."""

    minute: float
    calm: bool
    server: Process
    executor: Process
    children: int
    blocks: int
    running: int
    waiting: int
    preemptions: int
    epoch: int
    resumed: int
    series: int


def executor_pid(server: ServerProcess) -> int | None:
    """Of the living executor, None between two lives."""
    for pid in server.children():
        try:
            title = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if b"executor" in title:
            return pid
    return None


def sample(server: ServerProcess, metrics_key: str, minute: float, calm: bool) -> Sample:
    """Everything at once. No connection of ours is open while descriptors are counted, but idle ones of the server's time out
    by themselves: the caller has closed its own."""
    headers = {"Authorization": f"Bearer {metrics_key}"}
    text = without_model(httpx.get(f"{server.url}/metrics", headers=headers, timeout=10).text)
    values = {}
    for field, name in _GAUGES.items():
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        values[field] = int(float(found[1]))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    executor = executor_pid(server)
    assert executor is not None
    children = len(server.children())
    return Sample(
        minute, calm, Process.of(server.pid), Process.of(executor), children, series=len(lines), **values
    )
