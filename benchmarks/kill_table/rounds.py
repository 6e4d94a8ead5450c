"""One fault under all calls at once: what each client saw, what a newcomer saw, and when the server served again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.kill_table.calls import kinds, neighbours, newcomer, poisoned
from benchmarks.kill_table.client import Record, open_client, perform, wait_for_all
from benchmarks.kill_table.faults import Fault
from benchmarks.kill_table.judge import Sight, Verdict, judge
from benchmarks.kill_table.running import Running
from tests.e2e.cgroups import Limited

PIECES = 6
"""Of each stream's answer have come when the fault strikes."""
STRIKE_WITHIN = 120.0
NEWCOMER_AFTER_S = 0.5
SERVES_WITHIN, LAST_TRY_S = 60.0, 10.0


@dataclass
class Observation:
    """Of one fault: `verdicts` by the kinds of calls; `newcomer` of the call that came NEWCOMER_AFTER_S seconds after the fault;
    `poisoned` of the request that was the fault; `serves_again_s` from the fault to the beginning of the first new call that was
    answered, None if none of SERVES_WITHIN seconds was."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    newcomer: Verdict | None = None
    poisoned: Verdict | None = None
    serves_again_s: float | None = None
    ended: str = ""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "calls": {name: verdict.as_json() for name, verdict in self.verdicts.items()},
            "newcomer": self.newcomer.as_json() if self.newcomer else None,
            "poisoned": self.poisoned.as_json() if self.poisoned else None,
            "serves_again_s": None if self.serves_again_s is None else round(self.serves_again_s, 2),
            "ended": self.ended,
            "note": self.note,
        }


@dataclass
class References:
    """Answers without a fault, by the names of calls; those of all rounds count."""

    records: dict[str, list[Record]] = field(default_factory=dict)

    def add(self, records: list[Record]) -> None:
        """Raises RuntimeError where a call is not answered as it has to be for the table."""
        for record in records:
            if not record.answer.whole:
                reason = record.answer.error or record.failure or f"status {record.status}, {record.answer}"
                raise RuntimeError(f"{record.call.name} is not answered without a fault: {reason}")
            self.records.setdefault(record.call.name, []).append(record)

    def of(self, record: Record) -> list[Record]:
        return self.records.get(record.call.name, [])


async def undisturbed(running: Running, references: References, patience: float) -> None:
    """All calls without a fault."""
    async with open_client(running.url) as client:
        records = [Record(call) for call in (*kinds(), *neighbours())]
        tasks = [asyncio.create_task(perform(client, record)) for record in records]
        await wait_for_all(records, tasks, 10 * patience)
        references.add(records)
        last = Record(newcomer())
        await perform(client, last)
        references.add([last])


async def observe(
    running: Running, fault: Fault, references: References, group: Limited | None, patience: float
) -> Observation:
    """All calls, and the fault in their midst."""
    found = Observation()
    async with open_client(running.url) as client:
        records = [Record(call) for call in kinds()]
        others = [Record(call) for call in neighbours()]
        tasks = [asyncio.create_task(perform(client, record)) for record in records]
        beside = [asyncio.create_task(perform(client, record)) for record in others]
        missed = await _in_their_midst([*records, *others])
        before = {record.call.name: record.events for record in records}
        struck = time.monotonic()
        bad = _poison(running, fault)
        if fault.cancels:
            beside[0].cancel()
        if bad is not None:
            others, beside = [*others, bad], [*beside, asyncio.create_task(perform(client, bad))]
        found.note = await fault.strike(running, group)
        await asyncio.sleep(NEWCOMER_AFTER_S)
        late = Record(newcomer())
        coming = asyncio.create_task(perform(client, late))
        again = asyncio.create_task(_answered_from(running, coming, late, struck))
        await wait_for_all([*records, *others, late], [*tasks, *beside, coming], patience)
        found.serves_again_s = await again
    for record in records:
        verdict = judge(record, references.of(record), before[record.call.name], patience)
        found.verdicts[record.call.name] = _missed(verdict) if record.call.name in missed else verdict
    found.newcomer = judge(late, references.of(late), 0, patience)
    found.poisoned = judge(bad, [], 0, patience) if bad is not None else None
    with contextlib.suppress(Exception):
        await asyncio.to_thread(
            running.process.wait, 5 if fault.drains or found.serves_again_s is None else 0.1
        )
    code = running.process.poll()
    found.ended = "" if code is None else f"the server's process ended with {code}"
    return found


async def _in_their_midst(records: list[Record]) -> list[str]:
    """Wait until PIECES pieces of each stream have come, but for a call of a tool, which llama.cpp holds back at first. Returns
    the names of calls that are over already."""
    deadline = time.monotonic() + STRIKE_WITHIN
    texts = [record for record in records if record.call.streamed and record.call.name != "tools"]
    while any(record.events < PIECES and not record.over for record in texts):
        if time.monotonic() > deadline:
            slow = [record.call.name for record in records if record.events < PIECES]
            raise RuntimeError(f"fewer than {PIECES} pieces of an answer after {STRIKE_WITHIN:g} s: {slow}")
        await asyncio.sleep(0.005)
    return [record.call.name for record in records if record.over]


def _poison(running: Running, fault: Fault) -> Record | None:
    if not fault.poisons:
        return None
    assert running.subject.poison is not None
    return Record(poisoned(running.subject.poison[1]))


def _missed(verdict: Verdict) -> Verdict:
    return Verdict(Sight.MISSED, "over before the fault", 0.0, verdict.events, verdict.comments)


async def _answered_from(
    running: Running, coming: asyncio.Task[None], first: Record, struck: float
) -> float | None:
    """When a call has to come to be answered: the first one's beginning, or that of one of its successors, in seconds after the
    fault. Each comes when the one before it has failed."""
    await asyncio.wait([coming])
    record = first
    deadline = max(struck + SERVES_WITHIN, time.monotonic() + LAST_TRY_S)
    while not record.answer.whole:
        await asyncio.sleep(0.25)
        now = time.monotonic()
        if now > deadline or running.process.poll() is not None:
            return None
        record = Record(newcomer())
        async with open_client(running.url) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(deadline - now, LAST_TRY_S)):
                    await perform(client, record)
    return record.moments[0] - struck
