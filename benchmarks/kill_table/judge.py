"""What the client saw, in one word, from what came over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from benchmarks.kill_table.answers import Answer, same
from benchmarks.kill_table.client import Record


class Sight(StrEnum):
    """From best to worst. MISSED is none of the server's: the answer had ended before the fault."""

    SAME = "same"
    DIFFERENT = "different"
    ERROR = "error"
    CUT = "cut"
    SHORT = "short"
    HUNG = "hung"
    MISSED = "missed"


MEANINGS = {
    Sight.SAME: "the whole answer, equal to the one without the fault",
    Sight.DIFFERENT: "an answer that ends as whole ones do, and is another one",
    Sight.ERROR: "an error that the API describes: a status, or an event in the stream",
    Sight.CUT: "the connection broke: the client raises an exception of its transport",
    Sight.SHORT: "the stream ended in good order, but without the end that the API promises: a client that does not look for "
    "it takes the part for the whole",
    Sight.HUNG: "nothing came any more until the client gave up",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """`pause_s`: of a stream the longest time without a new piece, of a whole answer how much later it came. `events`: pieces of
    the answer that had come at the fault, and at the end."""

    sight: Sight
    detail: str
    pause_s: float
    events: tuple[int, int]
    comments: int

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sight": self.sight.value, "pause_s": round(self.pause_s, 2)}


def judge(record: Record, references: Sequence[Record], events_before: int, patience: float) -> Verdict:
    """What came of a call, beside the same call without the fault: equal to any of the `references` is equal."""
    sight, detail = _sight(record, [reference.answer for reference in references], patience)
    undisturbed = max((reference.seconds for reference in references), default=0.0)
    pause = record.longest_pause if record.call.streamed else max(record.seconds - undisturbed, 0.0)
    if sight is Sight.HUNG:
        pause = max(pause, patience)
    return Verdict(sight, detail, pause, (events_before, record.events), record.comments)


def _sight(record: Record, references: list[Answer], patience: float) -> tuple[Sight, str]:
    answer = record.answer
    if record.silent:
        return Sight.HUNG, f"nothing for {patience:g} s"
    if answer.error is not None:
        where = "in the stream" if record.status == 200 else f"status {record.status}"
        return Sight.ERROR, f"{where}: {_short(answer.error)}"
    if record.failure is not None:
        return Sight.CUT, _short(record.failure)
    if not answer.whole:
        return Sight.SHORT, f"no end, finish {_finishes(answer)}"
    if any(same(answer, reference) for reference in references):
        return Sight.SAME, ""
    return Sight.DIFFERENT, _difference(answer, references)


def _difference(answer: Answer, references: list[Answer]) -> str:
    """Where it leaves the nearest of the references."""
    if not references:
        return "there is none to compare with"
    nearest = max(references, key=lambda reference: _common(answer, reference))
    return (
        f"{_common(answer, nearest)} of {nearest.size()} characters are equal; finish {_finishes(answer)}, "
        f"without the fault {_finishes(nearest)}"
    )


def _common(one: Answer, other: Answer) -> int:
    """Characters until the first that differs, of all choices."""
    return sum(_equal_prefix(_all_text(one, index), _all_text(other, index)) for index in one.choices)


def _equal_prefix(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _all_text(answer: Answer, index: int) -> str:
    choice = answer.choices.get(index)
    return "" if choice is None else choice.text + "".join(arguments for _, arguments in choice.calls)


def _finishes(answer: Answer) -> str:
    return "/".join(str(choice.finish) for _, choice in sorted(answer.choices.items())) or "none"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:197]}..."


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several rounds: the worst sight, with the longest pause among all."""
    order = list(Sight)
    chosen = max(verdicts, key=lambda one: (order.index(one.sight), one.pause_s))
    pause = max(one.pause_s for one in verdicts)
    return Verdict(chosen.sight, chosen.detail, pause, chosen.events, chosen.comments)
