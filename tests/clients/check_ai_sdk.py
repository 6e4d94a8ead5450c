"""Vercel's AI SDK by three providers and Ollama's package for JavaScript: `ai_sdk.mjs` calls, this file judges."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.samples import COUNTED, HUGO_IS, numbers

PROVIDERS = pytest.mark.parametrize("provider", ["compatible", "openai-chat", "openai-responses", "ollama"])
PARIS = [["get_weather", {"city": "Paris"}]]


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    """What each call came to, by its name."""
    program = Path(__file__).with_name("ai_sdk.mjs")
    done = subprocess.run(
        ["node", str(program)],
        cwd=os.environ["CLIENT_NODE_MODULES"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=240,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def value(results: dict[str, Any], name: str) -> Any:
    assert "error" not in results[name], results[name]["error"]
    return results[name]["value"]


@PROVIDERS
def test_text_and_stream(results: dict[str, Any], provider: str) -> None:
    answer = value(results, f"{provider} text")
    assert numbers(answer["text"]) == COUNTED
    assert answer["streamed"] == answer["text"]
    assert answer["finish"] == "stop"
    assert answer["tokens"] > 0


@PROVIDERS
def test_tools_and_their_result(results: dict[str, Any], provider: str) -> None:
    assert value(results, f"{provider} tool") == {"whole": PARIS, "streamed": PARIS}
    assert value(results, f"{provider} result of a tool") in ("stop", "tool-calls")


@PROVIDERS
@pytest.mark.parametrize("choice", ["required", "named"])
@pytest.mark.parametrize("beside", ["", " beside a format"], ids=["alone", "beside a format"])
def test_a_forced_call(results: dict[str, Any], provider: str, choice: str, beside: str) -> None:
    found = value(results, f"{provider} {choice}{beside}")
    assert found
    for name, arguments in found:
        assert name == "get_weather"
        assert isinstance(arguments["city"], str)


@PROVIDERS
@pytest.mark.parametrize("stream", ["", " streamed"], ids=["whole", "streamed"])
def test_an_object(results: dict[str, Any], provider: str, stream: str) -> None:
    assert value(results, f"{provider} object{stream}") == HUGO_IS.model_dump()


@pytest.mark.parametrize("provider", ["compatible", "openai", "ollama", "ollama-js"])
def test_embeddings(results: dict[str, Any], provider: str) -> None:
    one, two = value(results, f"{provider} embeddings")
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two


def test_ollamas_own_package(results: dict[str, Any], model: str) -> None:
    answer = value(results, "ollama-js chat")
    assert numbers(answer["text"]) == COUNTED
    assert answer["streamed"] == answer["text"]
    assert value(results, "ollama-js tool") == PARIS
    assert value(results, "ollama-js format") == HUGO_IS.model_dump()
    [listed] = value(results, "ollama-js models")
    assert listed.removesuffix(":latest") == model
