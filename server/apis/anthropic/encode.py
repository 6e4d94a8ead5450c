"""The answer of Anthropic's Messages API: events of a stream, and the body of a whole answer, made of the same blocks.

parts      Thought "Hm" "m."       str "Let me"         CallBegun f      CallArguments {"x":1}
blocks     0 thinking              1 text               2 tool_use
events     start delta delta       start delta          start            delta                    stop
           signature stop          stop
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec
import pydantic_core

from engine.text.generation import Generation, TextDelta, Usage
from server.answer.carried_reasoning import encoded_reasoning
from server.answer.choice import Choice, Piece
from server.answer.json_object import JSONObject
from server.answer.reasoning import Thought
from server.answer.sse import PLACE, around, encode, framed
from server.answer.tools.events import CallArguments, CallBegun
from server.apis.anthropic import answers as m

_TOOL_ID, _CALL_ID = "toolu_", "call_"
_GENERATED_DIGITS = 24
_STOP_REASONS: dict[str, m.StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def tool_use_id(call_id: str) -> str:
    """A call's id in Anthropic's form."""
    return _TOOL_ID + call_id.removeprefix(_CALL_ID)


def call_id(tool_use: str) -> str:
    """The id that `tool_use_id` was made of; an id of another origin without its prefix."""
    bare = tool_use.removeprefix(_TOOL_ID)
    return _CALL_ID + bare if bare != tool_use and len(bare) == _GENERATED_DIGITS else bare


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins. `block`: its form without contents."""

    index: int
    block: m.AnsweredBlock


@dataclass(frozen=True, slots=True)
class Grew:
    """A block grows. `delta` has a type and one text."""

    index: int
    delta: m.BlockDelta


@dataclass(frozen=True, slots=True)
class Closed:
    """A block ends. `cut_off`: a call whose arguments are not complete."""

    index: int
    cut_off: bool = False


BlockEvent = Opened | Grew | Closed


class BlockWriter:
    """Turns typed parts into blocks, of which one is open at a time. One writer: the caller of `take`."""

    def __init__(self, show_thoughts: bool = True) -> None:
        self.index = -1
        """Index of the last block."""
        self.kind = ""
        """Type of the open block, "" if none is open."""
        self._show_thoughts = show_thoughts
        self._digest = hashlib.sha256()
        self._unshown: list[str] = []
        """The reasoning of an open block that does not show it."""
        self._arguments = JSONObject()
        self._blanks = ""
        """Blanks behind a block, which belong to a text if one follows."""
        self._out: list[BlockEvent] = []

    def take(self, pieces: Iterable[Piece]) -> list[BlockEvent]:
        """The events of these parts."""
        for piece in pieces:
            match piece:
                case str():
                    self._text(piece)
                case Thought(text):
                    self._thought(text)
                case CallBegun(_, id_, name):
                    self._open({"type": "tool_use", "id": tool_use_id(id_), "name": name, "input": {}})
                    self._arguments = JSONObject()
                case CallArguments(_, text):
                    self._grow_input(self._arguments.push(text))
        return self._events()

    def finish(self, calls_complete: bool) -> list[BlockEvent]:
        """The events at the end of the answer, which has at least one block. The arguments of a last call that is not complete
        stay as they are: clients must not carry it out."""
        if self.index < 0 and not self.kind:
            self._open({"type": "text", "text": ""})
        self._close(calls_complete)
        return self._events()

    def _events(self) -> list[BlockEvent]:
        out, self._out = self._out, []
        return out

    def _text(self, text: str) -> None:
        if self.kind != "text":
            text = self._blanks + text
            self._blanks = ""
            if self.index >= 0 and not text.strip():
                self._blanks = text
                return
            if not text:
                return
            self._open({"type": "text", "text": ""})
        if text:
            self._grow({"type": "text_delta", "text": text})

    def _thought(self, text: str) -> None:
        if self.kind != "thinking":
            self._open({"type": "thinking", "thinking": "", "signature": ""})
            self._digest, self._unshown = hashlib.sha256(), []
        if self._show_thoughts:
            self._digest.update(text.encode("utf-8", "surrogatepass"))
            if text:
                self._grow({"type": "thinking_delta", "thinking": text})
        else:
            self._unshown.append(text)

    def _open(self, block: m.AnsweredBlock) -> None:
        self._close(calls_complete=True)
        self.index += 1
        self.kind = block["type"]
        self._out.append(Opened(self.index, block))

    def _grow(self, delta: m.BlockDelta) -> None:
        self._out.append(Grew(self.index, delta))

    def _grow_input(self, fragment: str) -> None:
        if fragment:
            self._grow({"type": "input_json_delta", "partial_json": fragment})

    def _close(self, calls_complete: bool) -> None:
        match self.kind:
            case "":
                return
            case "thinking":
                if signature := self._signature():
                    self._grow({"type": "signature_delta", "signature": signature})
            case "tool_use" if calls_complete:
                self._grow_input(self._arguments.finish())
        self._out.append(Closed(self.index, self.kind == "tool_use" and not calls_complete))
        self.kind = ""

    def _signature(self) -> str:
        """Of the open block: a digest of the text it shows, or else the text, which the client sends back with it."""
        return self._digest.hexdigest() if self._show_thoughts else encoded_reasoning("".join(self._unshown))


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """What all events of an answer share. `limited_by_context`: fewer tokens fit into the context than the client allows.
    `num_kept`: tokens of the prompt that are kept for later ones, up to the last block with `cache_control`."""

    id: str
    model: str
    prompt_tokens: int
    limited_by_context: bool = False
    show_thoughts: bool = True
    num_kept: int = 0

    def usage(self, usage: Usage, thinking_tokens: int = 0) -> m.MessagesUsage:
        """Token counts of this answer in Anthropic's form."""
        return usage_of(usage, thinking_tokens, self.num_kept)

    def opening(self, usage: Usage, thinking_tokens: int = 0) -> m.Message:
        """The message before its contents."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(usage, thinking_tokens),
        }

    def ending(self, reason: str, stop_reason: str | int | None) -> m.MessageEnd:
        """The reason why the message ended. `reason`: that of the choice."""
        if reason == "stop" and isinstance(stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
        own = _STOP_REASONS.get(reason, "end_turn")
        if own == "max_tokens" and self.limited_by_context:
            own = "model_context_window_exceeded"
        return {"stop_reason": own, "stop_sequence": None}


def usage_of(usage: Usage, thinking_tokens: int = 0, num_kept: int = 0) -> m.MessagesUsage:
    """Token counts in Anthropic's form: the prompt's are those read from the cache, those computed and kept as the client asked,
    and the rest in `input_tokens`. `output_tokens` includes those of reasoning."""
    created = max(0, num_kept - usage.cached_tokens)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": thinking_tokens},
    }


class MessageStream:
    """Encodes a stream. One writer: the event loop, on which the reader of the generation and the sender of pings take turns."""

    def __init__(self, answer: MessageAnswer, choice: Choice) -> None:
        self._answer = answer
        self._choice = choice
        self._blocks = BlockWriter(answer.show_thoughts)
        self._started = False
        self._ending = answer.ending("stop", None)
        self._usage: Callable[[], Usage] = lambda: Usage(prompt_tokens=answer.prompt_tokens)

    def begin(self, generation: Generation) -> None:
        """The call is queued; the first event waits for the first delta, which knows what was cached."""
        self._usage = lambda: generation.usage

    def ping(self) -> bytes:
        """The events after a silence. A message that has not begun begins: clients read nothing before that."""
        return self._begin() + _event({"type": "ping"})

    def delta(self, delta: TextDelta) -> bytes:
        """The events of a delta; empty if all of it is held back."""
        out = self._begin(len(delta.token_ids))
        blocks, choice = self._blocks, self._choice
        if blocks.kind == "text" and delta.finish_reason is None and choice.plain:  # the frequent case
            return out + _text_event(blocks.index, delta.text) if delta.text else out
        events = blocks.take(choice.pieces(delta))
        if delta.finish_reason is not None:
            reason = choice.reason(delta.finish_reason)
            events += blocks.finish(reason == "tool_calls")
            self._ending = self._answer.ending(reason, delta.stop_reason)
        return out + b"".join(map(_encoded, events))

    def plain(self, index: int) -> Callable[[str], bytes] | None:
        """See `StreamEncoder`. While all is text the open block stays open."""
        is_text = self._started and self._blocks.kind == "text" and self._choice.plain
        return framed(*_text_frame(self._blocks.index)) if is_text else None

    def end(self) -> bytes:
        """The events after the last delta."""
        usage = self._answer.usage(self._usage(), self._choice.reasoning_tokens)
        ending: m.MessageUpdate = {"type": "message_delta", "delta": self._ending, "usage": usage}
        return self._begin() + _event(ending) + _event({"type": "message_stop"})

    def _begin(self, num_new: int = 0) -> bytes:
        """The first events, unless they were given. `num_new`: tokens of the delta that follows them."""
        if self._started:
            return b""
        self._started = True
        usage = self._usage()
        counts = replace(usage, completion_tokens=usage.completion_tokens - num_new)
        return _event({"type": "message_start", "message": self._answer.opening(counts)})


def _event(data: m.MessageEvent | m.MessagesError) -> bytes:
    return b"event: " + data["type"].encode() + b"\ndata: " + encode(data) + b"\n\n"


def error_event(error: m.MessagesError) -> bytes:
    """The event that ends a failed stream."""
    return _event(error)


@lru_cache(maxsize=64)
def _text_frame(index: int) -> tuple[bytes, bytes]:
    """A text event before and after its text."""
    growth: m.BlockGrowth = {
        "type": "content_block_delta",
        "index": index,
        "delta": {"type": "text_delta", "text": PLACE},
    }
    before, after = around(growth)
    return b"event: content_block_delta\ndata: " + before, after + b"\n\n"


def _text_event(index: int, text: str) -> bytes:
    before, after = _text_frame(index)
    return before + encode(text) + after


def _encoded(event: BlockEvent) -> bytes:
    match event:
        case Opened(index, block):
            return _event({"type": "content_block_start", "index": index, "content_block": block})
        case Grew(index, delta):
            return _event({"type": "content_block_delta", "index": index, "delta": delta})
        case Closed(index):
            return _event({"type": "content_block_stop", "index": index})


@dataclass(slots=True)
class _Block:
    """`texts`: its text, its reasoning or the JSON of its input, in pieces."""

    form: m.AnsweredBlock
    texts: list[str] = field(default_factory=list)
    signature: str = ""

    def take(self, delta: m.BlockDelta) -> None:
        """Add a delta."""
        match delta["type"]:
            case "text_delta":
                self.texts.append(delta["text"])
            case "thinking_delta":
                self.texts.append(delta["thinking"])
            case "input_json_delta":
                self.texts.append(delta["partial_json"])
            case "signature_delta":
                self.signature += delta["signature"]

    def whole(self, cut_off: bool) -> m.AnsweredBlock:
        """The block with its contents."""
        form, text = self.form, "".join(self.texts)
        if form["type"] == "text":
            return {"type": "text", "text": text}
        if form["type"] == "thinking":
            return {"type": "thinking", "thinking": text, "signature": self.signature}
        if text:
            # Input that is cut off reads as it does in a stream: without the member that is not complete.
            arguments = (
                pydantic_core.from_json(text, allow_partial=True) if cut_off else msgspec.Raw(text.encode())
            )
            return {"type": "tool_use", "id": form["id"], "name": form["name"], "input": arguments}
        return form


class MessageWhole:
    """Collects a whole answer from the same events. One writer: the task that reads the generation."""

    limited_by = "max_tokens"

    def __init__(self, answer: MessageAnswer, choice: Choice) -> None:
        self._answer = answer
        self._choice = choice
        self._writer = BlockWriter(answer.show_thoughts)
        self._blocks: list[_Block] = []
        self._content: list[m.AnsweredBlock] = []
        self._ending = answer.ending("stop", None)
        self.prompt_logprobs: bytes | None = None

    def take(self, delta: TextDelta) -> int:
        """Add a delta; there is nothing beside its text."""
        self._fold(self._writer.take(self._choice.pieces(delta)))
        if delta.finish_reason is not None:
            reason = self._choice.reason(delta.finish_reason)
            self._fold(self._writer.finish(reason == "tool_calls"))
            self._ending = self._answer.ending(reason, delta.stop_reason)
        return 0

    def _fold(self, events: Sequence[BlockEvent]) -> None:
        for event in events:
            match event:
                case Opened(_, block):
                    self._blocks.append(_Block(block))
                case Grew(index, delta):
                    self._blocks[index].take(delta)
                case Closed(index, cut_off):
                    self._content.append(self._blocks[index].whole(cut_off))

    def body(self, generation: Generation) -> m.Message:
        """The body, once all deltas are taken."""
        message = self._answer.opening(generation.usage, self._choice.reasoning_tokens)
        message["content"] = self._content
        message["stop_reason"] = self._ending["stop_reason"]
        message["stop_sequence"] = self._ending["stop_sequence"]
        return message
