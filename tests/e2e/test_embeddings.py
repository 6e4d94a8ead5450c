"""Embeddings on a real model in fp32: transformers' hidden states, whatever else the server does meanwhile."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from tests.e2e.reference import BOS, Reference
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

Vectors = NDArray[np.float32]


def input_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


def expected(reference: Reference, ids: list[int], pooling: str) -> Vectors:
    """float32 [hidden] of length 1."""
    states = reference.hidden(ids).astype(np.float64)
    vector = states[-1] if pooling == "last" else states.mean(axis=0)
    found: Vectors = (vector / np.linalg.norm(vector)).astype(np.float32)
    return found


def embed(server: ServerProcess, inputs: Any, **body: Any) -> Vectors:
    """float32 [inputs, dimensions]."""
    response = server.post("/v1/embeddings", {"model": "reference", "input": inputs, **body})
    assert response.status_code == 200, response.text
    return vectors_of(response.json())


def vectors_of(answer: dict[str, Any]) -> Vectors:
    assert [one["index"] for one in answer["data"]] == list(range(len(answer["data"])))
    found: Vectors = np.array([one["embedding"] for one in answer["data"]], np.float32)
    return found


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_are_those_of_transformers(
    reference: Reference, reference_server: ServerProcess, pooling: str
) -> None:
    """Steps have 64 tokens, so most of these come in chunks; the last one fills the whole context."""
    inputs = [input_of(length, length) for length in (1, 2, 17, 63, 64, 65, 200, 512)]
    for _ in range(2):  # the second time, some is found in the prefix cache
        found = embed(reference_server, inputs, pooling=pooling)
        for ids, vector in zip(inputs, found, strict=True):
            assert float(vector @ expected(reference, ids, pooling)) > 0.9999
            np.testing.assert_allclose(vector, expected(reference, ids, pooling), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6)


def test_text_is_tokenized_with_what_the_tokenizer_adds(
    reference: Reference, reference_server: ServerProcess
) -> None:
    ids = reference_server.post("/tokenize", {"prompt": "Hello there"}).json()["tokens"]
    assert ids[0] == BOS
    [vector], [same] = embed(reference_server, "Hello there"), embed(reference_server, ids)
    np.testing.assert_allclose(vector, expected(reference, ids, "last"), atol=1e-4)
    np.testing.assert_allclose(vector, same, atol=1e-5)
    [bare] = embed(reference_server, ["Hello there"], add_special_tokens=False)
    np.testing.assert_allclose(bare, expected(reference, ids[1:], "last"), atol=1e-4)


def test_dimensions_and_raw_vectors(reference: Reference, reference_server: ServerProcess) -> None:
    ids = input_of(30, 1)
    raw = reference.hidden(ids)[-1]
    [vector] = embed(reference_server, ids, dimensions=16)
    np.testing.assert_allclose(vector, raw[:16] / np.linalg.norm(raw[:16]), atol=1e-4)
    [vector] = embed(reference_server, ids, use_activation=False)
    np.testing.assert_allclose(vector, raw, atol=1e-3)
    response = reference_server.post("/v1/embeddings", {"input": ids, "dimensions": 65})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")


async def test_many_inputs_beside_streams(reference: Reference, reference_server: ServerProcess) -> None:
    inputs = [input_of(5 + number % 90, number) for number in range(300)]
    alone = embed(reference_server, inputs[:20], pooling="mean")
    async with httpx.AsyncClient(base_url=reference_server.url, timeout=100) as client:
        stream = {"prompt": [3, 4, 5], "max_tokens": 150, "temperature": 0, "ignore_eos": True}
        quiet = (await client.post("/v1/completions", json=stream)).json()["choices"][0]["text"]
        asked = {"input": inputs, "pooling": "mean"}
        answers = await asyncio.gather(
            client.post("/v1/embeddings", json=asked),
            *(client.post("/v1/completions", json=stream) for _ in range(3)),
        )
    assert [one.status_code for one in answers] == [200] * 4
    found = vectors_of(answers[0].json())
    np.testing.assert_allclose(found[:20], alone, atol=1e-5)
    for number in range(0, 300, 7):
        np.testing.assert_allclose(
            found[number], expected(reference, inputs[number], "mean"), atol=1e-4, err_msg=str(number)
        )
    assert [one.json()["choices"][0]["text"] for one in answers[1:]] == [quiet] * 3


async def test_who_goes_away_is_forgotten(reference_server: ServerProcess) -> None:
    inputs = [input_of(500, number) for number in range(400)]
    async with httpx.AsyncClient(base_url=reference_server.url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/embeddings", json={"input": inputs}, timeout=0.3)
    deadline = time.monotonic() + 10
    while reference_server.metric("cohort_requests_running") + reference_server.metric(
        "cohort_requests_waiting"
    ):
        assert time.monotonic() < deadline, "what nobody waits for is still computed"
        await asyncio.sleep(0.05)
    assert reference_server.metric("cohort_kv_cache_usage_ratio") == 0.0


def test_refusals(reference_server: ServerProcess) -> None:
    for body, code in (
        ({"input": input_of(513, 1)}, "context_length_exceeded"),
        ({"input": "x" * 600}, "context_length_exceeded"),
        ({"input": [300]}, "invalid_value"),
        ({"input": ""}, "invalid_value"),
    ):
        response = reference_server.post("/v1/embeddings", body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == ("input", code)
    assert embed(reference_server, "x" * 600, truncate_prompt_tokens=-1).shape == (1, 64)


def test_the_sdk_with_its_own_default_and_with_floats(
    reference: Reference, reference_server: ServerProcess
) -> None:
    ids = [input_of(9, 1), input_of(12, 2)]
    with openai.OpenAI(base_url=f"{reference_server.url}/v1", api_key="none", max_retries=0) as client:
        default = client.embeddings.create(model="reference", input=ids)  # asks for base64, and decodes it
        floats = client.embeddings.create(model="reference", input=ids, encoding_format="float")
        text: Any = client.embeddings.create(model="reference", input="Hi", encoding_format="base64")
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="reference", input=[])
    for number, one in enumerate(default.data):
        assert one.index == number
        np.testing.assert_allclose(one.embedding, expected(reference, ids[number], "last"), atol=1e-4)
        np.testing.assert_allclose(one.embedding, floats.data[number].embedding, atol=1e-6)
    assert (default.usage.prompt_tokens, default.usage.total_tokens) == (21, 21)
    assert len(base64.b64decode(text.data[0].embedding)) == 64 * 4
    assert refused.value.param == "input"


def test_executors_without_a_model_embed_too(echo_server: ServerProcess) -> None:
    response = echo_server.post("/v1/embeddings", {"model": "echo", "input": ["Hi", "Hi", "Ho"]})
    first, second, third = vectors_of(response.json())
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, third)
