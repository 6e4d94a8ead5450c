"""Whoever is cancelled, at whatever `await`: nothing is left behind and nobody else waits for ever.

A task is suspended at an `await` for at least one turn of the event loop, so cancelling at every turn meets every one of them,
in the loop task, in a restart, in the text layer and in the fake executor. Time is virtual.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import Unavailable
from engine.mailbox import Mailbox
from engine.request import RequestContext, Stage, TokenDelta
from engine.text.embedding import Embedder, EmbeddingRequest
from engine.text.generation import TextEngine
from engine.text.tokenizer import Tokenizer
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import GREEDY, fake, read, request
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.sim.virtual_loop import run
from tests.text_requests import text_request

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(byte_level(), tmp_path_factory.mktemp("tokenizer"))


async def started(max_in_flight: int, integrity_check_after: float = 0.001) -> EngineCore:
    """Its executor takes a moment for a step and dies once."""
    made = fake(num_blocks=40, step_delay_ms=1, seqs=4, vocab_size=300)
    made.failures.append(Failure("die", step=4))
    config = EngineConfig(
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_in_flight=max_in_flight,
        restart_pause=0.01,
        integrity_check_after=integrity_check_after,
    )
    core = EngineCore(made, config, clock=asyncio.get_running_loop().time)
    await core.start()
    return core


async def turns(count: int, over: Callable[[], bool]) -> bool:
    """So many turns of the event loop; False if it was over before. Time passes in turns in which nobody can run."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        if over():
            return False
        await asyncio.sleep(0 if loop._ready else 0.0004)  # type: ignore[attr-defined]
    return not over()


def at_every_turn(trial: Callable[[int], Coroutine[Any, Any, bool]]) -> int:
    """Run `trial` with 0, 1, 2, ... turns until it says that it was over before; returns how many there were."""
    for count in itertools.count():
        if not run(trial(count)):
            return count
        assert count < 1000
    raise AssertionError


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_the_loop_is_stopped_at_every_await(max_in_flight: int) -> None:
    async def trial(count: int) -> bool:
        core = await started(max_in_flight)
        mailboxes = [Mailbox() for _ in PROMPTS]
        for prompt, mailbox in zip(PROMPTS, mailboxes, strict=True):
            core.submit(request(prompt, 6), mailbox)
        readers = [asyncio.create_task(read(mailbox)) for mailbox in mailboxes]
        begun = await turns(count, lambda: all(reader.done() for reader in readers))
        await core.stop()
        for prompt, reader in zip(PROMPTS, readers, strict=True):
            got: TokenDelta = await reader
            want = expected_tokens(prompt, 6, GREEDY, vocab_size=300)
            assert [token.token_id for token in got.tokens] == want[: len(got.tokens)]
            assert isinstance(got.error, Unavailable) if got.error else len(got.tokens) == 6
        stats = core.stats()
        assert (stats.stage, stats.running, stats.waiting) == (Stage.STOPPED, 0, 0)
        assert core._waiting.count == core._waiting.tokens == 0
        core.check_integrity()
        return begun

    assert at_every_turn(trial) > 20


async def _left_alone(core: EngineCore) -> None:
    """Nothing of what was cancelled is there, and the engine goes on."""
    assert await core.drain(5)
    core._health.stage = Stage.READY
    mailbox = Mailbox()
    core.submit(request([7, 7], 4), mailbox)
    found = await read(mailbox)
    assert [token.token_id for token in found.tokens] == expected_tokens([7, 7], 4, GREEDY, vocab_size=300)
    await asyncio.sleep(0.01)
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert core._waiting.count == core._waiting.tokens == 0
    core.check_integrity()
    await core.stop()


async def _cancelled(core: EngineCore, call: Coroutine[Any, Any, Any], count: int) -> bool:
    """Cancel a call after so many turns, beside another that must not notice."""
    mailbox = Mailbox()
    core.submit(request([3, 1], 12), mailbox)
    neighbour = asyncio.create_task(read(mailbox))
    task = asyncio.create_task(call)
    begun = await turns(count, task.done)
    task.cancel()
    if begun:
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await task
    tokens = [token.token_id for token in (await neighbour).tokens]
    assert tokens == expected_tokens([3, 1], 12, GREEDY, vocab_size=300)
    await _left_alone(core)
    return begun


def test_a_reader_is_cancelled_at_every_await(tokenizer: Tokenizer) -> None:
    async def trial(count: int) -> bool:
        core = await started(2)

        async def call() -> None:
            asked = text_request(
                "r", ((1, 2, 3), (5,) * 9), max_tokens=5, temperature=0.0, n=2, ignore_eos=True
            )
            async with TextEngine(core, tokenizer).start(asked) as generation:
                async for _ in generation:
                    pass

        return await _cancelled(core, call(), count)

    assert at_every_turn(trial) > 20


def test_an_embedding_call_is_cancelled_at_every_await() -> None:
    async def trial(count: int) -> bool:
        core = await started(2)
        asked = EmbeddingRequest(RequestContext("r", 0.0), tuple((i, i + 1, 5) for i in range(9)), "last")
        return await _cancelled(core, Embedder(core, asked).run(), count)

    assert at_every_turn(trial) > 8


def test_checking_the_books_gives_way_to_a_request() -> None:
    """A pool of a size that takes many slices, of which few are looked at before the request is served."""

    async def trial() -> tuple[int, int, list[int]]:
        made = fake(num_blocks=400_000, seqs=4)
        config = EngineConfig(max_num_seqs=4, integrity_check_after=0.01)
        rests: list[int] = []
        core = EngineCore(
            made, config, clock=asyncio.get_running_loop().time, at_rest=lambda: rests.append(slices)
        )
        await core.start()
        assert core._scheduler is not None
        slices, whole = 0, core._scheduler.sequences.integrity
        asked: list[Mailbox] = []

        def counted() -> Any:
            nonlocal slices
            for _ in whole():
                slices += 1
                if slices == 3:
                    asked.append(Mailbox())
                    core.submit(request([1], 2), asked[0])
                yield

        core._scheduler.sequences.integrity = counted  # type: ignore[method-assign]
        await asyncio.sleep(0.02)
        await read(asked[0])
        interrupted = slices
        await asyncio.sleep(0.1)
        await core.stop()
        assert not core.detail
        return interrupted, slices - interrupted, rests

    interrupted, afterwards, rests = run(trial())
    assert interrupted == 3 and afterwards > 40, "broken off, and made up for in the next pause"
    assert rests == [interrupted + afterwards], (
        "what is left for a rest is done once, behind the books, in the pause that lasts"
    )
