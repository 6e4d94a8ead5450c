"""`WaitingQueue`: one sequence from its submission to its end, and what is counted on the way."""

from __future__ import annotations

import pytest

from engine.core.journal import Journal
from engine.core.scheduler import Scheduler
from engine.kv.kv_cache_manager import KvCacheManager
from engine.request import FinishReason
from engine.waiting.fair import Fair
from engine.waiting.order import Priority
from engine.waiting.queue import WaitingQueue
from executors.contract import KvLayout
from tests.engine.waiting.test_fair import order, seq


def test_a_sequence_is_counted_until_it_starts_and_in_order_whenever_it_waits() -> None:
    queue = WaitingQueue()
    first, second = seq(1, tokens=5), seq(2, tokens=7)
    for one in (first, second):
        queue.submit(one)
    assert (queue.count, queue.tokens, len(queue)) == (2, 12, 0), "the loop has not come round to them"
    for one in (second, first):
        queue.add(one)
    assert order(queue.policy) == [1, 2] and list(queue) == [first, second]
    queue.start(first)
    queue.remove(first)
    assert (queue.count, queue.tokens, len(queue)) == (1, 7, 1)
    queue.add(first)
    assert (queue.count, len(queue)) == (1, 2), "preempted: it waits again, and was started"
    for one in (first, second):
        queue.remove(one)
        queue.end(one)
    assert (queue.count, queue.tokens, len(queue)) == (0, 0, 0) and queue.not_started.next_at() is None
    with pytest.raises(ValueError, match="not waiting"):
        queue.remove(first)


def test_an_ended_sequence_that_never_started_teaches_nothing() -> None:
    """How long sequences take is learned from those that ran."""
    now = 0.0
    queue = WaitingQueue(clock=lambda: now)
    queue.open(1)
    queue.submit(dropped := seq(1))
    now = 50.0
    queue.end(dropped)
    queue.submit(runs := seq(2))
    queue.start(runs)
    queue.submit(seq(3))
    assert queue.wait(seq(4).request) == 0.0
    now = 53.0
    queue.end(runs)
    assert queue.wait(seq(4).request) == pytest.approx(3.0)


def test_an_empty_queue_that_is_given_is_used() -> None:
    """An empty queue has no length, which must not be taken for none."""
    queue = WaitingQueue(Fair())
    scheduler = Scheduler(KvCacheManager(KvLayout(16)), Journal(), 4, 64, waiting=queue)
    assert scheduler.waiting is queue is scheduler.sequences.waiting and isinstance(queue.policy, Fair)


@pytest.mark.parametrize(("policy", "shared"), [(Fair(), True), (Priority(), False), (None, False)])
def test_only_tenants_have_a_share_of_a_full_queue(policy: Fair | Priority | None, shared: bool) -> None:
    queue = WaitingQueue(policy)
    for number in range(10):
        queue.submit(seq(number, "many"))
    assert queue.within_share(seq(99, "few").request, 10, 1000) is shared
    assert not queue.within_share(seq(99, "many").request, 10, 1000)


def test_a_finished_sequence_leaves_the_queue_of_its_scheduler() -> None:
    queue = WaitingQueue(Fair())
    scheduler = Scheduler(KvCacheManager(KvLayout(16)), Journal(), 4, 64, waiting=queue)
    queue.submit(one := seq(1))
    scheduler.sequences.add(one)
    scheduler.sequences.finish(one, FinishReason.ABORT)
    assert (queue.count, len(queue)) == (0, 0)
