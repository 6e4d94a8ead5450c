"""`Fleet`: the replicas that Ray says there are, and a link to each.

transport.names() --> one keeper per name --> Member (one life of a link) --> joined, reported, left
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

import structlog
from starlette.types import Message, Scope

from engine.config import EngineConfig
from engine.errors import Unavailable
from engine.mailbox import Outlet
from engine.request import EngineStats, Request, RequestContext, Stage
from server.http.call import CALL, Call
from server.remote import messages as m
from server.remote.pipe import pipe_link
from server.remote.replicas.messages import ReplicaFacts, Report, ToIngress
from server.remote.replicas.node import PASSED_ON, boot_id
from server.remote.workers.forwarding import Forwarding, PassedOnFailed
from server.remote.workers.remote_core import RemoteCore
from server.remote.workers.remote_parts import QuestionClient

log = structlog.get_logger("server")

SILENCE = 15.0
"""Seconds without a message after which a replica is lost. It reports twice a second."""
LIFE_SIGN = 5.0
"""Seconds after which an ingress that has nothing to say gives a sign of life."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
"""Seconds before a link that broke is made again; the pause doubles."""
_RECENT = 120
"""Reports by which clocks are compared: those of a minute."""
_LOOK_INTERVAL = 0.5
"""Seconds between looks at replicas that are to leave."""


class Transport(Protocol):
    """What carries bytes between ingress and replicas."""

    def names(self) -> set[str]:
        """The replicas that can be talked to."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` on this event loop whenever `names` may be different."""

    def open_session(self, replica: str, session: str) -> AsyncGenerator[bytes, None]:
        """Open a session: bytes of the replica, until its end. Raises whatever shows that the replica is gone."""

    async def send(self, replica: str, session: str, data: bytes) -> None:
        """Send bytes in a session; returns once the replica has it. Raises as `open_session`."""


class Member:
    """A replica, for as long as one link to it lasts. One writer: the event loop."""

    def __init__(
        self,
        name: str,
        config: EngineConfig,
        joined: Callable[[Member], None],
        reported: Callable[[Member], None],
    ) -> None:
        self.name = name
        self.facts: ReplicaFacts | None = None
        self.stats: EngineStats | None = None
        self.clock_offset = 0.0
        """Seconds by which the replica's clock is ahead of this process's."""
        self._offsets: deque[float] = deque(maxlen=_RECENT)
        self.why_not = ""
        """Why it is given no sequences although it is there."""
        self._session = uuid.uuid4().hex
        self._joined, self._reported = joined, reported
        self._link, self._pipe = pipe_link(ToIngress, self._received, lambda _: None)
        self._link.unsendable = self._unsendable
        self.questions, self.forwarding = QuestionClient(self._link), Forwarding(self._link)
        self._core = RemoteCore(self._link, self.questions, config, 0)
        self._leaving = asyncio.Event()

    # -- Engine, for FleetCore -----------------------------------------------------------------------------------------

    def submit(
        self,
        requests: Sequence[Request],
        outlet: Outlet,
        first_key: int,
        accepted: bool,
        committed: Sequence[int] | None,
    ) -> list[int]:
        """See `server.remote.replicas.core.Engine`."""
        context = self._in_its_time(requests[0].context)
        copies = [replace(request, context=context) for request in requests]
        started = committed is not None
        return self._core.give(copies, outlet, first_key, accepted, committed or (), started)

    def abort(self, remote_id: int) -> None:
        """See `server.remote.replicas.core.Engine`."""
        self._core.abort(remote_id)

    def finish(self, remote_id: int, num_tokens: int) -> None:
        """See `server.remote.replicas.core.Engine`."""
        self._core.finish(remote_id, num_tokens)

    async def prepare_grammar(self, grammar: str) -> None:
        """See `server.remote.replicas.core.Engine`."""
        await self._core.prepare_grammar(grammar)

    def _in_its_time(self, context: RequestContext) -> RequestContext:
        """The context with times of the replica's clock."""
        if not (ahead := self.clock_offset):
            return context
        deadline = None if context.deadline is None else context.deadline + ahead
        return replace(context, arrival_time=context.arrival_time + ahead, deadline=deadline)

    # -- for views -----------------------------------------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        """The stage of its engine."""
        return Stage.LOADING if self.stats is None else self.stats.stage

    async def fetch(self, path: str, timeout: float) -> bytes:
        """The body of what its own application answers to a GET. Raises TimeoutError or, without an answer, LookupError."""
        status, body = 0, bytearray()

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        async def never() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        scope: Scope = {
            "method": "GET",
            "path": path,
            "headers": [(b"authorization", f"Bearer {PASSED_ON}".encode())],
            CALL: Call(request_id=""),
        }
        async with asyncio.timeout(timeout):
            try:
                await self.forwarding.exchange(scope, b"", never, send)
            except PassedOnFailed as error:
                raise LookupError(str(error)) from None
        if status != 200:
            raise LookupError(f"{path}: {status}")
        return bytes(body)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def run(self, transport: Transport) -> str:
        """Hold the link until it breaks, or until `close`. Returns why it ended."""
        work = [
            asyncio.create_task(self._receive(transport), name=f"from {self.name}"),
            asyncio.create_task(self._send(transport), name=f"to {self.name}"),
            asyncio.create_task(self._leave(), name=f"leaves {self.name}"),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            return next(task.result() for task in work if task in done)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self._link.give_up("")
            self.forwarding.close()
            self.questions.close(Unavailable("the replica is gone"))

    def close(self) -> None:
        """End the link."""
        self._leaving.set()

    async def _leave(self) -> str:
        await self._leaving.wait()
        return "it leaves"

    async def _receive(self, transport: Transport) -> str:
        try:
            async with aclosing(transport.open_session(self.name, self._session)) as pieces:
                while True:
                    async with asyncio.timeout(SILENCE):
                        data = await anext(pieces, None)
                    if data is None:
                        return "it has ended"
                    self._link.data_received(data)
                    if not self._link.open:
                        return "it sent what is no message"
        except TimeoutError:
            return f"no sign of life for {SILENCE:g} s"
        except Exception as error:
            return _first_line(error)

    async def _send(self, transport: Transport) -> str:
        """One call at a time, for calls may overtake each other; what comes meanwhile goes with the next one."""
        try:
            while (data := await self._next_piece()) is not None:
                await transport.send(self.name, self._session, data)
        except Exception as error:
            return _first_line(error)
        return "the link is closed"

    async def _next_piece(self) -> bytes | None:
        """What there is to say, b"" as a sign of life, None at the end."""
        try:
            async with asyncio.timeout(LIFE_SIGN):
                return await self._pipe.take() or None
        except TimeoutError:
            return b""

    # -- messages ------------------------------------------------------------------------------------------------------

    def _received(self, message: Any) -> None:
        match message:
            case m.Deltas():
                self._core.deliver(message)
            case m.Reply():
                self.questions.replied(message)
            case m.Head() | m.Body():
                self.forwarding.received(message)
            case Report():
                self.stats = message.stats
                self._compare_clocks(message.clock)
                self._reported(self)
            case ReplicaFacts():
                self._take_facts(message)

    def _take_facts(self, facts: ReplicaFacts) -> None:
        self.facts = facts
        self._compare_clocks(facts.clock)
        self._joined(self)

    def _compare_clocks(self, theirs: float) -> None:
        """The offset is what the quickest of recent reports shows, too small by the time that one took. Clocks drift apart, so
        older ones count no more."""
        if self.facts is not None and self.facts.boot and self.facts.boot == boot_id():
            return  # one machine, one clock
        self._offsets.append(theirs - time.monotonic())
        self.clock_offset = max(self._offsets)

    def _unsendable(self, message: Any, reason: str) -> None:
        if isinstance(message, m.Ask):
            self.questions.unsendable(message, reason)
        else:
            self._core.unsendable(message, reason)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


class Fleet:
    """The members there are, by name. One writer: the event loop."""

    def __init__(
        self,
        transport: Transport,
        config: EngineConfig,
        joined: Callable[[Member], None],
        reported: Callable[[Member], None],
        on_left: Callable[[Member, str], None],
        busy: Callable[[str], int],
    ) -> None:
        """`joined` hears of a replica that says what it serves, `on_left` of the end of its link; `busy`: unfinished sequences of
        a replica, which one that is to leave may finish."""
        self.members: dict[str, Member] = {}
        self._transport, self._config = transport, config
        self._joined, self._reported, self._on_left, self._busy = joined, reported, on_left, busy
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    @property
    def present(self) -> list[Member]:
        """Members that have said what they serve, by name."""
        return [self.members[name] for name in sorted(self.members) if self.members[name].facts]

    def is_leaving(self, name: str) -> bool:
        """Whether Ray is about to end a replica: it finishes what it has."""
        return name not in self._transport.names()

    async def run(self) -> None:
        """Keep a link to every replica, until cancelled."""
        self._transport.on_change(self._changed.set)
        try:
            while True:
                self._changed.clear()
                names = self._transport.names()
                for name in names - self._keepers.keys():
                    self._keepers[name] = asyncio.create_task(self._keep(name), name=f"replica {name}")
                for member in self.members.values():
                    if member.name not in names:
                        self._reported(member)
                        if not self._busy(member.name):
                            member.close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_INTERVAL):
                        await self._changed.wait()
        finally:
            keepers = list(self._keepers.values())
            for task in keepers:
                task.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        """Make a link, and another one when it breaks, while there is such a replica."""
        pause = _FIRST_PAUSE
        while name in self._transport.names():
            member = self.members[name] = Member(name, self._config, self._joined, self._reported)
            try:
                why = await member.run(self._transport)
            finally:
                del self.members[name]
            self._on_left(member, why)
            pause = _FIRST_PAUSE if member.facts else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)
        del self._keepers[name]
