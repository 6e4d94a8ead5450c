"""POST /v1/chat/completions, not streamed: what reaches the engine, and what the client gets."""

from typing import Any

import pytest

from engine.text.generation import TextDelta, TokenText
from executors.contract import SampledToken
from server.model_defaults.sampling import SamplingDefaults
from tests.server.fakes import House, error_of, says, steps


async def test_answer_has_openais_shape(house: House) -> None:
    response = await house.chat()
    assert response.status_code == 200
    answer = response.json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "chat.completion",
        "model": "fake",
        "system_fingerprint": "fp_fake",
        "seed": 7,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len("<s>[user:Hi][assistant:"),
            "completion_tokens": 4,
            "total_tokens": len("<s>[user:Hi][assistant:") + 4,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert response.headers["x-request-id"].startswith("req_")


def prompt_of(house: House) -> str:
    return bytes(house.asked().prompts[0]).decode()


async def test_messages_reach_the_template(house: House) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "type": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "<b>"}'}}
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]  # fmt: skip
    assert (await house.chat(messages=messages)).status_code == 200
    expected = '<s>[system:be brief][user:one\ntwo][assistant:(f={"a": "<b>"})][tool:42][assistant:'
    assert prompt_of(house) == expected


async def test_generation_prompt_and_special_tokens_can_be_chosen(house: House) -> None:
    await house.chat(add_generation_prompt=False, add_special_tokens=True)
    assert house.asked().prompts[0] == (256, *b"<s>[user:Hi]")


async def test_the_last_message_goes_on(house: House) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    await house.chat(messages=messages, continue_final_message=True)
    assert prompt_of(house) == "<s>[user:Hi][assistant:Well"
    assert house.asked().continues_prompt
    response = await house.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert response.status_code == 400
    assert error_of(response)["param"] == "continue_final_message"
    assert len(house.engine.requests) == 1


async def test_an_answer_of_its_own_does_not_continue_the_prompt(house: House) -> None:
    await house.chat()
    assert not house.asked().continues_prompt


async def test_model_defaults_fill_what_is_left_out() -> None:
    house = House(defaults=SamplingDefaults.of({"temperature": 0.2, "top_k": 20, "top_p": None, "x": 1}))
    await house.chat(temperature=None)
    asked = house.asked()
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.sampling.top_p) == (0.2, 20, 1.0)
    assert asked.max_tokens is None


async def test_parameters_reach_the_engine(house: House) -> None:
    await house.chat(
        temperature=0, top_p=0.5, top_k=-1, seed=-2, n=2, stop=["a", "b"], stop_token_ids=[5], max_tokens=9,
        max_completion_tokens=8, ignore_eos=True, include_stop_str_in_output=True, skip_special_tokens=False,
        priority=-3, cache_salt="tenant",
    )  # fmt: skip
    asked = house.asked()
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (0.0, 0.5, 0)
    assert (asked.seed, asked.context.priority, asked.context.cache_salt) == (-2, -3, "tenant")
    assert asked.n == 2
    assert asked.stop == ("a", "b")
    assert asked.stop_token_ids == (5,)
    assert asked.max_tokens == 8
    assert asked.ignore_eos and asked.include_stop_str_in_output and not asked.skip_special_tokens


async def test_null_means_left_out(house: House) -> None:
    names = (
        "temperature top_p top_k n seed stop max_tokens max_completion_tokens stream stream_options logprobs "
        "top_logprobs tools tool_choice user response_format presence_penalty logit_bias metadata priority cache_salt"
    )
    response = await house.chat(**dict.fromkeys(names.split()))
    assert response.status_code == 200


async def test_harmless_parameters_are_ignored(house: House) -> None:
    harmless: dict[str, Any] = {
        "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "safety_identifier": "s", "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "x"}, "presence_penalty": 0, "frequency_penalty": 0.0,
        "repetition_penalty": 1.0, "logit_bias": {}, "response_format": {"type": "text"}, "min_p": 0,
        "some_vendor_field": {"x": 1},
    }  # fmt: skip
    assert (await house.chat(**harmless)).status_code == 200


async def test_stop_and_length_are_told_apart(house: House) -> None:
    house.engine.script = says("x", finish="length")
    assert (await house.chat()).json()["choices"][0]["finish_reason"] == "length"
    house.engine.script = says("x", stop_reason="END")
    choice = (await house.chat(stop="END")).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


async def test_several_choices(house: House) -> None:
    choices = (await house.chat(n=3)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in choices} == {"Hello!"}


def token(text: str, logprob: float | None, offset: int = 0) -> TokenText:
    sampled = SampledToken(1, logprob, ((1, -0.5), (2, -2)))
    return TokenText(sampled, text, text.encode(), offset, ((text, text.encode(), -0.5), ("b", b"b", -2)))


async def test_logprobs(house: House) -> None:
    tokens = (token("é", -0.5), token("z", float("-inf"), 1))
    house.engine.script = steps(TextDelta(0, "éz", (1, 2), tokens, "stop"))
    answer = (await house.chat(logprobs=True, top_logprobs=2)).json()
    assert house.asked().sampling.logprobs == 2
    first, second = answer["choices"][0]["logprobs"]["content"]
    assert first == {
        "token": "é",
        "logprob": -0.5,
        "bytes": [0xC3, 0xA9],
        "top_logprobs": [
            {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
            {"token": "b", "logprob": -2, "bytes": [98]},
        ],
    }
    assert second["logprob"] == -9999.0


async def test_token_ids_on_request(house: House) -> None:
    answer = (await house.chat(return_token_ids=True)).json()
    assert answer["choices"][0]["token_ids"] == [0, 1, 2, 3]
    assert bytes(answer["prompt_token_ids"]).decode() == "<s>[user:Hi][assistant:"


async def test_models_are_found_by_every_name(house: House) -> None:
    assert (await house.chat(model="org/fake-1")).json()["model"] == "org/fake-1"
    assert (await house.chat(model=None)).json()["model"] == "fake"
    response = await house.chat(model="gpt-5")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"
    assert error_of(response)["param"] == "model"


async def test_without_a_template_chat_says_so() -> None:
    house = House(template=None)
    response = await house.chat()
    assert response.status_code == 400
    assert error_of(response)["code"] == "no_chat_template"
    assert "/v1/completions" in error_of(response)["message"]


async def test_the_templates_own_refusal_reaches_the_client() -> None:
    house = House(template="{{ raise_exception('roles must alternate') }}")
    response = await house.chat()
    assert response.status_code == 400
    assert "roles must alternate" in error_of(response)["message"]


HI = [{"role": "user", "content": "Hi"}]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


@pytest.mark.parametrize(
    ("name", "values"), [("reasoning_effort", EFFORTS), ("verbosity", ("low", "medium", "high"))]
)
async def test_what_openai_asks_of_reasoning_models(house: House, name: str, values: tuple[str, ...]) -> None:
    """It reaches templates that read it; of others, the header says that it has no effect. Other words are refused."""
    for value in values:
        response = await house.chat(**{name: value})
        assert (response.status_code, response.headers["x-cohort-ignored"]) == (200, name)
        reading = House(template="{% set x = " + name + " | default('-') %}{{ x }}")
        response = await reading.chat(**{name: value})
        assert prompt_of(reading) == value and "x-cohort-ignored" not in response.headers
        ids = (await reading.post("/tokenize", {"messages": HI, name: value})).json()["tokens"]
        assert bytes(ids).decode() == value
    for path, body in (
        ("/tokenize", {"messages": HI}),
        ("/tokenize", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        response = await house.post(path, {**body, name: values[0]})
        assert (response.status_code, response.headers["x-cohort-ignored"]) == (200, name)
    for wrong in ("bananas", "", "HIGH", 3, ["low"]):
        assert error_of(await house.chat(**{name: wrong}))["param"] == name
        assert error_of(await reading.chat(**{name: wrong}))["param"] == name
    assert (await house.chat(**{name: None})).status_code == 200


async def test_variables_for_the_template_by_both_ways() -> None:
    house = House(template="{{ reasoning_effort }}{{ enable_thinking }}")
    kwargs = {"enable_thinking": False, "odd": 1, "reasoning_effort": "made up"}
    response = await house.chat(reasoning_effort="low", verbosity="low", chat_template_kwargs=kwargs)
    assert prompt_of(house) == "lowFalse"
    assert response.headers["x-cohort-ignored"] == "verbosity, chat_template_kwargs.odd"
    house = House(template="{{ reasoning_effort }}")
    await house.chat(chat_template_kwargs={"reasoning_effort": "made up"})
    assert prompt_of(house) == "made up"


@pytest.mark.parametrize("name", ["enable_thinking", "thinking", "think", "reasoning"])
async def test_a_switch_of_thinking_by_another_name_is_not_dropped(house: House, name: str) -> None:
    error = error_of(await house.chat(**{name: True}))
    assert error["param"] == name and "chat_template_kwargs" in error["message"]


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template"])
async def test_template_variables_of_the_server_cannot_be_overridden(house: House, name: str) -> None:
    response = await house.chat(chat_template_kwargs={name: "x"})
    assert response.status_code == 400
    assert error_of(response)["param"] == f"chat_template_kwargs.{name}"


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "x-extra": 1}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1.50}}\n</tool_call>'


async def test_tools_go_through_the_template_and_calls_come_back(house: House) -> None:
    house.engine.script = says("Let me see.\n", CALL[:7], CALL[7:30], CALL[30:])
    choice = (await house.chat(tools=TOOLS, tool_choice="auto")).json()["choices"][0]
    assert '[tools:[{"type": "function", "function": {"name": "f"' in prompt_of(house)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    [call] = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "f", "arguments": '{"a": 1.50}'}


async def test_a_call_alone_has_no_content(house: House) -> None:
    house.engine.script = says(CALL, "\n" + CALL)
    message = (await house.chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 2


async def test_tool_choice_none_hides_the_tools(house: House) -> None:
    house.engine.script = says(CALL)
    choice = (await house.chat(tools=TOOLS, tool_choice="none")).json()["choices"][0]
    assert "tools:" not in prompt_of(house)
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


async def test_a_cut_off_call_ends_by_length(house: House) -> None:
    house.engine.script = says(CALL[:20], finish="length")
    choice = (await house.chat(tools=TOOLS)).json()["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "length"
