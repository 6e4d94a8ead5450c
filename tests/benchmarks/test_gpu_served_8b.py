"""What the parts served-8b and served-8b-e4m3 say, and what they must not let pass."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import last_step, served_8b, shapes
from benchmarks.gpu.part import Failed, Options
from benchmarks.gpu.served_8b import Measured, check_notes, empty_kernel_cache, offline_figures, targets
from benchmarks.gpu.shapes import BF16, E4M3, LARGE, Workload
from benchmarks.gpu.stages import FIRST, NEEDED, NEEDED_ON_DEVICE, NOTICED
from benchmarks.gpu.timing import Limits
from executors.contract import Tensor, Unsupported
from tests.benchmarks import mortal
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDeviceExecutor
from tests.gpu.workloads import SMALL

LIMITS = Limits(4e12, 800e12, "a kernel")


def measured(stored: shapes.Stored = BF16) -> Measured:
    core: Any = None
    return Measured(core, lambda figures: None, LARGE, stored, served_8b.FULL, LIMITS, tiny=False)


def test_the_bytes_of_e4m3_are_those_of_its_layers_and_keys() -> None:
    layers, head = shapes.layer_weights(LARGE), 4096 * 151_936
    assert shapes.step_bytes(LARGE) == 2 * (layers + head) == pytest.approx(15.1e9, rel=0.01)
    assert shapes.step_bytes(LARGE, E4M3) == layers + 2 * head == pytest.approx(8.19e9, rel=0.01)
    assert shapes.kv_bytes(LARGE) == 2 * shapes.kv_bytes(LARGE, E4M3) == 147_456


def test_the_offline_share_is_of_what_is_stored() -> None:
    """A sequence of 100 and 300 tokens: its operations, 300 readings of all weights and of some 250 keys."""
    work = Workload([[1] * 100], [300])
    for stored, times, layers, kv in ((BF16, 1.0, 2, 147_456), (E4M3, 2.0, 1, 73_728)):
        read = layers * shapes.layer_weights(LARGE) + 2 * 4096 * 151_936
        least = 200 * shapes.layer_weights(LARGE) / (times * 800e12)
        least += (300 * read + kv * (300 * 100 + 150 * 301)) / 4e12
        found = offline_figures(measured(stored), work, 2 * least)
        assert found["share_of_roofline"] == pytest.approx(0.5)
        assert found["output_tokens_per_s"] == pytest.approx(300 / (2 * least))
        assert found["roofline_tokens_per_s"] == pytest.approx(300 / least)


def test_a_rate_beyond_the_measured_one_is_no_measurement() -> None:
    of = measured()
    assert of.share_of_copy("one stream", 2e12, 1.0) == 0.5
    assert of.share_of_products("a prompt", 400e12, 1.0) == 0.5
    assert measured(E4M3).share_of_products("a prompt", 400e12, 1.0) == 0.25
    assert not of.problems
    for seconds in (0.9, -1.0, math.inf):
        of.share_of_copy("one stream", 4e12, seconds)
    assert [one.partition(" of the measured")[0] for one in of.problems] == [
        "one stream: 1.11", "one stream: -1.00", "one stream: 0.00",
    ]  # fmt: skip
    offline_figures(of, Workload([[1]], [300]), 0.5)
    assert of.problems[-1] == "offline took 0.50 s, its bytes and operations take 1.14 s"


@pytest.mark.parametrize(
    "notes",
    [
        ["fp8: 143 of 145 linear layers, a scale per row", "KV in fp8 (e4m3)"], ["KV in fp8 (e4m3)"],
        ["fp8: 144 of 145 linear layers, a scale per row"],
        ["fp8: 144 of 145 linear layers, scales of 128 x 128 blocks; KV in fp8 (e4m3)"],
    ],
)  # fmt: skip
def test_e4m3_is_measured_where_all_layers_and_keys_are_in_it(notes: list[str]) -> None:
    good = ["attention: cohort-triton", "fp8: 144 of 145 linear layers, a scale per row; KV in fp8 (e4m3)"]
    check_notes(good, E4M3)
    check_notes([], BF16)
    with pytest.raises(Failed, match="not all layers and KV are in e4m3"):
        check_notes(notes, E4M3)


def test_targets_are_of_the_card_and_of_what_was_measured() -> None:
    good = {
        "tokens_per_s_of_one": 255.0, "share_of_copy_of_32": 0.85, "start_seconds": 30.0, "pause_seconds": 5.0,
        "output_tokens_per_s": 11_000.0,
    }  # fmt: skip
    assert {aim.figure for aim in served_8b.AIMS[BF16]} == set(good)
    of_h200 = targets(good, BF16, "NVIDIA H200")
    assert len(of_h200["targets"]) == 5 and of_h200["reached"]
    for name, change in [(one, 0.99) for one in good if "seconds" not in one] + [
        ("start_seconds", 1.1),
        ("pause_seconds", 1.1),
    ]:
        missed = targets(good | {name: change * good[name]}, BF16, "NVIDIA H200")
        assert [one["reached"] for one in missed["targets"].values()].count(False) == 1 and not missed[
            "reached"
        ]
    of_h100 = targets(good, BF16, "NVIDIA H100 80GB HBM3")
    assert list(of_h100["targets"]) == ["32 streams, share of a copy's rate"] and of_h100["reached"]
    assert not targets({}, BF16, "NVIDIA H200")["reached"]
    assert targets(good, E4M3, "NVIDIA H100 80GB HBM3") == {}


def test_kernels_are_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(served_8b.KERNEL_CACHE, "/before")
    with empty_kernel_cache(enabled=True):
        folder = Path(os.environ[served_8b.KERNEL_CACHE])
        assert folder != Path("/before") and not list(folder.iterdir())
        (folder / "kernel").touch()
    assert os.environ[served_8b.KERNEL_CACHE] == "/before" and not folder.exists()
    monkeypatch.delenv(served_8b.KERNEL_CACHE)
    with empty_kernel_cache(enabled=True):
        assert served_8b.KERNEL_CACHE in os.environ
    with empty_kernel_cache(enabled=False):
        assert served_8b.KERNEL_CACHE not in os.environ


# -- steps on the device alone -----------------------------------------------------------------------------------------------


class Replayed(last_step.LastStepExecutor, FakeDeviceExecutor):
    """Takes the CPU for a GPU."""


async def test_the_last_step_is_replayed_by_its_own_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many rows, and on the inputs that this step left: others lie elsewhere, and a capture leaves padding."""
    monkeypatch.setattr("executors.llm.step.idle.QUIET_S", 3600)
    monkeypatch.setattr(last_step, "TIMES", 3)
    path = write_checkpoint(tmp_path, {**SMALL, "num_hidden_layers": 1})
    executor = Replayed.from_config(config(path, max_num_seqs=4))
    await executor.warmup()
    await executor.begin_epoch(1)
    driver = Driver(executor)
    seqs = [driver.add([i, 5]) for i in range(2)]
    await driver.generate(seqs, 3)

    async def ask(rows: int) -> float:
        return float((await executor.forward(Tensor.of([rows], "int32"))).numpy()[0])

    with pytest.raises(Unsupported, match="beside sequences"):
        await ask(2)
    for seq in seqs:
        executor.release_cache(seq.seq_id)
    before = executor.device.replays  # type: ignore[union-attr]
    cache = [layer.clone() for layer in executor._ready().runner.cache.layers]
    assert 0 < await ask(2) < 1
    assert executor.device.replays == before + 2 * last_step.TIMES  # type: ignore[union-attr]
    after = executor._ready().runner.cache.layers
    assert all(a.equal(b) for a, b in zip(cache, after, strict=True)), "a replay is the step once more"
    assert math.isnan(await ask(1)) and math.isnan(await ask(4))
    assert executor.launched.capture_next()
    assert math.isnan(await ask(2)), "the inputs are padding"
    await executor.shutdown()


async def test_without_graphs_nothing_is_replayed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, {**SMALL, "num_hidden_layers": 1})
    executor = last_step.LastStepExecutor.from_config(config(path))
    await executor.warmup()
    assert all(math.isnan(one) for one in (await executor.forward(Tensor.of([1], "int32"))).numpy())
    await executor.shutdown()


# -- as programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.long
def test_one_start_and_two_kills() -> None:
    """With a real process and SIGKILL. Figures come at once, and mean what their names say."""
    found: dict[str, Any] = {}
    served_8b.run(Options("cpu", tiny=True), found.update)
    assert (found["streams"], found["kills"], found["same_as_undisturbed"]) == (4, 2, 4)
    assert found["drawn_again"] == found["drawn_the_same"] > 0
    assert found["start_seconds"] == pytest.approx(sum(found["start_seconds_by_stage"].values()))
    assert set(NEEDED) <= set(found["start_seconds_by_stage"])
    assert found["pause_seconds"] == max(found["pause_seconds_by_kill"])
    for seconds, pause in zip(
        found["recovery_seconds_by_stage"], found["pause_seconds_by_kill"], strict=True
    ):
        assert {NOTICED, *NEEDED, FIRST} <= set(seconds) and min(seconds.values()) >= 0
        # The kill comes within a step of the last token.
        assert sum(seconds.values()) == pytest.approx(pause, abs=0.5)
        assert seconds["importing"] > 0.1
    assert found["device_step_by_rows"][4] == {"not run": "no graph"}
    assert found["output_tokens_per_s"] > 0 and found["sequences"] == 4 and found["preemptions"] == 0
    assert found["kernel_cache"] == "empty"


@pytest.mark.long
def test_a_problem_fails_the_part_after_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*given: Any, **more: Any) -> None:
        raise Failed("a stream lost a token")

    monkeypatch.setattr(served_8b, "recovery", fails)
    setup = served_8b._setup
    monkeypatch.setattr(served_8b, "_setup", lambda *given: replace(setup(*given), deaths=0))
    found: dict[str, Any] = {}
    with pytest.raises(Failed, match=r"^a stream lost a token$"):
        served_8b.run(Options("cpu", tiny=True), found.update)
    assert found["output_tokens_per_s"] > 0


@pytest.mark.timeout(180)
@pytest.mark.long(extended=True)
def test_on_a_device_steps_are_replayed_and_all_stages_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that is taken for a GPU, under another name of the CPU's: its sampler is torch's, which is all that is wrong."""
    monkeypatch.setattr(last_step, "NAME", mortal.name(mortal.FakedFactory))
    sizes = replace(served_8b._TINY, single=(8, 4), prompt=32, killed=(3, 16, 60), kills=(5,))
    monkeypatch.setattr(served_8b, "_TINY", sizes)
    found: dict[str, Any] = {}
    with pytest.raises(
        Failed, match=r"^an executor that fell back was measured: sampling: on the device, torch$"
    ):
        served_8b.run(Options("cpu:0", tiny=True), found.update)
    assert found["idle_bytes"] > 0 and found["kills"] == 1
    assert set(found["device_step_by_rows"]) == {1, 4}
    assert all(row["ms"] > 0 for row in found["device_step_by_rows"].values())
    for seconds in (found["start_seconds_by_stage"], *found["recovery_seconds_by_stage"]):
        assert {*NEEDED, *NEEDED_ON_DEVICE} <= set(seconds)


@pytest.mark.long
def test_e4m3_is_what_runs() -> None:
    found: dict[str, Any] = {}
    served_8b.run_e4m3(Options("cpu", tiny=True), found.update)
    assert any("KV in fp8 (e4m3)" in note for note in found["executor_notes"])
    assert {"tokens_per_s_of_one", "ttft_ms_of_prompt", "output_tokens_per_s"} <= set(found)
    assert "pause_seconds" not in found and found["kernel_cache"] == "as it was"
