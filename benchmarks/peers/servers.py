"""Either server as a process: start it, wait until it is ready, stop it and all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import install

MODEL_NAME = "bench"
MAX_MODEL_LEN, MAX_NUM_SEQS, KV_GIB = 4096, 64, 4
"""The same for both."""
START_WITHIN, STOP_WITHIN = 600.0, 60.0


@dataclass(frozen=True)
class Side:
    """One of the two that are compared. `ready` is the path that answers 200 when it serves."""

    name: str
    command: Sequence[str]
    ready: str
    env: dict[str, str] = field(default_factory=dict)

    def argv(self, model: Path, port: int) -> list[str]:
        """What is run for a model."""
        places = {"model": str(model), "port": str(port)}
        return [word.format(**places) for word in self.command]


def cohort(name: str = "cohort", *extra: str) -> Side:
    """This checkout, with flags of `cohort serve`."""
    command = [
        sys.executable, "-m", "server.cli", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", MODEL_NAME, "--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN),
        "--max-num-seqs", str(MAX_NUM_SEQS), "--kv-cache-memory-bytes", f"{KV_GIB}GiB", "--log-level", "warning", *extra,
    ]  # fmt: skip
    return Side(name, command, "/ready")


def vllm() -> Side:
    """vLLM with all cores bound to computing: left alone it keeps one for its API server, and is about half as fast.

    Raises subprocess.CalledProcessError where it cannot be installed.
    """
    venv = install.ensure()
    cores = sorted(os.sched_getaffinity(0))
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "OMP_NUM_THREADS": str(len(cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(install.openmp(venv)),
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    command = [
        str(venv / "bin/vllm"), "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", MODEL_NAME, "--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN),
        "--max-num-seqs", str(MAX_NUM_SEQS),
    ]  # fmt: skip
    return Side("vllm", command, "/health", env)


@contextlib.contextmanager
def serving(side: Side, model: Path, log: Path) -> Iterator[tuple[str, float]]:
    """A started server: its address, and the seconds from start to ready. Stopped, with its children, at the end.

    Raises RuntimeError, with the end of its log, where it does not come up.
    """
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    with log.open("ab") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            side.argv(model, port),
            env=environment | side.env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, f"{url}{side.ready}", began, log)
        yield url, time.monotonic() - began
    finally:
        _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, began: float, log: Path) -> None:
    while not _answers(url):
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode}; the end of {log}:\n{_end_of(log)}")
        if time.monotonic() - began > START_WITHIN:
            raise RuntimeError(
                f"it was not ready after {START_WITHIN:g} s; the end of {log}:\n{_end_of(log)}"
            )
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not: a child that stayed would take a core from the next server."""
    process.terminate()
    try:
        process.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
