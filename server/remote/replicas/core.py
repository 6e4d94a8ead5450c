"""`FleetCore`: the engine core as the ingress has it. The engines run at replicas, which come and go.

    submit --> router --> replica's RemoteCore --> ... deltas --> DeltaSink --> journal --> mailbox
                 ^                                                  |
                 +------- refused, or the replica is gone ----------+

A sequence whose replica is gone goes on elsewhere with the tokens that its reader has (`Submit.committed`), or waits until there
is a replica. The text side notices nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from engine.config import EngineConfig
from engine.errors import (
    BrokeExecutor,
    DeadlinePassed,
    EngineError,
    ExecutorFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from engine.mailbox import Mailbox, Outlet
from engine.metrics_sink import MetricsSink
from engine.request import FinishReason, Request, TokenDelta
from engine.story import Story
from server.remote.replicas.journal import MOST_LIVES, DeltaSink, Entry, JournaledCall
from server.remote.replicas.router import Router, prefix_keys, short_key

log = structlog.get_logger("server")

_TICK = 0.25
"""Seconds between looks at the sequences that wait for a replica."""
_UNTIL_RETIRED = 1.0
"""Seconds after which a replica that is to leave loses what has given nothing. One that died is off the list as well, and its
link breaks before that: then each of its sequences has lost a life."""


class Engine(Protocol):
    """A replica as the core uses it: `server.remote.replicas.fleet.Member`."""

    @property
    def name(self) -> str:
        """Its id."""

    @property
    def clock_offset(self) -> float:
        """Seconds by which its clock is ahead of this process's."""

    def submit(
        self,
        requests: Sequence[Request],
        outlet: Outlet,
        first_key: int,
        accepted: bool,
        committed: Sequence[int] | None,
    ) -> list[int]:
        """Give it requests with one prompt; returns its ids for their sequences. `committed`: output of a single one whose call
        was begun elsewhere; it may wait for any time. None: it begins here."""

    def abort(self, remote_id: int) -> None:
        """Drop a sequence."""

    def finish(self, remote_id: int, num_tokens: int) -> None:
        """End a sequence after so many tokens."""

    async def prepare_grammar(self, grammar: str) -> None:
        """Compile a grammar."""


class FleetCore:
    """Places sequences at replicas and keeps the journal. One writer: the event loop."""

    def __init__(
        self,
        config: EngineConfig,
        max_model_len: int,
        model: str,
        block_size: int,
        observer: MetricsSink,
        router: Router | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`model` stands for the model in keys of prefixes; `block_size`: tokens of a KV block, 0 without paging."""
        self.config = config
        self.max_model_len = max_model_len
        self.router = router or Router()
        self.moved = 0
        """Sequences that went on at another replica, or at the next life of theirs, ever."""
        self.num_lost = 0
        """Replicas lost with sequences, ever."""
        self._model, self._block_size = model, block_size or 16
        self._observer = observer
        self._clock = clock
        self._ids = itertools.count(1)
        self._engines: dict[str, Engine] = {}
        self._resting: set[str] = set()
        """Replicas that get new sequences only where there is no other: their executors are being restarted."""
        self._leaving: dict[str, float] = {}
        """Replicas that receive no new sequences, and the time at which each stopped. They finish the sequences they have."""
        self._calls: weakref.WeakKeyDictionary[Mailbox, JournaledCall] = weakref.WeakKeyDictionary()
        self._entries: dict[int, Entry] = {}
        """Unfinished sequences, by id."""
        self._open_calls = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._failed = asyncio.Event()
        self._ticking: asyncio.Task[None] | None = None

    # -- TextCore ------------------------------------------------------------------------------------------------------

    def submit(self, request: Request, mailbox: Mailbox, key: int = 0, *, accepted: bool = False) -> int:
        """See `TextCore`."""
        return self._submit([request], mailbox, key, accepted)[0]

    def submit_choices(self, requests: Sequence[Request], mailbox: Mailbox, first_key: int = 0) -> list[int]:
        """See `TextCore`."""
        return self._submit(requests, mailbox, first_key, False)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """See `TextCore`. Replicas are not told: the ingress drains, and its replicas serve it until it has."""
        self._open_calls += 1
        try:
            yield
        finally:
            self._open_calls -= 1
            self._idle.set()

    def abort(self, seq_id: int) -> None:
        """See `TextCore`."""
        if (entry := self._forget(seq_id, FinishReason.ABORT)) is not None and (at := self._engine_of(entry)):
            at.abort(entry.remote_id)

    def finish(self, seq_id: int, num_tokens: int) -> None:
        """See `TextCore`."""
        if (entry := self._entries.get(seq_id)) is None:
            return
        del entry.output_token_ids[num_tokens:]
        self._forget(seq_id, FinishReason.STOP)
        if at := self._engine_of(entry):
            at.finish(entry.remote_id, num_tokens)

    async def prepare_grammar(self, grammar: str) -> None:
        """See `TextCore`. All replicas compile it: which one will get the request is not known yet. One that is lost meanwhile
        compiles it when the request comes."""
        compilations = [engine.prepare_grammar(grammar) for engine in self._ready()]
        for answer in await asyncio.gather(*compilations, return_exceptions=True):
            if isinstance(answer, InvalidRequest):
                raise answer
            if isinstance(answer, BaseException) and not isinstance(answer, EngineError):
                raise answer

    # -- for lifecycle and views ---------------------------------------------------------------------------------------

    @property
    def failed(self) -> asyncio.Event:
        """Never set: replicas that are lost come back, and until then /ready says so."""
        return self._failed

    @property
    def draining(self) -> bool:
        """Whether nothing more is admitted."""
        return self._draining

    @property
    def num_placed(self) -> int:
        """Unfinished sequences that a replica has."""
        return len(self._entries) - self.num_unplaced

    @property
    def num_unplaced(self) -> int:
        """Unfinished sequences that wait for a replica."""
        return sum(entry.sink is None for entry in self._entries.values())

    async def drain(self, timeout: float) -> bool:
        """Admit nothing more and wait at most `timeout` seconds for what runs. True if all finished."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout):
                while self._entries or self._open_calls:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End everything: what still runs gets `Unavailable`."""
        self._draining = True
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        for entry in list(self._entries.values()):
            self._fail(entry, Unavailable("the server is shutting down"))

    # -- replicas ------------------------------------------------------------------------------------------------------

    def join(self, engine: Engine) -> None:
        """A replica can be given sequences. Those that wait for one come first."""
        self._engines[engine.name] = engine
        self._resting.discard(engine.name)
        self._leaving.pop(engine.name, None)
        self.router.join(engine.name)
        self._place_waiting()

    def rest(self, name: str, resting: bool) -> None:
        """Whether a replica is to get no new sequences while others can take them."""
        if resting:
            self._resting.add(name)
        elif name in self._resting:
            self._resting.discard(name)
            self._place_waiting()

    def retire(self, name: str) -> None:
        """A replica is about to leave and receives nothing any more; called again and again until it has left. It finishes
        its sequences. A sequence that has given nothing since it was placed there may never have
        arrived: it goes elsewhere, or waits."""
        now = self._clock()
        if name not in self._engines or now < self._leaving.setdefault(name, now) + _UNTIL_RETIRED:
            return
        for entry in [one for one in self._entries.values() if _is_at(one, name)]:
            if entry.call.home == name:
                entry.call.home = None
            if entry.paused or entry.cached_tokens is None:
                self._take_back(entry, now)
        self._place_waiting()

    def leave(self, name: str, why: str) -> None:
        """A replica is gone. Its sequences go on elsewhere, or wait."""
        if self._engines.pop(name, None) is None:
            return
        self._resting.discard(name)
        self._leaving.pop(name, None)
        self.router.leave(name)
        now, theirs = self._clock(), [one for one in self._entries.values() if _is_at(one, name)]
        if theirs:
            self.num_lost += 1
            log.error(
                f"replica {name} is lost: its sequences go on elsewhere", sequences=len(theirs), reason=why
            )
        for entry in theirs:
            entry.call.sinks.pop(name, None)
            self._unplace(entry, now, "replica")
        self._place_waiting()

    # -- placing -------------------------------------------------------------------------------------------------------

    def _submit(
        self, requests: Sequence[Request], mailbox: Mailbox, first_key: int, accepted: bool
    ) -> list[int]:
        call = self._calls.get(mailbox)
        if self._draining and not accepted and call is None:
            raise Unavailable("the engine is draining")
        now, first = self._clock(), requests[0]
        if call is None:
            if (unplaced := self.num_unplaced) >= self.config.max_queued_seqs:
                self._observer.refused(str(Overloaded.code))
                raise Overloaded(f"{unplaced} requests are waiting already")
            call = self._calls[mailbox] = JournaledCall(replace(first.context, story=Story()))
        story, keys = first.context.story, self._keys(first)
        entries = [
            Entry(
                next(self._ids),
                call,
                mailbox,
                first_key + number,
                replace(request, context=call.context),
                story,
                keys,
                waits_since=now,
            )
            for number, request in enumerate(requests)
        ]
        for entry in entries:
            entry.siblings = entries
            self._entries[entry.seq_id] = call.entries[entry.choice] = entry
            prompt_tokens = len(first.prompt_token_ids) if entry is entries[0] else 0
            story.queue(now, entry.choice, entry, prompt_tokens)
        self._place(entries, accepted)
        return [entry.seq_id for entry in entries]

    def _keys(self, request: Request) -> list[bytes]:
        return prefix_keys(
            request.prompt_token_ids,
            self._block_size,
            self._model,
            request.adapter,
            request.context.cache_salt,
        )

    def _place(self, entries: list[Entry], accepted: bool = False) -> bool:
        """Give a replica sequences of one prompt that have not begun. False if there is none for them: they wait."""
        home = entries[0].call.home
        # A later part of a call goes where the first one was let in: there it is let in whatever the queue's length is.
        name = home if home in self._candidates(entries[0]) and not accepted else None
        if (name := name or self._choose(entries[0], len(entries))) is None:
            return self._wait()
        call = entries[0].call
        call.home = call.home or name
        self._give(name, entries, accepted, None)
        return True

    def _go_on(self, entry: Entry) -> bool:
        """Give a replica a sequence that another one, or its last life, had. False if there is none: it waits."""
        if (name := self._choose(entry, 1)) is None:
            return self._wait()
        if entry.output_token_ids and entry.request.prompt_logprobs is not None:
            entry.request = replace(entry.request, prompt_logprobs=None)  # its reader has them
        if entry.request.context.deadline is not None:
            # A deadline is one for the start.
            entry.request = replace(entry.request, context=replace(entry.request.context, deadline=None))
        self.moved += entry.paused
        self._give(name, [entry], True, entry.output_token_ids)
        return True

    def _give(self, name: str, entries: list[Entry], accepted: bool, committed: Sequence[int] | None) -> None:
        engine, call = self._engines[name], entries[0].call
        if (sink := call.sinks.get(name)) is None:
            sink = call.sinks[name] = DeltaSink(call, name, self._on_delta)
        for entry in entries:
            entry.sink, entry.waits_since = sink, None
        self.router.begin(name, len(entries))
        self.router.remember(entries[0].keys, name)
        requests = [entry.request for entry in entries]
        ids = engine.submit(requests, sink, entries[0].choice, accepted, committed)
        for entry, remote_id in zip(entries, ids, strict=True):
            entry.remote_id = remote_id

    def _choose(self, entry: Entry, count: int) -> str | None:
        request = entry.request
        salt = request.context.cache_salt
        short = b"" if entry.keys else short_key(request.prompt_token_ids, self._model, request.adapter, salt)
        return self.router.choose(entry.keys, short, request.adapter, count, self._candidates(entry))

    def _candidates(self, entry: Entry) -> set[str]:
        """Replicas that a sequence can be given to. Those that rest only where there is no other, those that leave never."""
        willing = self._engines.keys() - entry.refused_by.keys() - self._leaving.keys()
        return willing - self._resting or willing

    def _ready(self) -> list[Engine]:
        hearing = {name: one for name, one in self._engines.items() if name not in self._leaving}
        ready = [one for name, one in hearing.items() if name not in self._resting]
        return ready or list(hearing.values())

    def _engine_of(self, entry: Entry) -> Engine | None:
        return None if entry.sink is None else self._engines.get(entry.sink.replica)

    def _wait(self) -> bool:
        """A sequence waits for a replica: look after it."""
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._expire_waiting(), name="sequences without a replica")
        return False

    def _place_waiting(self) -> None:
        """Place what waits, in order of arrival."""
        for entry in list(self._entries.values()):
            if entry.sink is not None or entry.seq_id not in self._entries:
                continue
            for name in entry.refused_by.keys() - self._engines.keys():
                del entry.refused_by[name]
            if entry.paused or entry.call.started:
                self._go_on(entry)
            else:
                self._place(
                    [one for one in entry.siblings if one.sink is None and one.seq_id in self._entries]
                )

    async def _expire_waiting(self) -> None:
        """End what has waited too long, until nothing waits."""
        while self.num_unplaced:
            await asyncio.sleep(_TICK)
            now = self._clock()
            for entry in [one for one in self._entries.values() if one.waits_since is not None]:
                if (error := self._too_late(entry, now)) is not None:
                    if isinstance(error, Overloaded):
                        self._observer.refused(str(error.code))
                    self._fail(entry, error)

    def _too_late(self, entry: Entry, now: float) -> EngineError | None:
        """Why a sequence waits no longer for a replica; None if it does."""
        waited, deadline = now - (entry.waits_since or now), entry.request.context.deadline
        if entry.paused or entry.call.started:
            limit = self.config.recovery_timeout
            return ExecutorFailed(f"no replica was ready within {limit:g} s") if waited > limit else None
        if deadline is not None and now >= deadline:
            return DeadlinePassed("the deadline passed before this request was started")
        limit = self.config.max_queue_wait
        return Overloaded(f"no replica was ready within {limit:g} s") if waited > limit else None

    # -- from replicas -------------------------------------------------------------------------------------------------

    def _on_delta(self, sink: DeltaSink, choice: int, delta: TokenDelta) -> None:
        """A delta of a sequence came."""
        entry = sink.call.entries.get(choice)
        if entry is None or entry.sink is not sink:
            return
        if delta.error is not None and self._moves_on(entry, delta.error):
            return
        now = self._clock()
        if entry.cached_tokens is None and (delta.tokens or delta.error is None):
            self._begins(entry, delta, now)
        elif delta.num_cached_tokens != entry.cached_tokens:
            delta.num_cached_tokens = entry.cached_tokens or 0  # that of its first life
        if delta.tokens:
            entry.output_token_ids += [token.token_id for token in delta.tokens]
            entry.lives = 0
            entry.forget_refusals()
            if entry.paused:
                entry.paused = False
                entry.story.resume(now, choice)
        if delta.error is not None:
            entry.story.fail(str(delta.error.code))
        if delta.finish_reason is not None:
            self._forget(entry.seq_id, delta.finish_reason)
        entry.mailbox.put(choice, delta)

    def _begins(self, entry: Entry, delta: TokenDelta, now: float) -> None:
        """The first delta of a sequence: with it came the times of its call by the replica's clock."""
        times, engine = entry.call.context.story, self._engine_of(entry)
        ahead = 0.0 if engine is None else engine.clock_offset
        entry.call.started = True
        entry.cached_tokens, is_first = delta.num_cached_tokens, entry.siblings[0] is entry
        admitted = now if times.admitted is None else times.admitted - ahead
        entry.story.admit(admitted, entry.choice, {}, delta.num_cached_tokens if is_first else None)
        if delta.tokens:
            entry.story.start_output(
                now if times.first_token is None else times.first_token - ahead, entry.choice
            )

    def _moves_on(self, entry: Entry, error: EngineError) -> bool:
        """Whether a sequence that a replica ended with this error has been given to another one, or waits for one, or its whole
        prompt has been answered."""
        assert entry.sink is not None
        name, now = entry.sink.replica, self._clock()
        if isinstance(error, Overloaded):
            group = [one for one in entry.siblings if one.seq_id in self._entries]
            if any(one.output_token_ids or one.paused for one in group):
                return False
            for one in group:
                self._take_back(one, now)
                one.refused_by[name] = error
            if entry.call.home == name:
                entry.call.home = None
            if self._candidates(entry):
                self._place(group)
            else:
                for one in group:
                    self._fail(one, one.refusal or error)
            return True
        if isinstance(error, Unavailable) or (
            isinstance(error, ExecutorFailed) and not isinstance(error, BrokeExecutor)
        ):
            self._unplace(entry, now, "replica")
            entry.refused_by[name] = error
            if entry.seq_id in self._entries:
                self._go_on(entry)
            return True
        return False

    def _unplace(self, entry: Entry, now: float, cause: str) -> None:
        """A sequence's replica is lost."""
        self._take_back(entry, now)
        entry.forget_refusals()
        entry.paused = True
        entry.lives += 1
        entry.story.interrupt(now, entry.choice, cause, len(entry.output_token_ids))
        if entry.lives >= MOST_LIVES:
            self._fail(entry, BrokeExecutor(f"{entry.lives} replicas ended while they computed this request"))

    def _take_back(self, entry: Entry, now: float) -> None:
        if entry.sink is not None:
            self.router.end(entry.sink.replica)
            if (engine := self._engine_of(entry)) is not None:
                engine.abort(entry.remote_id)
            entry.sink, entry.waits_since = None, now

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _forget(self, seq_id: int, reason: FinishReason) -> Entry | None:
        """A sequence has ended."""
        if (entry := self._entries.pop(seq_id, None)) is None:
            return None
        del entry.call.entries[entry.choice]
        entry.siblings = []  # they know each other in a circle
        if entry.sink is not None:
            self.router.end(entry.sink.replica)
        entry.story.finish(self._clock(), entry.choice, reason.value, len(entry.output_token_ids))
        if not self._entries:
            self._idle.set()
        return entry

    def _fail(self, entry: Entry, error: EngineError) -> None:
        entry.story.fail(str(error.code))
        if self._forget(entry.seq_id, FinishReason.ERROR) is not None:
            entry.mailbox.put(entry.choice, TokenDelta(finish_reason=FinishReason.ERROR, error=error))


def _is_at(entry: Entry, name: str) -> bool:
    return entry.sink is not None and entry.sink.replica == name
