"""Sampling settings over HTTP: names are vLLM's, values are checked, and what is meant reaches the engine."""

import json
import time
from typing import Any

import pytest

from engine.errors import InvalidRequest
from server.model_defaults.sampling import SamplingDefaults
from server.schemas.base import parse
from server.schemas.completions import CompletionRequest
from tests.server.fakes import House

ALL: dict[str, Any] = {
    "min_p": 0.1, "typical_p": 0.9, "repetition_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 2,
    "logit_bias": {"5": -100, "17": 2.5}, "bad_words": ["ab", " ab", "c"], "allowed_token_ids": [1, 2, 319], "min_tokens": 3,
}  # fmt: skip


async def ask(house: House, endpoint: str, **fields: Any) -> Any:
    return await (house.chat if endpoint == "chat" else house.complete)(**fields)


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_all_of_them_reach_the_engine(endpoint: str) -> None:
    house = House()
    assert (await ask(house, endpoint, **ALL)).status_code == 200
    asked = house.asked().sampling
    assert (asked.min_p, asked.typical_p, asked.repetition_penalty) == (0.1, 0.9, 1.1)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.min_tokens) == (-0.5, 2.0, 3)
    assert asked.logit_bias == ((5, -100.0), (17, 2.5))
    assert asked.allowed_token_ids == (1, 2, 319)
    # With and without a space before it, each once.
    assert asked.bad_words == ((97, 98), (32, 97, 98), (99,), (32, 99))
    house.state.threads.close()


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("min_p", -0.1, "min_p"), ("min_p", 1.1, "min_p"), ("min_p", "0", "min_p"), ("typical_p", 2, "typical_p"),
        ("repetition_penalty", 1e-38, "repetition_penalty"), ("repetition_penalty", 0.009, "repetition_penalty"),
        ("repetition_penalty", 0, "repetition_penalty"), ("repetition_penalty", 1e9, "repetition_penalty"),
        ("presence_penalty", 2.1, "presence_penalty"), ("frequency_penalty", -3, "frequency_penalty"),
        ("logit_bias", [1], "logit_bias"), ("logit_bias", {"x": 1}, "logit_bias"), ("logit_bias", {"-1": 1}, "logit_bias"),
        ("logit_bias", {"5": 101}, "logit_bias"), ("logit_bias", {"320": 1}, "logit_bias"),
        ("logit_bias", {"7": 1, "07": 2}, "logit_bias"),
        ("logit_bias", {str(i): 1 for i in range(2000)}, "logit_bias"), ("bad_words", "x", "bad_words"),
        ("bad_words", [""], "bad_words.0"), ("bad_words", ["x"] * 200, "bad_words"), ("bad_words", ["a", 1], "bad_words.1"),
        ("allowed_token_ids", [], "allowed_token_ids"), ("allowed_token_ids", [320], "allowed_token_ids"),
        ("allowed_token_ids", [-1], "allowed_token_ids.0"), ("min_tokens", -1, "min_tokens"), ("min_tokens", 1.5, "min_tokens"),
        ("min_tokens", 300, "min_tokens"),
    ],
)  # fmt: skip
async def test_refused_by_name(endpoint: str, field: str, value: Any, param: str) -> None:
    house = House()
    response = await ask(house, endpoint, **{field: value, "max_tokens": 200})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error"), error
    assert len(error["message"]) < 600 and not house.engine.requests
    house.state.threads.close()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("logit_bias", {str(i): 1 for i in range(2000)}, "it should have at most 1024 entries"),
        ("logit_bias", {"-1": 1}, "its keys should be token ids, which '-1' is not"),
        ("stop", "", "it should not be empty"), ("stop", [""], "it should not be empty"),
        ("stop", ["x"] * 17, "it should have at most 16 entries"),
        ("stop", "x" * 2000, "it should have at most 1024 characters"),
        ("stop", 5, "it should be a valid string or it should be a valid array"),
        ("allowed_token_ids", [], "it should not be empty"),
    ],
)  # fmt: skip
async def test_refusals_speak_plainly(field: str, value: Any, says: str) -> None:
    house = House()
    message = (await house.chat(**{field: value})).json()["error"]["message"]
    assert message.startswith(f"Invalid value for '{field}") and message.endswith(f": {says}."), message
    house.state.threads.close()


@pytest.mark.parametrize("count", [1000, 100_000])
async def test_many_wrong_entries_make_a_short_answer(count: int) -> None:
    """Each is two errors to the validator, which held up everybody for a second and sent megabytes back."""
    house = House()
    body = {"logit_bias": {f"x{i}": "" for i in range(count)}}
    encoded = json.dumps(body).encode()
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        parse(CompletionRequest, encoded)
    assert time.process_time() - began < 0.3
    response = await house.complete(**body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "logit_bias" and len(error["message"]) < 600
    house.state.threads.close()


async def test_integral_floats_are_integers() -> None:
    house = House()
    fields = {"top_k": 3.0, "n": 2.0, "seed": 1.0, "max_tokens": 8.0, "min_tokens": 2.0}
    assert (await house.chat(**fields, logprobs=True, top_logprobs=2.0)).status_code == 200
    assert (await house.complete(**fields, logprobs=2.0)).status_code == 200
    for asked in house.engine.requests:
        assert (asked.n, asked.seed, asked.max_tokens) == (2, 1, 8)
        sampling = asked.sampling
        assert (sampling.top_k, sampling.min_tokens, sampling.logprobs) == (3, 2, 2)
        assert type(sampling.top_k) is int
    for value in (1.5, 1e300, True, "1"):
        assert (await house.chat(seed=value)).status_code == 400, value
    house.state.threads.close()


async def test_do_sample_passes_where_it_agrees_with_the_temperature() -> None:
    house = House(defaults=SamplingDefaults(temperature=0.0))
    for fields in ({"do_sample": False}, {"do_sample": True, "temperature": 0.5}, {"do_sample": None}):
        assert (await house.chat(**fields)).status_code == 200, fields
    for fields in ({"do_sample": True}, {"do_sample": False, "temperature": 1}, {"do_sample": "yes"}):
        response = await house.chat(**fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "do_sample"), fields
    house.state.threads.close()


async def test_neutral_values_and_null_are_the_defaults() -> None:
    house = House()
    neutral = {
        "typical_p": 0,
        "min_p": 0,
        "bad_words": [],
        "logit_bias": {},
        "min_tokens": 0,
        "presence_penalty": 0,
    }
    for fields in ({}, neutral, dict.fromkeys(ALL)):
        assert (await house.chat(**fields)).status_code == 200
    plain, *others = house.engine.requests
    for other in others:
        assert other.sampling == plain.sampling
    house.state.threads.close()


async def test_defaults_of_the_model_and_requests_above_them() -> None:
    file = {"repetition_penalty": 1.05, "min_p": 0.02, "typical_p": 0.95}
    house = House(defaults=SamplingDefaults.of(file))
    await house.chat()
    await house.complete(repetition_penalty=1, min_p=0, typical_p=1)
    first, second = (request.sampling for request in house.engine.requests)
    assert (first.repetition_penalty, first.min_p, first.typical_p) == (1.05, 0.02, 0.95)
    assert (second.repetition_penalty, second.min_p, second.typical_p) == (1.0, 0.0, 1.0)
    house.state.threads.close()
