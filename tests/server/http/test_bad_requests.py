"""Bad input of every kind: the right status, OpenAI's error body, `param` by its path. Never a 5xx."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.schemas import extras
from tests.server.fakes import AS_JSON, House, error_of

USER = {"role": "user", "content": "Hi"}
DEEP = "[" * 5000 + "]" * 5000

CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages.0"),
    ({"messages": [{}]}, "messages.0.role"),
    ({"messages": [USER, {"role": "wizard", "content": "x"}]}, "messages.1.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0.type"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}
            ]
        },
        "messages.0.content.0.type",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}]},
        "messages.0.tool_calls.0.function.arguments",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.function"),
    ({"messages": [USER] * 5000}, "messages"),
    ({"model": 5}, "model"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"max_tokens": "10"}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"priority": 2**63}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"priority": True}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop.0"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": [5]}, "stop.0"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
    ({"stop_token_ids": [320]}, "stop_token_ids"),
    ({"stop_token_ids": [0] * 1000}, "stop_token_ids"),
    ({"logprobs": 5}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": 5}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools.1.function.name"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"prompt": "x"}, "prompt"),
    ({"echo": True}, "echo"),
    ({"best_of": 2}, "best_of"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temprature": 0.5}, "temprature"),
    ({"max_token": 5}, "max_token"),
]

COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt.0"),
    ({"prompt": [""], "add_special_tokens": False}, "prompt.0"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt.1"),
    ({"prompt": [-1]}, "prompt.0"),
    ({"prompt": [320]}, "prompt"),
    ({"prompt": [[1], [2**40]]}, "prompt.1.0"),
    ({"prompt": ["a"] * 2000}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 100}, "n"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 129}, "best_of"),
    ({"best_of": 0}, "best_of"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt": ["a"] * 100, "best_of": 100}, "best_of"),
    ({"logprobs": -1}, "logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": True}, "prompt_logprobs"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
    ({"max_tokens": 0, "echo": True, "best_of": 2}, "best_of"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -1, "max_tokens": 512}, "max_tokens"),
    ({"truncate_prompt_tokens": 5, "suffix": "x"}, "truncate_prompt_tokens"),
    ({"echo": True, "logprobs": 1, "suffix": "x"}, "logprobs"),
    ({"prompt": [[65] * 500] * 60, "n": 16, "echo": True, "logprobs": 1}, "logprobs"),
    ({"prompt": [[65] * 500] * 60, "prompt_logprobs": 20}, "prompt_logprobs"),
    ({"messages": []}, "messages"),
    ({"tools": [1]}, "tools"),
]

UNSUPPORTED: dict[str, Any] = {
    "use_beam_search": True,
    "prompt_embeds": "x", "kv_transfer_params": {}, "lora_path": "x", "grammar": "root ::= x", "repeat_penalty": 1.2,
    "presence_penalty_": None, "stop_sequences": ["a"], "max_new_tokens": 5, "max_length": 20, "min_length": 3,
    "stop_words": ["x"], "eos_token_id": 2, "suppress_tokens": [1], "max_tokens_to_sample": 5, "min_keep": 5,
    "do_sample": False, "num_beams": 4, "num_return_sequences": 2, "detokenize": False, "extra_body": {"top_k": 3},
}  # fmt: skip
CHAT_ONLY: dict[str, Any] = {
    "functions": [{"name": "f"}], "function_call": "auto", "modalities": ["audio"], "audio": {}, "documents": [{}],
    "chat_template": "{{ 1 }}", "web_search_options": {},
    "suffix": "x", "echo": True,
}  # fmt: skip


def check(response: Any, param: str) -> None:
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert "pydantic" not in error["message"].lower()
    assert len(error["message"]) < 600


@pytest.mark.parametrize(("body", "param"), CHAT, ids=lambda value: str(value)[:60])
async def test_chat(house: House, body: dict[str, Any], param: str) -> None:
    check(await house.chat(**body), param)
    assert not house.engine.requests


@pytest.mark.parametrize(("body", "param"), COMPLETIONS, ids=lambda value: str(value)[:60])
async def test_completions(house: House, body: dict[str, Any], param: str) -> None:
    check(await house.complete(**body), param)
    assert not house.engine.requests


async def test_what_would_change_the_result_is_refused_by_name(house: House) -> None:
    for name, value in UNSUPPORTED.items():
        if value is not None:
            check(await house.chat(**{name: value}), name)
            check(await house.complete(**{name: value}), name)
    for name, value in CHAT_ONLY.items():
        check(await house.chat(**{name: value}), name)
    assert not house.engine.requests


async def test_hints_at_the_name_that_works(house: House) -> None:
    hints = {"max_new_tokens": "max_tokens", "stop_sequences": "stop", "min_length": "min_tokens"}
    hints |= {"min_new_tokens": "min_tokens", "stop_words": "stop", "n_cmpl": "n"}
    hints |= dict.fromkeys(("guided_json_object", "json_schema", "regex", "ebnf"), "structured_outputs")
    for name, hint in hints.items():
        assert f"use '{hint}'" in error_of(await house.chat(**{name: 7}))["message"]


async def test_neutral_values_of_the_same_are_accepted(house: House) -> None:
    neutral = {name: values[0] for name, values in extras.UNSUPPORTED.items() if values}
    assert (await house.chat(**neutral)).status_code == 200
    assert (await house.complete(**neutral)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b"{'model': 1}", b'{"a": NaN}', b'{"temperature": NaN}',
        b'{"temperature": Infinity}', b'{"messages": "\\ud800"}', DEEP.encode(), b'{"a":' + DEEP.encode() + b"}",
        b'{"n": ' + b"9" * 5000 + b"}", b'{"temperature": 1e999}', b"\x00", b'{"a": 1}{"b": 2}',
    ],
    ids=lambda body: body[:24].decode("latin-1"),
)  # fmt: skip
@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/tokenize", "/detokenize"],
)
async def test_what_is_no_request_at_all(house: House, path: str, body: bytes) -> None:
    async with house.client() as client:
        response = await client.post(path, content=body, headers=AS_JSON)
    assert response.status_code == 400, response.text
    assert error_of(response)["type"] == "invalid_request_error"


async def test_half_a_surrogate_pair_in_a_tool(house: House) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"\\ud800"}}]}'
    async with house.client() as client:
        assert (await client.post("/v1/chat/completions", content=body, headers=AS_JSON)).status_code == 400


async def test_unknown_routes_and_methods(house: House) -> None:
    for path in (
        "/v1",
        "/v1/classify",
        "/v1/models/x",
        "/docs/x",
        "/console/x.js",
        "/health/",
        "/metrics/",
    ):
        response = await house.get(path)
        assert response.status_code == 404, path
        error_of(response)
    async with house.client() as client:
        response = await client.delete("/v1/chat/completions")
    assert response.status_code == 405
    assert error_of(response)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


async def test_bodies_over_the_limit() -> None:
    house = House(options={"max_body_bytes": 1000})
    body = b'{"prompt": "' + b"x" * 1000 + b'"}'

    async def pieces() -> Any:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    async with house.client() as client:
        for content in (body, pieces()):  # with a declared length, and without
            response = await client.post("/v1/completions", content=content, headers=AS_JSON)
            assert response.status_code == 413
            assert error_of(response)["code"] == "request_too_large"
    assert (await house.complete(prompt="x" * 500)).status_code == 200


async def test_headers_over_the_limit(house: House) -> None:
    response = await house.get("/v1/models", headers={"x-big": "x" * 70_000})
    assert response.status_code == 431
    error_of(response)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "model messages prompt n temperature top_p top_k seed stop stop_token_ids max_tokens stream stream_options logprobs "
    "top_logprobs tools tool_choice echo suffix response_format logit_bias chat_template_kwargs best_of user "
    "add_special_tokens return_token_ids tokens reasoning_effort max_completion_tokens add_generation_prompt "
    "priority cache_salt prompt_logprobs truncate_prompt_tokens truncation_side return_tokens_as_token_ids input dimensions "
    "pooling encoding_format"
).split()
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"])},
    optional={
        "content": JSON | st.text(),
        "tool_calls": JSON,
        "name": JSON,
        "tool_call_id": JSON,
        "type": JSON,
    },
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5) | st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=3)},
    optional=dict.fromkeys(("n", "stream", "tools", "stop"), JSON),
)
PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize",
]  # fmt: skip


@pytest.mark.long
@settings(max_examples=400)
@given(body=BODIES, path=st.sampled_from(PATHS))
async def test_fuzz_never_fails_inside(body: dict[str, Any], path: str) -> None:
    house = FUZZED
    response = await house.post(path, body)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = error_of(response)
        assert error["code"], error
        if error["param"] is not None and error["code"] != "missing_required_parameter":
            assert error["param"].partition(".")[0] in body, (error, body)
    assert not house.engine.open


FUZZED = House()
