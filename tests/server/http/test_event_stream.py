"""Server-sent events: order, bytes, errors, and what happens when the client goes away."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, MutableMapping
from typing import Any

import msgspec
import pytest

from engine.errors import ContextLengthExceeded, ExecutorFailed, Overloaded, Unavailable
from engine.text.generation import TextDelta, TokenText
from executors.contract import SampledToken
from server.answer.sse import ChatChoiceEncoder, Chunks
from server.http.event_stream import EventStream
from server.system.worker_threads import FencedThreads
from tests.server.apis.chat.test_routes import CALL, TOOLS
from tests.server.fakes import FakeJudge, House, error_of, events, says, steps


def deltas(data: list[str]) -> list[dict[str, Any]]:
    return [
        json.loads(one)["choices"][0]["delta"]
        for one in data
        if one != "[DONE]" and json.loads(one)["choices"]
    ]


async def test_order_role_content_finish_done(house: House) -> None:
    data = events(await house.chat(stream=True))
    assert data[-1] == "[DONE]"
    chunks = [json.loads(one) for one in data[:-1]]
    assert [chunk["choices"][0] for chunk in chunks] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "Hel"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "lo"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "!"}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None},
    ]
    assert all("usage" not in chunk for chunk in chunks)
    names = ("id", "created", "model", "system_fingerprint", "object", "seed")
    envelopes = {tuple(chunk[name] for name in names) for chunk in chunks}
    assert len(envelopes) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"


async def test_bytes_of_a_chunk_are_exact(house: House) -> None:
    house.engine.script = steps(
        TextDelta(0, 'a"\n é😀\u2028', (1,)), TextDelta(0, "", finish_reason="length")
    )
    response = await house.chat(stream=True)
    id_, created = (json.loads(events(response)[0])[name] for name in ("id", "created"))
    envelope = (
        f'data: {{"id":"{id_}","object":"chat.completion.chunk","created":{created},"model":"fake",'
        '"system_fingerprint":"fp_fake","seed":7,"choices":['
    )
    text = '"a\\"\\n é😀\\u2028"'  # some clients take U+2028 for the end of a line
    expected = [
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        f'{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":null}}',
        '{"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}',
    ]
    whole = "".join(f"{envelope}{choice}]}}\n\n" for choice in expected) + "data: [DONE]\n\n"
    assert response.content == whole.encode()


async def test_usage_chunk_is_last_and_only_on_request(house: House) -> None:
    data = events(await house.chat(stream=True, stream_options={"include_usage": True}))
    *chunks, last = (json.loads(one) for one in data[:-1])
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    data = events(await house.complete(stream=True, stream_options={"include_usage": False}))
    assert all(json.loads(one)["choices"] for one in data[:-1])


async def test_continuous_usage_is_in_every_chunk(house: House) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for response in (
        await house.chat(stream=True, stream_options=options),
        await house.complete(stream=True, stream_options=options),
    ):
        counts = [json.loads(one)["usage"]["completion_tokens"] for one in events(response)[:-1]]
        assert counts == sorted(counts)
        assert counts[-1] == 4
        if "chat" in response.text[:200]:
            assert counts[0] == 0, "a role is no token"


async def test_several_choices_start_with_index_0(house: House) -> None:
    data = [json.loads(one)["choices"][0] for one in events(await house.chat(stream=True, n=3))[:-1]]
    assert [choice["index"] for choice in data[:3]] == [0, 1, 2]
    assert all(choice["delta"].get("role") == "assistant" for choice in data[:3])
    assert all("role" not in choice["delta"] for choice in data[3:])
    for index in range(3):
        mine = [choice for choice in data if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Hello!"
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]


async def test_deltas_without_text_make_no_chunk(house: House) -> None:
    house.engine.script = says("a", "", "", "b")
    assert [delta.get("content") for delta in deltas(events(await house.chat(stream=True)))] == [
        "",
        "a",
        "b",
        None,
    ]


async def test_logprobs_and_token_ids_ride_along(house: House) -> None:
    one = TokenText(SampledToken(1, -0.5, ((1, -0.5),)), "a", b"a", 0, (("a", b"a", -0.5),))
    script = (TextDelta(0, "", (7,), (one,)), TextDelta(0, "a", (8,), (one,), "stop"))
    house.engine.script = steps(*script)
    response = await house.chat(stream=True, logprobs=True, top_logprobs=1, return_token_ids=True)
    chunks = [json.loads(data) for data in events(response)[:-1]]
    assert bytes(chunks[0]["prompt_token_ids"]).decode() == "<s>[user:Hi][assistant:"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["token_ids"] for choice in choices[1:3]] == [[7], [8]]
    assert [choice["logprobs"]["content"][0]["token"] for choice in choices[1:3]] == ["a", "a"]
    assert [choice["delta"].get("content") for choice in choices] == ["", "", "a", None]
    house.engine.script = steps(*script)
    chunks = [json.loads(data) for data in events(await house.complete(stream=True, logprobs=1))[:-1]]
    assert [chunk["choices"][0]["logprobs"]["tokens"] for chunk in chunks] == [["a"], ["a"]]


async def test_tool_calls_begin_once_and_their_arguments_flow(house: House) -> None:
    text = "Hm. " + CALL + "\n" + CALL
    house.engine.script = says(*(text[i : i + 5] for i in range(0, len(text), 5)))
    data = events(await house.chat(stream=True, tools=TOOLS))
    got = deltas(data)
    assert "".join(delta.get("content", "") for delta in got) == "Hm."
    calls = [call for delta in got for call in delta.get("tool_calls", ())]
    first, second = ([call for call in calls if call["index"] == index] for index in (0, 1))
    assert calls == first + second
    for begun, *more in (first, second):
        assert sorted(begun) == ["function", "id", "index", "type"]
        assert begun["function"] == {"name": "f", "arguments": ""}
        assert all(sorted(call) == ["function", "index"] for call in more)
        assert "".join(call["function"]["arguments"] for call in more) == '{"a": 1.50}'
        assert len(more) > 2, "a fragment for each delta that has some"
    assert first[0]["id"] != second[0]["id"]
    assert json.loads(data[-2])["choices"][0]["finish_reason"] == "tool_calls"
    assert not any("tool_calls" in delta and delta["tool_calls"] is None for delta in got)


async def test_completions_stream(house: House) -> None:
    response = await house.complete(stream=True, echo=True, prompt="Hi ")
    data = events(response)
    assert data[-1] == "[DONE]"
    choices = [json.loads(one)["choices"][0] for one in data[:-1]]
    assert [choice["text"] for choice in choices] == ["Hi Hel", "lo", "!", ""]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert json.loads(data[0])["object"] == "text_completion"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (Overloaded("full", 3), 429, "overloaded", "3"),
        (Unavailable("draining"), 503, "service_unavailable", "5"),
        (ExecutorFailed("died"), 500, "executor_died", None),
    ],
)
async def test_errors_before_the_first_token_are_http_errors(
    house: House, stream: bool, error: Exception, status: int, code: str, retry: str | None
) -> None:
    for refuses_at_once in (True, False):
        house.engine.refusal = error if refuses_at_once else None
        house.engine.script = steps(error)
        response = await house.chat(stream=stream)
        assert response.status_code == status
        assert error_of(response)["code"] == code
        assert response.headers.get("retry-after") == retry


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_of_the_engine_name_the_clients_fields(house: House, stream: bool) -> None:
    for param, body, expected in (
        ("prompt", {}, "messages"),
        ("max_tokens", {"max_tokens": 500}, "max_tokens"),
        ("max_tokens", {"max_completion_tokens": 500}, "max_completion_tokens"),
    ):
        house.engine.refusal = ContextLengthExceeded("too long", param)
        response = await house.chat(stream=stream, **body)
        assert (response.status_code, error_of(response)["param"]) == (400, expected)
    house.engine.refusal = ContextLengthExceeded("too long", "prompt")
    assert error_of(await house.complete(stream=stream))["param"] == "prompt"


async def test_an_error_in_the_middle_is_an_event(house: House) -> None:
    house.engine.script = steps(TextDelta(0, "a", (1,)), ExecutorFailed("the executor died"))
    for response in (await house.chat(stream=True), await house.complete(stream=True)):
        assert response.status_code == 200
        *_, last, done = events(response)
        assert done == "[DONE]"
        assert json.loads(last) == {
            "error": {
                "message": "the executor died",
                "type": "server_error",
                "param": None,
                "code": "executor_died",
            }
        }
    assert len(house.engine.aborted) == 2


async def test_a_bug_is_a_500_that_says_nothing_of_the_inside(house: House) -> None:
    house.engine.script = steps(RuntimeError("secret"))
    response = await house.chat()
    assert response.status_code == 500
    assert "secret" not in response.text
    assert error_of(response)["code"] == "internal_error"
    house.engine.script = steps(TextDelta(0, "a", (1,)), RuntimeError("secret"))
    response = await house.chat(stream=True)
    assert "secret" not in response.text
    assert "internal_error" in events(response)[-2]


class Client:
    """A raw ASGI client that can go away."""

    def __init__(self, house: House, path: str, body: dict[str, Any]) -> None:
        self.gone = asyncio.Event()
        self.sent: list[MutableMapping[str, Any]] = []
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": [], "scheme": "http", "root_path": "",
            "server": ("server", 80), "client": ("client", 1),
        }  # fmt: skip
        self.task = asyncio.create_task(house.app(scope, self._receive, self._send))

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)


MESSAGES = [{"role": "user", "content": "Hi"}]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v1/completions", {"prompt": "Hi"}),
    ("/v1/completions", {"prompt": "Hi", "stream": True}),
]


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("path", "body"), CALLS)
async def test_a_client_that_goes_away_ends_its_generation(
    house: House, path: str, body: dict[str, Any], started: bool
) -> None:
    before = (TextDelta(0, "a", (1,)),) if started else ()
    house.engine.script = steps(*before, asyncio.Event())
    client = Client(house, path, body)
    await house.engine.paused.wait()
    assert not house.engine.aborted
    client.gone.set()
    await asyncio.wait_for(client.task, 1)
    assert house.engine.aborted == [house.asked().context.request_id]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_goes_while_its_grammar_is_judged(house: House, path: str, stream: bool) -> None:
    asked, cancelled = asyncio.Event(), asyncio.Event()

    class SlowJudge(FakeJudge):
        async def check(self, grammar: str, tenant: str = "") -> str:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return grammar

    house.state.judge = SlowJudge()
    words = {"messages": MESSAGES} if path.endswith("chat/completions") else {"prompt": "Hi"}
    client = Client(house, path, {**words, "stream": stream, "response_format": {"type": "json_object"}})
    async with asyncio.timeout(5):
        await asked.wait()
        client.gone.set()
        await cancelled.wait()
        await client.task
    assert house.engine.requests == []


async def test_work_that_all_answered_for_gives_its_thread_back() -> None:
    threads, begun, ran = FencedThreads(1), threading.Event(), []

    def forever() -> None:
        begun.set()
        while True:
            time.sleep(0.001)

    try:
        endless = asyncio.create_task(threads.run(forever, 600))
        queued = asyncio.create_task(threads.run(lambda: ran.append("queued"), 600))
        await asyncio.to_thread(begun.wait, 5)
        for task in (queued, endless):
            task.cancel()
        await asyncio.wait((queued, endless))
        async with asyncio.timeout(5):
            assert await threads.run(lambda: "next", 5) == "next"
        assert ran == []
    finally:
        threads.close()


async def test_a_cancelled_request_ends_its_generation(house: House) -> None:
    """As when the server is stopped for good."""
    house.engine.script = steps(TextDelta(0, "a", (1,)), asyncio.Event())
    client = Client(house, *CALLS[1])
    await house.engine.paused.wait()
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert house.engine.aborted == [house.asked().context.request_id]


async def test_a_backlog_ends_with_its_client(house: House) -> None:
    """Nothing in it waits: not the engine, not the socket. All the same others run, and the end is noticed."""
    made = 0

    def script(_: object) -> Iterable[TextDelta]:
        nonlocal made
        while made < 1_000_000:
            made += 1
            yield TextDelta(0, "a", (1,))

    house.engine.script = script
    client = Client(house, *CALLS[1])
    turns = 0
    while not client.sent:
        await asyncio.sleep(0)
        turns += 1
        assert turns < 1000
    client.gone.set()
    await asyncio.wait_for(client.task, 5)
    assert made < 200_000, "it was encoded to the end"
    assert house.engine.aborted == [house.asked().context.request_id]


async def test_headers_wait_for_the_first_token(house: House) -> None:
    go = asyncio.Event()
    house.engine.script = steps(go, TextDelta(0, "a", (1,), finish_reason="stop"))
    client = Client(house, *CALLS[1])
    await house.engine.paused.wait()
    assert client.sent == []
    go.set()
    await asyncio.wait_for(client.task, 1)
    assert client.sent[0]["status"] == 200
    headers = dict(client.sent[0]["headers"])
    assert headers[b"cache-control"] == b"no-cache"
    assert b"content-length" not in headers


async def test_a_chunk_is_cheap() -> None:
    """Encoding and handing over one content chunk; the bound is ten times what an idle machine needs."""
    chunks, choice = Chunks("chat.completion.chunk", "chatcmpl-x", 1, "m", "fp", 7), ChatChoiceEncoder(0)
    count = 5000

    async def produce() -> Any:
        for _ in range(count):
            yield chunks.chunk(choice.content(" word"))

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    stream = EventStream(produce())
    begun = time.process_time()
    await stream({"type": "http"}, receive, send)
    microseconds = (time.process_time() - begun) / count * 1e6
    assert len(sent) == count + 2
    assert msgspec.json.decode(sent[1]["body"][6:])["choices"][0]["delta"] == {"content": " word"}
    assert microseconds < 30, microseconds
