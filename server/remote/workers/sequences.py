"""`WorkerSequences`: the sequences of one API worker in the process that schedules. It submits the worker's requests to the
engine and sends the worker the deltas of its sequences.

A sequence has the number that its worker gave it (`key`). Nothing waits here for a reader: a worker that falls behind holds its
clients' tokens in their mailboxes, and one that stops reading is given up by its link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from engine.core.engine import EngineCore
from engine.errors import EngineError, Unavailable
from engine.request import PLAIN_TOKENS, FinishReason, Request, TokenDelta
from engine.story import Story
from executors.contract import SampledToken
from server.remote import messages as m
from server.remote.link import Link
from server.remote.wire_errors import packed
from server.remote.workers.stories import WorkerStories, times_of

CoreOf = Callable[[], EngineCore | None]
"""Returns the engine, None while there is none."""


class Outlets(Protocol):
    """What an outlet gives its deltas to."""

    def put(self, key: int, delta: TokenDelta) -> None:
        """Send a delta of the sequence `key`."""

    def put_token(self, key: int, token_id: int, num_cached_tokens: int) -> None:
        """Send a token of the sequence `key`."""


class _Outlet:
    """Where the engine puts the deltas of one API call: the engine tells calls apart by their outlets, and sequences of a call by
    their choices."""

    __slots__ = ("__weakref__", "_put", "_put_token", "keys", "story")

    def __init__(self, sequences: Outlets, story: Story | None) -> None:
        self._put = sequences.put
        self._put_token = sequences.put_token
        self.keys: dict[int, int] = {}
        self.story = story

    def put(self, choice: int, delta: TokenDelta) -> None:
        """Send a delta of the sequence of this choice."""
        self._put(self.keys[choice], delta)

    def put_token(self, choice: int, token_id: int, num_cached_tokens: int) -> None:
        """Send a token of the sequence of this choice."""
        self._put_token(self.keys[choice], token_id, num_cached_tokens)


class WorkerSequences:
    """The sequences of one worker. One writer: the event loop."""

    def __init__(self, core: CoreOf, link: Link, stories: WorkerStories) -> None:
        self._core = core
        self._link = link
        self._stories = stories
        self._seq_ids: dict[int, tuple[int, int]] = {}
        """Sequences that have not ended, by key: the engine's id and the number of the call."""
        self._outlets: dict[int, tuple[_Outlet, int]] = {}
        """By call: its outlet, and how many of its sequences have not ended."""
        self._calls: dict[int, contextlib.ExitStack] = {}
        self._plain: list[int] = []
        self._others: list[m.Delta] = []
        self._odd_keys: set[int] = set()
        """Keys in `_others`: what follows for them may not come before."""
        self._fresh: set[int] = set()
        """Keys of sequences that have given nothing yet: with their first delta go the times of their call."""
        link.before_flush = self._queue_deltas

    @property
    def num_sequences(self) -> int:
        """Sequences that have not ended."""
        return len(self._seq_ids)

    # -- from the worker -----------------------------------------------------------------------------------------------

    def submit(self, message: m.Submit) -> None:
        """Give requests to the engine. A refusal is the first delta of each."""
        # Without facts another process writes the story: the engine writes into an empty one the times that go back.
        story = (
            message.requests[0].context.story if message.story is None else self._stories.of(message.story)
        )
        outlet, count = self._outlets.get(message.call) or (_Outlet(self, story), 0)
        requests = message.requests if outlet.story is None else _with_story(message.requests, outlet.story)
        keys = range(message.first_key, message.first_key + len(message.requests))
        # Before the engine knows them: one whose output exists already ends at once.
        self._outlets[message.call] = outlet, count + len(keys)
        for choice, key in enumerate(keys, message.choice):
            self._seq_ids[key] = (-1, message.call)
            outlet.keys[choice] = key
            self._fresh.add(key)
        try:
            core = self._core()
            if core is None:
                raise Unavailable("The model is still loading.")
            if message.accepted:
                [request] = requests
                committed = [SampledToken(token_id) for token_id in message.committed or ()]
                seq_ids = [core.submit(request, outlet, message.choice, committed, True, message.started)]
            else:
                seq_ids = core.submit_choices(requests, outlet, message.choice)
        except EngineError as error:
            for key in keys:
                self.put(key, TokenDelta(finish_reason=FinishReason.ERROR, error=error))
            return
        for key, seq_id in zip(keys, seq_ids, strict=True):
            if key in self._seq_ids:
                self._seq_ids[key] = (seq_id, message.call)

    def abort(self, key: int) -> None:
        """Drop a sequence. An unknown one is harmless: its end may be on the way."""
        if (seq_id := self._ended(key)) is not None and (core := self._core()) is not None:
            core.abort(seq_id)

    def finish(self, key: int, num_tokens: int) -> None:
        """End a sequence after so many tokens."""
        if (seq_id := self._ended(key)) is not None and (core := self._core()) is not None:
            core.finish(seq_id, num_tokens)

    def begin_call(self, number: int) -> None:
        """See `EngineCore.call`."""
        if (core := self._core()) is not None:
            self._calls[number] = stack = contextlib.ExitStack()
            stack.enter_context(core.call())

    def end_call(self, number: int) -> None:
        """The block of that call was left."""
        if (stack := self._calls.pop(number, None)) is not None:
            stack.close()

    def close(self) -> None:
        """The worker is gone: its clients are, too."""
        for key in list(self._seq_ids):
            self.abort(key)
        for number in list(self._calls):
            self.end_call(number)
        self._stories.close()

    # -- from the engine -----------------------------------------------------------------------------------------------

    def put(self, key: int, delta: TokenDelta) -> None:
        """Send a delta at the end of this turn."""
        self._link.flush_soon()
        self._odd_keys.add(key)
        fault = None if delta.error is None else packed(delta.error)
        times = None
        if key in self._fresh or delta.finish_reason is not None:
            self._fresh.discard(key)
            times = self._times(key)
        self._others.append(
            m.Delta(
                key,
                delta.tokens,
                delta.finish_reason,
                delta.stop_token_id,
                delta.num_cached_tokens,
                fault,
                delta.prompt_logprobs,
                delta.pooled,
                times,
            )
        )
        if delta.finish_reason is not None:
            self._ended(key)

    def put_token(self, key: int, token_id: int, num_cached_tokens: int) -> None:
        """Send a token at the end of this turn; it costs three integers."""
        if key in self._odd_keys or key in self._fresh:
            self.put(key, TokenDelta([PLAIN_TOKENS[token_id]], None, None, num_cached_tokens))
            return
        if not self._plain:
            self._link.flush_soon()
        self._plain += (key, token_id, num_cached_tokens)

    def _times(self, key: int) -> m.CallTimes | None:
        """The times of a sequence's call."""
        if (place := self._seq_ids.get(key)) is None:
            return None
        story = self._outlets[place[1]][0].story
        return None if story is None else times_of(story)

    def _queue_deltas(self) -> None:
        if self._plain or self._others:
            deltas = m.Deltas(self._plain, self._others)
            self._plain, self._others = [], []
            self._odd_keys.clear()
            self._link.send(deltas)

    def _ended(self, key: int) -> int | None:
        """Forget a sequence; returns the engine's id of it."""
        seq_id, call = self._seq_ids.pop(key, (None, 0))
        self._fresh.discard(key)
        if seq_id is not None:
            outlet, count = self._outlets[call]
            if count == 1:
                del self._outlets[call]
            else:
                self._outlets[call] = outlet, count - 1
        return seq_id


def _with_story(requests: list[Request], story: Story) -> list[Request]:
    """The requests of a call, whose story the engine tells."""
    context = replace(requests[0].context, story=story)
    return [replace(request, context=context) for request in requests]
