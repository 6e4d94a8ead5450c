"""One engine call, answered in the form of the API that asked: a stream of events or a whole body."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from engine.text.generation import Generation, TakeText, TextDelta
from server.answer.choice import Choice
from server.answer.prompt_tokens import encoded_prompt_logprobs
from server.apis.base.common import generation_of
from server.http.buffered import AnswerBudget
from server.http.direct_writer import DirectWriter
from server.prepare.chat import PreparedChat
from server.prepare.field_names import FieldNames
from server.state.server_state import ServedModel

EncodeText = Callable[[str], bytes]
"""Type of a function that makes an API's events of a text, which is not empty."""


class StreamEncoder(Protocol):
    """Makes an API's events of one call's deltas."""

    def begin(self, generation: Generation) -> None:
        """The call is queued. `generation.usage` grows with the deltas."""

    def delta(self, delta: TextDelta) -> bytes:
        """The events of a delta; empty if there are none."""

    def plain(self, index: int) -> EncodeText | None:
        """What makes the events of a choice's deltas from now on, up to its last one, where these are text and nothing else;
        None while they may be more than that."""

    def end(self) -> bytes:
        """The events after the last delta."""


class EventWriter:
    """Writes the events of deltas as they come. `encode` makes them, b"" if there are none; `plain`: see `StreamEncoder`."""

    __slots__ = ("_encode", "_plain", "_writer", "flush")

    def __init__(
        self,
        encode: Callable[[TextDelta], bytes],
        plain: Callable[[int], EncodeText | None],
        writer: DirectWriter,
    ) -> None:
        self._encode = encode
        self._plain = plain
        self._writer = writer
        self.flush = writer.flush
        """See `DirectWriter.flush`."""

    @property
    def ready(self) -> bool:
        """See `DirectWriter.ready`."""
        return self._writer.ready

    def take(self, delta: TextDelta) -> None:
        """Write the events of a delta."""
        if events := self._encode(delta):
            self._writer.hold(events)

    def text_taker(self, index: int) -> TakeText | None:
        """Function that writes the events of texts, once the encoder makes them of text alone."""
        encode = self._plain(index)
        return None if encode is None else self._writer.text_writer(encode)


class WholeEncoder(Protocol):
    """Collects one call's deltas."""

    prompt_logprobs: bytes | None
    limited_by: str

    def take(self, delta: TextDelta) -> int:
        """Add a delta. Returns the bytes that it adds to the answer besides its text, which `limited_by` asks for."""


class AnsweredCall:
    """A prepared call and the choices of its answer. `names`: those of the client's fields, for errors."""

    def __init__(self, model: ServedModel, prepared: PreparedChat, names: FieldNames) -> None:
        self.request = prepared.request
        self.id = self.request.context.request_id
        self.choices = [Choice(index, prepared.reading) for index in range(self.request.n)]
        self._model = model
        self._names = names
        self._grammar = prepared.grammar_param

    def start(self) -> AbstractAsyncContextManager[Generation]:
        """Queue the call."""
        return generation_of(self._model, self.request, self._names, self._grammar)

    async def stream(
        self, encoder: StreamEncoder, last: bytes = b"", *, writer: DirectWriter | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The answer as events, and `last` behind them. Events that `writer` is ready for are written and not given here."""
        async with self.start() as generation:
            encoder.begin(generation)
            if writer is not None:
                generation.sink = EventWriter(encoder.delta, encoder.plain, writer)
            async for delta in generation:
                if out := encoder.delta(delta):
                    yield out
        yield encoder.end() + last

    async def collect(self, encoder: WholeEncoder, prompt_alternatives: int = 0) -> Generation:
        """Have the whole answer collected; returns the ended call. `prompt_alternatives`: number of alternatives of each
        token in logprobs of the prompt. Raises InvalidRequest if the answer becomes too large."""
        room = AnswerBudget()
        async with self.start() as generation:
            async for delta in generation:
                room.take(encoder.take(delta), encoder.limited_by)
                if delta.prompt_logprobs is not None:
                    encoder.prompt_logprobs = await encoded_prompt_logprobs(
                        delta.prompt_logprobs, prompt_alternatives
                    )
        return generation
