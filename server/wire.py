"""Responses as bytes. Everything in a stream that stays the same is encoded once, the rest by msgspec: no model objects
per chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from engine.text.generation import TokenText, Usage
from server.chat.tool_parser import Call

encode = msgspec.json.encode

_LOWEST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI and vLLM send this for a token that cannot be."""


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's form; the details are always there."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def chat_logprobs(tokens: Iterable[TokenText]) -> dict[str, Any]:
    """The `logprobs` of a chat choice or chunk."""
    content = [
        {
            "token": one.text,
            "logprob": _finite(one.token.logprob),
            "bytes": list(one.raw),
            "top_logprobs": [
                {"token": text, "logprob": _finite(logprob), "bytes": list(raw)}
                for text, raw, logprob in one.top
            ],
        }
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenText], base_offset: int = 0) -> dict[str, Any]:
    """The `logprobs` of a completion choice or chunk; `base_offset` is the length of an echoed prompt."""
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [_finite(one.token.logprob) for one in tokens],
        "top_logprobs": [_top_of(one) for one in tokens],
        "text_offset": [base_offset + one.offset for one in tokens],
    }


def _top_of(one: TokenText) -> dict[str, float]:
    """Alternatives by text, the sampled token among them. Two tokens may look the same: the more likely one is kept."""
    top: dict[str, float] = {}
    for text, _, logprob in one.top:
        top.setdefault(text, _finite(logprob))
    top.setdefault(one.text, _finite(one.token.logprob))
    return top


def _finite(logprob: float | None) -> float:
    # NaN fails both comparisons and ends up as the lowest too.
    return logprob if logprob is not None and logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB


class Chunks:
    """The envelope of one stream's chunks: `id`, `created` and `model` stay the same throughout. `seed` is an extension:
    sent with the same request it gives the same answer."""

    def __init__(
        self, kind: str, call_id: str, created: int, model: str, fingerprint: str, seed: int
    ) -> None:
        envelope = {
            "id": call_id,
            "object": kind,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
            "seed": seed,
        }
        self._head = b"data: " + encode(envelope)[:-1] + b',"choices":['

    def chunk(self, choice: bytes, usage: Usage | None = None, extra: bytes = b"") -> bytes:
        """One event. `choice` is an encoded choice or empty; `usage` rides along where it was asked for; `extra` is
        encoded members that follow the choices, each with a comma before it."""
        if usage is None:
            return self._head + choice + b"]" + extra + b"}\n\n"
        return self._head + choice + b"]" + extra + b',"usage":' + encode(usage_object(usage)) + b"}\n\n"


class ChatChoice:
    """Encodes the chunks of one choice of a chat."""

    def __init__(self, index: int) -> None:
        start = b'{"index":%d,"delta":' % index
        self.role = start + b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        self._start = start
        self._content = start + b'{"content":'

    def content(self, text: str) -> bytes:
        """The frequent one: text and nothing else."""
        return self._content + encode(text) + b'},"logprobs":null,"finish_reason":null}'

    def content_with(
        self, text: str, tokens: Sequence[TokenText] | None, token_ids: Sequence[int] | None
    ) -> bytes:
        """Text with logprobs, token ids or both."""
        logprobs = b"null" if tokens is None else encode(chat_logprobs(tokens))
        tail = b"" if token_ids is None else b',"token_ids":' + encode(token_ids)
        return (
            self._content
            + encode(text)
            + b'},"logprobs":'
            + logprobs
            + b',"finish_reason":null'
            + tail
            + b"}"
        )

    def call(self, call: Call) -> tuple[bytes, bytes]:
        """A tool call as two deltas: id and name, then the arguments. Clients add up strings, so each is sent once."""
        opening = {
            "index": call.index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": ""},
        }
        rest = {"index": call.index, "function": {"arguments": call.arguments}}
        return self._calls(opening), self._calls(rest)

    def _calls(self, delta: dict[str, Any]) -> bytes:
        return self._start + encode({"tool_calls": [delta]}) + b',"logprobs":null,"finish_reason":null}'

    def finish(self, reason: str, stop_reason: str | int | None) -> bytes:
        """The last chunk of the choice."""
        ends = {"finish_reason": reason, "stop_reason": stop_reason}
        return self._start + b'{},"logprobs":null,' + encode(ends)[1:]


class CompletionChoice:
    """Encodes the chunks of one choice of a completion."""

    def __init__(self, index: int) -> None:
        self._start = b'{"index":%d,"text":' % index

    def text(self, text: str) -> bytes:
        """The frequent one: text and nothing else."""
        return self._start + encode(text) + b',"logprobs":null,"finish_reason":null}'

    def full(
        self,
        text: str,
        logprobs: dict[str, Any] | None,
        token_ids: Sequence[int] | None,
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> bytes:
        """Text with whatever else there is."""
        rest: dict[str, Any] = {"logprobs": logprobs, "finish_reason": finish_reason}
        if finish_reason is not None:
            rest["stop_reason"] = stop_reason
        if token_ids is not None:
            rest["token_ids"] = token_ids
        return self._start + encode(text) + b"," + encode(rest)[1:]
