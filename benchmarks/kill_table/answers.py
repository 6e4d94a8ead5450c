"""Reads the answers of the four dialects, streamed and whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

LOGPROB_TOLERANCE = 0.05
"""Nats. Rows of a batch of another size may be added in another order; a wrong token is off by far more."""


@dataclass(slots=True)
class Choice:
    """One answer. `tokens` and `logprobs` are those of a completion, `calls` the tools' names and arguments."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None

    def size(self) -> int:
        """Characters, of arguments too."""
        return len(self.text) + sum(len(arguments) for _, arguments in self.calls)


@dataclass(slots=True)
class Answer:
    """What a call has been answered so far. `ended`: the dialect's own end has come. `error`: what it says went wrong."""

    choices: dict[int, Choice] = field(default_factory=dict)
    ended: bool = False
    error: str | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is missing that the dialect promises."""
        finishes = [choice.finish for choice in self.choices.values()]
        return self.ended and self.error is None and bool(finishes) and None not in finishes

    def size(self) -> int:
        """Characters of all choices."""
        return sum(choice.size() for choice in self.choices.values())

    def choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())


def same(one: Answer, other: Answer) -> bool:
    """Whether a client would call them equal: every character and token, and log probabilities within LOGPROB_TOLERANCE."""
    if one.choices.keys() != other.choices.keys():
        return False
    for index, a in one.choices.items():
        b = other.choices[index]
        if (a.text, a.calls, a.tokens, a.finish) != (b.text, b.calls, b.tokens, b.finish):
            return False
    return logprob_difference(one, other) <= LOGPROB_TOLERANCE


def logprob_difference(one: Answer, other: Answer) -> float:
    """The largest difference of two log probabilities at one place; infinite where their numbers differ."""
    largest = 0.0
    for index, choice in one.choices.items():
        pair = (choice.logprobs, other.choice(index).logprobs)
        if len(pair[0]) != len(pair[1]):
            return float("inf")
        largest = max([largest, *(abs(a - b) for a, b in zip(*pair, strict=True))])
    return largest


def take_event(answer: Answer, dialect: str, name: str, data: str) -> None:
    """Add an event of a stream. Raises ValueError where it is no JSON that the dialect has."""
    if data == "[DONE]":
        answer.ended = True
        return
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError(f"an event that is no object: {data[:80]}")
    kind = str(event.get("type") or name)
    if event.get("error") or kind in ("error", "response.failed"):
        answer.error = error_text(event)
    elif dialect == "responses":
        _take_response_event(answer, kind, event)
    elif dialect == "messages":
        _take_message_event(answer, kind, event)
    else:
        for choice in event.get("choices") or ():
            _take_choice(answer.choice(choice.get("index", 0)), choice)


def take_whole(answer: Answer, dialect: str, body: str) -> None:
    """Read an answer that is not streamed: chat or completions. Raises ValueError where it is no JSON object."""
    if dialect not in ("chat", "completions"):
        raise ValueError(f"{dialect} is streamed in this table")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise ValueError(f"an answer that is no object: {body[:80]}")
    if content.get("error"):
        answer.error = error_text(content)
        return
    for choice in content.get("choices") or ():
        _take_choice(answer.choice(choice.get("index", 0)), choice)
    answer.ended = True


def error_text(content: dict[str, Any]) -> str:
    """The sentence of an error body or event, with its code or type where it has one."""
    error = content.get("error") or (content.get("response") or {}).get("error") or content
    if not isinstance(error, dict):
        return str(error)
    label = error.get("code") or error.get("type") or ""
    return f"{label}: {error.get('message', '')}" if label else str(error.get("message") or error)


def _take_choice(choice: Choice, piece: dict[str, Any]) -> None:
    content = piece.get("delta") or piece.get("message") or {}
    choice.text += content.get("content") or piece.get("text") or ""
    for call in content.get("tool_calls") or ():
        index = call.get("index", len(choice.calls))
        while len(choice.calls) <= index:
            choice.calls.append(["", ""])
        function = call.get("function") or {}
        choice.calls[index][0] += function.get("name") or ""
        choice.calls[index][1] += function.get("arguments") or ""
    _take_logprobs(choice, piece.get("logprobs") or {})
    choice.finish = piece.get("finish_reason") or choice.finish


def _take_logprobs(choice: Choice, logprobs: dict[str, Any]) -> None:
    """Of a completion: lists side by side in OpenAI's old form, objects in the form of chats, which llama.cpp uses for both."""
    for entry in logprobs.get("content") or ():
        choice.tokens.append(entry["token"])
        choice.logprobs.append(float(entry["logprob"]))
    choice.tokens += logprobs.get("tokens") or []
    choice.logprobs += [float(value or 0.0) for value in logprobs.get("token_logprobs") or ()]


def _take_response_event(answer: Answer, kind: str, event: dict[str, Any]) -> None:
    choice = answer.choice(0)
    if kind == "response.output_text.delta":
        choice.text += event.get("delta") or ""
    elif kind in ("response.completed", "response.incomplete"):
        choice.finish = str((event.get("response") or {}).get("status") or kind.removeprefix("response."))
        answer.ended = True


def _take_message_event(answer: Answer, kind: str, event: dict[str, Any]) -> None:
    choice, delta = answer.choice(0), event.get("delta") or {}
    if kind == "content_block_delta":
        choice.text += delta.get("text") or ""
    elif kind == "message_delta":
        choice.finish = delta.get("stop_reason") or choice.finish
    elif kind == "message_stop":
        answer.ended = True
