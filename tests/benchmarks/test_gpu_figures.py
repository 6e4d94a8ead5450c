"""What gpu-check times, and what it holds times against."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest
import torch

from benchmarks.gpu import kernels as check_kernels
from benchmarks.gpu import timing
from benchmarks.gpu.timing import Limits

CPU = torch.device("cpu")
LIMITS = Limits(1.0, 1.0, "nobody")


def bench(tiny: bool) -> check_kernels.Bench:
    return check_kernels.Bench(
        CPU, torch.float32 if tiny else torch.bfloat16, LIMITS, tiny, lambda figures: None
    )


def test_products_are_timed() -> None:
    small = bench(tiny=True)
    with torch.inference_mode():
        check_kernels._products(small)
    rows = {name: row for name, row in small.rows.items() if name.startswith("product")}
    assert len(rows) == 1
    assert all(row["us"] > 0 and row["gb_per_s"] > 0 and row["tflops"] > 0 for row in rows.values())


def test_products_of_a_step_have_the_bytes_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second a call, a limit of one byte and one operation a second: shares are bytes and operations."""
    calls: dict[int, int] = {}

    def seconds_of(given: list[Any], device: torch.device) -> float:
        weights = [call.args[1] for call in given]
        assert len({id(weight) for weight in weights}) == len(given)
        calls[len(calls)] = sum(weight.nbytes for weight in weights)
        return 1.0

    monkeypatch.setattr(check_kernels, "seconds_of", seconds_of)
    monkeypatch.setattr(
        check_kernels, "_random", lambda bench, drawn, *shape: torch.empty(shape, dtype=bench.dtype, device="meta")
    )  # fmt: skip
    whole = bench(tiny=False)
    check_kernels._products(whole)
    assert len(whole.rows) == 15
    head = whole.rows["product lm_head, 32 rows"]
    assert head["share_of_copy"] == 2 * (151_936 * 1024 + 32 * (1024 + 151_936))
    assert head["share_of_product"] == 2 * 32 * 1024 * 151_936
    # 28 layers and the head: what a step of Qwen3-0.6B reads of weights, but for the norms.
    alone = [row["share_of_copy"] for name, row in whole.rows.items() if name.endswith(", 1 rows")]
    assert 28 * sum(alone[:-1]) + alone[-1] == pytest.approx(2 * 596e6, rel=0.01)
    assert min(calls.values()) >= 256 << 20, "a cache would keep them"
    assert max(calls.values()) < 2 << 30


def test_products_of_few_rows_are_timed_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second a call and a limit of one byte a second. A layer of Qwen3-0.6B with one row, and with 16 what adds to the
    residual."""
    sizes = []

    def seconds_of(given: list[Any], device: torch.device) -> float:
        sizes.append(
            sum(max(one.nbytes for one in call.args if isinstance(one, torch.Tensor)) for call in given)
        )
        return 1.0

    monkeypatch.setattr(check_kernels, "seconds_of", seconds_of)
    monkeypatch.setattr(
        check_kernels, "_random", lambda bench, drawn, *shape: torch.empty(shape, dtype=bench.dtype, device="meta")
    )  # fmt: skip
    whole = bench(tiny=False)
    check_kernels._few_rows(whole)
    ways = "in one launch", "launch by launch"
    titles = (
        "norm and product qkv",
        "product o and add",
        "norm and product gate and up and silu",
        "product down and add",
    )
    assert [*whole.rows] == [
        f"{one}, {rows} rows, {way}"
        for one in titles
        for rows in ((1, 16) if "add" in one else (1,))
        for way in ways
    ]
    moved = [whole.rows[f"{one}, 1 rows, {ways[0]}"]["share_of_copy"] for one in titles]
    weights = 1024 * (4096 + 2048 + 6144 + 3072)
    assert sum(moved) == 2 * (weights + 1024 + 4096 + 2048 + 2 * 1024 + 1024 + 3072 + 3072 + 2 * 1024)
    added = [whole.rows[f"{one}, 16 rows, {ways[0]}"]["share_of_copy"] for one in titles if "add" in one]
    assert sum(added) == 2 * (1024 * (2048 + 3072) + 16 * (2048 + 2 * 1024 + 3072 + 2 * 1024))
    assert min(sizes) >= 256 << 20, "a cache would keep the weights"


# -- what is captured ----------------------------------------------------------------------------------------------------


def test_calls_that_are_captured_write_to_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that the next call gets again stays in the cache, and what was written to it is never moved."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    count, repeats = 4, 3
    made: list[weakref.ref[torch.Tensor]] = []

    def call() -> torch.Tensor:
        alive = [one() is not None for one in made]
        whole = len(made) // count * count
        assert alive[whole:] == [True] * (len(made) - whole), "its memory was given to the next call"
        assert not any(alive[:whole]), "more than a repeat's is kept"
        out = torch.empty(1)
        made.append(weakref.ref(out))
        return out

    timing._captured([call] * count, repeats)
    assert len(made) == count * repeats
    assert not any(one() is not None for one in made)


# -- what times are held against -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "by"), [((2.0, 1.0, 4.0), "a kernel"), ((1.0, 2.0, 4.0), "copy_"), ((1.0, 1.0, 4.0), "copy_")]
)
def test_the_faster_of_two_copies_is_the_limit(
    seconds: tuple[float, ...], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in a graph may take another path than a kernel's reads and writes, and shares above 1 say nothing."""
    left = list(seconds)

    def seconds_of(calls: list[Any], device: torch.device) -> float:
        for call in calls:
            call()
        return left.pop(0)

    monkeypatch.setattr(timing, "seconds_of", seconds_of)
    limits = timing.measure_limits(CPU, tiny=True)
    assert limits == Limits(2.0 * (1 << 16), 2.0 * 64**3 / 4.0, by)
    assert limits.figures == {
        "copy_gb_per_s": limits.copy / 1e9, "copied_by": by, "bf16_tflops": limits.products / 1e12,
    }  # fmt: skip


@pytest.mark.parametrize(("device", "fewest"), [("cuda", 30), ("cpu", 0)])
def test_a_device_works_before_its_limits_are_measured(
    device: str, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clocks rise under load only: until then a copy is slower, and all shares of it are too high."""
    now, launched, waits = [0.0], [0], [0]

    def call() -> None:
        launched[0] += 1

    def synchronize(device: torch.device) -> None:
        waits[0] += 1
        now[0] += 0.008  # eight copies

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    timing._work_a_while(call, torch.device(device))
    assert launched[0] >= fewest
    assert bool(launched[0]) is bool(fewest)
    assert launched[0] >= 4 * waits[0], "a device that is waited for after each call idles between two"
    assert now[0] < 0.5
