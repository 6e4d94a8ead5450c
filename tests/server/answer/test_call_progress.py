"""What a call waits for."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.step_watch import SequenceView
from server.answer.call_progress import MAX_AGE, MAX_SEQUENCES, CallsProgress


def view(request_id: str, status: str = "waiting", computed: int = 0, output: int = 0) -> SequenceView:
    return SequenceView(1, request_id, 0, status, 0.0, 70, 0, computed, output, 100, 0, 0)


def told(views: list[SequenceView], request_id: str) -> dict[str, Any]:
    return CallsProgress().of(request_id, lambda most: views[:most])


@pytest.mark.parametrize(
    ("sequence", "progress"),
    [
        (view("a", "running", 16), {"state": "prefill", "computed": 16, "total": 70}),
        (view("a", "running", 69, 0), {"state": "prefill", "computed": 69, "total": 70}),
        (view("a", "running", 79, 10), {"state": "decode"}),
        (view("a", "running", 32, 10), {"state": "recompute", "computed": 32, "total": 80}),
    ],
)
def test_a_call_that_runs(sequence: SequenceView, progress: dict[str, Any]) -> None:
    assert told([view("other", "running"), sequence], "a") == progress


def test_places_count_what_waits() -> None:
    views = [view("x", "running"), view("b", "preempted"), view("b"), view("c"), view("a"), view("a")]
    assert told(views, "b") == {"state": "waiting", "place": 1}
    assert told(views, "a") == {"state": "waiting", "place": 4}, "behind two sequences of b, and c"
    assert told(views, "unknown") == {"state": "waiting"}


def test_a_call_of_which_a_part_runs() -> None:
    assert told([view("a", "running", 3), view("b"), view("a")], "a")["state"] == "prefill"


def test_one_look_serves_all_who_ask() -> None:
    now, looks = 0.0, []
    progress = CallsProgress(lambda: now)

    def sequences(most: int) -> list[SequenceView]:
        looks.append(most)
        return [view("a")]

    for _ in range(100):
        assert progress.of("a", sequences) == {"state": "waiting", "place": 1}
    assert looks == [MAX_SEQUENCES]
    now += MAX_AGE * 2
    progress.of("a", sequences)
    assert len(looks) == 2
