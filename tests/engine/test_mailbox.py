"""What waits for a reader: in order, complete, in pieces, in little memory, and with an end."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ExecutorFailed, ReaderTooSlow
from engine.mailbox import Mailbox
from engine.request import FinishReason, TokenDelta
from engine.unread_tokens import PendingTokens, num_entries
from executors.contract import SampledToken

LOGPROB = st.floats(allow_nan=False, max_value=0)
IDS = st.integers(0, 2**31 - 1)
TOKENS = st.builds(
    SampledToken,
    IDS,
    st.none() | LOGPROB,
    st.lists(st.tuples(IDS, LOGPROB), max_size=3).map(tuple),
    st.none() | st.integers(1, 2**40),
)


def token(number: int, alternatives: int = 20) -> SampledToken:
    top = tuple((1000 + number + i, -0.001 * (number + i)) for i in range(alternatives))
    return SampledToken(number % 1000, -0.5 - number, top)


@given(st.lists(st.lists(TOKENS, max_size=4), max_size=30), st.lists(st.integers(0, 6), min_size=1))
def test_packed_tokens_come_out_as_they_went_in(parts: list[list[SampledToken]], sizes: list[int]) -> None:
    packed, turn = PendingTokens(), 0
    whole, taken = [one for part in parts for one in part], list[SampledToken]()
    for number, part in enumerate(parts):
        packed.append(part)
        if number % 3 == 0:
            taken += packed.take(sizes[number % len(sizes)])
        assert packed.num_tokens == sum(map(len, parts[: number + 1])) - len(taken)
    while packed.num_tokens:
        piece, turn = packed.take(sizes[turn % len(sizes)]), turn + 1
        assert piece
        taken += piece
    assert taken == whole
    assert packed.num_bytes == 0 and packed.take(5) == []


def test_a_piece_has_no_more_than_was_asked_for() -> None:
    packed = PendingTokens()
    packed.append(token(i) for i in range(700))
    assert len(packed.take(210)) == 10
    assert len(packed.take(20)) == 1, "one at least"
    rest = packed.take(10**6)
    assert rest == [token(i) for i in range(11, 700)]


@pytest.mark.long
def test_a_token_with_20_alternatives_takes_less_than_300_bytes() -> None:
    count = 20_000
    packed = PendingTokens()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            packed.append([token(number)])
        held = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    print(f"{held:.0f} bytes a token")
    assert held < 300
    assert packed.num_bytes == count * 252


async def test_deltas_are_merged_taken_in_pieces_and_end_last() -> None:
    mailbox = Mailbox()
    count = 3000
    for number in range(count):
        for key in range(3):
            mailbox.put(key, TokenDelta([token(number, 4)], num_cached_tokens=7))
    end = TokenDelta([token(count, 4)], FinishReason.STOP, stop_token_id=count % 1000, num_cached_tokens=7)
    for key in range(3):
        mailbox.put(key, end)
    taken: dict[int, list[SampledToken]] = {0: [], 1: [], 2: []}
    ended: list[int] = []
    turns: list[list[int]] = []
    while len(ended) < 3:
        deltas = await mailbox.take()
        assert sum(sum(map(num_entries, delta.tokens)) for delta in deltas.values()) <= 1024 + 5
        turns.append(list(deltas))
        for key, delta in deltas.items():
            assert key not in ended and delta.tokens and delta.num_cached_tokens == 7
            taken[key] += delta.tokens
            assert (delta.finish_reason is None) == (delta.stop_token_id is None)
            if delta.finish_reason is not None:
                ended.append(key)
    assert all(tokens == [token(number, 4) for number in range(count + 1)] for tokens in taken.values())
    assert {key for turn in turns[:3] for key in turn} == {0, 1, 2}, "each in its turn"
    assert mailbox.num_bytes == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mailbox.take(), 0.01)


async def test_what_comes_once_comes_with_the_first_piece_and_an_error_with_the_last() -> None:
    mailbox, prompt = Mailbox(), (token(1),)
    mailbox.put(0, TokenDelta([token(0)], prompt_logprobs=prompt))
    for number in range(1, 200):
        mailbox.put(0, TokenDelta([token(number)]))
    mailbox.put(0, TokenDelta(finish_reason=FinishReason.ERROR, error=ExecutorFailed("gone")))
    pieces = [(await mailbox.take())[0]]
    while pieces[-1].finish_reason is None:
        pieces.append((await mailbox.take())[0])
    assert len(pieces) > 3
    assert [piece.prompt_logprobs for piece in pieces] == [prompt] + [None] * (len(pieces) - 1)
    assert [piece.error is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [one for piece in pieces for one in piece.tokens] == [token(number) for number in range(200)]


async def test_a_reader_too_far_behind_gets_what_is_held_and_then_an_error() -> None:
    gaps = []
    mailbox = Mailbox(max_bytes=252 * 1000, on_full=lambda: gaps.append(mailbox.num_bytes))
    for number in range(5000):
        mailbox.put(number % 2, TokenDelta([token(number // 2)]))
    assert len(gaps) == 1, "told once"
    assert 252 * 1000 < mailbox.num_bytes == gaps[0] < 252 * 1010
    taken: dict[int, list[SampledToken]] = {0: [], 1: []}
    with pytest.raises(ReaderTooSlow) as told:
        while True:
            for key, delta in (await mailbox.take()).items():
                taken[key] += delta.tokens
                assert delta.finish_reason is None
    assert told.value.code == "reader_too_slow"
    for tokens in taken.values():
        assert tokens == [token(number) for number in range(len(tokens))], "without a gap"
    assert 1000 <= sum(map(len, taken.values())) < 1010


async def test_a_reader_that_keeps_up_is_handed_the_deltas_themselves() -> None:
    mailbox = Mailbox()
    for number in range(3):
        delta = TokenDelta([token(number)])
        mailbox.put(5, delta)
        assert (await mailbox.take())[5] is delta


class Reader:
    """Takes what `takes` allows, and notes the ids in their order, by key."""

    def __init__(self, takes: Callable[[int], bool], by_token: bool = True) -> None:
        self.ids: list[tuple[int, int]] = []
        self.asked: list[int] = []
        self._takes = takes
        self.takers = {key: partial(self._take_token, key) for key in range(10 if by_token else 0)}

    def take(self, key: int, delta: TokenDelta) -> bool:
        return self._note(key, [token.token_id for token in delta.tokens])

    def _take_token(self, key: int, token_id: int) -> None:
        self.asked.append(token_id)
        self._takes(token_id)  # it may wake the reader, or fail
        self.ids.append((key, token_id))

    def _note(self, key: int, ids: list[int]) -> bool:
        self.asked += ids
        if not self._takes(ids[0]):
            return False
        self.ids += [(key, one) for one in ids]
        return True


async def test_deltas_go_direct_while_the_reader_waits_and_the_rest_is_held_in_order() -> None:
    box, reader = Mailbox(), Reader(lambda token_id: token_id != 3)
    box.put(0, TokenDelta([SampledToken(1)]))
    assert (await box.take(reader))[0].tokens == [SampledToken(1)], "what is held comes first"
    taking = asyncio.create_task(box.take(reader))
    await asyncio.sleep(0)
    box.put(0, TokenDelta([SampledToken(2)]))
    assert reader.asked == [], "a step may have to be sent first"
    await asyncio.sleep(0)
    assert reader.asked == [2]
    for number in (3, 4):  # 3 is refused, and 4 may not overtake it
        box.put(number, TokenDelta([SampledToken(number)]))
    assert {key: delta.tokens for key, delta in (await taking).items()} == {
        3: [SampledToken(3)],
        4: [SampledToken(4)],
    }
    assert reader.asked == [2, 3]
    taking = asyncio.create_task(box.take(reader))
    await asyncio.sleep(0)
    for number in (6, 7):  # packed before they could be handed over
        box.put(0, TokenDelta([SampledToken(number)]))
    assert [token.token_id for token in (await taking)[0].tokens] == [6, 7]


@pytest.mark.parametrize("by_token", [True, False])
async def test_tokens_go_direct_without_deltas(by_token: bool) -> None:
    box, reader = Mailbox(), Reader(lambda token_id: token_id < 5, by_token)
    box.put_token(0, 1, 7)
    held = (await box.take(reader))[0]
    assert (held.tokens, held.num_cached_tokens) == ([SampledToken(1)], 7)
    taking = asyncio.create_task(box.take(reader))
    await asyncio.sleep(0)
    box.put_token(0, 2, 7)
    box.put_token(1, 3, 7)
    assert not reader.asked and not taking.done()
    await asyncio.sleep(0)
    assert reader.ids == [(0, 2), (1, 3)]
    for key, token_id in ((0, 4), (1, 5), (0, 6), (1, 7)):  # 5 is refused, unless it is taken as a token
        box.put_token(key, token_id, 7)
    if by_token:
        await asyncio.sleep(0)
        assert reader.ids[2:] == [(0, 4), (1, 5), (0, 6), (1, 7)]
        taking.cancel()
    else:
        assert {key: delta.num_cached_tokens for key, delta in (await taking).items()} == {0: 7, 1: 7}


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_comes_in_whatever_way_each_key_hears_its_ids_in_order(seed: int) -> None:
    """Tokens and deltas in turn, a reader that refuses some, is cancelled, and begins anew."""
    rng = random.Random(seed)
    box, reader = Mailbox(), Reader(lambda _: rng.random() < 0.8, rng.random() < 0.7)
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}
    sent: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def read() -> None:
        while True:
            found = await box.take(reader if rng.random() < 0.8 else None)
            for key, one in reader.ids:
                heard[key].append(one)
            reader.ids.clear()
            for key, delta in found.items():
                heard[key] += [token.token_id for token in delta.tokens]

    task = asyncio.create_task(read())
    for number in range(400):
        key = rng.randrange(3)
        sent[key].append(number)
        if rng.random() < 0.7:
            box.put_token(key, number, 0)
        else:
            box.put(key, TokenDelta([SampledToken(number)]))
        if rng.random() < 0.4:
            await asyncio.sleep(0)
        if rng.random() < 0.03:
            task.cancel()
            await asyncio.wait([task])
            task = asyncio.create_task(read())
    for _ in range(100):
        await asyncio.sleep(0)
    for key, one in reader.ids:
        heard[key].append(one)
    task.cancel()
    assert heard == sent


def _put(box: Mailbox, key: int, token_id: int) -> None:
    box.put(key, TokenDelta([SampledToken(token_id)]))


def _put_token(box: Mailbox, key: int, token_id: int) -> None:
    box.put_token(key, token_id, 0)


each_way = pytest.mark.parametrize("put", [_put, _put_token])
Put = Callable[[Mailbox, int, int], None]


@each_way
async def test_a_woken_reader_takes_nothing_and_what_follows_is_held(put: Put) -> None:
    box = Mailbox()

    def woken(_: int) -> bool:
        box.wake()
        return True

    reader = Reader(woken)
    taking = asyncio.create_task(box.take(reader))
    await asyncio.sleep(0)
    put(box, 0, 1)
    put(box, 1, 2)
    assert (await taking)[1].tokens == [SampledToken(2)]
    taking = asyncio.create_task(box.take(reader))
    await asyncio.sleep(0)
    put(box, 0, 3)
    assert await taking == {}
    assert reader.asked == [1, 3]
    taking = asyncio.create_task(box.take(reader))
    await asyncio.sleep(0)
    taking.cancel()
    put(box, 0, 4)
    await asyncio.wait([taking])
    assert len(reader.asked) == 2, "a cancelled reader takes nothing"
    assert (await box.take())[0].tokens == [SampledToken(4)]


@each_way
async def test_all_is_handed_over_before_it_is_flushed_each_once_a_turn(put: Put) -> None:
    told = list[str]()

    class Teller(Reader):
        def __init__(self, name: str) -> None:
            super().__init__(lambda _: True)
            self.takers = {key: partial(self._tell, key) for key in range(2)}
            self.name = name

        def take(self, key: int, delta: TokenDelta) -> bool:
            self._tell(key, 0)
            return True

        def _tell(self, key: int, token_id: int) -> None:
            told.append(f"{self.name}{key}")

    boxes = {name: Mailbox() for name in "ab"}
    readers = [
        asyncio.create_task(box.take(Teller(name), lambda _, name=name: told.append(f"flush {name}")))
        for name, box in boxes.items()
    ]
    await asyncio.sleep(0)
    for turn in range(2):
        for key in range(2):
            for box in boxes.values():
                put(box, key, turn)
        await asyncio.sleep(0)
        assert told == ["a0", "a1", "b0", "b1", "flush a", "flush b"]
        told.clear()
    for reader in readers:
        reader.cancel()
    put(boxes["a"], 0, 3)
    await asyncio.wait(readers)
    assert told == [], "no reader waits"


@each_way
async def test_a_reader_that_fails_takes_nothing_from_the_others(put: Put) -> None:
    flushed, seen = list[int](), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    good = Reader(lambda _: True)
    boxes = [Mailbox() for _ in range(4)]
    readers = [
        asyncio.create_task(boxes[0].take(good, lambda _: flushed.append(0))),
        asyncio.create_task(boxes[1].take(good, broken)),
        asyncio.create_task(boxes[2].take(Reader(broken))),
        asyncio.create_task(boxes[3].take(good, lambda _: flushed.append(3))),
    ]
    await asyncio.sleep(0)
    for box in boxes:
        put(box, 0, 1)
    await asyncio.sleep(0)
    assert flushed == [0, 3]
    assert [type(one["exception"]) for one in seen] == [ZeroDivisionError] * 2
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
