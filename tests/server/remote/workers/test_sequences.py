"""A worker's core over a socket: what the engine does for a worker is what it does without one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import ContextLengthExceeded, EngineError, Overloaded, ReaderTooSlow
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from engine.story import Story
from executors import registry
from executors.contract import ExecutorConfig, SampledToken, SamplingParams
from server.remote import messages as m
from server.remote.link import Link
from server.remote.wire_errors import packed, unpacked
from server.remote.workers.remote_core import RemoteCore
from server.remote.workers.remote_parts import QuestionClient
from server.remote.workers.sequences import WorkerSequences, _Outlet
from server.remote.workers.stories import WorkerStories
from server.state.responses.errors import StoreFull
from server.telemetry.stories.ring import Stories


@dataclass
class Pair:
    """Both ends of one worker's socket, in one process."""

    core: EngineCore
    sequences: WorkerSequences
    remote: RemoteCore
    server: Link
    worker: Link
    stories: Stories


@asynccontextmanager
async def paired(**config: object) -> AsyncIterator[Pair]:
    limits = ExecutorConfig("echo", max_num_seqs=8, max_model_len=100_000, options={"step_delay_ms": 0.5})
    core = EngineCore(registry.create(limits), EngineConfig(**config))  # type: ignore[arg-type]
    await core.start()
    ours, theirs = socket.socketpair()
    pair: Pair
    stories = Stories()
    told = WorkerStories(stories)

    def from_worker(message: object) -> None:
        match message:
            case m.Submit():
                pair.sequences.submit(message)
            case m.CallAnswered():
                told.answered(message)
            case m.Abort():
                pair.sequences.abort(message.key)
            case m.Finish():
                pair.sequences.finish(message.key, message.num_tokens)
            case m.CallBegins():
                pair.sequences.begin_call(message.number)
            case m.CallEnds():
                pair.sequences.end_call(message.number)

    def from_server(message: object) -> None:
        assert isinstance(message, m.Deltas)
        pair.remote.deliver(message)

    server = await Link.connect(ours, m.ToServer, from_worker, lambda _: pair.sequences.close())
    worker = await Link.connect(theirs, m.ToWorker, from_server, lambda _: None)
    sequences = WorkerSequences(lambda: core, server, told)
    remote = RemoteCore(worker, QuestionClient(worker), core.config, core.max_model_len)
    pair = Pair(core, sequences, remote, server, worker, stories)
    worker.unsendable = pair.remote.unsendable
    try:
        yield pair
    finally:
        worker.close()
        await asyncio.sleep(0)
        await core.stop()
    core.check_integrity()


def asked(
    count: int = 8, prompt: tuple[int, ...] = (1, 2, 3), logprobs: int | None = None, **fields: object
) -> Request:
    sampling = SamplingParams(temperature=0.0, logprobs=logprobs)
    context = RequestContext("r", 0.0)
    return Request(context, np.array(prompt, np.int32), sampling, count, **fields)  # type: ignore[arg-type]


async def whole(mailbox: Mailbox, keys: int = 1) -> dict[int, list[SampledToken]]:
    """All tokens by key; raises the error that a sequence ends with."""
    found: dict[int, list[SampledToken]] = {}
    ended = 0
    while ended < keys:
        for key, delta in (await mailbox.take()).items():
            found.setdefault(key, []).extend(delta.tokens)
            if delta.error is not None:
                raise delta.error
            ended += delta.finish_reason is not None
    return found


async def until(true: object, pair: Pair) -> None:
    for _ in range(2000):
        if true():  # type: ignore[operator]
            return
        await asyncio.sleep(0.001)
    raise AssertionError(pair.core.stats())


@pytest.mark.parametrize("logprobs", [None, 3])
async def test_tokens_are_those_of_the_engine_in_one_process(logprobs: int | None) -> None:
    """Choices, several calls at once, with and without logprobs, also of the prompt."""
    async with paired() as pair:
        near, far = [], []
        for core, found in ((pair.core, near), (pair.remote, far)):
            mailboxes = [Mailbox() for _ in range(3)]
            for number, mailbox in enumerate(mailboxes):
                prompt = (number + 1, 7, 9)
                first = asked(20, prompt, logprobs, prompt_logprobs=logprobs)
                core.submit_choices([first, asked(11, prompt, logprobs)], mailbox, 4)  # type: ignore[attr-defined]
            found += [await whole(mailbox, 2) for mailbox in mailboxes]
        assert near == far
        assert [len(tokens[4]) for tokens in far] == [20] * 3 and not pair.sequences.num_sequences


async def test_a_refusal_is_the_first_delta() -> None:
    async with paired(max_queued_seqs=2, max_num_seqs=1) as pair:
        running = [Mailbox() for _ in range(3)]
        pair.remote.submit(asked(2000), running[0])
        await until(lambda: pair.core.stats().running == 1, pair)
        for mailbox in running[1:]:
            pair.remote.submit(asked(2000), mailbox)
        refused = Mailbox()
        pair.remote.submit(asked(4), refused)
        with pytest.raises(Overloaded) as full:
            await whole(refused)
        assert full.value.status == 429 and full.value.retry_after >= 1
        with pytest.raises(ContextLengthExceeded):
            pair.remote.submit(asked(4, tuple(range(1, 60)) * 2000), too_long := Mailbox())
            await whole(too_long)
        assert pair.sequences.num_sequences == 3


async def test_abort_finish_and_the_end_of_a_worker_free_sequences() -> None:
    async with paired() as pair:
        ids = pair.remote.submit_choices([asked(5000)] * 4, Mailbox())
        await until(lambda: pair.core.stats().running == 4, pair)
        pair.remote.abort(ids[0])
        pair.remote.finish(ids[1], 1)
        await until(lambda: pair.core.stats().running == 2, pair)
        pair.worker.give_up("killed")
        await until(lambda: pair.core.stats().running == 0, pair)
        assert not pair.sequences.num_sequences


async def test_a_drain_waits_for_a_call_and_not_for_a_dead_worker() -> None:
    async with paired() as pair:
        with pair.remote.call():
            pair.worker.flush()
            await asyncio.sleep(0.02)
            assert not await pair.core.drain(0.05)
            pair.worker.give_up("killed")
            assert await pair.core.drain(2)


async def test_a_reader_that_is_too_slow_is_given_up_in_the_worker() -> None:
    async with paired() as pair:
        held: list[int] = []
        mailbox = Mailbox(max_bytes=4000, on_full=lambda: [pair.remote.abort(one) for one in held] and None)
        held += pair.remote.submit_choices([asked(4000)], mailbox)
        await until(lambda: mailbox._full, pair)
        await until(lambda: pair.core.stats().running == 0, pair)
        with pytest.raises(ReaderTooSlow):
            while True:
                await mailbox.take()


async def test_a_worker_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.remote.link.MAX_UNSENT", 10_000)
    async with paired() as pair:
        pair.worker._transport.pause_reading()
        pair.remote.submit_choices([asked(90_000, logprobs=5)] * 8, Mailbox())
        await until(lambda: not pair.server.open, pair)
        await until(lambda: pair.core.stats().running == 0, pair)


async def test_deltas_of_one_frame_keep_their_order() -> None:
    """A plain token behind a detailed one goes with the detailed ones, which come after the plain ones."""
    async with paired() as pair:
        mailbox = Mailbox()
        pair.remote._readers[5] = mailbox, 0, Story()
        pair.sequences.put_token(5, 1, 0)
        pair.sequences.put(5, TokenDelta([SampledToken(2, -0.5)]))
        for token_id in (3, 4):
            pair.sequences.put_token(5, token_id, 0)
        pair.sequences._seq_ids[5] = (0, 1)
        pair.sequences._outlets[1] = _Outlet(pair.sequences, None), 1
        pair.sequences.put(5, TokenDelta(finish_reason=FinishReason.LENGTH))
        assert [one.token_id for one in (await whole(mailbox))[0]] == [1, 2, 3, 4]


async def test_what_cannot_travel_is_refused_and_the_rest_goes_on() -> None:
    async with paired() as pair:
        good, bad = Mailbox(), Mailbox()
        pair.remote.submit(asked(5), good)
        context = RequestContext("\ud800", 0.0)
        pair.remote.submit(Request(context, np.array([1], np.int32), SamplingParams(), 4), bad)
        with pytest.raises(EngineError):
            await whole(bad)
        assert len((await whole(good))[0]) == 5


def _all(kind: type[EngineError]) -> list[type[EngineError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in _all(sub))]


def test_errors_travel_whole() -> None:
    for kind in _all(EngineError):
        error = kind("the field {param} is wrong")
        error.rename("max_tokens")
        back = unpacked(packed(error))
        assert type(back) is kind and back.message == "the field max_tokens is wrong"
        assert (back.code, back.status, back.repeats) == (error.code, error.status, error.repeats)
        back.rename("max_completion_tokens")
        assert back.message == "the field max_completion_tokens is wrong"
    full = unpacked(packed(StoreFull("full", retry_after=9)))
    assert isinstance(full, StoreFull) and full.retry_after == 9
    odd = unpacked(packed(EngineError("x", "p", "own_code")))
    assert (odd.param, odd.code) == ("p", "own_code")
