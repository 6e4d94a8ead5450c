"""Any of the servers as a process: start it, wait until it is ready, stop it and all its children."""

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

from benchmarks.peers import install, llamacpp, one_stream_install

MODEL_NAME = "bench"
LLAMA = "llamacpp"
KV_GIB = 4
"""Of Cohort and vLLM. llama.cpp takes what its slots need."""
START_WITHIN, STOP_WITHIN = 600.0, 60.0


@dataclass(frozen=True, slots=True)
class Room:
    """What a server is started for, the same on both sides: `seqs` sequences side by side, each of at most `context`
    tokens."""

    seqs: int
    context: int


ROOM = Room(64, 4096)
SLOTS = Room(32, 1024)
"""Beside llama.cpp, which divides its KV cache among its slots once and for all: what the workloads need, and no more."""
DEEP = Room(4, 8192)
"""For workloads that are longer."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared. `ready` is the path that answers 200 when it serves. Words of `command` may have
    {model}, {port}, and {seqs}, {context} and {tokens} of a Room, `tokens` being their product."""

    name: str
    command: Sequence[str]
    ready: str
    env: dict[str, str] = field(default_factory=dict)

    def argv(self, model: Path, port: int, room: Room = ROOM) -> list[str]:
        """What is run for a model."""
        places = {
            "model": str(model), "port": str(port), "seqs": str(room.seqs), "context": str(room.context),
            "tokens": str(room.seqs * room.context),
        }  # fmt: skip
        return [word.format(**places) for word in self.command]


def cohort(name: str = "cohort", *extra: str, dtype: str = "bfloat16") -> Side:
    """This checkout, with flags of `cohort serve`."""
    command = [
        sys.executable, "-m", "server.cli", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}",
        "--served-model-name", MODEL_NAME, "--dtype", dtype, "--max-model-len", "{context}",
        "--max-num-seqs", "{seqs}", "--kv-cache-memory-bytes", f"{KV_GIB}GiB", "--log-level", "warning",
        "--max-queue-wait", "3600",  # the others refuse no request, however slow the machine
        *extra,
    ]  # fmt: skip
    return Side(name, command, "/ready")


def vllm(dtype: str = "bfloat16") -> Side:
    """vLLM with all cores bound to computing: left alone it keeps one for its API server, and is about half as fast.
    `dtype`: in which it computes.

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
        "--served-model-name", MODEL_NAME, "--dtype", dtype, "--max-model-len", "{context}",
        "--max-num-seqs", "{seqs}",
    ]  # fmt: skip
    return Side("vllm", command, "/health", env)


def llama() -> Side:
    """llama.cpp's server with a thread for each core, and its own defaults otherwise.

    Raises RuntimeError and subprocess.CalledProcessError where it cannot be built.
    """
    threads = len(os.sched_getaffinity(0))
    command = [
        str(llamacpp.ensure() / "bin/llama-server"), "-m", "{model}", "--host", "127.0.0.1", "--port", "{port}",
        "--alias", MODEL_NAME, "-t", str(threads), "-np", "{seqs}", "-c", "{tokens}",
    ]  # fmt: skip
    return Side(LLAMA, command, "/health")


def one_stream(library: str) -> Side:
    """OpenVINO GenAI or ik_llama.cpp behind one_stream.py, with a thread for each core.

    Raises subprocess.CalledProcessError where it cannot be installed.
    """
    python = one_stream_install.ensure(library) / "bin/python"
    threads = len(os.sched_getaffinity(0))
    command = [
        str(python), str(Path(__file__).with_name("one_stream.py")), library, "{model}", "{port}", "{context}",
        str(threads),
    ]  # fmt: skip
    return Side(library, command, "/health")


@contextlib.contextmanager
def serving(side: Side, model: Path, log: Path, room: Room = ROOM) -> Iterator[tuple[str, float]]:
    """A started server: its address, and the seconds from start to ready. Stopped, with its children, at the end.

    Raises RuntimeError, with the end of its log, where it does not come up.
    """
    port = _free_port()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("COHORT_", "LLAMA_"))
    }
    with log.open("ab") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            side.argv(model, port, room),
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
