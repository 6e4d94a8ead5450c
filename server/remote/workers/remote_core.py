"""`RemoteCore`: the engine core as a worker has it. The engine itself runs in the server's process."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Sequence

import msgspec

from engine.config import EngineConfig
from engine.errors import InvalidRequest
from engine.mailbox import Mailbox, Outlet
from engine.request import FinishReason, Request, TokenDelta
from engine.story import Story
from server.remote import messages as m
from server.remote.link import Link
from server.remote.wire_errors import unpacked
from server.remote.workers.remote_parts import QuestionClient
from server.remote.workers.stories import facts_of, take_times
from server.telemetry.stories.record import CallStory


class RemoteCore:
    """Sends requests to the engine and gives what comes back to their mailboxes. One writer: the event loop."""

    def __init__(
        self, link: Link, questions: QuestionClient, config: EngineConfig, max_model_len: int
    ) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self._link = link
        self._questions = questions
        self._keys = itertools.count(1)
        self._numbers = itertools.count(1)
        """Numbers of calls."""
        self._calls: weakref.WeakKeyDictionary[Outlet, int] = weakref.WeakKeyDictionary()
        self._readers: dict[int, tuple[Outlet, int, Story]] = {}
        """By sequence: the mailbox of its reader, the reader's own key, and the story of the call."""
        self._sent_stories: weakref.WeakSet[Story] = weakref.WeakSet()
        """Stories that the server has heard of."""

    # -- TextCore ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, mailbox: Mailbox, key: int = 0, *, accepted: bool = False) -> int:
        """See `TextCore`."""
        return self.give([request], mailbox, key, accepted)[0]

    def submit_choices(self, requests: Sequence[Request], mailbox: Mailbox, first_key: int = 0) -> list[int]:
        """See `TextCore`."""
        return self.give(requests, mailbox, first_key, False)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """See `TextCore`."""
        number = next(self._numbers)
        self._link.send(m.CallBegins(number))
        try:
            yield
        finally:
            self._link.send(m.CallEnds(number))

    def abort(self, seq_id: int) -> None:
        """See `TextCore`."""
        if self._readers.pop(seq_id, None) is not None:
            self._link.send(m.Abort(seq_id))

    def finish(self, seq_id: int, num_tokens: int) -> None:
        """See `TextCore`."""
        if self._readers.pop(seq_id, None) is not None:
            self._link.send(m.Finish(seq_id, num_tokens))

    async def prepare_grammar(self, grammar: str) -> None:
        """See `TextCore`."""
        await self._questions.ask(m.PrepareGrammar(grammar))

    def give(
        self,
        requests: Sequence[Request],
        mailbox: Outlet,
        first_key: int,
        accepted: bool,
        committed: Sequence[int] = (),
        started: bool = False,
    ) -> list[int]:
        """Send requests with one prompt; returns the ids of their sequences. `committed`: output that a single one has;
        `started`: its call was begun elsewhere."""
        call = self._calls.get(mailbox)
        if call is None:
            call = self._calls[mailbox] = next(self._numbers)
        ids = [next(self._keys) for _ in requests]
        for number, seq_id in enumerate(ids):
            self._readers[seq_id] = mailbox, first_key + number, requests[number].context.story
        story = self._facts_once(requests[0].context.story)
        output = list(committed) if committed else None
        self._link.send(m.Submit(call, ids[0], first_key, list(requests), accepted, story, output, started))
        return ids

    def _facts_once(self, story: Story) -> m.StoryFacts | str | None:
        """What the server has to hear of the call that a part belongs to."""
        if not isinstance(story, CallStory):
            return None
        if story in self._sent_stories:
            return story.request_id
        self._sent_stories.add(story)
        return facts_of(story)

    # -- from the engine -----------------------------------------------------------------------------------------------

    def deliver(self, deltas: m.Deltas) -> None:
        """Put deltas into mailboxes. A sequence that was aborted or finished here has no reader."""
        readers, plain = self._readers, iter(deltas.plain)
        for seq_id, token_id, cached in zip(plain, plain, plain, strict=True):
            if (reader := readers.get(seq_id)) is not None:
                mailbox, key, _ = reader
                mailbox.put_token(key, token_id, cached)
        for delta in deltas.others:
            ended = delta.finish_reason is not None
            reader = readers.pop(delta.key, None) if ended else readers.get(delta.key)
            if reader is not None:
                mailbox, key, story = reader
                if delta.times is not None:
                    take_times(story, delta.times)
                mailbox.put(key, _unpacked(delta))

    def unsendable(self, message: msgspec.Struct, reason: str) -> None:
        """A request cannot travel: its reader hears it."""
        if isinstance(message, m.Submit):
            error = InvalidRequest(f"the request cannot be passed on: {reason}")
            for seq_id in range(message.first_key, message.first_key + len(message.requests)):
                if (reader := self._readers.pop(seq_id, None)) is not None:
                    mailbox, key, _ = reader
                    mailbox.put(key, TokenDelta(finish_reason=FinishReason.ERROR, error=error))


def _unpacked(delta: m.Delta) -> TokenDelta:
    return TokenDelta(
        delta.tokens,
        delta.finish_reason,
        delta.stop_token_id,
        delta.num_cached_tokens,
        None if delta.fault is None else unpacked(delta.fault),
        delta.prompt_logprobs,
        delta.pooled,
    )
