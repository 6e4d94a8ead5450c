"""`cohort serve NAME=SOURCE ...`: real executor processes that are loaded, unloaded, killed and parked behind one address."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.tiny import weights_dir
from tests.e2e.checkpoints import VOCAB_SIZE, write_model
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_encoders import WORDS
from tests.e2e.test_encoders import write as write_encoder
from tests.e2e.tiny_loras import write
from tests.small_gguf import write_small_gguf

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

NAMES = ("one", "two", "three")
PROMPT = "Once upon a time"


def config(folder: Path, tokenizer_dir: Path, **models: dict[str, Any]) -> list[str]:
    """Arguments of a server of fake models, whose memory is enough for two."""
    entry = {
        "source": str(tokenizer_dir),
        "settings": {"executor_option": {"vocab_size": VOCAB_SIZE, "step_delay_ms": 5}},
    }
    values: dict[str, Any] = {
        "executor": "echo",
        "memory": "150MiB",
        "swap_after": 0.5,
        "min_residency": 0.5,
        "models": {name: {**entry, **models.get(name, {})} for name in NAMES},
    }
    path = folder / "several.yaml"
    path.write_text(json.dumps(values))
    return ["--config", str(path)]


@pytest.fixture
def server(tmp_path: Path, tokenizer_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(config(tmp_path, tokenizer_dir, two={"aliases": ["second"]}), tmp_path) as server:
        yield server


def ask(
    server: ServerProcess, model: str, text: str = "hello", tokens: int = 8, **fields: Any
) -> httpx.Response:
    body = {
        "model": model,
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    return server.post("/v1/completions", body, timeout=120)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def states(server: ServerProcess) -> dict[str, str]:
    return {one["id"]: one["status"]["value"] for one in server.get("/v1/models").json()["data"]}


def wait_for(server: ServerProcess, name: str, state: str, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while states(server)[name] != state:
        assert time.monotonic() < deadline, (states(server), server.log())
        time.sleep(0.02)


def test_a_model_is_loaded_once_at_its_first_calls_and_recovers_alone(server: ServerProcess) -> None:
    assert states(server) == dict.fromkeys(NAMES, "unloaded") and server.children() == []
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: text_of(ask(server, "one")), range(20)))
    assert len(set(answers)) == 1
    assert len(server.children()) == 1, "20 calls began one executor"
    assert states(server) == {"one": "loaded", "two": "unloaded", "three": "unloaded"}

    missing = ask(server, "thre")
    assert missing.status_code == 404 and "Did you mean 'three'?" in missing.json()["error"]["message"]

    assert text_of(ask(server, "second")) == answers[0]
    first, second = server.children()
    os.kill(first, signal.SIGKILL)
    assert text_of(ask(server, "one")) == text_of(ask(server, "two")) == answers[0]
    assert second in server.children() and first not in server.children()

    # A third one takes the place of the one that was used longest ago.
    assert text_of(ask(server, "three")) == answers[0]
    assert states(server) == {"one": "unloaded", "two": "loaded", "three": "loaded"}
    metrics = server.get("/metrics").text
    for name in NAMES:
        assert f'cohort_tokens_total{{kind="output",model="{name}"}}' in metrics
    assert metrics.count("# TYPE cohort_tokens_total counter") == 1

    listed = server.get("/api/ps").json()["models"]
    assert {one["name"] for one in listed} == {"two:latest", "three:latest"}
    tags = server.get("/api/tags").json()["models"]
    assert {one["model"] for one in tags} == {f"{name}:latest" for name in NAMES}
    ended = server.post("/api/generate", {"model": "two", "keep_alive": 0, "stream": False}).json()
    assert ended["done_reason"] == "unload"
    wait_for(server, "two", "unloaded")
    assert server.post("/models/load", {"model": "one"}).json() == {"success": True}
    assert states(server)["one"] == "loaded"
    assert server.post("/models/unload", {"model": "one"}).json() == {"success": True}
    wait_for(server, "one", "unloaded")
    assert ask(server, "one", ttl=0).status_code == 200
    wait_for(server, "one", "unloaded")


def test_sixty_alternating_calls_and_long_streams_with_memory_for_two(server: ServerProcess) -> None:
    """Every answer is what the model says when it is alone: none is lost, none diverges, parked or not."""
    expected = {n: text_of(ask(server, "one", f"prompt {n}", 4 + 9 * n)) for n in range(6)}
    long_expected = text_of(ask(server, "one", "a long story", 1000))
    streams: list[str] = []

    def stream(name: str) -> None:
        body = {
            "model": name, "prompt": "a long story", "max_tokens": 1000, "temperature": 0, "ignore_eos": True, "stream": True
        }  # fmt: skip
        text = ""
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=200) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        streams.append(text)

    threads = [threading.Thread(target=stream, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    jobs = [(NAMES[n % 3], n % 6) for n in range(60)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda job: text_of(ask(server, job[0], f"prompt {job[1]}", 4 + 9 * job[1])), jobs)
        )
    for thread in threads:
        thread.join()
    assert answers == [expected[number] for _, number in jobs]
    assert streams == [long_expected] * 2
    assert "parking the streams of" in server.log()
    assert len(server.children()) <= 2


def test_executors_take_turns_and_the_death_of_one_holds_up_no_other(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    slow = {"settings": {"executor_option": {"vocab_size": VOCAB_SIZE, "step_delay_ms": 20}}}
    with ServerProcess(config(tmp_path, tokenizer_dir, one=slow, two=slow), tmp_path) as server:
        expected = text_of(ask(server, "one", tokens=100))
        assert text_of(ask(server, "two", tokens=100)) == expected
        first, _ = server.children()
        with ThreadPoolExecutor(2) as pool:
            began = time.monotonic()
            together = list(pool.map(lambda name: text_of(ask(server, name, tokens=100)), ("one", "two")))
            assert time.monotonic() - began > 200 * 0.02, "steps were computed at once"
            calls = [pool.submit(ask, server, name, "hello", 100) for name in ("one", "two")]
            time.sleep(0.5)
            os.kill(first, signal.SIGKILL)
            after = [text_of(call.result()) for call in calls]
        assert together == after == [expected] * 2


def test_a_damaged_model_fails_alone(tmp_path: Path, tokenizer_dir: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    arguments = config(
        tmp_path,
        tokenizer_dir,
        two={"source": str(broken)},
        one={"memory": "90MiB"},
        three={"pin": True, "memory": "70MiB"},
    )
    with ServerProcess(arguments, tmp_path) as server:
        wait_for(server, "three", "loaded")
        failed = ask(server, "two")
        assert failed.status_code == 503 and int(failed.headers["retry-after"]) > 0
        assert failed.json()["error"]["code"] == "model_unavailable"
        assert states(server)["two"] == "failed"
        # The pinned model leaves 80 MiB.
        refused = ask(server, "one")
        assert refused.status_code == 503 and "beside three" in refused.json()["error"]["message"]
        assert ask(server, "three").status_code == 200


def needs(server: ServerProcess) -> dict[str, int]:
    return {one["id"]: one["memory"] for one in server.get("/v1/models").json()["data"]}


def test_real_models_keep_to_the_memory_that_is_counted_for_them(tmp_path: Path) -> None:
    with ServerProcess(["a=cohort-tiny", "b=cohort-tiny", "--memory", "4GiB"], tmp_path) as server:
        assert text_of(ask(server, "a")) == text_of(ask(server, "b"))
        most = needs(server)
        executors = server.get("/v1/executors").json()["data"]
        assert [one["model"] for one in executors] == ["a", "b"]
        for one in executors:
            layout, memory = one["kv_layout"], one["status"]["memory"]
            kv = sum(group["num_blocks"] * group["bytes_per_block"] for group in layout["groups"])
            assert 0 < kv < most[one["model"]] < 2**30
            assert memory["used_bytes"] < most[one["model"]]


def kv_blocks(server: ServerProcess, model: str) -> float:
    """Blocks that sequences of a model may use."""
    name = f'cohort_kv_blocks{{model="{model}"}} '
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_unused_kv_makes_room_for_another_model_and_comes_back(tmp_path: Path) -> None:
    """Memory is enough for both less 20 MiB, which the first one's KV gives: none is unloaded, and answers stay."""
    entry = {"source": "cohort-tiny", "memory": "700MiB", "settings": {"max_model_len": 512}}
    path = tmp_path / "several.yaml"
    path.write_text(json.dumps({"memory": "1380MiB", "models": {"a": entry, "b": entry}}))
    with ServerProcess(["--config", str(path)], tmp_path) as server:
        answer = text_of(ask(server, "a"))
        blocks = kv_blocks(server, "a")
        assert needs(server) == dict.fromkeys("ab", 700 << 20)

        assert text_of(ask(server, "b")) == answer
        assert states(server) == {"a": "loaded", "b": "loaded"}
        assert kv_blocks(server, "a") < blocks
        assert 0 <= (680 << 20) - needs(server)["a"] < 1 << 20 and needs(server)["b"] == 700 << 20
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda model: text_of(ask(server, model)), "abab")) == [answer] * 4

        assert server.post("/models/unload", {"model": "b"}).status_code == 200
        wait_for(server, "b", "unloaded")
        deadline = time.monotonic() + 30
        while kv_blocks(server, "a") != blocks:
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.02)
        assert needs(server) == dict.fromkeys("ab", 700 << 20)
        assert text_of(ask(server, "a")) == answer


def streamed(server: ServerProcess, model: str, text: str, tokens: int) -> str:
    """The text of a stream that has ended. Fails if it ends otherwise than with its last token."""
    body = {
        "model": model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True
    }  # fmt: skip
    parts, reasons = [], []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=200) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, (chunk, server.log())
                [choice] = chunk["choices"]
                parts.append(choice["text"])
                reasons.append(choice["finish_reason"])
    assert reasons[-1] == "length"
    return "".join(parts)


def accepted_drafts(server: ServerProcess, model: str) -> float:
    """Tokens of a model's drafts that were right."""
    name = f'cohort_spec_decode_num_accepted_tokens_total{{model="{model}"}} '
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def write_deep(folder: Path) -> Path:
    """cohort-tiny behind 28 layers more that add nothing: its answers at several times its price, so that its drafts pay."""
    shutil.copytree(weights_dir(), folder)
    config = json.loads((folder / "config.json").read_text())
    few, most = config["num_hidden_layers"], config["num_hidden_layers"] + 28
    config |= {"num_hidden_layers": most, "max_window_layers": most, "layer_types": ["full_attention"] * most}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    last = {name: one for name, one in tensors.items() if name.startswith(f"model.layers.{few - 1}.")}
    for layer in range(few, most):
        for name, one in last.items():
            adds = "o_proj" in name or "down_proj" in name
            tensors[name.replace(f".{few - 1}.", f".{layer}.")] = (
                torch.zeros_like(one) if adds else one.clone()
            )
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_adapters_and_a_draft_of_each_model(tmp_path: Path) -> None:
    """They answer as on a server of their model alone: also after an unload."""
    loras = {name: str(write(tmp_path / name, seed)) for seed, name in enumerate(("fr", "de"))}
    alone = [f"--lora-modules={name}={path}" for name, path in loras.items()]
    with ServerProcess(["cohort-tiny", "--deterministic", *alone], tmp_path) as server:
        expected = {name: text_of(ask(server, name, PROMPT, 30)) for name in ("cohort-tiny", "fr", "de")}
        story = streamed(server, "fr", PROMPT, 400)
    assert len(set(expected.values())) == 3
    deep = str(write_deep(tmp_path / "deep"))
    values: dict[str, Any] = {
        "deterministic": True,
        "memory": "1GiB",  # for one of them
        "swap_after": 0.3,
        "min_residency": 0.3,
        "models": {
            "one": {"source": "cohort-tiny", "lora": loras},
            "two": {"source": deep, "draft": {"model": "cohort-tiny", "num_speculative_tokens": 3}},
        },
    }
    path = tmp_path / "several.yaml"
    path.write_text(json.dumps(values))
    with ServerProcess(["--config", str(path)], tmp_path) as server:
        parents = {one["id"]: one["parent"] for one in server.get("/v1/models").json()["data"]}
        assert parents == {"one": None, "fr": "one", "de": "one", "two": None}
        assert text_of(ask(server, "de", PROMPT, 30)) == expected["de"]
        assert text_of(ask(server, "two", PROMPT, 30)) == expected["cohort-tiny"]
        assert states(server)["de"] == "unloaded"
        deadline = (
            time.monotonic() + 60
        )  # a pace measured beside other work may say for a while that no draft pays
        while not accepted_drafts(server, "two"):
            assert time.monotonic() < deadline
            ask(server, "two", PROMPT, 60)
        assert text_of(ask(server, "one", PROMPT, 30)) == expected["cohort-tiny"]
        with ThreadPoolExecutor(1) as pool:
            stream = pool.submit(streamed, server, "fr", PROMPT, 400)
            assert text_of(ask(server, "two", PROMPT, 30)) == expected["cohort-tiny"]
            assert stream.result() == story


def test_an_embedding_model_beside_a_chat_never_evicts_it(tmp_path: Path) -> None:
    """Many embeddings while streams run, with memory for both and no third: vectors and tokens as alone, one load each."""
    write_encoder(tmp_path / "encoder")
    texts = [" ".join(WORDS[(at + i) % len(WORDS)] for i in range(1 + at % 9)) for at in range(90)]
    values: dict[str, Any] = {
        "deterministic": True,
        "memory": "1400MiB",
        "swap_after": 0.2,
        "min_residency": 0.2,
        "models": {
            name: {"source": source, "settings": {"kv_cache_memory_bytes": "64MiB"}}
            for name, source in {
                "chat": "cohort-tiny",
                "embed": str(tmp_path / "encoder"),
                "other": "cohort-tiny",
            }.items()
        },
    }
    path = tmp_path / "several.yaml"
    path.write_text(json.dumps(values))
    with ServerProcess(["--config", str(path)], tmp_path) as server:

        def vector(text: str) -> list[float]:
            response = server.post("/v1/embeddings", {"model": "embed", "input": text})
            assert response.status_code == 200, response.text
            return list(response.json()["data"][0]["embedding"])

        needs = {one["id"]: one["memory"] for one in server.get("/v1/models").json()["data"]}
        assert needs["chat"] + needs["embed"] <= 1400 * 2**20 < sum(needs.values())
        story, vectors = streamed(server, "chat", PROMPT, 400), [vector(text) for text in texts]
        with ThreadPoolExecutor(6) as pool:
            streams = [pool.submit(streamed, server, "chat", PROMPT, 400) for _ in range(2)]
            assert list(pool.map(vector, texts)) == vectors
            assert [one.result() for one in streams] == [story, story]
        assert states(server) == {"chat": "loaded", "embed": "loaded", "other": "unloaded"}
        log = server.log()
        assert log.count("loaded chat in") == log.count("loaded embed in") == 1
        assert "parking" not in log and "unloaded chat" not in log and "unloaded embed" not in log


TOGETHER = 60
"""Calls of the test below, that alternate between its models."""


def real_models(folder: Path) -> dict[str, dict[str, Any]]:
    """Three models with other answers each: trained, of random weights, and in a GGUF file. A call is at most as long as 4096
    tokens allow."""
    (folder / "two").mkdir()
    long = {"max_model_len": 4096, "kv_cache_memory_bytes": "64MiB", "max_num_batched_tokens": 512}
    return {
        "one": {"source": "cohort-tiny", "settings": {**long, "max_model_len": 2048}},
        "two": {
            "source": str(write_model(folder / "two", max_position_embeddings=4096)),
            "settings": {**long, "load_format": "dummy", "seed": 7},
        },
        "three": {
            "source": str(write_small_gguf(folder / "three.gguf", context_length=4096)),
            "settings": long,
        },
    }


@pytest.mark.timeout(400)
def test_three_real_models_with_memory_for_two_answer_as_each_does_alone(tmp_path: Path) -> None:
    """60 alternating calls of mixed length and long streams, bit for bit, although models are unloaded and loaded all the time,
    and an executor is killed."""
    models = real_models(tmp_path)
    lengths = {"one": 400, "two": 1000, "three": 1000}
    base: dict[str, Any] = {"deterministic": True, "swap_after": 0.2, "min_residency": 0.2}

    def serve(names: tuple[str, ...], memory: str) -> ServerProcess:
        path = tmp_path / f"{'-'.join(names)}.yaml"
        path.write_text(
            json.dumps({**base, "memory": memory, "models": {name: models[name] for name in names}})
        )
        return ServerProcess(["--config", str(path)], tmp_path)

    def call(server: ServerProcess, name: str, number: int) -> str:
        return text_of(ask(server, name, f"{PROMPT}, prompt {number},", 3 + 15 * number))

    expected: dict[tuple[str, int], str] = {}
    stories: dict[str, str] = {}
    for name in NAMES:
        with serve((name,), "4GiB") as server:
            expected |= {(name, number): call(server, name, number) for number in range(4)}
            stories[name] = streamed(server, name, PROMPT, lengths[name])
    assert len(set(stories.values())) == 3
    jobs = [(NAMES[number % 3], number % 4) for number in range(TOGETHER)]
    with serve(NAMES, "1400MiB") as server, ThreadPoolExecutor(3) as long, ThreadPoolExecutor(6) as short:
        streams = {name: long.submit(streamed, server, name, PROMPT, lengths[name]) for name in NAMES}
        calls = [short.submit(call, server, *job) for job in jobs]
        calls[TOGETHER // 3].result()
        os.kill(server.children()[0], signal.SIGKILL)
        assert [one.result() for one in calls] == [expected[job] for job in jobs]
        assert {name: one.result() for name, one in streams.items()} == stories
        assert len(server.children()) <= 2


def test_check_tells_what_loads_do(tmp_path: Path) -> None:
    """The contexts that their memory holds, and a length that does not fit."""
    (folder := tmp_path / "model").mkdir()
    shape = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    write_model(folder, **shape, max_position_embeddings=32768, torch_dtype="bfloat16")
    one: dict[str, Any] = {"source": str(folder), "memory": "300MiB"}
    models = {
        "whole": {"source": str(folder), "memory": "3GiB"},
        "short": one,
        "drafting": {**one, "draft": str(folder), "settings": {"num_speculative_tokens": 2}},
        "long": {**one, "settings": {"max_model_len": 16384}},
    }
    path = tmp_path / "several.yaml"
    path.write_text(json.dumps({"memory": "8GiB", "load_format": "dummy", "models": models}))
    check = subprocess.run(
        [str(Path(sys.executable).with_name("cohort")), "serve", "--check", "--config", str(path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    lines = {line.split()[0]: line for line in check.stdout.splitlines()}
    assert check.returncode == 2 and "a sequence of 16,384 tokens needs 536,870,912" in lines["long"]
    with ServerProcess(["--config", str(path)], tmp_path) as server:
        for name in models:
            answer = server.post("/models/load", {"model": name}, timeout=120)
            assert (answer.status_code == 200) == (name != "long"), answer.text
        listed = {
            model["id"]: model.get("max_model_len") for model in server.get("/v1/models").json()["data"]
        }
    told = {name: _context_in(lines[name]) for name in models}
    assert told["whole"] == listed["whole"] == 32768 and told["long"] is listed["long"] is None
    for name in ("short", "drafting"):
        assert told[name] == pytest.approx(listed[name], rel=0.3) and 500 < told[name] < 5000
    assert told["drafting"] < 0.8 * told["short"]


def _context_in(line: str) -> int | None:
    found = re.search(r"contexts of ([\d,]+) tokens", line)
    return None if found is None else int(found[1].replace(",", ""))
