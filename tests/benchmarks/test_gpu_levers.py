"""What the part `kernels` times: that ways are compared before they are timed, what their bytes and operations are, and that a
rate which no device has fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import chain, extend, levers, weights
from benchmarks.gpu import kernels as check_kernels
from benchmarks.gpu.part import LIMIT, Failed, Options
from benchmarks.gpu.timing import Limits
from executors.kernels.triton.extend_attention import FASTEST

CPU = torch.device("cpu")


def bench(tiny: bool = True) -> check_kernels.Bench:
    dtype = torch.float32 if tiny else torch.bfloat16
    return check_kernels.Bench(CPU, dtype, Limits(1.0, 1.0, "none"), tiny, lambda figures: None)


def a_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """With limits of one byte and one operation a second, shares are bytes and operations."""
    monkeypatch.setattr(check_kernels, "seconds_of", lambda calls, device: 1.0)


# -- extend attention ----------------------------------------------------------------------------------------------------


class Problem(extend.Problem):
    """The sizes of a problem without its memory."""

    def __init__(self, heads: extend.Heads, new: int, past: int) -> None:
        self.new, self.past, self.keys = new, past, new + past
        self.heads, self.kv_heads, self.dim = heads
        self.bench, self.q = bench(tiny=False), torch.empty(new, heads[0], heads[2], dtype=torch.bfloat16)
        self.layers = []
        self.items = []
        self.tables = torch.empty(1, 1)


def test_bytes_and_operations_of_a_chunk() -> None:
    """Keys and values once, queries and results once; a query's pairs are the keys before it and itself."""
    problem = extend.Problem(bench(), (2, 1, 16), 3, 600)
    assert problem.num_bytes == 4 * 16 * (2 * 603 + 2 * 2 * 3)
    assert problem.flops == 4 * 16 * 2 * (601 + 602 + 603)


@pytest.mark.parametrize(
    ("new", "factor", "pieces"),
    [
        (64, 1.0, 16),
        (64, 0.5, 8),
        (64, 2.0, 16),
        (512, 1.0, 16),
        (512, 0.5, 8),
        (512, 2.0, 32),
        (8_192, 1.0, 128),
    ],
)
def test_keys_are_shared_by_as_many_programs_as_a_device_has(new: int, factor: float, pieces: int) -> None:
    """Of an H200, whose 132 multiprocessors have room for one tile of 128 rows each: 16 for each of 8 key heads."""
    problem = Problem(extend.SHAPES["0.6B"], new, 7_000 if new < 8_192 else 0)
    way = extend.shared(problem, "fastest", FASTEST, {}, 132, factor)
    assert way.pieces == pieces


def test_a_way_that_shares_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        extend.TileRule, "cut", lambda self, keys: extend.np.zeros((len(keys), 6), extend.np.int32)
    )
    with pytest.raises(Failed, match="no key is shared"):
        extend.shared(Problem(extend.SHAPES["8B"], 64, 7_000), "fastest", FASTEST, {}, processors=132)


def small(value: float) -> tuple[extend.Problem, extend.Way, extend.Way]:
    right = torch.ones(2, 2)
    problem: Any = SimpleNamespace(num_bytes=10, flops=100.0)
    return problem, extend.Way("today", [lambda: right]), extend.Way("shared, x", [lambda: right * value], 5)


@pytest.mark.parametrize(("value", "is_right"), [(1.001, True), (1.5, False), (float("nan"), False)])
def test_wrong_results_are_not_timed(value: float, is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_each(monkeypatch)
    own = bench()
    problem, *ways = small(value)
    wrong = extend._timed(own, "extend", problem, ways)
    assert bool(wrong) is not is_right
    row = own.rows["extend, shared, x"]
    assert ("us" in row) is is_right and ("failed" in row) is not is_right
    assert own.rows["extend, today"]["share_of_copy"] == 10
    if is_right:
        assert row["pieces"] == 5


def test_a_way_that_does_not_fit_is_not_run() -> None:
    own = bench()
    assert not extend._compiled(own, "extend, shared, x", ValueError("out of shared memory"))
    assert own.rows["extend, shared, x"] == {"not run": "ValueError: out of shared memory"}
    assert extend._compiled(own, "extend, shared, y", None)
    with pytest.raises(ValueError, match="today"):
        extend._compiled(own, "extend, today", ValueError("today's own"))


def test_a_library_is_for_its_device() -> None:
    own = bench()
    extend.library(own, "dense", Problem(extend.SHAPES["8B"], 1, 1))
    assert own.rows["dense"] == {"not run": "cuDNN's attention is for CUDA devices"}


class Grouped:
    """A library that takes no shared keys, or none at all."""

    def __init__(self, takes: tuple[bool, ...]) -> None:
        self.takes = takes

    def __call__(self, q: Any, keys: Any, values: Any, causal: bool, grouped: bool) -> torch.Tensor:
        if grouped not in self.takes:
            raise RuntimeError(f"No available kernel. Aborting execution.\ngrouped {grouped}")
        assert keys.shape[1] == (1 if grouped else 2)
        return torch.empty(1)


@pytest.mark.parametrize("takes", [(True, False), (False,), ()])
def test_a_library_that_shares_no_keys_gets_copies(
    takes: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_second_each(monkeypatch)
    monkeypatch.setattr(extend, "_by_cudnn", Grouped(takes))
    own = bench()
    problem = extend.Problem(own, (2, 1, 16), 3, 30)
    object.__setattr__(own, "device", SimpleNamespace(type="cuda"))
    problem.bench = bench()
    extend.library(own, "dense", problem)
    row = own.rows["dense"]
    if takes:
        assert row["heads_share_keys"] is takes[0] and row["share_of_product"] == problem.flops
    else:
        assert row == {"not run": "No available kernel. Aborting execution."}


# -- the chain -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [False, True])
def test_a_chain_computes_what_its_nodes_say(reads: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    own = (
        torch.randn(4, 2 * chain.WEIGHTS, generator=drawn).mul_(chain.WEIGHTS**-0.5).bfloat16()
        if reads
        else None
    )
    assert chain.Chain(4, 2, CPU, own).error(early=False) < 1e-5


def test_a_node_that_does_not_wait_is_seen() -> None:
    """One that reads what the node before the last one wrote."""

    class Early(chain.Chain):
        def run(self, early: bool) -> torch.Tensor:
            super().run(early)
            return self._buffers[1 - self.nodes % 2]

    assert Early(4, 2, CPU, None).error(early=False) > 1e-2
    own = bench()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "Chain", Early)
        with pytest.raises(Failed, match="the sum is wrong"):
            chain.measure(own)
    assert "failed" in own.rows["chain of 5 tiny nodes, one after the other"]


def test_chains_are_timed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_each(monkeypatch)
    own = bench()
    chain.measure(own)
    assert own.rows["chain of 5 tiny nodes, one after the other"]["us_a_node"] == pytest.approx(2e5)
    reading = own.rows["chain of 5 reading weights nodes, one after the other"]
    assert reading["share_of_copy"] == 5 * 3 * chain.WEIGHTS * 2
    assert {name for name, row in own.rows.items() if "not run" in row} == {
        f"chain of 5 {kind} nodes, PDL" for kind in ("tiny", "reading weights")
    }


def test_programmatic_launches_need_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert chain.why_not(device) == "compute capability 8: 9 is needed"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert chain.why_not(device) is None
    monkeypatch.setattr(chain, "gdc_wait", None)
    assert "no launch attribute" in str(chain.why_not(device))


COMPILED = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from benchmarks.gpu import chain
found = {}
for early in (False, True):
    fixed = {"PROGRAMS": 132, "SIZE": chain.SIZE, "WEIGHTS": chain.WEIGHTS, "PDL": early}
    types = {"source": "*fp32", "target": "*fp32", "weights": "*bf16", **dict.fromkeys(fixed, "constexpr")}
    names = list(types)
    source = ASTSource(chain._link_kernel, types, {(names.index(name),): value for name, value in fixed.items()})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "launch_pdl": early})
    lines = made.asm["ptx"].splitlines()
    words = "griddepcontrol.wait", "griddepcontrol.launch", "ld.global"
    found[early] = [word for line in lines for word in words if word in line]
    found[early].append(made.metadata.launch_pdl)
print(json.dumps([found[False], found[True]]))
"""


@pytest.mark.long
def test_weights_are_read_before_the_wait() -> None:
    """As the compiler orders them: it may not move a load behind the wait, nor the wait before it."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, env=env, cwd=Path(__file__).parents[2]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    plain, early = json.loads(done.stdout.splitlines()[-1])
    assert plain.pop() is False and set(plain) == {"ld.global"}
    assert early.pop() is True
    assert early[0] == "griddepcontrol.launch"
    wait = early.index("griddepcontrol.wait")
    assert "ld.global" in early[1:wait] and early[wait + 1 :] == ["ld.global"]


# -- weights -------------------------------------------------------------------------------------------------------------


def test_bytes_of_narrow_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """e4m3 has one byte a weight and four for each row, in blocks four for 128 x 128; Q4_K as its layout says."""
    a_second_each(monkeypatch)
    monkeypatch.setattr(weights.fp8, "_REFUSED", set())
    own = bench()
    weights._products(own)
    small, io = 64 * 256, 4 * 3 * (64 + 256)
    rows = {name: row["share_of_copy"] for name, row in own.rows.items() if name.endswith(", 3 rows")}
    assert rows["product tiny of 8B in bf16, 3 rows"] == 4 * small + io
    assert rows["product tiny of 8B in e4m3, 3 rows"] == small + 4 * 64 + io
    assert rows["product tiny of 8B in e4m3 blocks, 3 rows"] == small + 4 * 2 + io
    assert small / 2 < rows["product tiny of 8B in Q4_K, 3 rows"] - io < 0.75 * small
    for name, row in own.rows.items():
        assert row["tflops"] == pytest.approx(2e-12 * small * (6 if ", 6 rows" in name else 3))


def test_products_of_narrow_weights_are_those_of_the_weights() -> None:
    own, drawn = bench(), torch.Generator().manual_seed(0)
    kinds = weights.weights_of(own, drawn, 256, 256)
    x = torch.randn(3, 256)
    expected = kinds["bf16"][1][0](x)
    for kind in ("e4m3", "e4m3 blocks"):
        assert extend.distance(kinds[kind][1][0](x), expected) < 0.06, kind


def test_few_rows_of_e4m3_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte for each weight, and four for each row of them."""
    a_second_each(monkeypatch)
    own = bench()
    weights._few_rows(own)
    found = {name: row["share_of_copy"] for name, row in own.rows.items()}
    assert found == {
        f"{before}product tiny {behind}of 8B in e4m3, {rows} rows, in one launch": 64 * 256 + 4 * 64 + 4 * rows * (64 + 256)
        for before, behind in (("norm and ", ""), ("", "and add "))
        for rows in (1, 4)
    }  # fmt: skip


def test_a_product_that_took_the_slow_way_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_each(monkeypatch)
    own = bench()
    monkeypatch.setattr(weights.fp8, "_REFUSED", {(3, 64, 256)})
    weights._products(own)
    assert "product tiny of 8B in e4m3, 3 rows, one scale and a pass" in own.rows
    assert {
        f"product tiny of 8B in {kind}, 3 rows" for kind in ("bf16", "e4m3 blocks", "Q4_K")
    } <= own.rows.keys()
    assert "product tiny of 8B in e4m3, 3 rows" not in own.rows


def test_experts_count_the_weights_of_those_that_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    a_second_each(monkeypatch)
    own = bench()
    weights._experts(own)
    row = own.rows["experts of 30B-A3B, 3 rows"]
    one, io = 4 * 3 * 64 * 32, 4 * 2 * 3 * 64
    assert (row["share_of_copy"] - io) / one in (2, 3, 4)
    assert row["share_of_product"] == 2 * 3 * 2 * 3 * 64 * 32


# -- the part ------------------------------------------------------------------------------------------------------------


def test_a_rate_that_no_device_has_is_named() -> None:
    rows: dict[str, dict[str, float]] = {
        "a": {"us": 1.0, "share_of_copy": 1.05, "share_of_product": 1.2},
        "b": {"share_of_copy": 1.3},
        "c": {"us": 3.0},
    }
    assert levers.impossible(rows) == ["a: 120% in share_of_product", "b: 130% in share_of_copy"]


def test_times_that_contain_launches_are_named() -> None:
    rows: dict[str, dict[str, Any]] = {
        "a": {"us": 1.0},
        "b": {"us": 1.0, "captured": False},
        "c": {"us": 1.0, "captured": False},
        "d": {"not run": "x", "captured": False},
        "dense, torch's cuDNN": {"us": 1.0, "captured": False},
    }
    assert levers.launched(rows) == ["2 rows were not captured, from b on"]
    assert levers.launched({name: rows[name] for name in ("a", "d", "dense, torch's cuDNN")}) == []


def test_what_sharing_keys_gains() -> None:
    rows: dict[str, dict[str, Any]] = {
        "extend 8B, 64 behind 7000, today": {"us": 120.0},
        "extend 8B, 64 behind 7000, shared, a": {"us": 40.0},
        "extend 8B, 64 behind 7000, shared, b": {"us": 60.0},
        "extend 8B, 64 behind 7000, shared, c": {"not run": "x"},
        "extend 8B, 64 behind 32000, today": {"us": 10.0},
    }
    best = {"times_faster": 3.0, "way": "a"}
    assert levers.extend_gains(rows) == {"extend_gains": {"extend 8B, 64 behind 7000": best}}
    assert levers.extend_gains({}) == {}


def test_a_section_that_fails_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}
    sections = {
        "one": lambda bench: bench.put("row of one", {"us": 1.0}),
        "two": lambda bench: 1 / 0,
        "three": lambda bench: bench.put("row of three", {"us": 2.0}),
    }
    monkeypatch.setattr(levers, "SECTIONS", sections)
    with pytest.raises(Failed, match="two: division by zero"):
        levers.run(Options("cpu", tiny=True), found.update)
    assert set(found["kernels"]) == {"row of one", "row of three"}
    assert set(found["section_seconds"]) == set(sections)


def test_no_section_is_begun_at_the_end_of_the_parts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers, "SECTIONS", {"one": lambda bench: 1 / 0})
    monkeypatch.setenv(LIMIT, "5")
    with pytest.raises(Failed, match="one: no time left"):
        levers.run(Options("cpu", tiny=True), lambda figures: None)


@pytest.mark.long(extended=True)
@pytest.mark.filterwarnings("ignore:overflow encountered in")  # random scales; only times are looked at
def test_the_part_as_it_runs_on_a_cpu() -> None:
    found: dict[str, Any] = {}
    levers.run(Options("cpu", tiny=True), found.update)
    rows = found["kernels"]
    ways = {
        name.removeprefix("extend tiny, 3 behind 300, ") for name in rows if name.startswith("extend tiny")
    }
    shared = {f"shared, {name}" for name in extend.TINY_LOOPS}
    assert ways == {"today", "masks", "dense, torch's cuDNN", *shared}
    assert all(row["pieces"] > 1 for name, row in rows.items() if ", shared, " in name)
    absent = {name for name, row in rows.items() if "not run" in row}
    assert absent == {
        "extend tiny, 3 behind 300, dense, torch's cuDNN", "extend, paged, cuDNN",
        "chain of 5 tiny nodes, PDL", "chain of 5 reading weights nodes, PDL",
    }  # fmt: skip
    assert all(row["us"] > 0 for name, row in rows.items() if name not in absent)
    assert list(found["extend_gains"]) == ["extend tiny, 3 behind 300"]
    assert set(found["section_seconds"]) == set(levers.SECTIONS)
