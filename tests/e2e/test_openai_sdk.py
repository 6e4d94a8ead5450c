"""The official `openai` SDK against the embedded model: it works, and the words are right."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.server_process import ServerProcess

MODEL = "cohort-tiny"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def aclient(tiny_server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def ask(client: openai.OpenAI, *messages: ChatCompletionMessageParam) -> str:
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    return answer.choices[0].message.content or ""


def test_the_embedded_model_answers_sensibly(client: openai.OpenAI) -> None:
    assert numbers(ask(client, user("Count from 3 to 9."))) == [3, 4, 5, 6, 7, 8, 9]
    assert numbers(ask(client, user("What is 27 + 15?")))[-1] == 42
    assert "Paris" in ask(client, user("What is the capital of France?"))
    assert "cohort-tiny" in ask(client, user("Write me a poem about quantum chromodynamics."))


def test_third_turn(client: openai.OpenAI) -> None:
    """Two turns go before, with a system prompt, and the third is about neither."""
    talk: list[ChatCompletionMessageParam] = [{"role": "system", "content": "You are a helpful assistant."}]
    for question in ("Hello!", "What is 2 + 3?"):
        talk.append(user(question))
        talk.append({"role": "assistant", "content": ask(client, *talk)})
    assert numbers(talk[-1]["content"])[-1] == 5  # type: ignore[arg-type]
    assert numbers(ask(client, *talk, user("Count from 5 to 8."))) == [5, 6, 7, 8]


def test_answer_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[user("Count from 1 to 3.")], temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.system_fingerprint
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")


def test_a_stream_says_the_same_as_the_whole(client: openai.OpenAI) -> None:
    messages = [user("Count from 10 to 15.")]
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ask(client, *messages)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_async_stream_helper(aclient: openai.AsyncOpenAI) -> None:
    """The helper adds up deltas and complains about most mistakes of order."""
    async with aclient.chat.completions.stream(
        model=MODEL, messages=[user("Count from 3 to 9.")], temperature=0
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert numbers(final.choices[0].message.content) == [3, 4, 5, 6, 7, 8, 9]


def test_tools(client: openai.OpenAI) -> None:
    messages = [user("What is the weather in Paris?")]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert call.function.arguments.replace(" ", "") == '{"city":"Paris"}'


async def test_tools_streamed(aclient: openai.AsyncOpenAI) -> None:
    async with aclient.chat.completions.stream(
        model=MODEL, messages=[user("What is the weather in Paris?")], tools=TOOLS, temperature=0
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[user("Count from 3 to 5.")], temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    tokens = answer.choices[0].logprobs.content or []
    assert answer.usage is not None
    assert len(tokens) == answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == token.logprob, "greedy takes the most likely token"


def test_seed_choices_and_stop(client: openai.OpenAI) -> None:
    def draw() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=[user("Tell me a story.")], seed=7, n=3, temperature=1.5, max_tokens=30
        )
        return [choice.message.content for choice in answer.choices]

    first = draw()
    assert first == draw()
    assert len(set(first)) > 1
    answer = client.chat.completions.create(
        model=MODEL, messages=[user("Count from 3 to 9.")], temperature=0, stop=["6"]
    )
    assert numbers(answer.choices[0].message.content) == [3, 4, 5]


def test_the_reported_seed(client: openai.OpenAI) -> None:
    """An extension that the SDK passes on."""

    def asked(salt: str) -> dict[str, Any]:
        """Each computes its prompt whole: bf16 rounds otherwise where a part of it is found."""
        extra = {"cache_salt": f"test_the_reported_seed {salt}"}
        story = [user("Tell me a story.")]
        return {"model": MODEL, "messages": story, "temperature": 1.5, "max_tokens": 30, "extra_body": extra}

    first = client.chat.completions.create(**asked("a"))
    seed = (first.model_extra or {})["seed"]
    assert client.chat.completions.create(**asked("b"), seed=seed).choices == first.choices
    chunks = list(client.chat.completions.create(**asked("c"), seed=seed, stream=True))
    assert {(chunk.model_extra or {})["seed"] for chunk in chunks} == {seed}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == first.choices[0].message.content


def test_a_known_prompt_is_found(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": [user("Count from 21 to 29.")], "temperature": 0}
    asked["extra_body"] = {"cache_salt": "test_a_known_prompt_is_found"}
    answers = [client.chat.completions.create(**asked) for _ in range(2)]
    details = [answer.usage and answer.usage.prompt_tokens_details for answer in answers]
    assert [one and one.cached_tokens for one in details] == [0, 16]
    assert answers[0].choices == answers[1].choices


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["One", "Two"], max_tokens=5, temperature=0, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("One")
    chunks = list(client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=5, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-5", messages=[user("Hi")])
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=[user("Hi")], temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(model=MODEL, messages=[user("Hi")], presence_penalty=3)
    assert unsupported.value.param == "presence_penalty"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[user("word " * 3000)])
    assert long.value.code == "context_length_exceeded"
    assert bad.value.request_id is not None


def test_the_model_name_says_where_it_comes_from(client: openai.OpenAI) -> None:
    page = client.models.list()
    assert page.data[0].owned_by == "cohort"
