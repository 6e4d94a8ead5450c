"""What the part `long-steps` says of the host: where its threads are, and which calls of the driver take time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import CodeType, FunctionType
from typing import Any

from benchmarks.gpu import long_steps

STEP = "def launch(work):\n    work()\n"
KERNELS = "def matmul(work):\n    work()\n"


def function_of(source: str, file: str, name: str) -> FunctionType:
    """The function as if it stood in that file."""
    [code] = [one for one in compile(source, file, "exec").co_consts if isinstance(one, CodeType)]
    return FunctionType(code, {}, name)


def test_threads_that_compute_a_step_are_seen_where_they_are() -> None:
    launch = function_of(STEP, "/somewhere/executors/llm/step/launched/queueing.py", "launch")
    matmul = function_of(KERNELS, "/somewhere/executors/kernels/few_rows.py", "matmul")
    over = threading.Event()

    def library() -> None:
        over.wait()

    inside = threading.Thread(target=lambda: launch(lambda: matmul(library)))
    outside = threading.Thread(target=lambda: matmul(library))
    threads = [inside, outside]
    for thread in threads:
        thread.start()
    with long_steps.whereabouts() as places:
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join()
    assert len(places) == 1 and next(iter(places)).startswith("few_rows.py:matmul < threading.py:")


def test_places_are_shares_of_all_looks() -> None:
    assert long_steps.shares(Counter(a=3, b=1)) == {"a": 0.75, "b": 0.25}
    assert long_steps.shares(Counter()) == {}


def test_calls_of_the_driver_are_added_up_by_name() -> None:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "dur": 10},
        {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "dur": 5},
        {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "dur": 7},
        {"ph": "X", "cat": "kernel", "name": "_extend_kernel", "dur": 900},
        {"ph": "i", "cat": "cuda_driver", "name": "cuLaunchKernelEx"},
    ]
    assert long_steps.calls(events) == [
        {"call": "cuLaunchKernelEx", "count": 2, "ms": 0.012, "longest_us": 7.0},
        {"call": "cudaMemcpyAsync", "count": 1, "ms": 0.01, "longest_us": 10.0},
    ]
