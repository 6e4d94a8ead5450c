"""Clients of the part served-0.6b: when requests arrive, what is read of an answer, and which figures are refused."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.gpu.http_load import Answer, Wave, figures, send
from benchmarks.gpu.part import Failed
from benchmarks.gpu.served_http import check_clients, judge, waves
from clients.http import Client

WAVE = Wave("10/s", 4, 10.0, 16, 5, 5_000, 3)


def test_arrivals_are_random_at_the_rate_and_always_the_same() -> None:
    many = Wave("64/s", 2_000, 64.0, 16, 5, 5_000)
    arrivals = many.arrivals()
    assert arrivals == many.arrivals() == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(2_000 / 64.0, rel=0.1)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.04), "exponential gaps"
    assert Wave("at once", 3, 0.0, 16, 5, 5_000).arrivals() == [0.0] * 3


def test_requests_have_prompts_of_their_own() -> None:
    bodies = WAVE.bodies()
    assert len({tuple(body["prompt"]) for body in bodies}) == 4
    for body in bodies:
        assert len(body["prompt"]) == 16 and max(body["prompt"]) < 5_000 and body["max_tokens"] == 5
        assert body["ignore_eos"] and body["stream"] and body["stream_options"] == {"include_usage": True}


def test_waves_are_those_of_the_issue() -> None:
    warm, *counted = waves(tiny=False, vocabulary=151_936)
    assert [(wave.rate, wave.prompt, wave.output) for wave in counted] == [
        (rate, 512, 128) for rate in (16, 64, 160, 0)
    ]
    assert max(wave.requests / wave.rate for wave in counted if wave.rate) <= 4.0, "seconds of a wave"
    assert len({wave.seed for wave in (warm, *counted)}) == 5, (
        "a prompt of another wave would be in the prefix cache"
    )


def event(text: str = "", usage: tuple[int, int] | None = None, **more: Any) -> bytes:
    body: dict[str, Any] = {"choices": [{"text": text}] if usage is None else [], **more}
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answer(due: float = 0.0, first: float = 0.1, last: float = 0.5) -> Answer:
    """Of five tokens, which come at these times."""
    found = Answer(due, sent=due + 0.001)
    stream = event(" a") + event(" b c d") + event(" e")
    middle = len(event(" a"))
    found.feed(stream[:middle], first)
    found.feed(stream[middle : middle + 9], (first + last) / 2)
    found.feed(stream[middle + 9 :] + event(usage=(16, 5)) + b"data: [DONE]\n\n", last)
    return found


def test_what_is_read_of_an_answer() -> None:
    found = answer()
    assert (found.first, found.last, found.words, found.done) == (0.1, 0.5, 5, True)
    assert (found.prompt_tokens, found.output_tokens, found.problem) == (16, 5, "")
    found = Answer(0.0)
    found.feed(event(error={"message": "gone"}, choices=[]), 1.0)
    assert "gone" in found.problem and not found.done


def test_figures_of_a_wave() -> None:
    answers = [
        answer(0.0, 0.1, 0.5),
        answer(1.0, 1.3, 2.1),
        Answer(1.1, 1.1, status=429),
        answer(2.0, 2.2, 2.4),
    ]
    found = figures(WAVE, answers)
    assert (found["requests"], found["served"], found["refused"], found["lost"]) == (4, 3, 1, 0)
    assert found["seconds"] == pytest.approx(2.4)
    assert found["requests_per_s"] == pytest.approx(3 / 2.4) and found["tokens_per_s"] == pytest.approx(
        15 / 2.4
    )
    assert found["ttft_ms_p50"] == pytest.approx(200) and found["tpot_ms_p50"] == pytest.approx(100)
    assert found["ttft_ms_p99"] == pytest.approx(298) and found["client_late_ms_p99"] == pytest.approx(
        1.0, abs=0.1
    )
    assert (found["prompt_tokens"], found["output_tokens"], found["words"]) == (48, 15, 15)
    judge(WAVE, found, (48, 15))


def test_a_wave_of_refusals_alone_has_figures_without_rates() -> None:
    found = figures(WAVE, [Answer(0.0, 0.0, status=429)] * 4)
    assert found["refused"] == 4 and "requests_per_s" not in found
    with pytest.raises(Failed, match="all were refused"):
        judge(WAVE, found, (0, 0))


GOOD = {
    "requests": 4, "served": 3, "refused": 1, "lost": 0, "why_lost": [], "client_late_ms_p99": 1.0,
    "prompt_tokens": 48, "output_tokens": 15, "words": 15,
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "engine", "words"),
    [
        (
            {"lost": 1, "served": 2, "why_lost": ["Broken: gone"]},
            (48, 15),
            "1 streams were lost, the first with: Broken",
        ),
        ({"served": 2}, (48, 15), "2 served and 1 refused of 4"),
        ({"output_tokens": 14}, (48, 15), "15 output tokens were asked for, usage says 14, the engine 15"),
        ({}, (48, 16), "15 output tokens were asked for, usage says 15, the engine 16"),
        ({"prompt_tokens": 47}, (48, 15), "48 prompt tokens were asked for, usage says 47, the engine 48"),
        ({"words": 12}, (48, 15), "the texts have 12 words, usage says 15 tokens"),
    ],
)
def test_figures_that_mean_something_else_fail(
    wrong: dict[str, Any], engine: tuple[int, int], words: str
) -> None:
    with pytest.raises(Failed, match=words):
        judge(WAVE, GOOD | wrong, engine)


def test_clients_that_are_late_are_not_a_server_that_is_slow() -> None:
    check_clients(WAVE, GOOD)
    with pytest.raises(Failed, match="requests were sent 150 ms late"):
        check_clients(WAVE, GOOD | {"client_late_ms_p99": 150.0})


async def answers_of(*replies: bytes) -> list[Answer]:
    """Of a wave to a server that gives each connection the next of these replies, and closes it."""
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
        await reader.readexactly(length)
        writer.write(left.pop(0))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await send(
            Client(f"http://127.0.0.1:{port}", None), Wave("50/s", len(replies), 50.0, 16, 5, 5_000)
        )


def reply(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


async def test_refused_requests_are_counted_and_lost_ones_are_named() -> None:
    whole = b"".join(event(f" {word}") for word in "abcde") + event(usage=(16, 5)) + b"data: [DONE]\n\n"
    answers = await answers_of(
        reply("200 OK", whole), reply("429 Too Many Requests", b"{}"), reply("200 OK", event(" a")),
        reply("500 Internal Server Error", b'{"error": {"message": "broken"}}'), reply("200 OK", whole)[:120],
    )  # fmt: skip
    found = figures(Wave("50/s", 5, 50.0, 16, 5, 5_000), answers)
    assert (found["served"], found["refused"], found["lost"]) == (1, 1, 3)
    ended, failed, cut = found["why_lost"]
    assert ended == "the answer ended without [DONE]" and "broken" in failed and cut.startswith("Broken: ")
    assert found["output_tokens"] == found["words"] == 5 and 0 < found["ttft_ms_p50"] < 10_000
