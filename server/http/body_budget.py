"""Memory for request bodies that are still arriving, over all connections.

Each body has a limit of its own, but this limit times the number of connections exceeds the memory of any machine. While the
bodies hold more than the budget, the server stops reading from the connections that fill it: TCP makes their clients wait. The
oldest body is always read on, so that one body completes and makes room, however large it is; it does not count.
"""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl

BODY_BUDGET = 256 * 1024 * 1024
"""Bytes."""
_PIECE = 256 * 1024
"""Size of asyncio's reads in bytes: a connection that is resumed takes at least this much before it can be paused again."""


class Flow(FlowControl):
    """Uvicorn's flow control, with a second reason to pause reading: the budget is full. Uvicorn resumes reading whenever a
    handler asks for more, and does not know the second reason."""

    no_room = False

    def pause_reading(self) -> None:
        """Pause reading on Uvicorn's behalf."""
        if not self.read_paused:
            self.read_paused = True
            if not self.no_room:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading on Uvicorn's behalf, unless the budget is full."""
        if self.read_paused:
            self.read_paused = False
            if not self.no_room:
                self._transport.resume_reading()

    def wait_for_room(self) -> None:
        """Pause reading until `go_on`, because the budget is full."""
        if not self.no_room:
            self.no_room = True
            if not self.read_paused:
                self._transport.pause_reading()

    def go_on(self) -> None:
        """Resume reading: the budget has room."""
        if self.no_room:
            self.no_room = False
            if not self.read_paused:
                self._transport.resume_reading()


class BodyBudget:
    """Bytes of bodies whose requests are still incomplete. A server has one budget; a connection is identified by its Flow."""

    def __init__(self, limit: int = BODY_BUDGET) -> None:
        self.limit = limit
        self.total = 0
        self._bytes: dict[Flow, int] = {}  # oldest first
        self._waiting: dict[Flow, None] = {}

    def take(self, flow: Flow, size: int) -> bool:
        """Count bytes that were read, and pause the connection if the budget is full. False if even twice the budget is
        exceeded: each connection reads a piece before it can be paused, and there may be thousands of connections."""
        self._bytes[flow] = self._bytes.get(flow, 0) + size
        self.total += size
        if self._room() > 0 or self._is_oldest(flow):
            return True
        flow.wait_for_room()
        self._waiting[flow] = None
        return self._room() > -self.limit

    def give(self, flow: Flow) -> None:
        """Release all bytes that the connection holds, and resume other connections."""
        if flow in self._bytes:
            self.total -= self._bytes.pop(flow)
            self._release(flow)
            self._wake()

    def take_ahead(self, size: int) -> bool:
        """Count bytes of a request queued behind one that is being answered. Such a request may stay there for long, so it is
        never the oldest and never pauses its connection. False if there is no room."""
        self.total += size
        return self._room() > 0

    def give_ahead(self, size: int) -> None:
        """Release bytes counted by `take_ahead`."""
        self.total -= size
        self._wake()

    def _room(self) -> int:
        oldest = next(iter(self._bytes.values()), 0)
        return self.limit - (self.total - oldest)

    def _is_oldest(self, flow: Flow) -> bool:
        return next(iter(self._bytes), None) is flow

    def _wake(self) -> None:
        """Resume as many connections as the budget has room for, the oldest always and first."""
        if not self._waiting:
            return
        self._release(next(iter(self._bytes)))
        for flow in list(self._waiting)[: max(0, self._room() // _PIECE)]:
            self._release(flow)

    def _release(self, flow: Flow) -> None:
        if flow in self._waiting:
            del self._waiting[flow]
            flow.go_on()
