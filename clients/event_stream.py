"""The one reader of streamed answers: events of a `text/event-stream`, cut from a body that comes in parts.

The format is WHATWG's (https://html.spec.whatwg.org/multipage/server-sent-events.html). Servers with OpenAI's API write the JSON
of an event in one line and end a stream with [DONE], so an event counts once its line is complete. Comments and names of events
are skipped.
"""

from __future__ import annotations


class EventReader:
    """Reads one body. `done`: [DONE] has come."""

    __slots__ = ("_rest", "done")

    def __init__(self) -> None:
        self._rest = b""
        """The line that has begun."""
        self.done = False

    def feed(self, part: bytes) -> list[bytes]:
        """The data of each event that `part` completes, in order and without [DONE]. A part may begin and end anywhere."""
        lines = (self._rest + part).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if line[:5] == b"data:":
                data = line[5:].strip()
                if data == b"[DONE]":
                    self.done = True
                else:
                    events.append(data)
        return events
