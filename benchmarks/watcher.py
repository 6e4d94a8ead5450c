"""What the feed of steps costs the server: CPU seconds of its process with a watcher and without, under the same streams.

    python -m benchmarks.watcher [--streams 30] [--pairs 5] [--seconds 4] [-- ARGS OF cohort serve]

Streams run all the time; windows with and without a watcher of /v1/steps alternate. The figure is the median over the pairs of
the difference, as a share of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def serving(args: list[str]) -> Iterator[tuple[int, str]]:
    """Process id and address of a server."""
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("cohort")), "serve", *args, "--port", "0"],
            stderr=log,
            stdout=log,
        )
        try:
            while b" is ready at " not in (said := Path(log.name).read_bytes()):
                if process.poll() is not None:
                    raise RuntimeError(said.decode())
                time.sleep(0.1)
            yield process.pid, said.partition(b" is ready at ")[2].split()[0].decode()
        finally:
            process.terminate()
            process.wait()


def stream(url: str, prompts: list[str], stop: threading.Event) -> None:
    """Keeps all of them running until `stop`."""
    body = {"prompt": prompts, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None) as answer:
            for _ in answer.iter_raw():
                if stop.is_set():
                    return


class Watcher:
    """Reads the feed in a thread."""

    def __init__(self, url: str) -> None:
        self.num_bytes = self.num_steps = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,))

    def _read(self, url: str) -> None:
        with httpx.stream("GET", f"{url}/v1/steps", timeout=10) as feed:
            for line in feed.iter_lines():
                self.num_bytes += len(line)
                if line.startswith("data: "):
                    self.num_steps += len(json.loads(line[6:])["steps"])
                if self._stop.is_set():
                    return

    def __enter__(self) -> Watcher:
        self._thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def window(pid: int, seconds: float) -> float:
    """CPU seconds per second over a window."""
    begun, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - begun)


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options, args = parser.parse_known_args()
    stop = threading.Event()
    with serving([one for one in args if one != "--"]) as (pid, url):
        prompts = [f"Story number {number}:" for number in range(options.streams)]
        streams = threading.Thread(target=stream, args=(url, prompts, stop))
        streams.start()
        time.sleep(2)
        pairs, steps, size, watched = [], 0, 0, 0.0
        for _ in range(options.pairs):
            without = window(pid, options.seconds)
            with Watcher(url) as watcher:
                begun, at = watcher.num_steps, watcher.num_bytes
                pairs.append((without, window(pid, options.seconds)))
                steps, size = steps + watcher.num_steps - begun, size + watcher.num_bytes - at
                watched += options.seconds
        stop.set()
        streams.join()
    print(
        json.dumps(
            {
                "streams": options.streams,
                "core_without": round(statistics.median(a for a, _ in pairs), 4),
                "core_with": round(statistics.median(b for _, b in pairs), 4),
                "core_of_the_feed": round(statistics.median(b - a for a, b in pairs), 4),
                "differences": [round(b - a, 4) for a, b in pairs],
                "steps_per_second": round(steps / watched, 1),
                "bytes_per_second": round(size / watched),
            }
        )
    )


if __name__ == "__main__":
    main()
