"""What gpu-check must not let pass, and what is left of a call that is cut off."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import engine as check_engine
from benchmarks.gpu import kernels as check_kernels
from benchmarks.gpu import peer as check_peer
from benchmarks.gpu import serving, shapes
from benchmarks.gpu.part import Failed, NotRun, Options
from benchmarks.gpu.serving import Setup
from benchmarks.gpu.timing import Limits
from tests.gpu import session as check_tests
from tests.gpu.agreement import as_meant
from tools.gpu_check.call import headline

GOOD = ["attention: cohort-triton", "graphs: 41 of 41 captured", "sampling: on the device, triton", "more"]


def test_an_executor_that_works_as_it_is_meant_to() -> None:
    as_meant(GOOD)


@pytest.mark.parametrize(
    "note",
    [
        "graphs: 3 of 41 captured",
        "graphs: 41 of 41 captured; no more: RuntimeError: x",
        "graphs: none",
        "attention: torch (gathers KV before each call)",
        "attention: cohort-triton; forward by torch: gated: its results are wrong here",
        "attention: cohort-triton; not flash-attn: it is absent; forward by torch: gated: its results are wrong here",
        "sampling: on the device, torch",
    ],
)
def test_one_that_fell_back_has_failed(note: str) -> None:
    notes = [note if one.split(":")[0] == note.split(":")[0] else one for one in GOOD]
    with pytest.raises(Failed, match="no note of the executor"):
        as_meant(notes)


@pytest.mark.parametrize(
    ("change", "slow"),
    [
        ("graphs: 3 of 41 captured", True),
        ("graphs: 41 of 41 captured; no more: RuntimeError: x", True),
        ("graphs: none", True),
        ("attention: torch (gathers KV before each call)", True),
        ("attention: cohort-triton; not flash-attn: block_size is 16", False),
        ("attention: flash-attn 3", False),
        ("sampling: on the device, torch", True),
    ],
)
def test_what_was_measured_the_slow_way_says_so(change: str, slow: bool) -> None:
    assert serving.fell_back(GOOD) == ""
    notes = [change if one.split(":")[0] == change.split(":")[0] else one for one in GOOD]
    assert serving.fell_back(notes) == (change if slow else "")
    line = headline({"detail": "", "figures": {"fell_back": serving.fell_back(notes)}})
    assert ("THE SLOW WAY" in line) is slow


def test_a_library_that_is_absent_is_named() -> None:
    figures = {"passed": 700, "not_run": {"test_it[varlen]": "torch 2.11 has none"}}
    assert "not run: test_it[varlen]" in headline({"detail": "", "figures": figures})


def test_the_target_of_attention_is_for_what_a_server_takes() -> None:
    shares = {("triton", 16): 0.7, ("triton", 64): 0.9, ("flash-attn", 256): 0.95}
    found = check_kernels.judged(shares)
    assert (found["decode_attention_share_of_copy"], found["reached"]) == (0.7, False)
    assert found["best_decode_attention"] == "flash-attn, pages of 256"
    assert check_kernels.judged(shares | {("flash-attn", 16): 0.85})["reached"]
    assert check_kernels.judged({("triton", 64): 0.9}) == {}
    from executors.contract.config import ExecutorAttentionConfig

    assert all(page == ExecutorAttentionConfig().block_size for _, page in check_kernels.SERVED)
    assert set(check_kernels.SERVED) <= set(check_kernels.BACKENDS)


H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("device", "kind", "rate", "share", "reached"),
    [
        (H200, "offline", 26_000.0, 0.7, {"share of the roofline": True, "tokens/s on an H200": True}),
        (H200, "offline", 24_000.0, 0.9, {"share of the roofline": True, "tokens/s on an H200": False}),
        (H200, "offline", 26_000.0, 0.6, {"share of the roofline": False, "tokens/s on an H200": True}),
        (H200, "single", 999.0, 0.31, {"share of the roofline": True, "tokens/s on an H200": False}),
        (H100, "offline", 20_000.0, 0.7, {"share of the roofline": True}),
        (H100, "offline", 26_000.0, 0.6, {"share of the roofline": False}),
        (H100, "single", 700.0, 0.31, {"share of the roofline": True}),
        (H100, "single", 1_100.0, 0.29, {"share of the roofline": False}),
    ],
)
def test_targets_are_shares_and_absolute_on_an_h200_alone(
    device: str,
    kind: str,
    rate: float,
    share: float,
    reached: dict[str, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_engine.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(check_engine.torch.cuda, "get_device_name", lambda: device)
    found = check_engine._target(kind, shapes.SMALL, rate, share)
    assert {of: one["reached"] for of, one in found["targets"].items()} == reached
    assert found["reached"] is all(reached.values())
    assert check_engine._target(kind, shapes.LARGE, rate, share) == {}


def test_shares_are_those_of_the_absolute_targets() -> None:
    """On a device with the rates that were measured on an H200: 4.3 TB/s and 790 TFLOP/s."""
    copy, products = 4.3e12, 790e12
    work = check_engine.workload(tiny=False)
    least = shapes.least_seconds(shapes.SMALL, work, copy, products)
    offline = check_engine.TARGETS["offline", shapes.SMALL] * least / work.output_tokens
    read = shapes.step_bytes(shapes.SMALL) + shapes.kv_bytes(shapes.SMALL) * 1024
    single = check_engine.TARGETS["single", shapes.SMALL] * read / copy
    assert check_engine.SHARES["offline", shapes.SMALL] == pytest.approx(offline, abs=0.01)
    assert check_engine.SHARES["single", shapes.SMALL] == pytest.approx(single, abs=0.01)


class _Manager:
    """transformers' continuous batching: gives what is listed, then nothing."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)

    def add_request(self, *given: Any, **more: Any) -> None:
        pass

    def get_result(self, timeout: float) -> Any:
        assert timeout > 0
        return self.results.pop(0) if self.results else None


@pytest.mark.parametrize(
    ("tokens", "error", "words"),
    [
        (3, None, "had 1 of 2 sequences not finished"),
        (3, "no memory", "no memory"),
        (2, None, "gave 2 tokens for 3"),
    ],
)
def test_a_peer_that_fails_is_not_run(tokens: int, error: str | None, words: str) -> None:
    """Neither a pass nor a failure of ours."""
    result = SimpleNamespace(
        error=error, is_finished=lambda: True, request_id="1-0", generated_tokens=[1] * tokens
    )
    work = SimpleNamespace(prompts=[[1], [2]], outputs=[3, 3])
    with pytest.raises(NotRun, match=words):
        check_peer.one_round(_Manager(result), work, 1, lambda figures: None)  # type: ignore[arg-type]


def test_a_peer_that_takes_too_long_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_peer, "_LONGEST", 0.0)
    manager = _Manager(SimpleNamespace(error=None, is_finished=lambda: False))
    with pytest.raises(NotRun, match="had 1 of 1 sequences not finished"):
        check_peer.one_round(manager, SimpleNamespace(prompts=[[1]], outputs=[3]), 1, lambda figures: None)  # type: ignore[arg-type]
    assert manager.results, "nothing was waited for"


def test_the_executors_own_notes_are_those_that_are_wanted() -> None:
    """What they say is written where they are made: a change of words there must be met here."""
    from executors.llm.attention.backend import TRITON
    from executors.llm.sampling.triton_sampler import TritonSampler
    from executors.llm.step.launched.graphs import StepGraphs

    graphs: Any = SimpleNamespace(_graphs={1: 1}, shapes=(1,), failure="", wait=0.0)
    captured = StepGraphs.note.fget(graphs)  # type: ignore[attr-defined]
    as_meant([captured, f"attention: {TRITON}", f"sampling: on the device, {TritonSampler.name}"])


class _Core:
    """An engine whose executor is recovered once if `dies`."""

    def __init__(self, dies: bool) -> None:
        self.dies, self.epoch, self.stopped = dies, 1, False

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped = True

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(epoch=self.epoch, steps_cut=0)


@pytest.mark.parametrize("dies", [False, True])
async def test_a_part_whose_executor_was_recovered_has_failed(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = _Core(dies)
    monkeypatch.setattr(serving, "EngineCore", lambda *given: core)
    monkeypatch.setattr(serving, "connect", lambda *given: None)
    options = Options(device="cpu", tiny=True)

    async def part() -> None:
        async with serving.engine(options, Setup(shapes.TINY)):
            core.epoch += dies

    if dies:
        with pytest.raises(Failed, match="restarted or reset 1 times"):
            await part()
    else:
        await part()
    assert core.stopped


@pytest.mark.parametrize(("epochs", "good"), [(0, False), (1, False), (2, True), (3, False)])
async def test_deaths_that_a_part_brings_about_are_counted(
    epochs: int, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = _Core(True)
    monkeypatch.setattr(serving, "EngineCore", lambda *given: core)
    monkeypatch.setattr(serving, "connect", lambda *given: None)

    async def part() -> None:
        async with serving.engine(Options(device="cpu", tiny=True), Setup(shapes.TINY, deaths=2)):
            core.epoch += epochs

    if good:
        await part()
    else:
        with pytest.raises(Failed, match=f"restarted or reset {epochs} times, not 2 meanwhile"):
            await part()


async def test_an_error_of_the_part_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    core = _Core(True)
    monkeypatch.setattr(serving, "EngineCore", lambda *given: core)
    monkeypatch.setattr(serving, "connect", lambda *given: None)
    with pytest.raises(ValueError, match="mine"):
        async with serving.engine(Options(device="cpu", tiny=True), Setup(shapes.TINY)):
            core.epoch += 1
            raise ValueError("mine")
    assert core.stopped


def test_torchs_attention_fails_only_after_all_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours ends the part at once: behind an illegal access nothing can be measured."""
    measured: list[str] = []
    broken = "triton"

    def attend(bench: Any, name: str, backend: str, *rest: Any) -> float:
        if backend == broken:
            raise RuntimeError("no valid execution plans")
        return 0.5

    monkeypatch.setattr(check_kernels, "_attend", attend)
    monkeypatch.setattr(check_kernels, "_fused", lambda bench: measured.append("fused"))
    monkeypatch.setattr(check_kernels, "_products", lambda bench: measured.append("products"))
    monkeypatch.setattr(check_kernels, "_few_rows", lambda bench: measured.append("few rows"))
    monkeypatch.setattr(check_kernels, "_stored", lambda bench: measured.append("stored"))
    monkeypatch.setattr(check_kernels.check_sampling, "measure", lambda *given: measured.append("sampling"))
    monkeypatch.setattr(check_kernels.interpreted, "prepare", lambda: None)
    monkeypatch.setattr(check_kernels, "measure_limits", lambda *given: Limits(1.0, 1.0, "nobody"))
    found: dict[str, Any] = {}
    with pytest.raises(RuntimeError, match="execution plans"):
        check_kernels.run(Options(device="cpu", tiny=False), found.update)
    assert not measured
    broken = "torch"
    with pytest.raises(RuntimeError, match="execution plans"):
        check_kernels.run(Options(device="cpu", tiny=False), found.update)
    assert measured == ["fused", "products", "few rows", "stored", "sampling"]
    assert found["kernels"]["attention, torch, pages of 16"]["failed"] == "no valid execution plans"


def test_a_test_that_hangs_in_the_device_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A signal's handler waits for the call to return. Alone, ending the process would take the report along."""
    for processes, beside in ((16, True), (1, False)):
        monkeypatch.setattr(os, "cpu_count", lambda count=processes: count)
        words = check_tests.command(Options(device="cuda"), tmp_path / "junit.xml")
        assert ("timeout_method=thread" in words) is ("-n" in words) is beside
        options = dict(word.split("=") for word in words if "timeout=" in word)
        patience = float(options["timeout"])
        stacks_at = float(options.get("faulthandler_timeout", patience))
        assert (0 < stacks_at < patience) is beside, "where it hung is lost with its process"


@pytest.mark.parametrize(("num_bytes", "copies"), [(1, 128), (4 << 20, 64), (100 << 20, 4), (1 << 30, 4)])
def test_operands_are_more_than_caches_hold(num_bytes: int, copies: int) -> None:
    bench: Any = SimpleNamespace(tiny=False)
    assert check_kernels.Bench.copies(bench, num_bytes) == copies
    assert check_kernels.Bench.copies(SimpleNamespace(tiny=True), num_bytes) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [200.0, 120.0, 40.0])
def test_tests_end_before_their_part_is_killed(limit: float, tmp_path: Path) -> None:
    """The report is written at the end: of a part that is killed nothing would be known."""
    words = check_tests.command(Options(), tmp_path / "report.xml", limit)
    [session] = [word for word in words if word.startswith("--session-timeout=")]
    [patience] = [word for word in words if word.startswith("timeout=")]
    assert 0 < float(session.partition("=")[2]) <= limit - 15
    assert float(patience.partition("=")[2]) < limit / 2
