"""`cohort serve` as a user starts it: a fork server, an executor of its own process, HTTP; and what a kill of the executor costs
a stream, with nothing standing by and with a child that holds the device's context (`--standby-executor`, decision 397).

Other parts begin executors themselves. Here the command does, so that what it forks from is what a user's executor is forked
from.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.gpu import shapes
from benchmarks.gpu.command import descendants, tool
from benchmarks.gpu.made_tokenizer import write_tokenizer
from benchmarks.gpu.part import ROOT, Failed, Found, Options, end_with_parent

_COMMAND = "from cohort_server import main; main()"
_EXECUTOR, _STANDBY = "cohort: executor", "cohort: standby"
_READY_S, _STANDS_BY_S, _STREAM_S = 60.0, 25.0, 40.0
_TOKENS = 1500
_LINES = 80


def run(options: Options, found: Found) -> None:
    """Raises Failed where a server does not start, a stream does not go on, or nothing stood by. On a CPU nothing stands by
    beside a fork."""
    with _server(options, "device" if options.device != "cpu" else "off") as server:
        found({"ready_seconds": server.ready})
        # Sooner than a child begins to stand by.
        _kill(server, "nothing stands by", found)
        if options.device != "cpu":
            if not _until(lambda: bool(server.pids(_STANDBY)), _STANDS_BY_S):
                raise Failed(f"nothing stands by: {sorted(server.titles().values())}")
            # The child is there before it holds a context.
            time.sleep(3.0)
        found({"processes": sorted(server.titles().values()), "memory_mib": device_memory()})
        _kill(server, "a child stands by" if options.device != "cpu" else "once more", found)


@dataclass(slots=True)
class Server:
    """A server that answers. `process`: its first process; `ready`: seconds from its start to /health."""

    process: subprocess.Popen[bytes]
    port: int
    ready: float
    output: Path

    def titles(self) -> dict[int, tuple[str, str]]:
        """Of all processes below it: its title, and its parent's."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        named = {pid: _title(pid) for pid in pids}
        return {pid: (named[pid], named.get(_parent(pid), "")) for pid in pids[1:]}

    def pids(self, title: str) -> list[int]:
        """Of the processes whose title begins this way."""
        return [pid for pid, (own, _) in self.titles().items() if own.startswith(title)]


def _kill(server: Server, name: str, found: Found) -> None:
    """Kill the executor under a stream: seconds until its next token, and what the server says meanwhile."""
    stream = Stream(server.port, _TOKENS)
    reading = threading.Thread(target=stream.read, daemon=True)
    reading.start()
    if not _until(lambda: len(stream.times) > 100, _STREAM_S):
        raise Failed(f"{name}: a stream has {len(stream.times)} events; {stream.error}")
    [executor] = server.pids(_EXECUTOR)
    killed = time.monotonic()
    os.kill(executor, signal.SIGKILL)
    reading.join(_STREAM_S)
    lines = server.output.read_text("utf-8", "replace").splitlines()
    found({f"log, {name}": [line[:240] for line in lines][-_LINES:]})
    if stream.error or reading.is_alive() or stream.tokens != _TOKENS:
        raise Failed(f"{name}: after a kill a stream has {stream.tokens} of {_TOKENS} tokens; {stream.error}")
    if not any(at > killed for at in stream.times):
        raise Failed(f"{name}: the stream was over before the kill")
    found({f"pause_seconds, {name}": max(b - a for a, b in pairwise(stream.times))})


@dataclass(slots=True)
class Stream:
    """A completion over HTTP. `times`: of its events."""

    port: int
    length: int
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""

    def read(self) -> None:
        """Ask, and read to the end."""
        body = {
            "model": "made", "prompt": "once upon a time", "max_tokens": self.length, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}, "temperature": 0.0,
        }  # fmt: skip
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_STREAM_S)
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise ConnectionError(f"{response.status}: {response.read()[:300]!r}")
            for line in response:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                if event.get("error"):
                    raise ConnectionError(str(event["error"]))
                self.times.append(time.monotonic())
                if event.get("usage"):
                    self.tokens = event["usage"]["completion_tokens"]
        except Exception as error:  # of whatever kind: the part says it
            self.error = f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _server(options: Options, standby: str) -> Iterator[Server]:
    shape = shapes.TINY if options.tiny else shapes.SMALL
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name, "made"), Path(name, "output")
        folder.mkdir()
        shapes.write(shape, folder)
        sizes = shapes.SHAPES[shape]
        write_tokenizer(folder, int(sizes["vocab_size"]), int(sizes["eos_token_id"]))
        port = _free_port()
        command = [
            sys.executable, "-c", _COMMAND, "serve", str(folder), "--served-model-name", "made", "--port", str(port),
            "--load-format", "dummy", "--device", options.device, "--max-model-len", "4096",
            "--standby-executor", standby,
        ]  # fmt: skip
        if options.tiny:
            command += ["--kv-cache-memory-bytes", str(64 << 20)]
        began = time.monotonic()
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=end_with_parent
            )  # fmt: skip
        try:
            if (
                not _until(lambda: _healthy(port) or process.poll() is not None, _READY_S)
                or process.poll() is not None
            ):
                raise Failed(f"no server after {_READY_S:g} s: {_last(output)}")
            yield Server(process, port, time.monotonic() - began, output)
        except Failed as failed:
            print(output.read_text("utf-8", "replace"))
            raise failed
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            for pid in (process.pid, *descendants(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def device_memory() -> str:
    """What the driver says of the memory of each process; "" where there is no such tool."""
    program = tool("nvidia-smi")
    if program is None:
        return ""
    command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    total = [program, "--query-gpu=memory.used", "--format=csv,noheader"]
    said = [
        subprocess.run(one, capture_output=True, text=True, check=False).stdout.split("\n")
        for one in (command, total)
    ]
    return "; ".join(line for lines in said for line in lines if line)


def _healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def _until(done: Callable[[], bool], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not done():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


def _last(output: Path) -> str:
    return " | ".join(output.read_text("utf-8", "replace").strip().splitlines()[-3:])[-600:]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _title(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
            .strip()[:80]
        )
    return ""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
