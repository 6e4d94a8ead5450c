"""Completions in every corner on a real model in fp32: its numbers are those of transformers."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.reference import BOS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, IM_END, Reference
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

LM_EVAL = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


def complete(server: ServerProcess, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/completions", {"model": "reference", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(server: ServerProcess, **body: Any) -> dict[int, dict[str, Any]]:
    """Text, arrays of logprobs and finish reason of each choice, put together from a stream."""
    choices: dict[int, dict[str, Any]] = {}
    body = {"model": "reference", "stream": True, **body}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            for piece in json.loads(line.removeprefix("data: "))["choices"]:
                whole = choices.setdefault(
                    piece["index"], {"text": "", "logprobs": {}, "finish_reason": None}
                )
                whole["text"] += piece["text"]
                whole["finish_reason"] = piece["finish_reason"] or whole["finish_reason"]
                for name, values in (piece["logprobs"] or {}).items():
                    whole["logprobs"].setdefault(name, []).extend(values)
    return choices


def check(reference: Reference, ids: list[int], found: dict[str, Any]) -> int:
    """What lm-eval reads of a choice's `logprobs`, against transformers; returns the id of the generated token."""
    expected = reference.logprobs(ids)
    logprobs, tops = found["token_logprobs"], found["top_logprobs"]
    assert len(found["tokens"]) == len(logprobs) == len(tops) == len(found["text_offset"]) == len(ids) + 1
    assert logprobs[0] is tops[0] is None
    own = expected[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(logprobs[1:-1], own, atol=1e-3)
    best = expected.max(-1)
    np.testing.assert_allclose([max(top.values()) for top in tops[1:]], best, atol=1e-3)
    for place, (logprob, top) in enumerate(zip(logprobs[1:], tops[1:], strict=True), 1):
        following = ids[place] if place < len(ids) else int(expected[-1].argmax())
        is_greedy = int(expected[place - 1].argmax()) == following
        # How lm-eval tells a greedy token: the very same number in both.
        assert (logprob == max(top.values())) == is_greedy
    return int(expected[-1].argmax())


def test_loglikelihoods_are_those_of_transformers(
    reference: Reference, reference_server: ServerProcess
) -> None:
    prompts = [prompt_of(length, length) for length in (1, 2, 5, 63, 64, 65, 130, 300, 511)]
    for _ in range(2):  # the second time, all of it could be found in the prefix cache
        answer = complete(reference_server, prompt=prompts, **LM_EVAL)
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(prompts)))
        assert answer["usage"]["completion_tokens"] == len(prompts)
        for ids, choice in zip(prompts, answer["choices"], strict=True):
            check(reference, ids, choice["logprobs"])
            assert choice["finish_reason"] == "length"


def test_a_warm_prefix_cache_takes_nothing_away(
    reference: Reference, reference_server: ServerProcess
) -> None:
    ids = prompt_of(200, 7)
    for _ in range(2):
        cached = complete(reference_server, prompt=ids, max_tokens=2, temperature=0)["usage"]
    assert cached["prompt_tokens_details"]["cached_tokens"] >= 192
    answer = complete(reference_server, prompt=[ids, [*ids, 65, 66]], **LM_EVAL)
    check(reference, ids, answer["choices"][0]["logprobs"])
    check(reference, [*ids, 65, 66], answer["choices"][1]["logprobs"])
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_many_prompts_at_once_beside_streams(
    reference: Reference, reference_server: ServerProcess
) -> None:
    url = f"{reference_server.url}/v1/completions"
    prompts = [prompt_of(20 + number, number) for number in range(24)]
    async with httpx.AsyncClient(timeout=60) as client:
        stream = {"model": "reference", "prompt": [1, 2], "max_tokens": 100, "ignore_eos": True}
        others = [client.post(url, json={**stream, "temperature": 0}) for _ in range(4)]
        asked = {"model": "reference", "prompt": prompts, **LM_EVAL}
        response, *rest = await asyncio.gather(client.post(url, json=asked), *others)
    assert [one.status_code for one in rest] == [200] * 4
    for ids, choice in zip(prompts, response.json()["choices"], strict=True):
        check(reference, ids, choice["logprobs"])


def test_an_end_token_is_still_a_token(reference: Reference, reference_server: ServerProcess) -> None:
    ids = prompt_of(10, 3)
    answer = complete(reference_server, prompt=[ids], **LM_EVAL, logit_bias={str(IM_END): 100})
    [choice] = answer["choices"]
    found = choice["logprobs"]
    assert found["tokens"][-1] == "<|im_end|>"
    assert len(found["token_logprobs"]) == len(ids) + 1
    assert found["token_logprobs"][-1] == pytest.approx(reference.logprobs(ids)[-1, IM_END], abs=1e-3)
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 1)
    assert (
        choice["text"]
        == complete(reference_server, prompt=ids, echo=True, max_tokens=0)["choices"][0]["text"]
    )


@pytest.mark.parametrize("prompt", ["Hello, w\u00f6rld!", prompt_of(90, 5)], ids=["text", "ids"])
@pytest.mark.parametrize("max_tokens", [0, 1, 20])
def test_streaming_says_the_same(reference_server: ServerProcess, prompt: Any, max_tokens: int) -> None:
    asked = {"prompt": [prompt, prompt], "max_tokens": max_tokens, "n": 2, "seed": 5, "temperature": 0.7}
    asked |= {"echo": True, "logprobs": 2}
    whole = complete(reference_server, **asked)
    stream = streamed(reference_server, **asked)
    for choice in whole["choices"]:
        piece = stream[choice["index"]]
        assert piece["text"] == choice["text"]
        assert piece["finish_reason"] == choice["finish_reason"]
        for name, values in choice["logprobs"].items():
            if name in ("tokens", "text_offset"):
                assert piece["logprobs"][name] == values
            else:
                assert len(piece["logprobs"][name]) == len(values)
        numbers = [value for value in choice["logprobs"]["token_logprobs"] if value is not None]
        again = [value for value in piece["logprobs"]["token_logprobs"] if value is not None]
        np.testing.assert_allclose(again, numbers, atol=1e-3)
    if max_tokens == 0:
        assert whole["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("seed", range(12))
def test_offsets_find_each_token_in_the_text(reference_server: ServerProcess, seed: int) -> None:
    """Also behind bytes that are no character."""
    asked = {
        "prompt": "plain text",
        "max_tokens": 12,
        "echo": True,
        "logprobs": 0,
        "seed": seed,
        "temperature": 1.0,
    }
    choice = complete(reference_server, **asked)["choices"][0]
    text, found = choice["text"], choice["logprobs"]
    assert text.startswith("plain text")
    assert found["tokens"][0] == "<s>"
    for token, offset in list(zip(found["tokens"], found["text_offset"], strict=True))[1:]:
        if token.isascii():
            assert text[offset : offset + len(token)] == token or token.startswith("<")


def test_prompt_logprobs_with_exact_ranks(reference: Reference, reference_server: ServerProcess) -> None:
    ids = prompt_of(100, 11)
    expected = reference.logprobs(ids)
    answer = complete(reference_server, prompt=ids, max_tokens=1, prompt_logprobs=3)
    first, *rest = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(rest) == 99
    for place, entries in enumerate(rest):
        row, own = expected[place], ids[place + 1]
        assert len(entries) in (3, 4)
        assert entries[str(own)]["logprob"] == pytest.approx(row[own], abs=1e-3)
        # Of logits closer than rounding, either may come first.
        low, high = 1 + int((row > row[own] + 1e-4).sum()), int((row >= row[own] - 1e-4).sum())
        assert low <= entries[str(own)]["rank"] <= high
        listed = [entry["logprob"] for entry in entries.values() if entry["rank"] <= 3]
        np.testing.assert_allclose(sorted(listed)[::-1], np.sort(row)[::-1][:3], atol=1e-3)
        assert sorted(entry["rank"] for entry in entries.values())[:3] == [1, 2, 3]


def test_the_best_of_several(reference_server: ServerProcess) -> None:
    asked = {"prompt": "Tell", "max_tokens": 8, "seed": 3, "temperature": 1.5, "ignore_eos": True}
    every = complete(reference_server, **asked, n=5, logprobs=0)
    best = complete(reference_server, **asked, n=2, best_of=5)
    means = [float(np.mean(choice["logprobs"]["token_logprobs"])) for choice in every["choices"]]
    order = sorted(range(5), key=lambda index: -means[index])
    assert [choice["text"] for choice in best["choices"]] == [
        every["choices"][index]["text"] for index in order[:2]
    ]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 40


def test_the_middle_between_prompt_and_suffix(reference: Reference, reference_server: ServerProcess) -> None:
    asked = {"prompt": "ab", "suffix": "yz", "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    [choice] = complete(reference_server, **asked)["choices"]
    ids = choice["prompt_token_ids"]
    assert [ids[0], ids[1], ids[4], ids[7]] == [BOS, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE]
    assert len(ids) == 8
    again = complete(reference_server, prompt=ids, max_tokens=5, temperature=0)["choices"][0]["text"]
    assert choice["text"] == again


def test_truncation(reference_server: ServerProcess) -> None:
    ids = prompt_of(800, 2)
    asked = {"prompt": ids, "temperature": 0, "return_token_ids": True}
    [choice] = complete(reference_server, **asked, max_tokens=4, truncate_prompt_tokens=-1)["choices"]
    assert choice["prompt_token_ids"] == ids[-508:]
    refused = reference_server.post("/v1/completions", {"model": "reference", **asked, "max_tokens": 4})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_the_sdk_reads_it(reference_server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{reference_server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(
            model="reference", prompt=[[1, 2, 3], [4, 5]], max_tokens=1, logprobs=2, echo=True, temperature=0
        )
    logprobs = answer.choices[1].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == 3
    assert logprobs.token_logprobs[0] is None


def test_what_a_remote_tokenizer_asks(reference_server: ServerProcess) -> None:
    """The calls of lm-eval's tokenizer_backend=remote, in order."""
    info = reference_server.get("/tokenizer_info").json()
    # The padding is that of the class that transformers registers for qwen3.
    assert (info["eos_token"], info["bos_token"], info["pad_token"]) == ("<|im_end|>", None, "<|endoftext|>")
    assert "{% for m in messages %}" in info["chat_template"]
    asked = {"prompt": info["eos_token"], "add_special_tokens": False}
    assert reference_server.post("/tokenize", asked).json()["tokens"] == [IM_END]
    tokens = reference_server.post("/tokenize", {**asked, "prompt": "Hi \u00e9"}).json()["tokens"]
    assert len(tokens) == 5
    assert reference_server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": "Hi \u00e9"}


def test_a_chat_tells_of_its_prompt(reference: Reference, reference_server: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "prompt_logprobs": 1}
    body |= {"return_token_ids": True, "truncate_prompt_tokens": 20}
    answer = reference_server.post("/v1/chat/completions", body).json()
    ids = answer["prompt_token_ids"]
    expected = reference.logprobs(ids)
    assert len(ids) == answer["usage"]["prompt_tokens"] == len(answer["prompt_logprobs"]) == 20
    for place, entries in enumerate(answer["prompt_logprobs"][1:], 1):
        own = entries[str(ids[place])]
        assert own["logprob"] == pytest.approx(expected[place - 1, ids[place]], abs=1e-3)
        best = min(entries.values(), key=lambda entry: entry["rank"])
        assert best["rank"] == 1
        assert best["logprob"] == pytest.approx(expected[place - 1].max(), abs=1e-3)
