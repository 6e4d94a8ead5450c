"""One choice of an answer, whatever API asked: its text read as typed parts, reasoning, text and tool calls, one by one or whole.

The engine's deltas go in. Encoders (`chat/encode.py` and its neighbours) make an API's events and bodies of what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.text.generation import TextDelta
from server.answer.harmony.stops import end_of_answer, stop_scope
from server.answer.harmony.tokens import ThoughtTokens
from server.answer.notation import ModelNotation
from server.answer.reasoning import Place, ReasoningParser, ReasoningTokens, Thought
from server.answer.reasoning.harmony import OPENED
from server.answer.tools.events import CallArguments, CallBegun, Event
from server.answer.tools.harmony_parser import HarmonyParser
from server.answer.tools.parser import CallParser, NoCalls
from server.schemas.tool_choice import ToolChoice

Piece = Thought | Event
StopScope = Callable[[str], list[tuple[str, bool]]]
"""Type of a function that divides text into pieces, and tells of each whether stop strings count in it."""


class AnswerParser(Protocol):
    """Reads one choice's text as typed parts. One writer: the caller of `push`."""

    @property
    def plain(self) -> bool:
        """True if all further text is shown unchanged."""

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""

    @property
    def all_finished(self) -> bool:
        """True if there is at least one call and every call is complete."""

    @property
    def ended(self) -> bool:
        """True if the answer ends here, whatever text the model would go on with."""

    def push(self, text: str, last: bool = False, cut_before: str | None = None) -> list[Piece]:
        """Take more text; `last` marks the end of the choice. Returns the pieces that are certain by now, in order. At the end
        of a choice that something cut off, text that could still have become notation is dropped: `cut_before` is the text that
        is known to follow, "" if none is known, None if the model itself ended the choice."""


class TokenCounter(Protocol):
    """Counts the reasoning tokens of one choice."""

    @property
    def count(self) -> int:
        """Number of reasoning tokens so far."""

    def push(self, token_ids: Sequence[int]) -> None:
        """Take more tokens of the choice."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of one call are parsed. `place`: where they begin. `token_bytes`: empty for tokens that are not shown.
    `hidden`: notation that consists of special tokens, which no client sees. With `include_reasoning` False, reasoning is
    removed from the answer."""

    notation: ModelNotation
    choice: ToolChoice
    place: Place
    token_bytes: Callable[[int], bytes]
    hidden: frozenset[str] = frozenset()
    include_reasoning: bool = True

    @property
    def calls(self) -> bool:
        """True if the answers are searched for calls."""
        return self.notation.tools is not None and self.choice.mode != "none"

    @property
    def literals(self) -> tuple[str, ...]:
        """The notation that the parsers search for."""
        tools, reasoning = self.notation.tools, self.notation.reasoning
        return (*(tools.literals if tools and self.calls else ()), *(reasoning.literals if reasoning else ()))

    @property
    def one_call(self) -> bool:
        """True if the answer ends with its first call."""
        return self.calls and not self.choice.several

    def parser(self) -> AnswerParser:
        """For one choice."""
        if self.notation.is_harmony:
            return HarmonyParser(
                self.choice.names,
                OPENED[self.place],
                exact=bool(self.notation.marks),
                calls=self.calls,
                one_call=self.one_call,
                apart=self.notation.reasoning is not None,
            )
        tools, reasoning = self.notation.tools, self.notation.reasoning
        parser = None
        if tools is not None and self.calls:
            parser = tools.parser(self.choice.names, self.hidden)
        elif hidden := self.hidden & frozenset(self.literals):
            parser = NoCalls(hidden=hidden)  # tags of reasoning that come once more
        thinks = None if reasoning is None else ReasoningParser(reasoning, self.place)
        return Parsers(thinks, parser, one_call=self.one_call)

    def counter(self) -> TokenCounter | None:
        """For one choice."""
        reasoning = self.notation.reasoning
        if reasoning is None:
            return None
        if self.notation.is_harmony:
            return ThoughtTokens(OPENED[self.place], self.token_bytes, self.notation.marks)
        return ReasoningTokens(reasoning, self.place, self.token_bytes)

    def end_of_answer(self) -> Callable[[str], bool]:
        """Function that takes the generated text in pieces and returns whether the answer ends with it."""
        if self.notation.marks and not self.one_call:
            return end_of_answer(OPENED[self.place])
        parser = self.parser()

        def ends(text: str) -> bool:
            parser.push(text)
            return parser.ended

        return ends

    @property
    def stop_scope(self) -> Callable[[], StopScope] | None:
        """Factory, for each choice, of what tells where stop strings count; None if they count everywhere."""
        if not self.notation.marks:
            return None
        return lambda: stop_scope(self.choice.names, OPENED[self.place], self.include_reasoning)


class Parsers:
    """Parses reasoning first, then calls in the remaining text. One writer: the caller of `push`."""

    def __init__(self, reasoning: ReasoningParser | None, tools: CallParser | None, one_call: bool) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._one_call = one_call

    @property
    def plain(self) -> bool:
        """True if all further text is shown unchanged."""
        return self._tools is None and (self._reasoning is None or self._reasoning.is_over)

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""
        return 0 if self._tools is None else self._tools.num_calls

    @property
    def all_finished(self) -> bool:
        """True if there is at least one call and every call is complete."""
        return self._tools is not None and 0 < self._tools.num_calls == self._tools.num_finished

    @property
    def ended(self) -> bool:
        """True if no further text is shown: only one call is allowed, and it is complete."""
        return self._one_call and self._tools is not None and self._tools.num_finished > 0

    def push(self, text: str, last: bool = False, cut_before: str | None = None) -> list[Piece]:
        """As `AnswerParser.push`."""
        if self._reasoning is None:
            pieces: list[Thought | str] = [text]
        else:
            pieces = self._reasoning.push(text)
            if last:
                pieces += self._reasoning.finish(cut_before)
        if self._tools is None:
            return [piece for piece in pieces if piece]
        out: list[Piece] = []
        for piece in pieces:
            out += [piece] if isinstance(piece, Thought) else self._read(self._tools, piece)
        if last and not self.ended:
            out += self._tools.finish(cut_before)
        return out

    def _read(self, tools: CallParser, text: str) -> list[Event]:
        if self.ended:
            return []
        events = tools.push(text)
        if not self.ended:
            return events
        # What follows the call in the same token was never asked for.
        of_call = [i for i, event in enumerate(events) if not isinstance(event, str) and event.index == 0]
        return events[: max(of_call, default=-1) + 1]


@dataclass(slots=True)
class WrittenCall:
    """One tool call of a whole answer. `arguments`: JSON as the model wrote it, valid only if a grammar enforced it."""

    id: str
    name: str
    arguments: str = ""


class Choice:
    """One choice so far. One writer: the task that reads the generation."""

    def __init__(self, index: int, reading: Reading) -> None:
        self.index = index
        self.mode = reading.choice.mode
        self.token_ids: list[int] = []
        """Ids of all tokens taken."""
        self.finish_reason = "stop"
        """Why the choice ended: `stop`, `length` or `tool_calls`."""
        self.stop_reason: str | int | None = None
        """Stop string or stop token that ended it."""
        self._reading = reading
        self._parser = reading.parser()
        self._counter = reading.counter()
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[WrittenCall] = []
        self._arguments: list[list[str]] = []

    @property
    def plain(self) -> bool:
        """True if all further text is shown unchanged and no token is counted as reasoning."""
        return self._parser.plain

    @property
    def reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far."""
        return 0 if self._counter is None else self._counter.count

    @property
    def calls_complete(self) -> bool:
        """True if there is at least one call and every call so far is complete."""
        return self._parser.all_finished

    def pieces(self, delta: TextDelta) -> list[Piece]:
        """The delta's text as typed parts."""
        if self._counter is not None:
            self._counter.push(delta.token_ids)
        pieces = self._parser.push(delta.text, delta.finish_reason is not None, self._cut_before(delta))
        if self._reading.include_reasoning:
            return pieces
        return [piece for piece in pieces if not isinstance(piece, Thought)]

    def _cut_before(self, delta: TextDelta) -> str | None:
        """The text before which the choice was cut off, "" if a limit did it; None if the model itself ended it."""
        match delta.finish_reason, delta.stop_reason:
            case "length", _:
                return ""
            case "stop", str(text):
                return text
            case "stop", int(token_id):  # "" for special tokens: with one of these a model ends its answer
                return self._reading.token_bytes(token_id).decode("utf-8", "replace") or None
        return None

    def reason(self, engine_reason: str) -> str:
        """The finish reason: `tool_calls` if every call is complete."""
        # A call that a stop string cut off is not to be carried out.
        return "tool_calls" if engine_reason == "stop" and self._parser.all_finished else engine_reason

    def take(self, delta: TextDelta) -> None:
        """Add a delta to the whole answer."""
        for piece in self.pieces(delta):
            match piece:
                case str():
                    self._text.append(piece)
                case Thought(text):
                    self._thoughts.append(text)
                case CallBegun(_, call_id, name):
                    self._calls.append(WrittenCall(call_id, name))
                    self._arguments.append([])
                case CallArguments(index, text):
                    self._arguments[index].append(text)
        self.token_ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reason = self.reason(delta.finish_reason)
            self.stop_reason = delta.stop_reason

    @property
    def text(self) -> str:
        """The text taken."""
        return "".join(self._text)

    @property
    def thoughts(self) -> str:
        """The reasoning taken."""
        return "".join(self._thoughts)

    @property
    def calls(self) -> list[WrittenCall]:
        """The calls taken."""
        for call, arguments in zip(self._calls, self._arguments, strict=True):
            call.arguments = "".join(arguments)
        return self._calls
