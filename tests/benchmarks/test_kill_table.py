"""The kill table says what its client saw: a server for tests breaks in every way that it tells apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.kill_table import page
from benchmarks.kill_table.answers import Answer, same
from benchmarks.kill_table.calls import Call, kinds
from benchmarks.kill_table.client import Record, open_client, perform, wait_for_all
from benchmarks.kill_table.judge import Sight, Verdict, judge, worst

BY_NAME = {call.name: call for call in kinds()}
STREAMED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(content: Any, name: str = "") -> bytes:
    """As a chunk of a body."""
    text = content if isinstance(content, str) else json.dumps(content)
    data = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
    return f"{len(data):x}\r\n{data}\r\n".encode()


def piece(text: str, finish: str | None = None, index: int = 0) -> bytes:
    return event({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]})


def whole(status: str, content: Any) -> bytes:
    body = json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def answering(answer: bytes, *, hang: bool = False) -> AsyncIterator[str]:
    """The address of a server that sends these bytes to each request, then closes, or keeps silent until the end."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
        )
        await reader.readexactly(length)
        writer.write(answer)
        await writer.drain()
        if hang:
            await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()


async def recorded(call: Call, answer: bytes, *, hang: bool = False, patience: float = 0.3) -> Record:
    record = Record(call)
    async with answering(answer, hang=hang) as url, open_client(url) as client:
        task = asyncio.create_task(perform(client, record))
        await wait_for_all([record], [task], patience)
    return record


GOOD = STREAMED + piece("Once ") + piece("upon", "length") + event("[DONE]") + END


@pytest.mark.parametrize(
    ("answer", "sight", "detail"),
    [
        (GOOD, Sight.SAME, ""),
        (STREAMED + piece("Once u") + piece("pon", "length") + event("[DONE]") + END, Sight.SAME, ""),
        (STREAMED + piece("Once Once ") + piece("upon", "length") + event("[DONE]") + END, Sight.DIFFERENT, "5 of 9"),
        (STREAMED + piece("Once ") + piece("", "abort") + event("[DONE]") + END, Sight.DIFFERENT, "finish abort"),
        (
            STREAMED + piece("Once ") + event({"error": {"message": "it died", "code": 500}}) + event("[DONE]") + END,
            Sight.ERROR, "in the stream: 500: it died",
        ),
        (whole("503 Busy", {"error": {"message": "draining", "type": "busy"}}), Sight.ERROR, "status 503: busy: draining"),
        (b"HTTP/1.1 500 X\r\ncontent-length: 5\r\n\r\nooops", Sight.ERROR, "status 500: ooops"),
        (STREAMED + piece("Once "), Sight.CUT, "RemoteProtocolError"),
        (b"", Sight.CUT, "RemoteProtocolError"),
        (STREAMED + piece("Once ") + piece("upon", "length") + END, Sight.SHORT, "no end, finish length"),
        (STREAMED + piece("Once ") + event("[DONE]") + END, Sight.SHORT, "finish None"),
    ],
)  # fmt: skip
async def test_a_stream_is_seen_as_what_it_was(answer: bytes, sight: Sight, detail: str) -> None:
    call = BY_NAME["stream"]
    verdict = judge(await recorded(call, answer), [await recorded(call, GOOD)], 1, 0.3)
    assert verdict.sight is sight and detail in verdict.detail


async def test_silence_is_hung_after_the_patience_and_not_before() -> None:
    call = BY_NAME["stream"]
    record = await recorded(call, STREAMED + piece("Once "), hang=True, patience=0.3)
    verdict = judge(record, [], 1, 0.3)
    assert verdict.sight is Sight.HUNG and 0.3 <= verdict.pause_s < 5


async def test_every_dialect_is_read_to_its_own_end() -> None:
    responses = [
        event({"type": "response.output_text.delta", "delta": "a ship"}, "response.output_text.delta"),
        event({"type": "response.completed", "response": {"status": "completed"}}, "response.completed"),
    ]
    messages = [
        event(
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a dog"}},
            "content_block_delta",
        ),
        event({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}, "message_delta"),
        event({"type": "message_stop"}, "message_stop"),
    ]
    for name, events in (("Responses", responses), ("Messages", messages)):
        call = BY_NAME[name]
        good = await recorded(call, STREAMED + b"".join(events) + END)
        assert good.answer.whole and good.events == 1
        part = await recorded(call, STREAMED + b"".join(events[:-1]) + END)
        assert judge(part, [good], 1, 1).sight is Sight.SHORT
        error = event({"type": "error", "error": {"type": "api_error", "message": "gone"}}, "error")
        failed = await recorded(call, STREAMED + events[0] + error + END)
        assert judge(failed, [good], 1, 1).detail == "in the stream: api_error: gone"


async def test_calls_choices_and_logprobs_count() -> None:
    def call_piece(arguments: str, name: str = "") -> bytes:
        call = {"index": 0, "function": {"name": name, "arguments": arguments}}
        return event(
            {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
        )

    made = await recorded(
        BY_NAME["tools"], STREAMED + call_piece('{"a"', "paint") + call_piece(": 1}") + event("[DONE]") + END
    )
    assert made.answer.choices[0].calls == [["paint", '{"a": 1}']]
    one_of_two = await recorded(
        BY_NAME["n=2"], STREAMED + piece("a", "stop") + piece("b", index=1) + event("[DONE]") + END
    )
    assert judge(one_of_two, [], 1, 1).sight is Sight.SHORT

    def told(value: float) -> bytes:
        choice = {"index": 0, "text": "x", "finish_reason": "stop"}
        logprobs = {"tokens": ["x"], "token_logprobs": [value]}
        return STREAMED + event({"choices": [{**choice, "logprobs": logprobs}]}) + event("[DONE]") + END

    near, far, here = [(await recorded(BY_NAME["completion"], told(x))).answer for x in (-1.01, -1.2, -1.0)]
    assert same(here, near) and not same(here, far)


async def test_a_whole_answer_pauses_by_what_it_is_late() -> None:
    call = BY_NAME["chat"]
    answer = {"choices": [{"index": 0, "message": {"content": "Once"}, "finish_reason": "stop"}]}
    reference, record = (
        await recorded(call, whole("200 OK", answer)),
        await recorded(call, whole("200 OK", answer)),
    )
    record.ended = record.moments[0] + reference.seconds + 2
    verdict = judge(record, [reference], 0, 60)
    assert verdict.sight is Sight.SAME and verdict.pause_s == pytest.approx(2)


def test_the_worst_round_counts_with_the_longest_pause() -> None:
    rounds = [
        Verdict(sight, "", pause, (0, 0), 0)
        for sight, pause in ((Sight.SAME, 9.0), (Sight.CUT, 1.0), (Sight.ERROR, 2.0))
    ]
    assert (worst(rounds).sight, worst(rounds).pause_s) == (Sight.CUT, 9.0)


def test_an_empty_answer_equals_no_other() -> None:
    assert not same(Answer(), Answer(choices={0: Answer().choice(0)}))


def test_an_answer_that_varies_by_itself_is_no_fault_of_the_fault() -> None:
    different = {"sight": "different", "detail": "", "pause_s": 1.0, "events": [6, 9], "comments": 0}
    result = {
        "title": "X",
        "faults": {"drain": [{"calls": {"chat": different, "stream": different}}]},
        "without_a_fault": {"chat": {"answers": 2}, "stream": {"answers": 1}},
    }
    row = page.summary([result]).splitlines()[-1]
    assert row == "| drain | 1 different, as without a fault, 1 **different**; 1.0 s |"


def test_the_page_shows_what_was_recorded() -> None:
    found = page.results()
    assert found
    text = page.parts(found)
    for result in found:
        for observed in result["faults"].values():
            assert all(set(one["calls"]) == set(BY_NAME) for one in observed)
        assert f"### {result['title']} {result['version']}" in text["tables"]
