"""The answer of a chat completion: events of a stream, and the body of a whole answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec

from engine.text.generation import Generation, TextDelta, Usage
from server.answer.choice import Choice
from server.answer.sse import ChatChoiceEncoder, ChatLogprobs, Chunks, delta_members, usage_object
from server.answer.timings import timings
from server.schemas.answers import chat
from server.schemas.chat import ChatRequest


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What all events of an answer share. `prompt`: the ids of the request's prompt."""

    id: str
    model: str
    fingerprint: str
    body: ChatRequest
    prompt: Sequence[int]
    reasoning_fields: tuple[chat.ReasoningField, ...]
    created: int = field(default_factory=lambda: int(time.time()))


class ChatStream:
    """Encodes a stream: roles, deltas, a finish chunk per choice, usage if requested. One writer: the task that reads the
    generation."""

    def __init__(self, answer: ChatAnswer, choices: Sequence[Choice]) -> None:
        body = answer.body
        self._answer = answer
        self._choices = choices
        self._continuous = body.continuous_usage
        self._plain = body.num_logprobs is None and not body.return_token_ids
        as_ids = bool(body.return_tokens_as_token_ids)
        self._wires = [ChatChoiceEncoder(choice.index, as_ids) for choice in choices]
        self._roles_sent = False

    def begin(self, generation: Generation) -> None:
        """The call is queued; no event belongs to that."""
        self._generation = generation
        answer = self._answer
        self._chunks = Chunks(
            "chat.completion.chunk",
            answer.id,
            answer.created,
            answer.model,
            answer.fingerprint,
            generation.seed,
        )

    def delta(self, delta: TextDelta) -> bytes:
        """The events of a delta; empty if all of it is held back."""
        choice, wire = self._choices[delta.index], self._wires[delta.index]
        text_only = self._plain and delta.finish_reason is None and choice.plain
        if text_only and self._roles_sent and not self._continuous:  # the frequent case
            return self._chunks.chunk(wire.content(delta.text)) if delta.text else b""
        usage = self._generation.usage if self._continuous else None
        out = b""
        if not self._roles_sent:
            before = usage and replace(usage, completion_tokens=0)
            out, self._roles_sent = self._roles(before), True
        if text_only:
            pieces = [wire.content(delta.text)] if delta.text else []
        else:
            pieces = self._pieces(choice, wire, delta)
        reasoning_tokens = self._reasoning_tokens if self._continuous else 0
        for piece in pieces:
            out += self._chunks.chunk(piece, usage, reasoning_tokens=reasoning_tokens)
        return out

    def plain(self, index: int) -> Callable[[str], bytes] | None:
        """See `StreamEncoder`."""
        text_only = self._plain and self._roles_sent and not self._continuous and self._choices[index].plain
        return self._chunks.text_events(self._wires[index].around_content) if text_only else None

    def end(self) -> bytes:
        """The events after the last delta."""
        out = b"" if self._roles_sent else self._roles(self._generation.usage if self._continuous else None)
        return out + self._chunks.totals(
            self._generation.usage if self._answer.body.include_usage else None,
            timings(self._generation) if self._answer.body.timings else None,
            self._reasoning_tokens,
        )

    @property
    def _reasoning_tokens(self) -> int:
        return sum(choice.reasoning_tokens for choice in self._choices)

    def _roles(self, usage: Usage | None) -> bytes:
        extra = b""
        if self._answer.body.return_token_ids:
            ids = ",".join(map(str, self._answer.prompt)).encode()
            extra = b',"prompt_token_ids":[' + ids + b"]"
        first, *others = (wire.role for wire in self._wires)
        out = self._chunks.chunk(first, usage, extra)
        return out + b"".join(self._chunks.chunk(role, usage) for role in others)

    def _pieces(self, choice: Choice, wire: ChatChoiceEncoder, delta: TextDelta) -> list[bytes]:
        """Encoded choices for a delta that is more than text."""
        members = [delta_members(piece, self._answer.reasoning_fields) for piece in choice.pieces(delta)]
        encoded: list[bytes] = []
        tokens = delta.logprobs
        ids = delta.token_ids if self._answer.body.return_token_ids else None
        if tokens is not None or ids is not None:
            # They belong to the delta as a whole, also when its text is held back.
            first = members.pop(0) if members else {"content": ""}
            encoded.append(wire.delta(first, tokens, ids))
        encoded += [wire.delta(one) for one in members]
        if delta.finish_reason is not None:
            reason = _openai_reason(choice, choice.reason(delta.finish_reason))
            encoded.append(wire.finish(reason, delta.stop_reason))
        return encoded


class ChatWhole:
    """Collects a whole answer. One writer: the task that reads the generation."""

    def __init__(self, answer: ChatAnswer, choices: Sequence[Choice]) -> None:
        self._answer = answer
        self._choices = choices
        self._logprobs = [ChatLogprobs() for _ in choices]
        self._as_ids = bool(answer.body.return_tokens_as_token_ids)
        self.limited_by = "top_logprobs" if answer.body.top_logprobs else "logprobs"
        """The field that decides how much `take` adds to the answer."""
        self.prompt_logprobs: bytes | None = None
        """Encoded `prompt_logprobs`, if they were requested and are known."""

    def take(self, delta: TextDelta) -> int:
        """Add a delta. Returns the size of its logprobs in bytes."""
        self._choices[delta.index].take(delta)
        return self._logprobs[delta.index].add(delta.logprobs or (), self._as_ids)

    def body(self, generation: Generation) -> chat.ChatCompletion:
        """The body, once all deltas are taken."""
        answer, request = self._answer, self._answer.body
        thoughts = sum(choice.reasoning_tokens for choice in self._choices)
        body: chat.ChatCompletion = {
            "id": answer.id,
            "object": "chat.completion",
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": answer.fingerprint,
            "seed": generation.seed,
            "choices": list(map(self._choice, self._choices, self._logprobs)),
            "usage": usage_object(generation.usage, thoughts),
        }
        if self.prompt_logprobs is not None:
            body["prompt_logprobs"] = msgspec.Raw(self.prompt_logprobs)
        if request.return_token_ids:
            body["prompt_token_ids"] = answer.prompt
        if request.timings:
            body["timings"] = timings(generation)
        return body

    def _choice(self, choice: Choice, logprobs: ChatLogprobs) -> chat.ChatChoice:
        request, end = self._answer.body, finish_of(choice)
        answered: chat.ChatChoice = {
            "index": choice.index,
            "message": message_of(choice, self._answer.reasoning_fields),
            "logprobs": None if request.num_logprobs is None else msgspec.Raw(logprobs.encoded()),
            "finish_reason": end["finish_reason"],
            "stop_reason": end["stop_reason"],
        }
        if request.return_token_ids:
            answered["token_ids"] = choice.token_ids
        return answered


def message_of(choice: Choice, reasoning_fields: Sequence[chat.ReasoningField]) -> chat.AnsweredMessage:
    """The message of a whole choice. Keys without a value are omitted where clients expect it."""
    text, thoughts, calls = choice.text, choice.thoughts, choice.calls
    empty = None if calls or thoughts else ""
    message: chat.AnsweredMessage = {"role": "assistant", "content": text or empty, "refusal": None}
    if thoughts:
        for name in reasoning_fields:
            message[name] = thoughts
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def finish_of(choice: Choice) -> chat.ChatEnd:
    """The reason why a whole choice ended."""
    reason = _openai_reason(choice, choice.finish_reason)
    return {"finish_reason": reason, "stop_reason": choice.stop_reason}


def _openai_reason(choice: Choice, reason: str) -> chat.ChatFinish:
    """A call that the client named ends with "stop", as with OpenAI and vLLM: the client knows that there is a call."""
    return "stop" if reason == "tool_calls" and choice.mode == "named" else cast(chat.ChatFinish, reason)
