"""What this machine can do at most, in a process of its own: no server may share its threads.

python -m benchmarks.peers.limits
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_ROUNDS = 30
_READ_BYTES = 1 << 29
"""Far more than any cache holds."""
_SHAPES = ((512, 1024, 3072), (2048, 1024, 6144), (2048, 4096, 4096))
"""Rows, inner and outer size of the products."""
_PATIENCE = 0.5
"""Seconds of one product, from which larger ones and more rounds are left out: some builds have no fast int8 product."""


def measured() -> dict[str, float]:
    """Gigabytes read a second, and operations of large products, in 10^9 a second, in bf16 and in int8; the best of several
    rounds each.

    Raises subprocess.CalledProcessError.
    """
    command = [sys.executable, "-m", "benchmarks.peers.limits"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def reading() -> float:
    """Gigabytes read a second right now, the best of many sums of a large array: a second of work, for comparing rounds.

    Raises subprocess.CalledProcessError.
    """
    command = [sys.executable, "-m", "benchmarks.peers.limits", "reading"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return round(float(done.stdout.split()[-1]), 2)


def higher(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The better of two measurements: on a shared machine each is at most what the machine can do."""
    return {name: max(one[name], other[name]) for name in one}


def main() -> None:
    """Measure here, print JSON, or the one number of `reading`."""
    import torch

    with torch.inference_mode():
        if sys.argv[1:] == ["reading"]:
            array = torch.ones(_READ_BYTES // 4)
            # Twice as many rounds: a moment without neighbours is what is looked for.
            print(_READ_BYTES / min(_best(array.sum), _best(array.sum)) / 1e9)
            return
        found = {
            "read_gb_per_s": _read(torch),
            "bf16_gflop_per_s": _multiply(torch),
            "int8_gop_per_s": _multiply_int8(torch),
        }
        print(json.dumps(found))


def _read(torch: Any) -> float:
    """By summing a large array, and by products of one row with packed weights: whichever reads faster."""
    rate = _READ_BYTES / _best(torch.ones(_READ_BYTES // 4).sum)
    layers = [
        _packed(torch, torch.randn(3072, 1024).bfloat16()) for _ in range(_READ_BYTES // (2 * 3072 * 1024))
    ]
    x = torch.randn(1, 1024).bfloat16()

    def decode() -> None:
        for multiply in layers:
            multiply(x)

    return max(rate, len(layers) * 2 * 3072 * 1024 / _best(decode)) / 1e9


def _multiply(torch: Any) -> float:
    best = 0.0
    for rows, inner, outer in _SHAPES:
        multiply = _packed(torch, torch.randn(outer, inner).bfloat16())
        x = torch.randn(rows, inner).bfloat16()
        best = max(best, 2.0 * rows * inner * outer / _best(lambda multiply=multiply, x=x: multiply(x)))
    return best / 1e9


def _multiply_int8(torch: Any) -> float:
    best = 0.0
    for rows, inner, outer in _SHAPES:
        x = torch.randint(-128, 128, (rows, inner), dtype=torch.int8)
        weight = torch.randint(-128, 128, (outer, inner), dtype=torch.int8).t()
        seconds = _best(lambda x=x, weight=weight: torch._int_mm(x, weight))
        best = max(best, 2.0 * rows * inner * outer / seconds)
        if seconds > _PATIENCE:
            break
    return best / 1e9


def _packed(torch: Any, weight: Any) -> Callable[[Any], Any]:
    """A product with weights in oneDNN's own order where this build has that."""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError):
        return lambda x: torch.nn.functional.linear(x, weight)


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several rounds; of the first, where that one is slow."""
    began = time.perf_counter()
    work()
    best = time.perf_counter() - began
    for _ in range(_ROUNDS if best < _PATIENCE else 0):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
