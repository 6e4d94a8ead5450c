"""guidellm: short runs of several kinds end without an error, and what the server says of tokens is what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROMPT, OUTPUT = 60, 24
"""Tokens of a request."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SYNTHETIC = {"kind": "synthetic_text", "prompt_tokens": PROMPT, "output_tokens": OUTPUT}


class Runner:
    """Runs it with settings that it would read from a file."""

    def __init__(self, url: str, api_key: str, model_dir: str, folder: Path) -> None:
        self._backend = {"kind": "openai_http", "target": url, "api_key": api_key}
        self._tokenizer = {"kind": "huggingface_auto", "model": model_dir}
        self._folder = folder

    def __call__(
        self, profile: dict[str, Any], constraints: list[dict[str, Any]], data: dict[str, Any], **backend: Any
    ) -> list[dict[str, Any]]:
        """Its benchmarks, one for each strategy of the profile. Fails with its output."""
        settings, output = self._folder / "run.json", self._folder / "out.json"
        settings.write_text(
            json.dumps(
                {
                    "spec": {
                        "backend": {**self._backend, **backend}, "profile": profile, "constraints": constraints,
                        "tokenizer": self._tokenizer, "data": [data], "outputs": [{"kind": "json", "path": str(output)}],
                    }
                }
            )
        )  # fmt: skip
        command = [
            str(Path(sys.executable).with_name("guidellm")),
            "run",
            "--config",
            str(settings),
            "--disable-console-interactive",
        ]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self._folder
        )
        assert done.returncode == 0, done.stdout
        return json.loads(output.read_text())["benchmarks"]


@pytest.fixture
def run(url: str, api_key: str, model_dir: str, tmp_path: Path) -> Runner:
    return Runner(url, api_key, model_dir, tmp_path)


def completed(benchmark: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests of a benchmark that are through; none failed."""
    failed = benchmark["requests"]["errored"]
    # One by one and as text: a list of whole requests is cut before the error in it.
    assert not failed, "\n".join(json.dumps(request["info"]) for request in failed)
    assert benchmark["requests"]["successful"]
    return benchmark["requests"]["successful"]


@pytest.mark.parametrize(("form", "stream"), [(CHAT, True), (TEXT, True), (CHAT, False)])
def test_one_after_another(run: Runner, form: str, stream: bool) -> None:
    [benchmark] = run(
        {"kind": "synchronous"},
        [{"kind": "max_requests", "count": 8}],
        SYNTHETIC,
        request_format=form,
        stream=stream,
    )
    requests = completed(benchmark)
    assert len(requests) == 8
    for request in requests:
        assert request["output_tokens"] == OUTPUT
        assert PROMPT <= request["prompt_tokens"] < PROMPT + (20 if form == CHAT else 1)
        if stream:
            assert 0 < request["time_to_first_token_ms"] < 1000 * request["request_latency"]


def test_many_at_once(run: Runner) -> None:
    benchmarks = run(
        {"kind": "concurrent", "streams": [1, 4, 16]}, [{"kind": "max_requests", "count": 32}], SYNTHETIC
    )
    assert [len(completed(benchmark)) for benchmark in benchmarks] == [32, 32, 32]
    for benchmark in benchmarks:
        assert {request["output_tokens"] for request in completed(benchmark)} == {OUTPUT}


def test_sweep(run: Runner) -> None:
    """One at a time, all at once, and rates between."""
    constraints = [{"kind": "max_requests", "count": 12}]
    benchmarks = run({"kind": "sweep", "sweep_size": 4}, constraints, SYNTHETIC)
    assert len(benchmarks) == 4
    for benchmark in benchmarks:
        assert {request["output_tokens"] for request in completed(benchmark)} == {OUTPUT}


def test_a_tool_in_a_conversation(run: Runner) -> None:
    """Three turns; in the first it demands the call of a tool, and answers it.

    Greedily: a model that draws its arguments among random words may draw until the context is full, and there is no third turn.
    """
    data = {**SYNTHETIC, "turns": 3, "tool_call_turns": [0]}
    profile = {"kind": "concurrent", "streams": [2]}
    limits = [{"kind": "max_requests", "count": 16}]
    [benchmark] = run(profile, limits, data, extras={"body": {"temperature": 0}})
    calls = [call for request in completed(benchmark) for call in request["tool_calls"] or []]
    assert calls
    for call in calls:
        assert json.loads(call["function"]["arguments"]).keys() == {"query"}


def test_embeddings(run: Runner) -> None:
    data = {"kind": "synthetic_text", "prompt_tokens": PROMPT}
    [benchmark] = run(
        {"kind": "concurrent", "streams": [4]},
        [{"kind": "max_requests", "count": 16}],
        data,
        request_format="/v1/embeddings",
    )
    assert {request["prompt_tokens"] for request in completed(benchmark)} == {PROMPT}
