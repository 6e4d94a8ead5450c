"""`vllm bench serve`, vLLM's own benchmark client, from the environment in which vLLM is compared."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

COUNT, PROMPT, OUTPUT = 16, 50, 20
"""Requests, and tokens of each."""


class Bench:
    """Runs it; `extra` are further words of its command line."""

    def __init__(self, url: str, model: str, model_dir: str, folder: Path) -> None:
        self._command = [
            os.environ["CLIENT_VLLM"], "bench", "serve", "--base-url", url, "--model", model,
            "--tokenizer", model_dir, "--dataset-name", "random", "--num-prompts", str(COUNT),
            "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT),
            "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "out.json",
        ]  # fmt: skip
        self._written = folder / "out.json"

    def __call__(self, backend: str, endpoint: str, *extra: str) -> dict[str, Any]:
        """What it wrote. Fails with its output."""
        command = [*self._command, "--backend", backend, "--endpoint", endpoint, *extra]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        result = json.loads(self._written.read_text())
        assert result["completed"] == COUNT, done.stdout
        assert set(result["errors"]) <= {""}
        return result


@pytest.fixture
def bench(
    url: str, api_key: str, model: str, model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Bench:
    monkeypatch.setenv("OPENAI_API_KEY", api_key)
    return Bench(url, model, model_dir, tmp_path)


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_generation(bench: Bench, backend: str, endpoint: str) -> None:
    """With every setting of sampling that it has, and logprobs; it takes what it counts from the last chunk's usage."""
    settings = (
        "--ignore-eos --max-concurrency 8 --temperature 0.7 --top-p 0.9 --top-k 20 --min-p 0.01 --frequency-penalty 0.1"
        " --presence-penalty 0.1 --repetition-penalty 1.1 --logprobs 2 --seed 3"
    )
    result = bench(backend, endpoint, *settings.split())
    assert result["output_lens"] == [OUTPUT] * COUNT
    assert all(PROMPT <= length < PROMPT + 20 for length in result["input_lens"])
    assert all(result["ttfts"])
    assert result["mean_itl_ms"] > 0


def test_embeddings(bench: Bench) -> None:
    result = bench("openai-embeddings", "/v1/embeddings")
    assert result["total_input_tokens"] >= COUNT * PROMPT
