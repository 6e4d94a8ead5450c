"""The answer of Ollama's API: lines of a stream, each a JSON object, and the body of a whole answer, made of the same parts.

parts   Thought "Hm"       str "Let me"       CallBegun f, CallArguments {"x":1}
chat    message.thinking   message.content    message.tool_calls, once a call is complete
text    thinking           response           (there are no tools)

The last line has the reason, the durations and the counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import msgspec

from engine.text.generation import Generation, TextDelta, TokenText, Usage
from server.answer.choice import Choice, Piece
from server.answer.json_object import JSONObject
from server.answer.reasoning import Thought
from server.answer.sse import PLACE, ChatLogprobs, around, chat_logprobs, encode
from server.answer.tools.events import CallArguments, CallBegun
from server.apis.ollama import answers as ollama

_TIME = "\ue001"
"""Text in whose place a time is put."""


def nanoseconds(seconds: float) -> int:
    """A duration in nanoseconds."""
    return round(seconds * 1_000_000_000)


def written_time(seconds: float) -> str:
    """A time in Unix seconds as Ollama writes it: RFC 3339 in UTC."""
    whole, rest = divmod(int(seconds * 1_000_000), 1_000_000)
    return f"{_written_second(whole)}.{rest:06d}Z"


def _written_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


@lru_cache(maxsize=2)
def _encoded_time(milliseconds: int) -> bytes:
    """A time for lines of a stream, to the millisecond, in which a step writes dozens: made for each it would take 6 us."""
    whole, rest = divmod(milliseconds, 1000)
    return f"{_written_second(whole)}.{rest:03d}Z".encode()


@dataclass(slots=True)
class LineContent:
    """What one line, or a whole answer, says."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[ollama.ToolCall] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


class CallCollector:
    """Turns typed parts into parts of lines. A call is told once it is complete, with its arguments as one JSON object. One
    writer: the caller of `take`."""

    def __init__(self) -> None:
        self._number = -1
        self._open_call: CallBegun | None = None
        self._arguments = JSONObject()
        self._written: list[str] = []

    def take(self, pieces: Iterable[Piece], all_complete: bool) -> LineContent:
        """What these parts add. `all_complete`: every call so far is complete."""
        texts, thoughts, calls = list[str](), list[str](), list[ollama.ToolCall]()
        for piece in pieces:
            match piece:
                case str():
                    texts.append(piece)
                case Thought(text):
                    thoughts.append(text)
                case CallBegun():
                    calls += self._ended()
                    self._open_call, self._arguments, self._written = piece, JSONObject(), []
                case CallArguments(_, text):
                    self._written.append(self._arguments.push(text))
        if all_complete:
            calls += self._ended()
        return LineContent("".join(texts), "".join(thoughts), calls)

    def _ended(self) -> list[ollama.ToolCall]:
        """The open call, which is complete; empty if there is none."""
        if self._open_call is None:
            return []
        call, self._open_call = self._open_call, None
        self._number += 1
        arguments = "".join([*self._written, self._arguments.finish()])
        function: ollama.CalledFunction = {
            "index": self._number,
            "name": call.name,
            "arguments": msgspec.Raw(arguments.encode()),
        }
        return [{"id": call.id, "function": function}]


class OllamaAnswer:
    """What all lines of an answer share. `arrived`: when the request came, in seconds of the monotonic clock. `as_text`: the
    answer is a `response`, as that of /api/generate, and no message. One writer: the task that reads the generation."""

    def __init__(
        self, model: str, arrived: float, as_text: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.as_text = as_text
        self._model = model
        self._clock = clock
        self._arrived = arrived
        self._started = self._first = arrived

    def begin(self) -> None:
        """The call is queued: until now its prompt was made, and its adapter loaded."""
        self._started = self._first = self._clock()

    def first_delta(self) -> None:
        """The prompt is computed."""
        self._first = self._clock()

    def head(self) -> ollama.LineHead:
        """The first members of a line."""
        return {"model": self._model, "created_at": written_time(time.time())}

    def frame(self) -> tuple[bytes, bytes, bytes]:
        """A line with a text and nothing else, in encoded pieces: before its time, between time and text, behind the text."""
        plain = self.line(LineContent(PLACE), {"done": False})
        plain["created_at"] = _TIME
        before, behind = around(plain)
        head, _, between = before.rpartition(_TIME.encode())
        return head, between, behind + b"\n"

    def line(
        self,
        part: LineContent,
        end: ollama.Ending | ollama.NotDone | ollama.Loaded,
        logprobs: bytes | None = None,
    ) -> ollama.OllamaChat | ollama.OllamaGeneration:
        """A line, or a whole answer, of a part and its last members. `logprobs`: an encoded list."""
        listed: dict[str, Any] = {} if logprobs is None else {"logprobs": msgspec.Raw(logprobs)}
        if self.as_text:
            thinking = {"thinking": part.thinking} if part.thinking else {}
            members = {**self.head(), "response": part.text, **thinking, **listed, **end}
            return cast(ollama.OllamaGeneration, members)
        return cast(ollama.OllamaChat, {**self.head(), "message": _message(part), **listed, **end})

    def ending(self, reason: str, usage: Usage) -> ollama.Ending:
        """The last members: the reason, durations in nanoseconds, and counts."""
        ended = self._clock()
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": nanoseconds(ended - self._arrived),
            "load_duration": nanoseconds(self._started - self._arrived),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(self._first - self._started),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(ended - self._first),
        }

    def loaded(self) -> ollama.OllamaChat | ollama.OllamaGeneration:
        """The answer to a request that only loads the model."""
        return self.line(LineContent(), {"done": True, "done_reason": "load"})

    def unloaded(self) -> ollama.OllamaChat | ollama.OllamaGeneration:
        """The answer to a request that only unloads the model."""
        return self.line(LineContent(), {"done": True, "done_reason": "unload"})


def _message(part: LineContent) -> ollama.AnsweredMessage:
    message: ollama.AnsweredMessage = {"role": "assistant", "content": part.text}
    if part.thinking:
        message["thinking"] = part.thinking
    if part.calls:
        message["tool_calls"] = list(part.calls)
    return message


def line(members: ollama.OllamaChat | ollama.OllamaGeneration | ollama.OllamaError) -> bytes:
    """A line of a stream."""
    return encode(members) + b"\n"


class OllamaStream:
    """Encodes a stream. One writer: the event loop, on which the reader of the generation and the sender of signs of life take
    turns."""

    def __init__(self, answer: OllamaAnswer, choice: Choice) -> None:
        self._answer = answer
        self._choice = choice
        self._calls = CallCollector()
        self._usage: Callable[[], Usage] = Usage
        self._started = False
        self._reason = "stop"
        self._text = _texts_between(*answer.frame())

    def begin(self, generation: Generation) -> None:
        """The call is queued."""
        self._usage = lambda: generation.usage
        self._answer.begin()

    def keep_alive(self) -> bytes:
        """A line without text, which clients append to the answer."""
        return self._text("")

    def delta(self, delta: TextDelta) -> bytes:
        """The lines of a delta; empty if all of it is held back."""
        if not self._started:
            self._started = True
            self._answer.first_delta()
        choice = self._choice
        if delta.finish_reason is None and delta.logprobs is None and choice.plain:  # the frequent case
            return self._text(delta.text) if delta.text else b""
        part = self._calls.take(choice.pieces(delta), choice.calls_complete)
        if delta.finish_reason is not None:
            self._reason = choice.reason(delta.finish_reason)
        logprobs = _encoded(delta.logprobs) if delta.logprobs else None
        if not part and logprobs is None:
            return b""
        return line(self._answer.line(part, {"done": False}, logprobs))

    def plain(self, index: int) -> Callable[[str], bytes] | None:
        """See `StreamEncoder`."""
        return self._text if self._started and self._choice.plain else None

    def end(self) -> bytes:
        """The last line."""
        answer = self._answer
        return line(answer.line(LineContent(), answer.ending(self._reason, self._usage())))


def _texts_between(head: bytes, name: bytes, tail: bytes) -> Callable[[str], bytes]:
    """Function that makes the line of a text: `head`, the time, `name`, the text and `tail`."""

    def text_line(text: str) -> bytes:
        return b"".join((head, _encoded_time(int(time.time() * 1000)), name, encode(text), tail))

    return text_line


class OllamaWhole:
    """Collects a whole answer. One writer: the task that reads the generation."""

    limited_by = "top_logprobs"

    def __init__(self, answer: OllamaAnswer, choice: Choice, logprobs: bool) -> None:
        self.prompt_logprobs: bytes | None = None
        self._answer = answer
        self._choice = choice
        self._calls = CallCollector()
        self._parts: list[LineContent] = []
        self._logprobs = ChatLogprobs() if logprobs else None
        self._started = False
        self._reason = "stop"

    def take(self, delta: TextDelta) -> int:
        """Add a delta. Returns the size of its logprobs in bytes."""
        if not self._started:
            self._started = True
            self._answer.first_delta()
        pieces = self._choice.pieces(delta)
        self._parts.append(self._calls.take(pieces, self._choice.calls_complete))
        if delta.finish_reason is not None:
            self._reason = self._choice.reason(delta.finish_reason)
        return 0 if self._logprobs is None else self._logprobs.add(delta.logprobs or ())

    def body(self, generation: Generation) -> ollama.OllamaChat | ollama.OllamaGeneration:
        """The body, once all deltas are taken."""
        answer, parts = self._answer, self._parts
        whole = LineContent(
            "".join(part.text for part in parts),
            "".join(part.thinking for part in parts),
            [call for part in parts for call in part.calls],
        )
        logprobs = None if self._logprobs is None else self._logprobs.items()
        return answer.line(whole, answer.ending(self._reason, generation.usage), logprobs)


def _encoded(tokens: Sequence[TokenText]) -> bytes:
    return encode(chat_logprobs(tokens)["content"])
