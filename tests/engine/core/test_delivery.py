"""Deltas that are counted at once and given to their readers later, in order."""

import numpy as np

from engine.core.delivery import Delivery
from engine.core.gains import StepGains
from engine.errors import SequenceFailed
from engine.mailbox import Mailbox
from engine.observer import Observer
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from engine.sequence import Sequence
from executors.contract import SampledToken, SamplingParams


def _seq(mailbox: Mailbox, number: int = 1) -> Sequence:
    asked = Request(RequestContext("r", 0.0), np.array([1], np.int32), SamplingParams(), 9)
    return Sequence(number, asked, mailbox, number)


async def test_an_error_comes_after_the_tokens_before_it() -> None:
    delivery, mailbox = Delivery(Observer(), lambda: 1.0), Mailbox()
    seq = _seq(mailbox)
    delivery.expect(seq)
    delivery.hold(StepGains(1.0, deltas=[(seq, TokenDelta([SampledToken(7)]))]))
    assert not mailbox._filled.is_set(), "its reader would be woken"
    delivery.fail(seq, SequenceFailed("no"))
    delivery.release()
    delta = (await mailbox.take())[1]
    assert [token.token_id for token in delta.tokens] == [7]
    assert delta.finish_reason is FinishReason.ERROR and delta.error is not None


async def test_a_kept_end_is_counted_at_once_and_given_once() -> None:
    delivery, mailbox = Delivery(Observer(), lambda: 1.0), Mailbox()
    seqs = [_seq(mailbox, number) for number in (1, 2)]
    for seq in seqs:
        delivery.expect(seq)
    ends = [(seq, TokenDelta([SampledToken(7)], FinishReason.LENGTH)) for seq in seqs]
    delivery.hold(StepGains(1.0, deltas=ends))
    assert not delivery.live and not mailbox._filled.is_set()
    delivery.release()
    delivery.release()
    assert {key: len(delta.tokens) for key, delta in (await mailbox.take()).items()} == {1: 1, 2: 1}
