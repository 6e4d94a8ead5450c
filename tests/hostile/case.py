"""What a hostile input is: bytes for the wire, and what the answer has to look like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.hostile.wire import Answer

KEY = "key-of-the-hostile"
"""That of inputs which are not about keys."""
VICTIM_KEY = "key-of-the-victim"

_RAW = "\x00raw:"


@dataclass(frozen=True, slots=True)
class Hostile:
    """An input that is to be refused.

    `param`: what the error has to name, or a place inside of it. `statuses`: where not every 4xx will do. `alone`: on a
    connection of its own. `turns`: one such at a time, since they wait for one and the same process. `ends`: the client's half is
    closed behind it. `silent`: HTTP lets a server close without an answer. `bare`: what HTTP itself refuses has no request id.
    """

    kind: str
    pieces: tuple[bytes, ...]
    method: str = "POST"
    param: str | None = None
    statuses: frozenset[int] = frozenset(range(400, 500))
    alone: bool = False
    turns: bool = False
    ends: bool = False
    silent: bool = False
    bare: bool = False

    def __repr__(self) -> str:
        sent = b"".join(piece[:1500] for piece in self.pieces[:3])[:3000]
        return f"{self.kind}: {sent!r}, {sum(map(len, self.pieces))} bytes in all"

    def fault(self, answer: Answer) -> str | None:
        """What is wrong with the answer, None if nothing is."""
        if answer.status is None:
            return None if self.silent and "no whole answer" not in answer.note else answer.note
        if answer.status not in self.statuses:
            return f"answered {answer.status}: {answer.body[:300]!r}"
        if not self.bare and not answer.headers.get("x-request-id", "").startswith("req_"):
            return "the answer has no request id of the server's own"
        if self.method == "HEAD":
            return None
        return self._fault_of_body(answer)

    def _fault_of_body(self, answer: Answer) -> str | None:
        try:
            body = json.loads(answer.body)
            error = body["error"]
        except (ValueError, KeyError, TypeError):
            return f"the body of {answer.status} is no error object: {answer.body[:300]!r}"
        if "type" in body:
            return self._fault_of_anthropics(answer, body)
        if isinstance(error, str):
            return self._fault_of_ollamas(answer, body)
        if set(error) != {"message", "type", "param", "code"} or not error["message"]:
            return f"not the four members of an error: {error}"
        if len(answer.body) > 2048:
            return f"the error has {len(answer.body)} bytes"
        found = error["param"] or ""
        if self.param is not None and found != self.param and not found.startswith(f"{self.param}."):
            return f"names {error['param']!r}, not {self.param!r}: {error['message']}"
        return None

    def _fault_of_anthropics(self, answer: Answer, body: dict[str, Any]) -> str | None:
        """Its form has no member for the name of a field: the message has it."""
        if set(body) != {"type", "error", "request_id"} or set(body["error"]) != {"type", "message"}:
            return f"not the members of an error: {body}"
        if not body["error"]["message"] or body["request_id"] != answer.headers.get("x-request-id"):
            return f"no message, or another request's id: {body}"
        if len(answer.body) > 2048:
            return f"the error has {len(answer.body)} bytes"
        return self._fault_of_message(body["error"]["message"])

    def _fault_of_ollamas(self, answer: Answer, body: dict[str, Any]) -> str | None:
        """Its form has nothing but the message."""
        if set(body) != {"error"} or not body["error"]:
            return f"not the member of an error: {body}"
        if len(answer.body) > 2048:
            return f"the error has {len(answer.body)} bytes"
        return self._fault_of_message(body["error"])

    def _fault_of_message(self, told: str) -> str | None:
        if self.param is not None and f"'{self.param}" not in told and not told.startswith(self.param):
            return f"does not name {self.param!r}: {told}"
        return None


def raw(text: str) -> str:
    """A value that `encoded` writes as it stands: numbers that JSON has and Python has not."""
    return f"{_RAW}{text}\x00"


def encoded(body: Any) -> bytes:
    """JSON as a careless client writes it: NaN and Infinity are literals, halves of surrogate pairs are escapes."""
    text = json.dumps(body)
    start = json.dumps(_RAW)[:-1]
    while (begin := text.find(start)) >= 0:
        end = text.index('\\u0000"', begin + len(start))
        text = text[:begin] + text[begin + len(start) : end] + text[end + 7 :]
    return text.encode("ascii")


def head(
    method: str, target: str | bytes, headers: Sequence[tuple[str, str]] = (), key: str | None = KEY
) -> bytes:
    """Request line and headers, as they are given."""
    place = target.encode("latin-1") if isinstance(target, str) else target
    lines = [b"%s %s HTTP/1.1" % (method.encode("latin-1"), place), b"Host: cohort.test"]
    if key is not None:
        lines.append(b"Authorization: Bearer " + key.encode())
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def posted(
    path: str, body: bytes, headers: Sequence[tuple[str, str]] = (), key: str | None = KEY
) -> tuple[bytes, ...]:
    """A request with a body whose length is told truthfully."""
    length = ("Content-Length", str(len(body)))
    return (head("POST", path, [("Content-Type", "application/json"), length, *headers], key) + body,)


def call(kind: str, path: str, body: Any, param: str | None = None, **rest: Any) -> Hostile:
    """A well-formed request with a JSON body that is not acceptable."""
    content = body if isinstance(body, bytes) else encoded(body)
    return Hostile(kind, posted(path, content), param=param, **rest)
