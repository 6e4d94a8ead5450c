"""One streamed completion as `cohort bench` reads it: when tokens came, and how many there were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from clients.event_stream import EventReader
from clients.http import complaint


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct, gc=False):
    """What is read of an event; msgspec skips the rest without making objects of it."""

    choices: tuple[_Choice, ...] | None = ()
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(frozen=True, slots=True)
class Served:
    """One answer. Times are of `time.perf_counter`; `arrivals` has one per event with text, in which there may be several
    tokens. `output_tokens` is what the server counted, or the number of events where it did not (`counted` False)."""

    sent_at: float
    arrivals: list[float]
    prompt_tokens: int | None
    output_tokens: int
    counted: bool


class CompletionReader:
    """Takes the body of one answer in whatever parts it comes. Owned by the connection until the answer is complete."""

    __slots__ = ("_arrivals", "_closing", "_events", "_problem", "_usage")

    def __init__(self) -> None:
        self._arrivals: list[float] = []
        self._events = EventReader()
        self._usage: _Usage | None = None
        self._closing = False
        """The last event had a finish reason and no text."""
        self._problem: str | None = None

    def feed(self, data: bytes, now: float) -> None:
        """A part of the body, which may begin and end anywhere. All tokens in it came at `now`."""
        for event in self._events.feed(data):
            self._take(event, now)

    def _take(self, data: bytes, now: float) -> None:
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._problem = self._problem or "the server sent an event that no OpenAI-compatible API has"
            return
        if event.choices:
            self._arrivals.append(now)
            choice = event.choices[0]
            self._closing = choice.finish_reason is not None and not choice.text
        if event.usage is not None:
            self._usage = event.usage
        if event.error is not None:
            self._problem = self._problem or complaint(event.error) or "an error without a word"

    def result(self, sent_at: float) -> Served | str:
        """What came, or why it does not count."""
        if self._problem:
            return self._problem
        if not self._events.done:
            return "the answer ended without [DONE]"
        tokens = self._usage.completion_tokens if self._usage is not None else 0
        # Some servers end with an event of its own for the finish reason, which no token came with.
        if self._closing and len(self._arrivals) > max(1, tokens or len(self._arrivals) - 1):
            self._arrivals.pop()
        if not self._arrivals:
            return "no tokens came"
        prompt = self._usage.prompt_tokens if self._usage is not None else None
        return Served(sent_at, self._arrivals, prompt or None, tokens or len(self._arrivals), tokens > 0)
