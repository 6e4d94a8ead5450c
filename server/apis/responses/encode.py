"""The answer of OpenAI's Responses API: events of a stream, and the body of a whole answer, made of the same items.

parts      Thought "Hm" "m."    str "Let me"     CallBegun f      CallArguments {"x":1}
items      0 reasoning          1 message        2 function_call
events     added part delta delta done part.done item.done        ... between response.created and response.completed
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec
import pydantic_core

from engine.text.generation import Generation, TextDelta, TokenText, Usage
from server.answer.carried_reasoning import encoded_reasoning
from server.answer.choice import Choice, Piece
from server.answer.reasoning import Thought
from server.answer.sse import chat_logprobs, encode
from server.answer.tools.events import CallArguments, CallBegun
from server.schemas.answers import response_items as r
from server.schemas.answers.response_items import ResponsesUsage

_CALLS = ("function_call", "custom_tool_call")


def new_id(prefix: str) -> str:
    """An identifier that no one can guess."""
    return f"{prefix}{secrets.token_hex(16)}"


def usage_of(usage: Usage, reasoning_tokens: int = 0) -> ResponsesUsage:
    """Token counts in the API's form. `reasoning_tokens` are part of the generated tokens."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool as the client names it. The input of a `custom` tool is one text."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseAnswer:
    """What all events of an answer share. `echo`: members of the response that repeat the request. `tools`: the tools by the
    names that the model sees. `encrypted`: whether reasoning items have `encrypted_content`."""

    id: str
    model: str
    echo: r.ResponseEcho
    tools: Mapping[str, CalledTool] = field(default_factory=dict)
    encrypted: bool = False
    created_at: int = field(default_factory=lambda: int(time.time()))

    def response(
        self,
        status: r.ResponseStatus,
        output: Sequence[r.OutputItem] = (),
        usage: ResponsesUsage | None = None,
        error: r.ResponseFailure | None = None,
        incomplete: r.IncompleteReason | None = None,
    ) -> r.Response:
        """The response object. `incomplete`: the reason for an incomplete answer."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "model": self.model,
            "output": output,
            "usage": usage,
            **self.echo,
        }


class ItemWriter:
    """Turns typed parts into items, of which one is open at a time. One writer: the caller of `take`."""

    def __init__(self, tools: Mapping[str, CalledTool], encrypted: bool = False) -> None:
        self.output: list[r.OutputItem] = []
        """The finished items."""
        self.kind = ""
        """Type of the open item, "" if none is open."""
        self.item_id = ""
        """Identifier of the open item."""
        self._tools = tools
        self._encrypted = encrypted
        self._item: r.OutputItem | None = None
        self._texts: list[str] = []
        self._logprobs: list[r.ChosenLogprob] = []
        self._tokens: list[TokenText] = []
        """Tokens whose text is held back."""
        self._blanks = ""
        """Blanks behind an item, which belong to a message if one follows."""
        self._out: list[r.ResponseEvent] = []
        """Events, each with the sequence number 0: the stream numbers them."""

    def take(
        self, pieces: Sequence[Piece], tokens: Iterable[TokenText] | None = None
    ) -> list[r.ResponseEvent]:
        """The events of these parts. `tokens`: their tokens, if log probabilities were requested."""
        self._tokens += tokens or ()
        for piece in pieces:
            match piece:
                case str():
                    self._text(piece)
                case Thought(text):
                    self._thought(text)
                case CallBegun(_, id_, name):
                    self._call(id_, name)
                case CallArguments(_, text):
                    self._texts.append(text)
                    if text and self.kind == "function_call":
                        self._arguments(text)
        if pieces and not any(isinstance(piece, str) for piece in pieces):
            self._tokens.clear()  # those of reasoning and of calls are not reported
        return self._events()

    @property
    def append(self) -> Callable[[str], None]:
        """Function that adds text to the open message, without an event."""
        return self._texts.append

    def finish(self, cut_off: bool, call_complete: bool = True) -> list[r.ResponseEvent]:
        """The events at the end of the answer, which has at least one item unless it is `cut_off`: the open item is then
        incomplete. `call_complete`: whether the arguments of an open call are complete."""
        if not self.output and not self.kind and not cut_off:
            self._open_message()
        self._close("incomplete" if cut_off or (self.kind in _CALLS and not call_complete) else "completed")
        return self._events()

    @property
    def index(self) -> int:
        """Number of the open item in the output."""
        return len(self.output)

    def _events(self) -> list[r.ResponseEvent]:
        out, self._out = self._out, []
        return out

    def _arguments(self, fragment: str) -> None:
        self._out.append(
            {
                "type": "response.function_call_arguments.delta",
                "item_id": self.item_id,
                "output_index": self.index,
                "delta": fragment,
                "sequence_number": 0,
            }
        )

    def _text(self, text: str) -> None:
        if self.kind != "message":
            text = self._blanks + text
            self._blanks = ""
            if (self.output or self.kind) and not text.strip():
                self._blanks = text
                return
            if not text:
                return
            self._open_message()
        if text:
            self._texts.append(text)
            self._out.append(
                {
                    "type": "response.output_text.delta",
                    "item_id": self.item_id,
                    "output_index": self.index,
                    "content_index": 0,
                    "delta": text,
                    "logprobs": self._new_logprobs(),
                    "sequence_number": 0,
                }
            )

    def _new_logprobs(self) -> list[r.ChosenLogprob]:
        """Log probabilities of the tokens so far that are not reported yet."""
        if not self._tokens:
            return []
        logprobs = cast(list[r.ChosenLogprob], chat_logprobs(self._tokens)["content"])
        self._tokens.clear()
        self._logprobs += logprobs
        return logprobs

    def _thought(self, text: str) -> None:
        if self.kind != "reasoning":
            self._open(
                {
                    "id": new_id("rs_"),
                    "type": "reasoning",
                    "status": "in_progress",
                    "summary": [],
                    "content": [],
                }
            )
        if text:
            self._texts.append(text)
            self._out.append(
                {
                    "type": "response.reasoning_text.delta",
                    "item_id": self.item_id,
                    "output_index": self.index,
                    "content_index": 0,
                    "delta": text,
                    "sequence_number": 0,
                }
            )

    def _call(self, call_id: str, name: str) -> None:
        tool = self._tools.get(name, CalledTool("function", name))
        item: dict[str, Any] = {"status": "in_progress", "call_id": call_id, "name": tool.name}
        if tool.namespace is not None:
            item["namespace"] = tool.namespace
        if tool.kind == "custom":
            custom = {"id": new_id("ctc_"), "type": "custom_tool_call", **item, "input": ""}
            self._open(cast(r.CustomCallItem, custom))
        else:
            function = {"id": new_id("fc_"), "type": "function_call", **item, "arguments": ""}
            self._open(cast(r.FunctionCallItem, function))

    def _open_message(self) -> None:
        self._open(
            {
                "id": new_id("msg_"),
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        )

    def _open(self, item: r.OutputItem) -> None:
        self._close("completed")
        self.kind, self.item_id, self._texts = item["type"], item["id"], []
        self._item = item
        self._item_event("response.output_item.added", item.copy())
        self._part_event("response.content_part.added", self._part(""))

    def _item_event(
        self, kind: Literal["response.output_item.added", "response.output_item.done"], item: r.OutputItem
    ) -> None:
        self._out.append({"type": kind, "output_index": self.index, "item": item, "sequence_number": 0})

    def _part_event(
        self, kind: Literal["response.content_part.added", "response.content_part.done"], part: r.Part | None
    ) -> None:
        if part is not None:
            self._out.append(
                {
                    "type": kind,
                    "item_id": self.item_id,
                    "output_index": self.index,
                    "content_index": 0,
                    "part": part,
                    "sequence_number": 0,
                }
            )

    def _part(self, text: str) -> r.Part | None:
        """The only part of the open item, if its type has parts."""
        match self.kind:
            case "message":
                return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*self._logprobs]}
            case "reasoning":
                return {"type": "reasoning_text", "text": text}
        return None

    def _close(self, status: r.ItemStatus) -> None:
        if self._item is None:
            return
        item, text = self._item.copy(), "".join(self._texts)
        item["status"] = status
        self._ended(item, text)
        self._item_event("response.output_item.done", item)
        self.output.append(item)
        self.kind, self._item, self._texts, self._logprobs = "", None, [], []

    def _ended(self, item: r.OutputItem, text: str) -> None:
        """Give an item its contents, and make the events of their end."""
        out = self._out
        if item["type"] == "message":
            logprobs = self._logprobs
            out.append(
                {
                    "type": "response.output_text.done", "item_id": self.item_id, "output_index": self.index,
                    "content_index": 0, "text": text, "logprobs": logprobs, "sequence_number": 0,
                }
            )  # fmt: skip
            whole: r.TextPart = {
                "type": "output_text",
                "text": text,
                "annotations": [],
                "logprobs": [*logprobs],
            }
            self._part_event("response.content_part.done", whole)
            item["content"] = [whole]
        elif item["type"] == "reasoning":
            out.append(
                {
                    "type": "response.reasoning_text.done", "item_id": self.item_id, "output_index": self.index,
                    "content_index": 0, "text": text, "sequence_number": 0,
                }
            )  # fmt: skip
            thoughts: r.ReasoningPart = {"type": "reasoning_text", "text": text}
            self._part_event("response.content_part.done", thoughts)
            if self._encrypted:
                item["encrypted_content"] = encoded_reasoning(text)
            item["content"] = [thoughts]
        elif item["type"] == "function_call":
            out.append(
                {
                    "type": "response.function_call_arguments.done", "item_id": self.item_id,
                    "output_index": self.index, "name": item["name"], "arguments": text, "sequence_number": 0,
                }
            )  # fmt: skip
            item["arguments"] = text
        else:
            item["input"] = text = _input_of(text, item["status"] == "incomplete")
            out.append(
                {
                    "type": "response.custom_tool_call_input.delta", "item_id": self.item_id,
                    "output_index": self.index, "delta": text, "sequence_number": 0,
                }
            )  # fmt: skip
            out.append(
                {
                    "type": "response.custom_tool_call_input.done", "item_id": self.item_id,
                    "output_index": self.index, "input": text, "sequence_number": 0,
                }
            )  # fmt: skip


def _input_of(arguments: str, cut_off: bool) -> str:
    """The input of a custom tool, which the model sees as a function with one text; what the model wrote if it is no such
    call. `cut_off`: the input may break off."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError):
        value = _beginning_of(arguments) if cut_off else None
    match value:
        case {"input": str(text)} if len(value) == 1:
            return text
        case {} if cut_off and not value:
            return ""
    return arguments


def _beginning_of(arguments: str) -> Any:
    """What is there of a JSON value that breaks off, None if it is none."""
    try:
        return pydantic_core.from_json(arguments or "{", allow_partial="trailing-strings")
    except ValueError:
        return None


_ENDS: dict[str, r.IncompleteReason] = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of incomplete answers, by the choice's finish reasons."""


class _Answered:
    """What a stream and a whole answer share: the items and the end of a choice. One writer: the reader of the generation."""

    def __init__(self, answer: ResponseAnswer, choice: Choice) -> None:
        self.answer = answer
        self._choice = choice
        self._writer = ItemWriter(answer.tools, answer.encrypted)
        self._incomplete: r.IncompleteReason | None = None

    def _is_text(self, delta: TextDelta) -> bool:
        """True in the frequent case: the delta is text of the open message and nothing else."""
        is_text = self._writer.kind == "message" and delta.finish_reason is None and delta.logprobs is None
        return is_text and self._choice.plain

    def _taken(self, delta: TextDelta) -> list[r.ResponseEvent]:
        events = self._writer.take(self._choice.pieces(delta), delta.logprobs)
        if delta.finish_reason is not None:
            reason = self._choice.reason(delta.finish_reason)
            self._incomplete = _ENDS.get(reason)
            events += self._writer.finish(self._incomplete is not None, reason == "tool_calls")
        return events

    def _ended(self, usage: Usage) -> r.Response:
        """The response at its end."""
        counts = usage_of(usage, self._choice.reasoning_tokens)
        status: r.ResponseStatus = "completed" if self._incomplete is None else "incomplete"
        return self.answer.response(status, self._writer.output, counts, incomplete=self._incomplete)


def _stage(status: r.ResponseStatus) -> r.LifecycleType:
    return cast(r.LifecycleType, f"response.{status}")


class ResponseStream(_Answered):
    """Encodes a stream. One writer: the event loop, on which the reader of the generation and the sender of signs of life take
    turns. `queued`: the stream begins before the call does, as that of a background response."""

    def __init__(self, answer: ResponseAnswer, choice: Choice, queued: bool = False) -> None:
        super().__init__(answer, choice)
        self._status: Literal["queued", "in_progress"] = "queued" if queued else "in_progress"
        self._usage: Callable[[], Usage] = Usage
        self._sequence = itertools.count()
        self._created = self._started = False
        self.final: r.Response | None = None
        """The response at its end."""

    @property
    def has_begun(self) -> bool:
        """True if an event was made."""
        return self._created

    def snapshot(self) -> r.Response:
        """The response so far, with the finished items."""
        return self.final or self.answer.response(self._status, list(self._writer.output))

    def created(self) -> bytes:
        """The first events."""
        if self._created:
            return b""
        self._created = True
        response = self.answer.response(self._status)
        out = self._lifecycle("response.created", response)
        return out + self._lifecycle("response.queued", response) if self._status == "queued" else out

    def begin(self, generation: Generation) -> None:
        """The call is queued; the first event waits for the first delta, so that an error before it has its own status."""
        self._usage = lambda: generation.usage

    def keep_alive(self) -> bytes:
        """The event after a silence: clients watch events, not bytes. A response that has not begun begins."""
        return self._begin() or self._lifecycle("response.in_progress", self.snapshot())

    def delta(self, delta: TextDelta) -> bytes:
        """The events of a delta; empty if all of it is held back."""
        out = self._begin()
        if self._is_text(delta):
            return out + self._text_event(delta.text) if delta.text else out
        return out + b"".join(map(self._event, self._taken(delta)))

    def plain(self, index: int) -> Callable[[str], bytes] | None:
        """See `StreamEncoder`. While all is text the open message stays open."""
        is_text = self._started and self._writer.kind == "message" and self._choice.plain
        return self._text_events() if is_text else None

    def conclude(self) -> r.Response:
        """The response at its end, once all deltas are taken."""
        if self.final is None:
            self.final = self._ended(self._usage())
        return self.final

    def end(self) -> bytes:
        """The events after the last delta."""
        out = self._begin()
        final = self.conclude()
        return out + self._lifecycle(_stage(final["status"]), final)

    def stopped(self, status: Literal["failed", "cancelled"], error: r.ResponseFailure | None) -> bytes:
        """The events after which nothing comes."""
        if self.final is not None:
            return b""
        out = self.created() + b"".join(map(self._event, self._writer.finish(cut_off=True)))
        self.final = self.answer.response(status, self._writer.output, error=error)
        return out + self._lifecycle(_stage(status), self.final)

    def _begin(self) -> bytes:
        if self._started:
            return b""
        out = self.created()
        self._started, self._status = True, "in_progress"
        return out + self._lifecycle("response.in_progress", self.answer.response("in_progress"))

    def _lifecycle(self, kind: r.LifecycleType, response: r.Response) -> bytes:
        return self._event({"type": kind, "response": response, "sequence_number": 0})

    def _event(self, event: r.ResponseEvent) -> bytes:
        event["sequence_number"] = next(self._sequence)
        return b"event: " + event["type"].encode() + b"\ndata: " + encode(event) + b"\n\n"

    def _text_event(self, text: str) -> bytes:
        """The frequent one."""
        return self._text_events()(text)

    def _text_events(self) -> Callable[[str], bytes]:
        """Function that makes the event of a text of the open message."""
        append, sequence = self._writer.append, self._sequence
        before = (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"%b","output_index":%d,'
            b'"content_index":0,"delta":'
        ) % (self._writer.item_id.encode(), self._writer.index)

        def event(text: str) -> bytes:
            append(text)
            return before + encode(text) + b',"logprobs":[],"sequence_number":%d}\n\n' % next(sequence)

        return event


class ResponseWhole(_Answered):
    """Collects a whole answer from the same items. One writer: the task that reads the generation."""

    limited_by = "include"
    prompt_logprobs: bytes | None = None

    def take(self, delta: TextDelta) -> int:
        """Add a delta; returns the size of its log probabilities in bytes."""
        if self._is_text(delta):
            self._writer.append(delta.text)
            return 0
        size = 0
        for event in self._taken(delta):
            if event["type"] == "response.output_text.delta" and event["logprobs"]:
                size += len(encode(event["logprobs"]))
        return size

    def body(self, generation: Generation) -> r.Response:
        """The response, once all deltas are taken."""
        return self._ended(generation.usage)
