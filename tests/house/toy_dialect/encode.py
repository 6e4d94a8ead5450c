"""The answer: events of a stream, the body of a whole answer, and errors."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.text.generation import Generation, TextDelta, Usage
from server.answer.choice import Choice
from server.http.call import Refusal
from server.http.event_stream import failure_of
from server.http.form import Failure

_REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS"}


def error_object(failure: Failure) -> dict[str, str]:
    """The whole body of an error as plain data."""
    return {"message": failure.named}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts."""
    return {"tokens": {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}}


def event(kind: str, **members: Any) -> bytes:
    """One event of a stream."""
    data = msgspec.json.encode({"type": kind, **members})
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


class ToyStream:
    """Encodes a stream. One writer: the task that reads the generation."""

    def __init__(self, id_: str, choice: Choice) -> None:
        self._id = id_
        self._choice = choice
        self._begun = False
        self._generation: Generation

    def begin(self, generation: Generation) -> None:
        """The call is queued; no event belongs to that."""
        self._generation = generation

    def delta(self, delta: TextDelta) -> bytes:
        """The events of a delta."""
        texts = [piece for piece in self._choice.pieces(delta) if isinstance(piece, str)]
        out = b"" if self._begun else self._head()
        self._begun = True
        for text in texts:
            out += event("content-delta", index=0, delta={"message": {"content": {"text": text}}})
        if delta.finish_reason is not None:
            self._reason = self._choice.reason(delta.finish_reason)
        return out

    def end(self) -> bytes:
        """The events after the last delta."""
        reason = _REASONS.get(self._reason, "COMPLETE")
        delta = {"finish_reason": reason, "usage": usage_object(self._generation.usage)}
        return event("content-end", index=0) + event("message-end", id=self._id, delta=delta)

    def _head(self) -> bytes:
        begun = {"message": {"role": "assistant", "content": []}}
        content = {"message": {"content": {"type": "text", "text": ""}}}
        return event("message-start", id=self._id, delta=begun) + event(
            "content-start", index=0, delta=content
        )


class ToyWhole:
    """Collects a whole answer. One writer: the task that reads the generation."""

    prompt_logprobs: bytes | None = None
    limited_by = "max_tokens"

    def __init__(self, id_: str, choice: Choice) -> None:
        self._id = id_
        self._choice = choice

    def take(self, delta: TextDelta) -> int:
        """Add a delta."""
        self._choice.take(delta)
        return 0

    def body(self, generation: Generation) -> dict[str, Any]:
        """The whole answer."""
        return {
            "id": self._id,
            "finish_reason": _REASONS.get(self._choice.finish_reason, "COMPLETE"),
            "message": {"role": "assistant", "content": [{"type": "text", "text": self._choice.text}]},
            "usage": usage_object(generation.usage),
        }


class ToyForm:
    """Comments keep a stream alive, and an event ends a failed one."""

    def keep_alive(self) -> bytes:
        """A comment."""
        return b": keep-alive\n\n"

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """The error as an event."""
        refusal, failure = failure_of(error)
        return refusal, event(
            "message-end", delta={"finish_reason": "ERROR", "error": error_object(failure)["message"]}
        )
