"""Memory for bodies that are on their way, over all connections.

Each body has a limit of its own, but that many times the number of connections is more than any machine has. While bodies hold
more than the budget, the connections that fill it are not read from: TCP tells their clients to wait. The oldest body may
always go on, so that one of them ends and makes room, however large a single body may be; it does not count.
"""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl

BODY_BUDGET = 256 * 1024 * 1024
"""Bytes."""
_PIECE = 256 * 1024
"""Bytes that asyncio reads at a time: what a connection that may read again takes at least, before it can be told to wait."""


class Flow(FlowControl):
    """Uvicorn's switch for reading and writing, with a second reason not to read: there is no room. Uvicorn resumes reading
    whenever a handler asks for more, and knows nothing of the second."""

    no_room = False

    def pause_reading(self) -> None:
        """Uvicorn has enough for now."""
        if not self.read_paused:
            self.read_paused = True
            if not self.no_room:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Uvicorn wants more."""
        if self.read_paused:
            self.read_paused = False
            if not self.no_room:
                self._transport.resume_reading()

    def wait_for_room(self) -> None:
        """Nothing is read until `go_on`."""
        if not self.no_room:
            self.no_room = True
            if not self.read_paused:
                self._transport.pause_reading()

    def go_on(self) -> None:
        """There is room."""
        if self.no_room:
            self.no_room = False
            if not self.read_paused:
                self._transport.resume_reading()


class BodyBudget:
    """Bytes of bodies whose requests were not handed on yet. One for a server; each connection is known by its Flow."""

    def __init__(self, limit: int = BODY_BUDGET) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[Flow, int] = {}  # oldest first
        self._waiting: dict[Flow, None] = {}

    def take(self, flow: Flow, size: int) -> bool:
        """Count bytes that were read; without room for more, the connection is not read from. False where even twice the budget
        is exceeded: each connection has read a piece before it can be told to wait, and there may be thousands."""
        self._held[flow] = self._held.get(flow, 0) + size
        self.total += size
        if self._room() > 0 or self._is_oldest(flow):
            return True
        flow.wait_for_room()
        self._waiting[flow] = None
        return self._room() > -self.limit

    def give(self, flow: Flow) -> None:
        """Return all that the connection holds, and let others go on."""
        if flow in self._held:
            self.total -= self._held.pop(flow)
            self._release(flow)
            self._wake()

    def take_ahead(self, size: int) -> bool:
        """Count bytes of a request behind one that is being answered. It may stay there for long: it is never the oldest, and
        never waits. False where there is no room."""
        self.total += size
        return self._room() > 0

    def give_ahead(self, size: int) -> None:
        """Return such bytes."""
        self.total -= size
        self._wake()

    def _room(self) -> int:
        oldest = next(iter(self._held.values()), 0)
        return self.limit - (self.total - oldest)

    def _is_oldest(self, flow: Flow) -> bool:
        return next(iter(self._held), None) is flow

    def _wake(self) -> None:
        """As many as can read a piece, the oldest first and always."""
        if not self._waiting:
            return
        self._release(next(iter(self._held)))
        for flow in list(self._waiting)[: max(0, self._room() // _PIECE)]:
            self._release(flow)

    def _release(self, flow: Flow) -> None:
        if flow in self._waiting:
            del self._waiting[flow]
            flow.go_on()
