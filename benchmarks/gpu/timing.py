"""Times on the device, and the two limits that everything is held against: copying memory and multiplying matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], object]
_ROUNDS = 7
_FULL_ROUND = 2e-3
"""Seconds that a round takes at least: launching a graph is then nothing beside it."""
_MOST_REPEATS = 200
_RAMP = 0.3
"""Seconds of work before limits are measured: clocks rise within some tens of milliseconds, and under load only."""
captured = True
"""False from the first capture on that failed: torch captures nothing after it, and times hold launches."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of this device, measured: bytes a second, read and written counted both; bf16 operations a second."""

    copy: float
    products: float
    copied_by: str
    """What was the faster: torch's `copy_`, which may take a path of its own, or "a kernel" that reads and writes as much."""

    @property
    def figures(self) -> dict[str, Any]:
        """As they are told and kept."""
        return {
            "copy_gb_per_s": self.copy / 1e9,
            "copied_by": self.copied_by,
            "bf16_tflops": self.products / 1e12,
        }


def seconds_of(calls: Sequence[Call], device: torch.device) -> float:
    """Median seconds of one call. `calls` do the same on different memory, in turn: what fits in a cache must not stay there.

    On CUDA the calls are captured in a graph, whose replays are timed by events: launches are not in it. What cannot be
    captured is timed as it is launched.
    """
    global captured
    for call in calls:
        call()
    if device.type != "cuda":
        return _on_host(calls)
    torch.cuda.synchronize(device)
    once = _between_events(lambda: _all(calls))
    repeats = max(1, min(_MOST_REPEATS, int(_FULL_ROUND / max(once, 1e-9))))
    try:
        graph = _captured(calls, repeats)
        # Launched one by one, short kernels wait for the host: replayed they may be over in a fraction of the time.
        alone = _between_events(graph.replay)
        longer = min(_MOST_REPEATS, int(repeats * _FULL_ROUND / max(alone, 1e-9)))
        if longer > repeats:
            graph.reset()
            repeats, graph = longer, _captured(calls, longer)
    except RuntimeError as error:
        captured = False
        print(f"timed with launches, for it was not captured: {error}", flush=True)
        torch.cuda.synchronize(device)
        times = [_between_events(lambda: _all(calls)) / len(calls) for _ in range(_ROUNDS)]
    else:
        times = [_between_events(graph.replay) / repeats / len(calls) for _ in range(_ROUNDS)]
        graph.reset()
    return statistics.median(times[1:])


def _all(calls: Sequence[Call]) -> list[object]:
    """Their results. Those of one turn are kept together: a call that was given the block of the one before would write to what
    lies in the cache still, and its writes would never reach memory.

    Memory for that is bounded: no call gives more than it was given, and what all are given lies in memory at once. Products of
    lm_head and 256 rows give most, 78 MB each of the four.
    """
    return [call() for call in calls]


def _captured(calls: Sequence[Call], repeats: int) -> torch.cuda.CUDAGraph:
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):  # on a stream of its own, which waits for what is under way
            for _ in range(repeats):
                _all(calls)
    finally:
        torch.cuda.set_stream(current)  # a capture that fails leaves its own behind
    return graph


def _between_events(call: Call) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    call()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1e3


def _on_host(calls: Sequence[Call]) -> float:
    times = []
    for _ in range(2):
        began = time.perf_counter()
        for call in calls:
            call()
        times.append((time.perf_counter() - began) / len(calls))
    return min(times)


def seconds_with_host(call: Call, device: torch.device, rounds: int = 15) -> float:
    """Median seconds of a call with all it does on the host, until its result is there."""
    times = []
    for _ in range(rounds + 2):
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def noise(device: torch.device) -> torch.Generator:
    """What random inputs are drawn with: always the same from its beginning, so that what is measured does not depend on what
    was measured before."""
    return torch.Generator(device).manual_seed(0)


def measure_limits(device: torch.device, tiny: bool) -> Limits:
    """The better of two ways to copy far more than any cache holds, and a square product of random bf16 numbers: zeros would be
    faster. What kernels are held against must be what a kernel can do."""
    drawn = noise(device)
    with torch.inference_mode():
        size = 1 << (16 if tiny else 30)
        source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device, generator=drawn)
        target = torch.empty_like(source)
        # By elements of four bytes: of single bytes a thread would ask for too few at once.
        read, written = source.view(torch.int32), target.view(torch.int32)
        ways: dict[str, Call] = {
            "copy_": lambda: target.copy_(source),
            "a kernel": lambda: torch.bitwise_not(read, out=written),
        }
        _work_a_while(ways["copy_"], device)
        seconds = {name: seconds_of([call], device) for name, call in ways.items()}
        best = min(seconds, key=lambda name: seconds[name])
        side = 64 if tiny else 8192
        a, b = (torch.randn(side, side, device=device, generator=drawn).bfloat16() for _ in range(2))
        products = 2.0 * side**3 / seconds_of([lambda: a @ b], device)
    return Limits(2 * size / seconds[best], products, best)


def _work_a_while(call: Call, device: torch.device) -> None:
    """On CUDA, and a few calls at a time: a device that waits for the host after each one idles between two."""
    if device.type != "cuda":
        return
    until = time.perf_counter() + _RAMP
    while time.perf_counter() < until:
        for _ in range(8):
            call()
        torch.cuda.synchronize(device)
