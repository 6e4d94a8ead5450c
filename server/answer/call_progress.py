"""`CallsProgress`: what a call waits for, for clients that ask to be told while no token comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine.core.step_watch import SequenceView

MAX_SEQUENCES = 1024
"""Sequences that are looked through. A call behind them is not told its place."""
MAX_AGE = 0.25
"""Seconds for which one look at the sequences serves all calls: its cost does not grow with the number of clients that ask."""
_RUNNING = "running"


class CallsProgress:
    """The calls of one server by the ids of their answers. Belongs to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: float | None = None
        self._calls: Mapping[str, dict[str, Any]] = {}

    def of(self, answer_id: str, sequences: Callable[[int], Iterable[SequenceView]]) -> dict[str, Any]:
        """Where the call is, at most `MAX_AGE` seconds ago. `state` is one of

            waiting    no sequence of it runs; `place` counts from 1 among the sequences that wait
            prefill    `computed` of `total` tokens of its prompt
            recompute  the same, of its prompt and what is answered already
            decode     the next token is being computed

        A call that is not known, as before it is queued, is `waiting` without a place.
        """
        now = self._clock()
        if self._at is None or now - self._at > MAX_AGE:
            self._at, self._calls = now, _calls(sequences(MAX_SEQUENCES))
        return self._calls.get(answer_id, {"state": "waiting"})


def _calls(views: Iterable[SequenceView]) -> dict[str, dict[str, Any]]:
    """Progress by answer id. Of a call with several sequences, that of the first that runs, else of the first in the queue."""
    calls: dict[str, dict[str, Any]] = {}
    place = 0
    for view in views:
        place += view.status != _RUNNING
        if view.request_id not in calls:
            calls[view.request_id] = _running(view) if view.status == _RUNNING else _queued(place)
    return calls


def _queued(place: int) -> dict[str, Any]:
    return {"state": "waiting", "place": place}


def _running(view: SequenceView) -> dict[str, Any]:
    total = view.prompt_tokens + view.output_tokens
    computed = {"computed": view.computed_tokens, "total": total}
    if not view.output_tokens:
        return {"state": "prefill", **computed}
    # The last token of the answer is the next step's input.
    return {"state": "decode"} if view.computed_tokens >= total - 1 else {"state": "recompute", **computed}
