"""Clients of a server, in a process of their own: requests that arrive at random moments, each a streamed completion.

    python -m benchmarks.gpu.http_load URL   < waves, a JSON object a line   > figures, a JSON object a line

A wave names `requests`, `rate` (a second; 0: all at once), tokens of `prompt` and `output`, `vocabulary`, `seed` and `patience`
(seconds). Prompts are token ids, all different; arrivals are a Poisson process.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from clients.event_stream import EventReader
from clients.http import Broken, Client, Connection, Refused

TOO_MANY = 429


class _Choice(msgspec.Struct, gc=False):
    text: str = ""


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct, gc=False):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True)
class Answer:
    """One request. Times are of `time.perf_counter`. `due`: when it was to arrive; `words` of its text, of which each token of
    `made_tokenizer` but a byte is one. `status` of a refusal; `problem` of an answer that was lost."""

    due: float
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    words: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    status: int = 200
    problem: str = ""
    done: bool = False
    _events: EventReader = field(default_factory=EventReader)

    def feed(self, data: bytes, now: float) -> None:
        """A part of the body."""
        for data_of_event in self._events.feed(data):
            event = _decode(data_of_event)
            text = event.choices[0].text if event.choices else ""
            if text:
                self.first = self.first or now
                self.last = now
                self.words += text.count(" ")
            if event.usage is not None:
                self.prompt_tokens, self.output_tokens = (
                    event.usage.prompt_tokens,
                    event.usage.completion_tokens,
                )
            if event.error is not None:
                self.problem = self.problem or str(event.error)
        self.done = self._events.done


@dataclass(frozen=True, slots=True)
class Wave:
    """See the module."""

    name: str
    requests: int
    rate: float
    prompt: int
    output: int
    vocabulary: int
    seed: int = 0
    patience: float = 60.0

    def arrivals(self) -> list[float]:
        """Seconds from the wave's beginning."""
        if not self.rate:
            return [0.0] * self.requests
        draw, now, found = random.Random(self.seed), 0.0, []
        for _ in range(self.requests):
            now += draw.expovariate(self.rate)
            found.append(now)
        return found

    def bodies(self) -> list[dict[str, Any]]:
        """Of the requests."""
        ids = np.random.default_rng(self.seed).integers(0, self.vocabulary, (self.requests, self.prompt))
        return [
            {
                "model": "served", "prompt": prompt, "max_tokens": self.output, "temperature": 0.6, "seed": number,
                "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
            }
            for number, prompt in enumerate(ids.tolist())
        ]  # fmt: skip


async def send(client: Client, wave: Wave) -> list[Answer]:
    """Send a wave's requests in time and read the answers."""
    messages = [client.message("POST", "/v1/completions", body) for body in wave.bodies()]
    # Connections that would all be opened at once are there before.
    early = 0 if wave.rate else wave.requests
    idle = list(await asyncio.gather(*(client.connect() for _ in range(early))))
    began = time.perf_counter() + 0.05
    answers = [Answer(began + at) for at in wave.arrivals()]

    async def one(message: bytes, answer: Answer) -> None:
        await asyncio.sleep(max(0.0, answer.due - time.perf_counter()))
        answer.sent = time.perf_counter()
        try:
            async with asyncio.timeout(wave.patience):
                await _exchange(client, idle, message, answer)
            if not answer.done:
                answer.problem = answer.problem or "the answer ended without [DONE]"
        except Refused as refused:
            answer.status = refused.status
            if refused.status != TOO_MANY:
                answer.problem = str(refused)
        except (Broken, OSError, TimeoutError, msgspec.DecodeError) as error:
            answer.problem = f"{type(error).__name__}: {error}"

    await asyncio.gather(*(one(message, answer) for message, answer in zip(messages, answers, strict=True)))
    for connection in idle:
        connection.close()
    return answers


async def _exchange(client: Client, idle: list[Connection], message: bytes, answer: Answer) -> None:
    """Send a request over an idle connection, or over a new one where there is none or the server has just closed it."""
    connection = idle.pop() if idle else None
    if connection is not None:
        try:
            await connection.exchange(message, answer.feed)
        except Broken as error:
            if not error.unheard:
                raise
            connection = None
    if connection is None:
        connection = await client.connect()
        await connection.exchange(message, answer.feed)
    if connection.usable:
        idle.append(connection)


def figures(wave: Wave, answers: Sequence[Answer]) -> dict[str, Any]:
    """Of a wave: how many were served, refused and lost, rates, and quantiles in ms of the time to the first token and of each
    later one. A request's clock begins when it was due."""
    served = [one for one in answers if one.status == 200 and not one.problem]
    lost = [one.problem for one in answers if one.problem]
    found: dict[str, Any] = {
        "requests": len(answers), "served": len(served), "refused": sum(one.status == TOO_MANY for one in answers),
        "lost": len(lost), "why_lost": lost[:3], "client_late_ms_p99": _quantile([one.sent - one.due for one in answers], 99),
    }  # fmt: skip
    if not served:
        return found
    span = max(one.last for one in served) - min(one.due for one in answers)
    tokens = sum(one.output_tokens for one in served)
    ttfts = [one.first - one.due for one in served]
    tpots = [(one.last - one.first) / (one.output_tokens - 1) for one in served if one.output_tokens > 1]
    return found | {
        "seconds": span, "requests_per_s": len(served) / span, "tokens_per_s": tokens / span,
        "output_tokens": tokens, "prompt_tokens": sum(one.prompt_tokens for one in served),
        "words": sum(one.words for one in served),
        **{f"ttft_ms_p{q}": _quantile(ttfts, q) for q in (50, 99)},
        **{f"tpot_ms_p{q}": _quantile(tpots, q) for q in (50, 99)},
    }  # fmt: skip


def _quantile(seconds: Sequence[float], percent: int) -> float:
    return 1e3 * float(np.percentile(seconds, percent)) if seconds else 0.0


async def _run(url: str) -> None:
    client = Client(url, None)
    for line in sys.stdin:
        wave = Wave(**json.loads(line))
        print(json.dumps({"name": wave.name, **figures(wave, await send(client, wave))}), flush=True)


def main() -> None:
    """See the module."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_run(sys.argv[1]))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(sys.argv[1]))


if __name__ == "__main__":
    main()
