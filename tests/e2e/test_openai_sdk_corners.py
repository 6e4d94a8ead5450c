"""The `openai` SDK beyond single calls: parsing, what it retries, time-outs, keys, headers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

MODEL = "cohort-tiny"
HUGO: Any = [
    {
        "role": "user",
        "content": "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job.",
    }
]
COUNT: Any = [{"role": "user", "content": "Count from 3 to 9."}]


class Person(BaseModel):
    name: str
    age: int
    job: str


BAKER = Person(name="Hugo", age=51, job="baker")


@pytest.fixture
def client(tiny_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=HUGO, response_format=Person, temperature=0)
    assert answer.choices[0].message.parsed == BAKER


def test_parse_while_it_streams(client: openai.OpenAI) -> None:
    """Parts of the object appear in order, and logprobs with them."""
    with client.chat.completions.stream(
        model=MODEL, messages=HUGO, response_format=Person, temperature=0, logprobs=True, top_logprobs=1
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert final.message.parsed == BAKER
    partial = [event.parsed for event in events if event.type == "content.delta"]
    assert partial[-1] == BAKER.model_dump()
    [done] = [event for event in events if event.type == "content.done"]
    assert done.parsed == BAKER
    [said] = [event for event in events if event.type == "logprobs.content.done"]
    assert final.logprobs is not None
    assert said.content == final.logprobs.content
    # The last one is of the token that ends the answer.
    assert "".join(one.token for one in said.content[:-1]) == final.message.content


def test_a_length_that_cuts_is_said(client: openai.OpenAI) -> None:
    """Half an object is no object: the SDK has an error for it, and needs the finish reason to know."""
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=HUGO, response_format=Person, max_tokens=4)


MISTAKES: dict[str, Any] = {
    "temperature": {"temperature": -1},
    "n": {"n": 0},
    "top_logprobs": {"top_logprobs": 3},
    "logit_bias": {"logit_bias": {"99999": 1}},
    "stop": {"stop": ["a"] * 17},
    "messages": {"messages": [{"role": "user", "content": "word " * 3000}]},
    "messages[0].content[0]": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://localhost/"}}]}]
    },
    "response_format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}
    },
    "tool_choice": {"tool_choice": {"type": "function", "function": {"name": "unheard_of"}}},
    "model": {"model": "gpt-5"},
}  # fmt: skip


@pytest.mark.parametrize("param", MISTAKES)
def test_a_clients_mistake_is_sent_once(tiny_server: ServerProcess, param: str) -> None:
    """The SDK retries what it takes for the server's trouble; this is none. The error names the parameter."""
    sent: list[str] = []
    http = openai.DefaultHttpxClient(event_hooks={"request": [lambda request: sent.append(str(request.url))]})
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", http_client=http) as client:
        asked: Any = {"model": MODEL, "messages": COUNT, **MISTAKES[param]}
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as error:
            client.chat.completions.create(**asked)
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
            client.chat.completions.create(**asked, stream=True)
    assert (error.value.param or "").startswith(param.split("[")[0])
    assert error.value.request_id is not None
    assert len(sent) == 2


@pytest.mark.long(extended=True)
def test_keys(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Either key opens every route of the SDK; another none."""
    args = [
        str(tokenizer_dir),
        "--executor",
        "echo",
        "--executor-option",
        "vocab_size=258",
        "--api-key",
        "one",
    ]
    with ServerProcess([*args, "--api-key", "two", "--served-model-name", "org/echo"], tmp_path) as server:
        for key in ("one", "two"):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                assert client.models.retrieve("org/echo").id == "org/echo"
                answer = client.completions.create(model="org/echo", prompt="Hello", max_tokens=3)
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 3
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="three") as client:
            for call in (
                lambda: client.models.list(),
                lambda: client.completions.create(model="org/echo", prompt="Hello"),
                lambda: client.embeddings.create(model="org/echo", input="Hello"),
            ):
                with pytest.raises(openai.AuthenticationError):
                    call()


def test_a_time_out_and_a_stream_left_early(echo_server: ServerProcess) -> None:
    """Several seconds' worth of tokens each; nobody waits for them, and they are not computed."""
    asked: Any = {"model": "echo", "prompt": "Hello", "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    aborted = 'cohort_requests_total{outcome="abort"}'
    before = echo_server.metric(aborted)
    with openai.OpenAI(base_url=f"{echo_server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).completions.create(**asked)
        with client.completions.create(**asked, stream=True) as stream:
            next(iter(stream))
    deadline = time.monotonic() + 5
    while echo_server.metric(aborted) < before + 2:
        assert time.monotonic() < deadline, "still computed"
        time.sleep(0.02)


def test_headers(client: openai.OpenAI) -> None:
    """What was ignored is said, and every answer has an id of its own."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=COUNT, temperature=0, user="somebody", store=False
    )
    assert raw.parse().choices[0].message.content
    assert raw.headers["x-request-id"].startswith("req_")
    assert {name.strip() for name in raw.headers["x-cohort-ignored"].split(",")} == {"store", "user"}
    plain = client.chat.completions.with_raw_response.create(model=MODEL, messages=COUNT, temperature=0)
    assert "x-cohort-ignored" not in plain.headers
