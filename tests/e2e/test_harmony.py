"""A served model of random weights that speaks in Harmony's tokens: whatever it writes is read, and grammars hold it to calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from server.answer.harmony.marks import LITERAL_OF, LITERALS
from tests.e2e.server_process import ServerProcess
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.server.replay import byte_tokenizer
from tests.server.templates.harmony_shape import HARMONY

pytestmark = pytest.mark.long

UNITS = ["C", "F"]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"type": "string", "enum": UNITS}},
            "required": ["unit"],
        },
    },
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "enum": UNITS}}}
GPT_OSS = {
    **QWEN3, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
    "intermediate_size": 24, "attention_bias": True, "tie_word_embeddings": False, "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
"""The family that speaks so."""
CASES = 12
IDS = {literal: 256 + number for number, literal in enumerate(LITERALS)}
NOTATION = {str(token): 3 for token in IDS.values()}
"""Bias with which the model writes Harmony's tokens in any order, among other bytes."""
SHORT = {str(IDS["<|end|>"]): 8}
"""Bias with which its thoughts end."""
ANSWERS = {str(ord("f") - ord("!")): 100}
"""Bias with which it writes "final" rather than "analysis": the first byte of the vocabulary is "!"."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A vocabulary of bytes and Harmony's tokens."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer(folder, [*LITERALS, "<|endoftext|>"], "<|return|>")
    write_checkpoint(folder, {**GPT_OSS, "vocab_size": tokenizer.vocab_size})
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": HARMONY}))
    with ServerProcess([str(folder)], tmp_path_factory.mktemp("server")) as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            yield client


def answered(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """The choice of a whole answer, after a look at whether the stream says the same."""
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        **fields,
    }
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    message = choice["message"]
    content, thoughts, calls, reason = "", "", list[list[str]](), None
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            for one in json.loads(line.removeprefix("data: "))["choices"]:
                content += one["delta"].get("content") or ""
                thoughts += one["delta"].get("reasoning_content") or ""
                for call in one["delta"].get("tool_calls", ()):
                    if "name" in call["function"]:
                        calls.append([call["function"]["name"], ""])
                    calls[-1][1] += call["function"].get("arguments", "")
                reason = one["finish_reason"] or reason
    whole = [
        [call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())
    ]
    assert (content, thoughts) == (message["content"] or "", message.get("reasoning_content") or "")
    assert (calls, reason) == (whole, choice["finish_reason"])
    for text in (content, thoughts, *(part for call in calls for part in call)):
        assert not any(mark in text for mark in LITERAL_OF)
        assert not any(literal in text for literal in LITERALS), "of a vocabulary of bytes, by chance"
    return {**message, "finish_reason": reason}


@pytest.mark.long(every=4)
@pytest.mark.parametrize("seed", range(CASES))
def test_whatever_a_model_writes(client: httpx.Client, seed: int) -> None:
    answered(client, tools=[TOOL], seed=seed, max_tokens=200, logit_bias=NOTATION)
    answered(client, tools=[TOOL], seed=seed, max_tokens=100, ignore_eos=True, stop=["e", "\ufffd"])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_forced_calls(client: httpx.Client, choice: Any) -> None:
    """The grammar lets the model think first, and its call has a header. Thoughts without an end reach the limit."""
    ends = set()
    for seed in range(CASES):
        message = answered(
            client, tools=[TOOL], tool_choice=choice, seed=seed, max_tokens=600, logit_bias=SHORT
        )
        ends.add(message["finish_reason"])
        assert not message["content"]
        if message["finish_reason"] != "length":
            [call] = message["tool_calls"]
            assert json.loads(call["function"]["arguments"])["unit"] in UNITS
    assert ends & {"tool_calls", "stop"}


def test_the_family_and_its_format_are_known(client: httpx.Client) -> None:
    [executor] = client.get("/v1/executors").json()["data"]
    assert executor["info"]["family"] == "gpt_oss"
    assert (
        executor["notation"]["tool_calls"] == "openai"
        and executor["notation"]["reasoning"] == "openai_gptoss"
    )
    shown = client.post("/api/show", json={"model": executor["info"]["name"]}).json()
    assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])
    assert shown["details"]["family"] == "gpt_oss"


def test_formats(client: httpx.Client) -> None:
    for seed in range(3):
        message = answered(client, response_format=FORMAT, seed=seed, max_tokens=100, logit_bias=ANSWERS)
        assert message["finish_reason"] == "stop"
        assert json.loads(message["content"]) in UNITS
