"""Sends hostile inputs, a few at a time, and keeps what was answered; drawn ones come in batches, each from a seed of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.hostile import (
    http_tricks,
    listed,
    listed_grammars,
    listed_messages,
    listed_ollama,
    listed_responses,
    listed_wire,
    malformed,
)
from tests.hostile.case import KEY, Hostile
from tests.hostile.fields import one_bad_field
from tests.hostile.wire import Wire

BATCH = 200
AT_ONCE = 8
SLOW = 1.0
"""Seconds from which an answer is counted as slow."""


@dataclass
class Report:
    """What came of it. One writer: the campaign's own tasks, on one loop."""

    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    longest: float = 0.0

    @property
    def count(self) -> int:
        """Inputs sent."""
        return self.kinds.total()

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.count} inputs: " + ", ".join(
            f"{count} x {name}" for name, count in sorted(self.statuses.items())
        )
        for kind, count in sorted(self.kinds.items()):
            yield f"  {count:6} {kind}"
        yield f"  longest answer {self.longest:.2f} s, {len(self.slow)} slower than {SLOW:g} s"
        yield from (f"  slow: {one}" for one in self.slow[:20])
        yield from (f"  FAULT {one}" for one in self.faults[:20])


def drawn(width: int, context: int, count: int, first_seed: int) -> list[Hostile]:
    """So many inputs of every kind, the same for the same seed."""
    found: list[Hostile] = []

    @seed(first_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(_mix(width, context))
    def keep(one: Hostile) -> None:
        found.append(one)

    keep()
    return found


@st.composite
def _mix(draw: st.DrawFn, width: int, context: int) -> Hostile:
    """Half of them are about fields, of which there are most."""
    others = (
        malformed.broken_json, malformed.broken_json, malformed.odd_value, malformed.no_request, malformed.twice,
        malformed.deep, http_tricks.wrong_method, http_tricks.wrong_path, http_tricks.wrong_path, http_tricks.wrong_key,
        http_tricks.odd_header, http_tricks.wrong_chunks,
    )  # fmt: skip
    which = draw(st.integers(0, 2 * len(others) - 1))
    return draw(others[which]() if which < len(others) else one_bad_field(width, context))


class Campaign:
    """Against one server. `width`: of the model's logits; `context`: its longest sequence in tokens."""

    def __init__(self, url: str, width: int, context: int) -> None:
        place = urlsplit(url)
        assert place.hostname is not None and place.port is not None
        self._host, self._port = place.hostname, place.port
        self._width, self._context = width, context
        self._turn = asyncio.Lock()
        self.report = Report()

    async def listed(self, *, bombs: bool, large: bool) -> None:
        """The fixed list."""
        cases = [
            *listed.bodies(self._width, self._context),
            *listed_messages.messages(self._context),
            *listed_responses.responses(self._context),
            *listed_ollama.ollama(self._context),
            *listed_grammars.constraints(),
            *listed_wire.on_the_wire(),
        ]
        cases += list(listed_grammars.bombs()) if bombs else []
        cases += list(listed_wire.large()) if large else []
        await self.send(cases, "listed")

    async def drawn(self, total: int, first_seed: int = 0) -> None:
        """Drawn inputs until the report counts `total`."""
        number = first_seed
        while self.report.count < total:
            count = min(BATCH, total - self.report.count)
            cases = await asyncio.to_thread(drawn, self._width, self._context, count, number)
            await self.send(cases[:count], f"seed {number}")
            number += 1

    async def send(self, cases: Sequence[Hostile], origin: str) -> None:
        """All of them, AT_ONCE at a time."""
        waiting = iter(enumerate(cases))

        async def work() -> None:
            wire: Wire | None = None
            for number, case in waiting:
                wire = await self._one(case, wire, f"{origin}, input {number}")
            if wire is not None:
                wire.close()

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _one(self, case: Hostile, kept: Wire | None, origin: str) -> Wire | None:
        """Returns the connection for the next one, where it can be used again: what is wrong with a body must not spoil it."""
        if case.turns:
            async with self._turn:
                return await self._send(case, kept, origin)
        return await self._send(case, kept, origin)

    async def _send(self, case: Hostile, kept: Wire | None, origin: str) -> Wire | None:
        own = case.alone or kept is None or not kept.open
        wire = await Wire.to(self._host, self._port) if own else kept
        assert wire is not None
        answer = await wire.ask(case.pieces, case.method, ends=case.ends)
        self.report.kinds[case.kind] += 1
        self.report.statuses[str(answer.status or "no answer")] += 1
        self.report.longest = max(self.report.longest, answer.seconds)
        if answer.seconds > SLOW:
            self.report.slow.append(f"{answer.seconds:.1f} s, {answer.status}, {origin}: {case!r}"[:300])
        if (fault := case.fault(answer)) is not None:
            self.report.faults.append(f"{fault}\n    {origin}: {case!r}")
        if case.alone:
            wire.close()
            return kept
        if own and kept is not None:
            kept.close()
        return wire


async def innocents(url: str) -> list[str]:
    """Faults of answers to what is valid."""
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    faults = []
    for path, body, headers in listed_wire.innocent():
        async with await Wire.to(place.hostname, place.port) as wire:
            names = {name.lower() for name, _ in headers}
            lines = [b"POST %s HTTP/1.1" % path.encode(), b"Authorization: Bearer " + KEY.encode()]
            lines += [b"Host: x"] if "host" not in names else []
            lines += [b"Content-Type: application/json"] if "content-type" not in names else []
            lines += [
                f"{name}: {value}".encode() for name, value in [*headers, ("Content-Length", str(len(body)))]
            ]
            answer = await wire.ask([b"\r\n".join(lines) + b"\r\n\r\n" + body])
        if (
            answer.status != 200
            or answer.headers["x-request-id"] == "req_mine"
            or "set-cookie" in answer.headers
        ):
            faults.append(f"{answer} to {body!r}")
    return faults
