"""One answer of `cohort demo` as it comes in, and whether two of them are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from clients.event_stream import EventReader
from clients.http import complaint

_QUOTED = 20
"""Characters of two texts that are shown from where they part."""
_STRANGE = "the server sent an event that no OpenAI-compatible API has"


class Answer:
    """One streamed chat completion. Its one writer is the connection that feeds it.

    `arrivals` are the times (of `time.perf_counter`) at which something of the answer came: comments that keep a connection
    alive do not count.
    """

    def __init__(self, on_news: Callable[[], None] | None = None) -> None:
        self.text = ""
        self.tokens: list[tuple[str, float]] = []
        """Each with its logprob."""
        self.position = 0
        """Tokens so far, as the server counts them."""
        self.finish: str | None = None
        self.arrivals: list[float] = []
        self.problem: str | None = None
        """Why there will be no more of it."""
        self._on_news = on_news
        self._events = EventReader()

    @property
    def over(self) -> bool:
        """Nothing more is expected."""
        return self._events.done or self.problem is not None

    def longest_pause(self) -> float:
        """Seconds between two parts of the answer, at most."""
        return max((b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)), default=0.0)

    def feed(self, data: bytes, now: float) -> None:
        """A part of the body, which may begin and end anywhere; what came in it came at `now`."""
        for event in self._events.feed(data):
            self._take(event, now)
        if self._on_news is not None:
            self._on_news()

    def end(self, problem: str | None = None) -> None:
        """There is nothing more of the body."""
        if problem is None and not self._events.done:
            problem = "the answer ended without [DONE]"
        self.problem = self.problem or problem
        if self._on_news is not None:
            self._on_news()

    def _take(self, data: bytes, now: float) -> None:
        try:
            event = msgspec.json.decode(data)
            if event.get("error") is not None:
                self.problem = self.problem or complaint(event["error"]) or "an error without a word"
            self.position = max(self.position, (event.get("usage") or {}).get("completion_tokens", 0))
            for choice in event.get("choices") or ():
                self._take_choice(choice, now)
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            self.problem = self.problem or _STRANGE

    def _take_choice(self, choice: dict[str, Any], now: float) -> None:
        """Raises AttributeError, KeyError and TypeError for a choice that makes no sense."""
        logprobs, delta = choice.get("logprobs") or {}, choice.get("delta") or {}
        tokens = [(one["token"], one["logprob"]) for one in logprobs.get("content") or ()]
        text, finish = delta.get("content") or delta.get("reasoning") or "", choice.get("finish_reason")
        if text or tokens or finish is not None:
            self.arrivals.append(now)
        self.text += text
        self.tokens += tokens
        self.finish = finish or self.finish


def difference(expected: Answer, actual: Answer, *, exact: bool) -> str | None:
    """In what `actual` is not `expected`, the first thing only; None where they are equal: token for token, the same text and
    the same end, and with `exact` the same logprobs, bit for bit."""
    if actual.problem is not None:
        return f"after {actual.position} tokens: {actual.problem}"
    for i, (before, after) in enumerate(zip(expected.tokens, actual.tokens, strict=False), 1):
        if before[0] != after[0]:
            return f"token {i} is {_quoted(after[0])}, and was {_quoted(before[0])}"
        if exact and before[1] != after[1]:
            return f"the logprob of token {i} is {after[1]!r}, and was {before[1]!r}"
    if len(expected.tokens) != len(actual.tokens):
        return f"it has {len(actual.tokens)} tokens, and had {len(expected.tokens)}"
    if expected.text != actual.text:
        i = next(
            (i for i, (a, b) in enumerate(zip(expected.text, actual.text, strict=False)) if a != b),
            min(len(expected.text), len(actual.text)),
        )
        now, then = actual.text[i : i + _QUOTED], expected.text[i : i + _QUOTED]
        return f"from character {i} it is {_quoted(now)}, and was {_quoted(then)}"
    if expected.finish != actual.finish:
        return f"it ends with {actual.finish}, and ended with {expected.finish}"
    return None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
