"""A model of Ollama's store with an adapter, a system text, parameters and messages: served as one model, by all that serve."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from cohort_server import LLM, SamplingParams
from executors.gguf.file import read_gguf
from tests.e2e.server_process import ServerProcess
from tests.executors.gguf_files import interleaved
from tests.executors.lora.gguf_loras import write_gguf_adapter
from tests.executors.lora.peft_files import write_peft
from tests.server.model_files.ollama_store import write_model
from tests.small_gguf import CONFIG, write_small_gguf

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

HEADS = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
STEMS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.down_proj": "ffn_down",
}  # fmt: skip
PROMPT = "The quick brown fox jumps over"
SYSTEM = "Answer like a pirate."
PARAMS = {"temperature": 0, "stop": ["<|x|>"], "num_ctx": 128, "num_predict": 5, "num_gpu": 1, "mirostat": 1}


def with_adapter(base: Path, to: Path, made: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Path:
    """A copy of a GGUF file in F32 with B A added to its weights, whose scale is 2."""
    shutil.copy(base, to)
    for module, (a, b) in made.items():
        layer, stem = module.split(".")[2], STEMS[module.split(".", 3)[3]]
        tensor = read_gguf(to).tensors[f"blk.{layer}.{stem}.weight"]
        delta = 2.0 * (b @ a)
        if stem in ("attn_q", "attn_k"):
            delta = interleaved(delta, HEADS[stem == "attn_k"])
        weights = np.memmap(to, np.float32, "r+", tensor.offset, tensor.shape)
        weights += delta.numpy()
        weights.flush()
    return to


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ollama")
    base = write_small_gguf(folder / "base.gguf", "F32")
    tensors = read_gguf(base).tensors
    shapes = {
        f"model.layers.{layer}.{module}": tensors[f"blk.{layer}.{stem}.weight"].shape
        for layer in range(CONFIG["num_hidden_layers"])
        for module, stem in STEMS.items()
    }
    made = write_peft(folder / "peft", shapes, rank=4)  # type: ignore[arg-type]
    adapter = write_gguf_adapter(folder / "a.gguf", made, "llama", 8.0, HEADS)
    with_adapter(base, folder / "merged.gguf", made)
    shots = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Ahoy!"}]
    layers: list[tuple[str, Any]] = [("model", base.read_bytes()), ("license", "MIT")]
    own = ("adapter", adapter.read_bytes()), ("system", SYSTEM), ("params", PARAMS), ("messages", shots)
    write_model(folder, "plain", layers)
    write_model(folder, "pirate", [*layers, *own])
    write_model(folder, "broken", [*layers, ("adapter", b"GGUF an adapter")])
    write_model(
        folder,
        "other",
        [*layers, ("adapter", write_gguf_adapter(folder / "q.gguf", made, "qwen2").read_bytes())],
    )
    before = os.environ.get("OLLAMA_MODELS")
    os.environ["OLLAMA_MODELS"] = str(folder)
    yield folder
    del os.environ["OLLAMA_MODELS"]
    if before is not None:
        os.environ["OLLAMA_MODELS"] = before


def greedy(model: str, **settings: Any) -> list[tuple[int, float]]:
    """Tokens and their logprobs."""
    with LLM(model, dtype="float32", kv_cache_memory_bytes=32 << 20, **settings) as llm:
        [answer] = llm.generate(
            PROMPT, SamplingParams(temperature=0, max_tokens=8, logprobs=0, ignore_eos=True)
        )
        [output] = answer.outputs
        assert output.logprobs is not None
        return [
            (one, found[one].logprob) for one, found in zip(output.token_ids, output.logprobs, strict=True)
        ]


def check_equal(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    assert [one for one, _ in found] == [one for one, _ in expected]
    assert max(abs(a - b) for (_, a), (_, b) in zip(found, expected, strict=True)) < 1e-4


@pytest.fixture(scope="module")
def expected(store: Path) -> list[tuple[int, float]]:
    """Of the model with the adapter in its weights."""
    return greedy(str(store / "merged.gguf"))


def test_the_adapter_is_part_of_the_model(expected: list[tuple[int, float]], store: Path) -> None:
    check_equal(greedy("pirate"), expected)
    check_equal(greedy("pirate:latest"), expected)
    plain = greedy("plain")
    assert plain != expected and [one for one, _ in plain] != [one for one, _ in expected]


@pytest.fixture(scope="module")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    args = ["pirate", "--dtype", "float32", "--kv-cache-memory-bytes", "32MiB", "--api-server-count", "1"]
    with ServerProcess(args, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("name", ["pirate", "pirate:latest"])
def test_over_http_by_an_api_worker(
    server: ServerProcess, expected: list[tuple[int, float]], name: str
) -> None:
    body = {"model": name, "prompt": PROMPT, "max_tokens": 8, "logprobs": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", body).json()
    found = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert max(abs(a - b) for a, (_, b) in zip(found, expected, strict=True)) < 1e-4
    raw = {"model": name, "prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 8}}
    assert server.post("/api/generate", raw).json()["response"]


def test_what_the_package_says(server: ServerProcess) -> None:
    chat = {"model": "pirate", "messages": [{"role": "user", "content": "Hi"}]}
    ids = server.post("/tokenize", chat).json()["tokens"]
    text = server.post("/detokenize", {"model": "pirate", "tokens": ids}).json()["prompt"]
    assert SYSTEM in text and "Ahoy!" in text and text.index(SYSTEM) < text.index("Ahoy!") < text.index("Hi")
    answer = server.post("/v1/chat/completions", {**chat, "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 5
    shown = server.post("/api/show", {"model": "pirate"}).json()
    assert {"temperature 0", 'stop "<|x|>"', "num_ctx 128", "num_predict 5"} <= set(
        shown["parameters"].splitlines()
    )
    assert shown["system"] == SYSTEM and shown["license"] == "MIT" and shown["adapter"].startswith("sha256-")
    [card] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert card["id"] == "pirate" and card["max_model_len"] == 128 and card["parent"] is None
    assert "parameter mirostat 1 is not used" in server.log()


def cohort(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("cohort")), *args], capture_output=True, text=True, timeout=150
    )


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("model", "more", "why"),
    [
        ("broken", (), "Ollama's model broken: its adapter "),
        ("other", (), "general.architecture 'qwen2' is not the model's"),
        ("pirate", ("--enable-lora",), "has an adapter of its own"),
    ],
)
def test_what_cannot_be_served_ends_the_start(
    store: Path, model: str, more: tuple[str, ...], why: str
) -> None:
    done = cohort("serve", model, "--port", "0", "--dtype", "float32", *more)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("cohort: error: ")]
    assert why in line and (more or "its adapter " in line)


@pytest.mark.long(extended=True)
def test_info_and_list_see_the_same_model(store: Path) -> None:
    done = cohort("info", "pirate", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["name"] == "pirate" and "sha256-" in facts["adapter"]
    assert "Ollama's model pirate: parameter mirostat 1 is not used" in facts["text"]["notes"]
    for name, why in (
        ("broken", "its adapter"),
        ("other", "general.architecture 'qwen2' is not the model's"),
    ):
        refused = cohort("info", name)
        assert refused.returncode == 2 and why in refused.stderr
    rows = {row["name"]: row for row in json.loads(cohort("list", "--json").stdout)}
    assert {"pirate:latest", "plain:latest"} <= rows.keys()


@pytest.mark.long(extended=True)
def test_verify_compares_the_model_with_its_adapter(store: Path) -> None:
    done = cohort("verify", "pirate", "--tokens", "4", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["equal"] and report["peft"] is not None, done.stderr
    assert report["logits"]["outcome"] == "equal"
