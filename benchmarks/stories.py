"""What stories, logs and traces cost: CPU seconds per output token with all of them on, and with all of them off.

    python -m benchmarks.stories [--pairs 5] [--shape qwen3-tiny] [--workload tiny] [--repeat 3] [--against DIR] [--json FILE]

    on    --stories 1000, the log as JSON at level info, traces to a collector that reads and drops them
    off   --stories 0, --log-level error, no traces; with --against another checkout, one without stories, at --log-level error

Each run is a server of its own, and the sides take turns: on off, off on, on off, ... CPU seconds are those of the server and of
all its processes from the first request on until the last trace is sent (/proc, in hundredths of a second); output tokens are the
server's own count. The cost is the median over the pairs of on / off - 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.attention import cpu_name
from benchmarks.peers import models
from tools.neutral_paths import neutral

_SETTLE = 6.0
"""Seconds after a workload: traces are sent up to five seconds after their calls."""
_START_WITHIN = 120.0
_TOKENS = re.compile(r'^cohort_tokens_total\{[^}]*kind="output"[^}]*\} (\S+)$', re.M)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--shape", default="qwen3-tiny")
    parser.add_argument("--workload", default="tiny")
    parser.add_argument(
        "--repeat", type=int, default=3, help="runs of the workload, the first one included [3]"
    )
    parser.add_argument("--against", type=Path, help="checkout without stories, with a .venv of its own")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.collect:
        collect()
        return
    model = models.ensure(arguments.shape)
    pairs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, collector() as endpoint:
        log = Path(folder, "server.log")
        sides = {
            "on": (None, ["--stories", "1000", "--log-format", "json", "--otlp-traces-endpoint", endpoint]),
            "off": (
                arguments.against,
                ["--log-level", "error"] + ([] if arguments.against else ["--stories", "0"]),
            ),
        }
        for number in range(arguments.pairs):
            found = {}
            for side in ("on", "off") if number % 2 == 0 else ("off", "on"):
                checkout, flags = sides[side]
                found[side] = cpu_per_token(model, checkout, flags, arguments.workload, arguments.repeat, log)
            pairs.append(found)
            print(
                f"pair {number + 1}: on {1e6 * found['on']:.1f} us of CPU per token, off {1e6 * found['off']:.1f}: "
                f"{found['on'] / found['off'] - 1:+.2%}",
                flush=True,
            )
    costs = [pair["on"] / pair["off"] - 1 for pair in pairs]
    print(
        f"cost: {statistics.median(costs):+.2%} (median of {len(costs)}; {min(costs):+.2%} to {max(costs):+.2%})"
    )
    if arguments.json:
        result: dict[str, Any] = {
            "shape": arguments.shape, "workload": arguments.workload, "repeat": arguments.repeat, "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)), "off": "another checkout" if arguments.against else "this checkout",
            "cpu_seconds_per_token": pairs, "cost": statistics.median(costs), "cost_of_each_pair": costs,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(neutral(result), indent=2) + "\n")


def cpu_per_token(
    model: Path, checkout: Path | None, flags: list[str], workload: str, repeat: int, log: Path
) -> float:
    """CPU seconds per output token of one server under the workload."""
    with server(model, checkout, flags, log) as (process, url):
        words = ["--workload", workload, "--repeat", str(repeat)]
        subprocess.run(
            [sys.executable, "-m", "server.cli", "bench", url, "--workload", "single", "--repeat", "1"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        seconds, tokens = cpu_seconds(process.pid), output_tokens(url)
        subprocess.run(
            [sys.executable, "-m", "server.cli", "bench", url, *words], check=True, stdout=subprocess.DEVNULL
        )
        time.sleep(_SETTLE)
        return (cpu_seconds(process.pid) - seconds) / (output_tokens(url) - tokens)


@contextlib.contextmanager
def server(
    model: Path, checkout: Path | None, flags: list[str], log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server that is ready: its process and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python = sys.executable if checkout is None else str(checkout / ".venv/bin/python")
    command = [
        python, "-m", "server.cli", "serve", str(model), "--port", str(port), "--dtype", "bfloat16",
        "--max-num-seqs", "64", "--kv-cache-memory-bytes", "1GiB", *flags,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=checkout, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _START_WITHIN
        while not answers(f"{url}/ready"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")
            time.sleep(0.1)
        yield process, url
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    """Whether it answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def output_tokens(url: str) -> float:
    """Output tokens that the server has counted."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        found = _TOKENS.search(response.read().decode())
    assert found is not None
    return float(found[1])


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and of all below it, those that ended and were waited for included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_seconds, children))


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The address of a collector of traces, in a process of its own: its CPU seconds are not the server's."""
    command = [sys.executable, "-m", "benchmarks.stories", "--collect"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1/traces"
    finally:
        process.terminate()
        process.wait()


def collect() -> None:
    """Be the collector, until terminated."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(listening.server_port, flush=True)
    listening.serve_forever()


if __name__ == "__main__":
    main()
