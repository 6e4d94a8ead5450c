"""`--executor qwen3` serves the embedded model, and GET /v1/executors tells about it, also while it hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(["--executor", "qwen3"], tmp_path_factory.mktemp("qwen3")) as server:
        yield server


def card_of(server: ServerProcess) -> dict[str, Any]:
    answer = server.get("/v1/executors").json()
    assert {"llm", "qwen3", "echo", "paged_fake"} <= set(answer["registered"])
    [card] = answer["data"]
    return dict(card)


def test_the_embedded_model_answers_as_with_llm(server: ServerProcess, tiny_server: ServerProcess) -> None:
    body = {
        "messages": [{"role": "user", "content": "Count from 3 to 9."}],
        "temperature": 0,
        "max_tokens": 40,
    }
    answers = [one.post("/v1/chat/completions", body).json() for one in (server, tiny_server)]
    first, second = (answer["choices"][0]["message"]["content"] for answer in answers)
    assert first == second and first
    assert card_of(tiny_server)["id"] == "llm"


def test_what_it_declares_and_how_it_fares(server: ServerProcess) -> None:
    server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True})
    deadline = time.monotonic() + 10
    while (card := card_of(server))["metrics"]["total_sampled_tokens"] < 5:
        assert time.monotonic() < deadline, "the snapshot never showed the request"
        time.sleep(0.05)
    assert (card["id"], card["mode"], [card["pid"]]) == ("qwen3", "process", server.children())
    assert card["info"]["family"] == "qwen3" and card["status"]["is_ready"]
    assert any(note.startswith("steps: at most ") for note in card["status"]["notes"])
    [group] = card["kv_layout"]["groups"]
    pool = group["num_blocks"] * group["bytes_per_block"]
    memory = card["capabilities"]["memory"]
    assert card["cache"]["bytes_total"] == pool
    assert card["status"]["memory"]["allocated_bytes"] == memory["parameter_memory"] + pool
    full = memory["when_full"]
    assert full["batch_size"] * full["sequence_length"] <= card["kv_layout"]["capacity_tokens"]
    assert full["total_memory"] > memory["parameter_memory"] + 0.9 * pool


def test_it_answers_at_once_while_the_executor_hangs(server: ServerProcess) -> None:
    """SIGSTOP: within 100 ms (the best of five), with the age of what it says."""
    [child] = server.children()
    url, times = f"{server.url}/v1/executors", []
    os.kill(child, signal.SIGSTOP)
    try:
        time.sleep(1.5)
        with httpx.Client() as client:
            client.get(url)
            for _ in range(5):
                begun = time.monotonic()
                [card] = client.get(url).json()["data"]
                times.append(time.monotonic() - begun)
        assert card["snapshot_age_s"] > 1
        assert min(times) < 0.1, times
    finally:
        os.kill(child, signal.SIGCONT)
    print(f"/v1/executors while it hangs: {1e3 * min(times):.1f} ms at best, {1e3 * max(times):.1f} at worst")


@pytest.mark.long(extended=True)
def test_another_architecture_is_refused(tmp_path: Path) -> None:
    """One line, exit code 2."""
    from tests.e2e.checkpoints import write_tokenizer
    from tests.executors.checkpoints import LLAMA, write_config

    write_tokenizer(write_config(tmp_path / "llama", LLAMA))
    server = ServerProcess([str(tmp_path / "llama"), "--executor", "qwen3"], tmp_path)
    assert server.process.wait(30) == 2
    last = server.log().splitlines()[-1]
    assert last.startswith("cohort: error: ") and "architecture 'LlamaForCausalLM'" in last, last
