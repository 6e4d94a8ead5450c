"""LoRA adapters on a real server: streams of several in one batch, reloads and kills under them, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.lora.peft import CONFIG, WEIGHTS
from executors.tiny import weights_dir
from tests.e2e.server_process import ServerProcess
from tests.e2e.tiny_loras import write
from tests.executors.lora.peft_files import write_peft

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

ADMIN = {"Authorization": "Bearer the-admin"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed in range(4):
        write(root / f"a{seed}", seed, rank=(4, 8, 16, 32)[seed])
    write(root / "dora", 9, use_dora=True)
    write(root / "large", 9, rank=64)
    return root


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    args = [
        "cohort-tiny", "--deterministic", "--max-model-len", "512", "--lora-modules", f"first={root / 'a0'}",
        json.dumps({"name": "second", "path": str(root / "a1"), "base_model_name": "cohort-tiny"}),
        "--max-loras", "2", "--max-lora-rank", "32", "--lora-root", str(root), "--lora-on-demand", "--admin-key", "the-admin",
    ]  # fmt: skip
    with ServerProcess(args, folder) as server:
        yield server


def load(server: ServerProcess, name: Any, path: Any) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path}
    return httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, headers=ADMIN, timeout=30)


def text(server: ServerProcess, model: str, max_tokens: int = 40) -> str:
    body = {
        "model": model,
        "prompt": "Once upon a time",
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["choices"][0]["text"]
    return found


class Stream(threading.Thread):
    """A stream in the background; `text` once it has ended."""

    def __init__(self, server: ServerProcess, model: str, max_tokens: int) -> None:
        super().__init__()
        self.text, self.error = "", ""
        self.begun = threading.Event()
        self._url, self._body = server.url, {
            "model": model, "prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", f"{self._url}/v1/completions", json=self._body, timeout=120) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    found = json.loads(line[6:])
                    if "error" in found:
                        self.error = str(found["error"])
                    else:
                        self.text += found["choices"][0]["text"]
                    self.begun.set()


def test_adapters_answer_differently_and_are_listed(server: ServerProcess) -> None:
    answers = {name: text(server, name) for name in ("cohort-tiny", "first", "second", "a2", "a3")}
    assert len(set(answers.values())) == 5
    cards = {card["id"]: card for card in server.get("/v1/models").json()["data"]}
    assert set(cards) == {"cohort-tiny", "first", "second", "a2", "a3"}
    assert cards["first"]["parent"] == "cohort-tiny" and cards["first"]["root"].endswith("a0")
    assert cards["a2"]["root"] == "a2" and cards["cohort-tiny"]["parent"] is None
    assert server.metric("cohort_lora_evictions_total") >= 2  # two at a time


@pytest.mark.long(extended=True)
def test_streams_survive_kills_and_reloads(server: ServerProcess, root: Path) -> None:
    write(root / "changing", 20)
    assert load(server, "changing", "changing").status_code == 200
    names = ["cohort-tiny", "first", "changing", "second", "a2"]
    expected = {name: text(server, name, 300) for name in names}
    streams = {name: Stream(server, name, 300) for name in names}
    for name in ("cohort-tiny", "changing"):
        assert streams[name].begun.wait(30)
    # The name stands for other weights from now on, and the executor that holds the old ones dies.
    write(root / "changing", 21)
    assert load(server, "changing", "changing").status_code == 200
    [child] = server.children()
    os.kill(child, signal.SIGKILL)
    for name, stream in streams.items():
        stream.join(120)
        assert not stream.is_alive() and not stream.error, (name, stream.error)
        assert stream.text == expected[name], name
    assert text(server, "changing", 300) not in expected.values()
    assert server.metric('cohort_executor_restarts_total{cause="signal"}') >= 1


@pytest.mark.parametrize(
    ("name", "path", "status", "why"),
    [
        ("x", "dora", 400, "use_dora"),
        ("x", "large", 400, "--max-lora-rank 32"),
        ("x", "../outside", 400, "--lora-root"),
        ("x", "/etc", 400, "--lora-root"),
        ("x", "nowhere", 404, "no adapter at"),
        ("cohort-tiny", "a0", 400, "name of the model"),
    ],
)
def test_bad_adapters_are_refused_and_serving_goes_on(
    server: ServerProcess, name: str, path: str, status: int, why: str
) -> None:
    answer = load(server, name, path)
    assert answer.status_code == status and why in answer.text
    assert text(server, "first", 4)


def test_an_adapter_of_another_model(server: ServerProcess, root: Path) -> None:
    write_peft(root / "other", {"model.layers.0.self_attn.q_proj": (24, 8)}, rank=2)
    answer = load(server, "x", "other")
    assert (
        answer.status_code == 400
        and "model.layers.0.self_attn.q_proj is for a weight of 24 x 8" in answer.text
    )


def _truncated(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def _huge_header(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])


def _endless_header(folder: Path) -> None:
    text = b'{"__metadata__": ' + b"[" * (24 << 20)
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text)


def _pickled(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"a": 1}))


def _linked_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(weights_dir() / "model.safetensors")


def _changed(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return spoil


def _without_one(tensors: dict[str, torch.Tensor]) -> None:
    tensors.pop(next(name for name in tensors if "lora_B" in name))


def _with_nan(tensors: dict[str, torch.Tensor]) -> None:
    next(iter(tensors.values())).view(-1)[3] = torch.nan


def _said_rank(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "r": 4}))


def _text_for_config(folder: Path) -> None:
    (folder / CONFIG).write_text("[" * 1000)


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_said_rank, "says rank 4"),
        (_changed(_without_one), "is missing"),
        (_changed(_with_nan), "holds NaN or infinity"),
        (_truncated, "cut off"),
        (_huge_header, "no safetensors file, or it is cut off"),
        (_endless_header, "no safetensors file, or it is cut off"),
        (_pickled, "pickled weights are not read"),
        (_linked_weights, "--lora-root"),
        (_text_for_config, "not a JSON object"),
        (lambda folder: (folder / CONFIG).unlink(), f"has no {CONFIG}"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_spoiled_adapters_are_refused_beside_a_stream(
    server: ServerProcess, root: Path, spoil: Callable[[Path], None], why: str
) -> None:
    """The reason is told, nothing of it stays, and whoever streams does not notice."""
    expected = text(server, "first", 60)
    before = {card["id"] for card in server.get("/v1/models").json()["data"]}
    shutil.rmtree(root / "spoiled", ignore_errors=True)
    spoil(write(root / "spoiled", 9))
    stream = Stream(server, "first", 60)
    assert stream.begun.wait(30)
    for _ in range(2):
        answer = load(server, "spoiled", "spoiled")
        assert answer.status_code == 400 and why in answer.text, answer.text
    # `--lora-on-demand` refuses it as well.
    body = {"model": "spoiled", "prompt": "a", "max_tokens": 1}
    assert server.post("/v1/completions", body).status_code in (400, 404)
    stream.join(60)
    assert stream.text == expected and not stream.error
    assert {card["id"] for card in server.get("/v1/models").json()["data"]} == before
    shutil.rmtree(root / "spoiled")


def test_a_link_out_of_the_root(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to(write(tmp_path / "outside", 9))
    try:
        answer = load(server, "x", "link")
        assert answer.status_code == 400 and "--lora-root" in answer.text
    finally:
        (root / "link").unlink()


def test_without_the_admin_key(server: ServerProcess) -> None:
    answer = server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "a0"})
    assert answer.status_code == 401


@pytest.mark.long(extended=True)
@pytest.mark.parametrize(
    "count", [120, pytest.param(10_000, marks=[pytest.mark.long(full=True), pytest.mark.timeout(3600)])]
)
def test_many_loads_leave_memory_flat(server: ServerProcess, root: Path, count: int) -> None:
    def resident() -> int:
        total = 0
        for pid in server.processes():
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])
        return total

    for seed in range(30, 34):
        write(root / f"many{seed}", seed)
    sizes = []
    for number in range(count):
        assert load(server, "many", f"many{30 + number % 4}").status_code == 200
        if number in (count // 2 - 1, count - 1):
            time.sleep(0.5)
            sizes.append(resident())
    assert sizes[1] - sizes[0] < 8 * 1024, sizes  # KiB


@pytest.mark.long(every=5)
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--lora-modules", "x=/nowhere"], "--lora-modules x: there is no folder /nowhere"),
        (["--lora-modules", "x"], "should be NAME=PATH"),
        (["--lora-root", "/nowhere"], "no such directory"),
        (["--lora-on-demand"], "--lora-root, which is not given"),
        (["--enable-lora", "--executor", "qwen3"], "has no LoRA adapters"),
    ],
)
def test_a_start_that_cannot_be(args: list[str], why: str) -> None:
    command = [str(Path(sys.executable).with_name("cohort")), "serve", "cohort-tiny", "--port", "0", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert why in done.stderr.splitlines()[-1]
