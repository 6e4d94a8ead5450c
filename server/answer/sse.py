"""Responses as bytes. The constant parts of a stream are encoded once, the rest by msgspec, without model objects per
chunk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from engine.text.generation import TokenText, Usage
from server.answer.choice import Piece
from server.answer.reasoning import Thought
from server.answer.tools.events import CallArguments, CallBegun
from server.schemas.answers import chat, completions
from server.schemas.answers.common import PromptLogprob, PromptLogprobs, PromptUsage, Timings, TokenUsage

_encode = msgspec.json.encode
_LINE_ENDS = {b"\xe2\x80\xa8": b"\\u2028", b"\xe2\x80\xa9": b"\\u2029", b"\xc2\x85": b"\\u0085"}
"""UTF-8 of characters that end a line in Unicode, and their escapes. msgspec escapes all others."""
_LINE_END = re.compile(b"|".join(_LINE_ENDS))

_LOWEST_LOGPROB = -9999.0
"""Logprob of an impossible token: JSON has no infinity, and OpenAI and vLLM send this number."""
PLACE = "\ue000"
"""Text in whose place an encoded value is put."""


def encode(value: Any) -> bytes:
    """JSON without any character that ends a line in Unicode: clients that read a stream by httpx's lines, as Ollama's does,
    would cut it there."""
    data = _encode(value)
    if data.isascii() or _LINE_END.search(data) is None:
        return data
    return _LINE_END.sub(lambda end: _LINE_ENDS[end[0]], data)


def around(value: Any) -> tuple[bytes, bytes]:
    """The JSON before and after the last text `PLACE` in a value: what is written anew for each chunk goes between."""
    before, _, after = encode(value).rpartition(encode(PLACE))
    return before, after


def framed(before: bytes, after: bytes) -> Callable[[str], bytes]:
    """Function that puts the JSON of a text between these."""

    def event(text: str) -> bytes:
        return before + encode(text) + after

    return event


def before_choices(
    answer: chat.ChatCompletionChunk | completions.CompletionChunk | completions.Completion,
) -> bytes:
    """The JSON of an answer without choices up to where its first one goes. Within a string, quotes would be escaped."""
    return encode(answer).partition(b'"choices":[]')[0] + b'"choices":['


def usage_object(usage: Usage, reasoning_tokens: int = 0) -> TokenUsage:
    """Token counts in OpenAI's form, always with details. `reasoning_tokens` are part of the generated tokens."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def prompt_usage(usage: Usage) -> PromptUsage:
    """Token counts of a call that generates no tokens."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def chat_logprobs(tokens: Iterable[TokenText], as_ids: bool = False) -> chat.ChatLogprobs:
    """The `logprobs` of a chat choice or chunk; `as_ids` writes tokens as their ids."""
    content: list[chat.ChosenLogprob] = [
        {
            "token": _name(one.token.token_id, one.text, as_ids),
            "logprob": _finite(one.token.logprob),
            "bytes": list(one.raw),
            "top_logprobs": [
                {"token": _name(id_, text, as_ids), "logprob": _finite(logprob), "bytes": list(raw)}
                for (id_, logprob), (text, raw, _) in zip(one.token.top_logprobs, one.top, strict=True)
            ],
        }
        for one in tokens
    ]
    return {"content": content, "refusal": None}


class ChatLogprobs:
    """The `logprobs` of a chat choice, encoded as its tokens come: this takes a third of the memory of the objects, and avoids
    a long pause at the end."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, tokens: Sequence[TokenText], as_ids: bool = False) -> int:
        """Append tokens; returns their encoded size in bytes."""
        if not tokens:
            return 0
        self._pieces.append(encode(chat_logprobs(tokens, as_ids)["content"])[1:-1])
        return len(self._pieces[-1])

    def items(self) -> bytes:
        """The list of the object's tokens."""
        return b"[" + b",".join(self._pieces) + b"]"

    def encoded(self) -> bytes:
        """The object."""
        return b'{"content":' + self.items() + b',"refusal":null}'


class CompletionLogprobs:
    """The `logprobs` of a completion choice or chunk, encoded piece by piece: those of a prompt are encoded once and placed
    at the beginning of each of its choices."""

    __slots__ = ("_arrays",)

    _NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

    def __init__(self) -> None:
        self._arrays: list[list[bytes]] = [[] for _ in self._NAMES]

    def add(
        self,
        tokens: Sequence[TokenText],
        alternatives: int,
        as_ids: bool = False,
        base: int = 0,
        most: int | None = None,
    ) -> int:
        """Append tokens, each with so many alternatives; returns their encoded size in bytes. Their offsets begin at `base` and
        lie between 0 and `most`. The first token of a prompt has no logprob: it is null in the arrays."""
        if not tokens:
            return 0
        offsets = [max(0, base + one.offset) for one in tokens]
        columns = (
            [_name(one.token.token_id, one.text, as_ids) for one in tokens],
            [None if one.token.logprob is None else _finite(one.token.logprob) for one in tokens],
            [None if one.token.logprob is None else _top_of(one, alternatives, as_ids) for one in tokens],
            offsets if most is None else [min(most, offset) for offset in offsets],
        )
        for array, column in zip(self._arrays, columns, strict=True):
            array.append(encode(column)[1:-1])
        return sum(len(array[-1]) for array in self._arrays)

    def encoded(self, before: CompletionLogprobs | None = None) -> bytes:
        """The object; `before` holds the logprobs that precede it, such as the prompt's."""
        members = []
        for number, name in enumerate(self._NAMES):
            pieces = [*(before._arrays[number] if before else ()), *self._arrays[number]]
            members.append(b'"' + name.encode() + b'":[' + b",".join(pieces) + b"]")
        return b"{" + b",".join(members) + b"}"


def _name(token_id: int, text: str, as_ids: bool) -> str:
    """The string for a token: its text or, to keep all tokens distinct, its id in vLLM's form."""
    return f"token_id:{token_id}" if as_ids else text


def _top_of(one: TokenText, alternatives: int, as_ids: bool) -> dict[str, float]:
    """Alternatives by text, including the sampled token. Of two tokens with the same text the more likely one is kept."""
    top: dict[str, float] = {}
    listed = zip(one.token.top_logprobs[:alternatives], one.top, strict=False)
    for (id_, logprob), (text, _, _) in listed:
        top.setdefault(_name(id_, text, as_ids), _finite(logprob))
    top.setdefault(_name(one.token.token_id, one.text, as_ids), _finite(one.token.logprob))
    return top


def prompt_logprobs_object(tokens: Sequence[TokenText], alternatives: int) -> PromptLogprobs:
    """The `prompt_logprobs` of these tokens in vLLM's form: null for a token without a logprob, else the token itself and the
    most likely alternatives, by token id. The rank counts from 1; it is null if the executor does not report it."""
    positions: PromptLogprobs = []
    for one in tokens:
        if one.token.logprob is None:
            positions.append(None)
            continue
        own = _entry(one.token.logprob, one.token.rank, one.text)
        entries = {str(one.token.token_id): own}
        listed = zip(one.token.top_logprobs[:alternatives], one.top, strict=False)
        for rank, ((id_, logprob), (text, _, _)) in enumerate(listed, 1):
            entries[str(id_)] = _entry(logprob, rank, text)
        positions.append(entries)
    return positions


def _entry(logprob: float, rank: int | None, text: str) -> PromptLogprob:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}


def _finite(logprob: float | None) -> float:
    # NaN fails both comparisons and ends up as the lowest too.
    return logprob if logprob is not None and logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB


class Chunks:
    """The envelope of one stream's chunks: `id`, `created` and `model` stay the same throughout. `seed` is an extension:
    sent with the same request it gives the same answer."""

    def __init__(
        self,
        kind: Literal["chat.completion.chunk", "text_completion"],
        call_id: str,
        created: int,
        model: str,
        fingerprint: str,
        seed: int,
    ) -> None:
        chunk: chat.ChatCompletionChunk | completions.CompletionChunk
        if kind == "text_completion":
            chunk = {
                "id": call_id,
                "object": kind,
                "created": created,
                "model": model,
                "system_fingerprint": fingerprint,
                "seed": seed,
                "choices": [],
            }
        else:
            chunk = {
                "id": call_id,
                "object": kind,
                "created": created,
                "model": model,
                "system_fingerprint": fingerprint,
                "seed": seed,
                "choices": [],
            }
        self._head = b"data: " + before_choices(chunk)

    def chunk(
        self, choice: bytes, usage: Usage | None = None, extra: bytes = b"", reasoning_tokens: int = 0
    ) -> bytes:
        """One event. `choice` is an encoded choice or empty; `usage` is included if requested; `extra` is encoded members
        that follow the choices, each with a comma before it."""
        if usage is None:
            return self._head + choice + b"]" + extra + b"}\n\n"
        counts = encode(usage_object(usage, reasoning_tokens))
        return self._head + choice + b"]" + extra + b',"usage":' + counts + b"}\n\n"

    def text_events(self, around_text: tuple[bytes, bytes]) -> Callable[[str], bytes]:
        """Function that makes a chunk of a text. `around_text`: its encoded choice before and after the text."""
        before, after = around_text
        return framed(self._head + before, after + b"]}\n\n")

    def totals(self, usage: Usage | None, timings: Timings | None = None, reasoning_tokens: int = 0) -> bytes:
        """The event behind all choices, with what the client asked for; empty if that is nothing."""
        if usage is None and timings is None:
            return b""
        extra = b"" if timings is None else b',"timings":' + encode(timings)
        return self.chunk(b"", usage, extra, reasoning_tokens)


class ChatChoiceEncoder:
    """Encodes the chunks of one choice of a chat."""

    def __init__(self, index: int, tokens_as_ids: bool = False) -> None:
        self._index = index
        self._as_ids = tokens_as_ids
        first: chat.ChatDelta = {"role": "assistant", "content": ""}
        self.role = encode(_chunk_choice(index, first))
        self.around_content = around(_chunk_choice(index, {"content": PLACE}))
        """A choice that is text and nothing else, before and after the text."""
        self._start = b'{"index":%d,"delta":' % index

    def content(self, text: str) -> bytes:
        """The frequent one: text and nothing else."""
        before, after = self.around_content
        return before + encode(text) + after

    def delta(
        self,
        members: chat.ChatDelta,
        tokens: Sequence[TokenText] | None = None,
        token_ids: Sequence[int] | None = None,
    ) -> bytes:
        """Any delta, with logprobs, token ids or both."""
        logprobs = b"null" if tokens is None else encode(chat_logprobs(tokens, self._as_ids))
        tail = b"" if token_ids is None else b',"token_ids":' + encode(token_ids)
        delta = encode(members)
        return self._start + delta + b',"logprobs":' + logprobs + b',"finish_reason":null' + tail + b"}"

    def finish(self, reason: chat.ChatFinish, stop_reason: str | int | None) -> bytes:
        """The last chunk of the choice."""
        last: chat.ChatChunkChoice = {
            "index": self._index,
            "delta": {},
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": stop_reason,
        }
        return encode(last)


def _chunk_choice(index: int, delta: chat.ChatDelta) -> chat.ChatChunkChoice:
    """A choice that adds this and does not end."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def delta_members(piece: Piece, reasoning_fields: Sequence[chat.ReasoningField]) -> chat.ChatDelta:
    """A piece of an answer as members of a delta. Clients concatenate strings: a call's id and name are sent once, with its
    beginning, and its arguments in fragments."""
    match piece:
        case str():
            return {"content": piece}
        case Thought(text):
            members: chat.ChatDelta = {}
            for name in reasoning_fields:
                members[name] = text
            return members
        case CallBegun(index, call_id, name):
            function: chat.FunctionDelta = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


class CompletionChoiceEncoder:
    """Encodes the chunks of one choice of a completion."""

    def __init__(self, index: int) -> None:
        self._index = index
        plain: completions.CompletionChunkChoice = {
            "index": index,
            "text": PLACE,
            "logprobs": None,
            "finish_reason": None,
        }
        self.around_text = around(plain)
        """A choice that is text and nothing else, before and after the text."""

    def text(self, text: str) -> bytes:
        """The frequent one: text and nothing else."""
        before, after = self.around_text
        return before + encode(text) + after

    def full(
        self,
        text: str,
        logprobs: bytes | None,
        token_ids: Sequence[int] | None,
        finish_reason: completions.CompletionFinish | None,
        stop_reason: str | int | None,
        echo: bytes = b"",
        prompt_token_ids: bytes | None = None,
    ) -> bytes:
        """Text with all other members; `logprobs` and `prompt_token_ids` are encoded, and so is `echo`, the inside of a JSON
        string that precedes the text."""
        choice: completions.CompletionChunkChoice = {
            "index": self._index,
            "text": msgspec.Raw(b'"' + echo + encode(text)[1:]) if echo else text,
            "logprobs": None if logprobs is None else msgspec.Raw(logprobs),
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        if token_ids is not None:
            choice["token_ids"] = token_ids
        if prompt_token_ids is not None:
            choice["prompt_token_ids"] = msgspec.Raw(prompt_token_ids)
        return encode(choice)
