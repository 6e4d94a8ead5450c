"""What a request says either has its effect, or is refused by name, or is listed in `x-cohort-ignored`."""

import time
from typing import Any
from urllib.parse import unquote

import pytest

from server.apis.tokens.schema import DetokenizeRequest, TokenizeRequest
from server.http.call import Call
from server.http.middleware import _ignored
from server.schemas import extras
from server.schemas.base import WireModel
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from tests.server.fakes import TEMPLATE, House, error_of, events

HEADER = "x-cohort-ignored"
USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# What the published types of the OpenAI SDK (3.52) and vLLM's protocol name. Each must be a field, or in a table.
OPENAI_CHAT = (
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages metadata "
    "modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options "
    "prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream "
    "stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options"
).split()
OPENAI_COMPLETIONS = (
    "best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop stream "
    "stream_options suffix temperature top_p user"
).split()
VLLM = (
    "use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output "
    "ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side "
    "prompt_logprobs logprob_token_ids allowed_token_ids bad_words add_special_tokens media_io_kwargs mm_processor_kwargs "
    "structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids "
    "routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params "
    "vllm_xargs repetition_detection thinking_token_budget stream_interval"
).split()
VLLM_CHAT = (
    "include_reasoning echo add_generation_prompt continue_final_message documents chat_template chat_template_kwargs "
    "return_prompt_text"
).split()


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (ChatRequest, [*OPENAI_CHAT, *VLLM, *VLLM_CHAT]),
        (CompletionRequest, [*OPENAI_COMPLETIONS, *VLLM, "prompt_embeds"]),
    ],
)
def test_every_parameter_of_the_models_to_follow_is_in_a_table(
    model: type[WireModel], names: list[str]
) -> None:
    for name in names:
        places = [name in model.model_fields, name in extras.HARMLESS, name in model.rules.unsupported]
        assert any(places), name


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest])
def test_no_parameter_is_two_things(model: type[WireModel]) -> None:
    fields, refused = set(model.model_fields), set(model.rules.refused)
    assert not fields & refused
    assert not extras.HARMLESS & set(extras.UNSUPPORTED)
    assert not extras.HARMLESS & refused


async def test_harmless_ones_are_listed(house: House) -> None:
    for model, ask in ((ChatRequest, house.chat), (CompletionRequest, house.complete)):
        harmless = extras.HARMLESS - set(model.model_fields)
        response = await ask(**dict.fromkeys(harmless, "x"))
        assert response.status_code == 200, response.text
        assert set(response.headers[HEADER].split(", ")) == harmless


async def test_nothing_is_listed_where_nothing_was_ignored(house: House) -> None:
    neutral = {name: values[0] for name, values in extras.UNSUPPORTED.items() if values}
    for body in ({}, {"temperature": 0.5, "seed": 1}, {"user": None, "vendor": None}, neutral):
        response = await house.chat(**body)
        assert response.status_code == 200, response.text
        assert HEADER not in response.headers


async def test_streams_list_them_too(house: House) -> None:
    response = await house.chat(stream=True, user="u", stream_options={"include_obfuscation": False})
    assert events(response)[-1] == "[DONE]"
    assert response.headers[HEADER] == "user, stream_options.include_obfuscation"
    response = await house.complete(stream=True, vendor_key=1)
    assert response.headers[HEADER] == "vendor_key"


async def test_keys_of_inner_objects_are_listed_by_their_path_once(house: House) -> None:
    message = {**USER, "type": "message", "annotations": [], "weight": None}
    parts = {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "x"}}]}
    call = {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [message, message, parts, {"role": "assistant", "tool_calls": [call]}]
    response = await house.chat(messages=messages)
    assert set(response.headers[HEADER].split(", ")) == {
        "messages[].type",
        "messages[].annotations",
        "messages[].content[].cache_control",
        "messages[].tool_calls[].index",
    }


async def test_what_reaches_the_template_is_not_ignored(house: House) -> None:
    tool = {**TOOL, "cache": 1, "function": {**TOOL["function"], "returns": "text"}}  # type: ignore[dict-item]
    response = await house.chat(tools=[tool])
    assert HEADER not in response.headers
    [request] = house.engine.requests
    assert "returns" in bytes(i for i in request.prompts[0] if i < 256).decode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge"),
        ({"messages": [USER, {**USER, "function_call": {"name": "f"}}]}, "messages.1.function_call"),
        ({"messages": [{"role": "assistant", "refusal": "No."}, USER]}, "messages.0.refusal"),
        ({"messages": [USER, {"role": "assistant", "content": "x", "prefix": True}]}, "messages.1.prefix"),
        ({"messages": [{**USER, "audio": {"id": "a"}}]}, "messages.0.audio"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"system": "Be kind."}, "system"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"stream": True, "stream_options": {f"key-{n}": 1 for n in range(65)}}, "stream_options"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_would_change_the_result_is_refused(
    house: House, body: dict[str, Any], param: str
) -> None:
    response = await house.chat(**body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


async def test_a_tokenizer_ignores_what_only_generation_reads(house: House) -> None:
    response = await house.post("/tokenize", {"prompt": "Hi", "top_a": 3, "user": "u", "vendor": [1]})
    assert response.headers[HEADER] == "top_a, user, vendor"
    response = await house.post("/tokenize", {"messages": [{**USER, "type": "x"}]})
    assert response.headers[HEADER] == "messages[].type"
    response = await house.post("/detokenize", {"tokens": [72], "echo": True})
    assert response.headers[HEADER] == "echo"
    assert (await house.post("/tokenize", {"prompt": "Hi", "documents": [1]})).status_code == 400


async def test_variables_that_the_template_does_not_read_are_listed() -> None:
    house = House(template=TEMPLATE + "{{ mood }}")
    variables = {"mood": "x", "enable_thinking": False}
    for response in (
        await house.chat(chat_template_kwargs=variables, user="u"),
        await house.post("/tokenize", {"messages": [USER], "chat_template_kwargs": variables, "user": "u"}),
    ):
        assert response.status_code == 200, response.text
        assert response.headers[HEADER] == "user, chat_template_kwargs.enable_thinking"


async def test_what_belongs_to_chats_says_nothing_to_a_tokenizer_of_text(house: House) -> None:
    body = {"prompt": "Hi", "tools": [TOOL], "add_generation_prompt": False, "continue_final_message": None}
    response = await house.post("/tokenize", body)
    assert response.headers[HEADER] == "tools, add_generation_prompt"


async def test_names_are_safe_in_a_header(house: House) -> None:
    names = ["a, b", "x\r\nset-cookie: y", "schlüssel", "日本", "", "100%", "a[]"]
    response = await house.chat(**dict.fromkeys(names, 1))
    assert response.status_code == 200
    value = response.headers[HEADER]
    assert value.isascii() and value.isprintable()
    assert [unquote(name) for name in value.split(", ")] == names
    assert "set-cookie" not in response.headers


async def test_the_header_has_an_end(house: House) -> None:
    long = {"x" * 3000: 1, "y" * 3000: 2}
    response = await house.chat(**long)
    assert response.status_code == 200
    assert response.headers[HEADER] == f"{'x' * 100}..., {'y' * 100}..."
    response = await house.chat(**dict.fromkeys((f"日{n}" * 50 for n in range(20)), 1))
    assert 1000 < len(response.headers[HEADER]) <= 2100
    assert response.headers[HEADER].endswith(", ...")
    many = [{**USER, f"k{n}": 1} for n in range(1000)]
    response = await house.chat(messages=many)
    *told, more = response.headers[HEADER].split(", ")
    assert (len(told), more) == (extras.MAX_TOLD, "...")
    just = [{**USER, f"k{n}": 1} for n in range(extras.MAX_TOLD)]
    assert "..." not in (await house.chat(messages=just)).headers[HEADER]


def test_a_name_of_megabytes_costs_no_time() -> None:
    began = time.process_time()
    [(_, value)] = _ignored(Call(ignored=["é" * 15_000_000]))
    assert time.process_time() - began < 0.05 and len(value) < 700


def test_the_header_is_absent_from_other_answers() -> None:
    assert _ignored(Call()) == []


async def test_an_error_after_parsing_tells_as_well(house: House) -> None:
    response = await house.chat(model="nobody", user="u")
    assert response.status_code == 404
    assert response.headers[HEADER] == "user"


async def test_a_large_body_is_screened_on_a_thread_as_well(house: House) -> None:
    parts = [{"type": "text", "text": "xx", "odd": 1}] * 1024
    messages = [{"role": "user", "content": parts}] * 20
    response = await house.chat(messages=messages, user="u")
    assert response.headers[HEADER] == "user, messages[].content[].odd"
