"""A look at those who have just come holds up the loop for a bounded number of estimates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from engine.sequence import Sequence, SequenceStatus
from engine.waiting.second_look import SecondLook


def test_a_look_makes_a_few_estimates_and_the_next_goes_on() -> None:
    now = 0.0
    look = SecondLook(60.0, lambda: now)
    seqs = [cast(Sequence, SimpleNamespace(status=SequenceStatus.WAITING)) for _ in range(100)]
    for seq in seqs:
        look.add(seq)
    estimates = 0

    def wait(seq: Sequence) -> float:
        nonlocal estimates
        estimates += 1
        return 1000.0

    dropped: list[int] = []
    for _ in range(4):
        now += 0.1
        before = estimates
        for seq, _, waited in look.overdue(now, lambda _: "key", wait):
            seq.status = SequenceStatus.FINISHED
            dropped.append(seqs.index(seq))
            assert waited == now
        assert estimates - before <= 32
    assert dropped == list(reversed(range(100))), "the last first, and each of them"
    assert estimates == 100
