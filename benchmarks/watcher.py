"""What the feed of steps costs the server: CPU seconds of its process with a watcher and without, under the same streams.

    python -m benchmarks.watcher [--streams 30] [--pairs 11] [--seconds 4] [-- ARGS OF cohort serve]

Streams run all the time; windows with and without a watcher of /v1/steps alternate. CPU seconds are counted per step, since other
work on the machine changes the number of steps. The figure is the median over the pairs of the difference, at the median rate of
steps, as a share of one core.
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
    body = {"prompt": prompts, "max_tokens": 900, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None) as answer:
            answer.raise_for_status()
            for _ in answer.iter_raw():
                if stop.is_set():
                    return


def steps_of(url: str) -> float:
    """Steps run so far."""
    text = httpx.get(f"{url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("cohort_steps_total"))


class Watcher:
    """Reads the feed in a thread."""

    def __init__(self, url: str) -> None:
        self.num_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url,))

    def _read(self, url: str) -> None:
        with httpx.stream("GET", f"{url}/v1/steps", timeout=10) as feed:
            for line in feed.iter_lines():
                self.num_bytes += len(line)
                if self._stop.is_set():
                    return

    def __enter__(self) -> Watcher:
        self._thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def window(pid: int, url: str, seconds: float) -> tuple[float, float]:
    """CPU seconds per step of the server's process, and steps per second."""
    steps = steps_of(url)
    begun, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    used, passed = cpu_seconds(pid) - before, time.monotonic() - begun
    steps = steps_of(url) - steps
    return used / steps, steps / passed


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=4.0)
    options, args = parser.parse_known_args()
    stop = threading.Event()
    with serving([one for one in args if one != "--"]) as (pid, url):
        prompts = [f"Story number {number}:" for number in range(options.streams)]
        streams = threading.Thread(target=stream, args=(url, prompts, stop))
        streams.start()
        time.sleep(2)
        pairs: list[tuple[float, float]] = []
        rates: list[float] = []
        size = 0
        for _ in range(options.pairs):
            without, rate = window(pid, url, options.seconds)
            with Watcher(url) as watcher:
                at = watcher.num_bytes
                watched, other = window(pid, url, options.seconds)
                size += watcher.num_bytes - at
            pairs.append((without, watched))
            rates += [rate, other]
        stop.set()
        streams.join()
    rate = statistics.median(rates)
    more = [(watched - without) * rate for without, watched in pairs]
    found = {
        "streams": options.streams,
        "steps_per_second": round(rate, 1),
        "us_per_step_without": round(1e6 * statistics.median(without for without, _ in pairs), 1),
        "us_per_step_watched": round(1e6 * statistics.median(watched for _, watched in pairs), 1),
        "core_of_the_feed": round(statistics.median(more), 4),
        "pairs": sorted(round(one, 4) for one in more),
        "bytes_per_second": round(size / options.pairs / options.seconds),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
