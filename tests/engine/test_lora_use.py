"""LoRA adapters in the engine: who waits for which, what the executor holds, and what becomes of dropped ones.

The fake computes other tokens for each digest and refuses an adapter too many, one unloaded while it is used, and a sequence
whose adapter it does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.core import lora
from engine.core.engine import EngineCore
from engine.errors import InvalidRequest, ModelNotFound, Unavailable
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, TokenDelta
from executors.contract import ConfigError, ExecutorDied
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake, read, request

PROMPT = [5, 6, 7, 8, 9, 10]


def with_adapter(digest: str | None, max_tokens: int = 8, prompt: list[int] = PROMPT) -> Request:
    return replace(request(prompt, max_tokens), adapter=digest)


def expected(digest: str | None, count: int, prompt: list[int] = PROMPT) -> list[int]:
    return expected_tokens(prompt, count, adapter_digest=digest)


@asynccontextmanager
async def serving(
    most: int, digests: str = "", made: FakeExecutor | None = None, **options: float
) -> AsyncIterator[EngineCore]:
    """An engine that knows an adapter for each letter."""
    made = made or fake(max_adapters=most + 1, step_delay_ms=1.0)
    async with engine(made, None, max_loras=most, **options) as core:
        for digest in digests:
            await core.add_adapter(digest, f"/{digest}")
        yield core


async def tokens(core: EngineCore, asked: Request) -> list[int]:
    mailbox = Mailbox()
    core.submit(asked, mailbox)
    whole = await read(mailbox)
    if whole.error is not None:
        raise whole.error
    return [token.token_id for token in whole.tokens]


async def until(true: Callable[[], bool]) -> None:
    """Wait at most five seconds."""
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never was")


async def test_many_adapters_and_none_in_one_batch() -> None:
    async with serving(4, "abcd") as core:
        asked = [*"abcd", None, *"abcd"]
        got = await asyncio.gather(*(tokens(core, with_adapter(one)) for one in asked))
        assert got == [expected(one, 8) for one in asked]
        assert len({tuple(one) for one in got}) == 5
        assert core.adapter_moves == (4, 0)


async def test_more_adapters_than_are_held_take_turns() -> None:
    digests = "abcdefgh"
    async with serving(2, digests) as core:
        got = await asyncio.gather(*(tokens(core, with_adapter(one)) for one in digests * 2))
        assert got == [expected(one, 8) for one in digests * 2]
        assert core.adapter_moves[1] >= 6
        assert sum(use.is_loaded for use in core.adapter_uses()) == 2


async def test_a_prefix_is_shared_within_an_adapter_and_not_between_them() -> None:
    prompt = list(range(10, 30))
    async with serving(2, "ab") as core:
        for digest in ("a", "b", None, "a", "b", None):
            assert await tokens(core, with_adapter(digest, 4, prompt)) == expected(digest, 4, prompt)
        assert core.stats().prefix_hits == 3 * 16


async def test_one_that_waits_for_its_adapter_holds_up_nobody() -> None:
    made = fake(max_adapters=2, step_delay_ms=1.0)
    release = asyncio.Event()
    load = made.load_adapter

    async def slow(name: str, path: str, digest: str) -> None:
        if name == "b":
            await release.wait()
        await load(name, path, digest)

    async with serving(1, "ba", made) as core:
        # "b" was held first and gave way to nothing: "a" was tried and let go.
        assert [use.is_loaded for use in core.adapter_uses()] == [True, False]
        assert await tokens(core, with_adapter("a")) == expected("a", 8)
        made.load_adapter = slow
        waits = asyncio.create_task(tokens(core, with_adapter("b")))
        for digest in (None, None, None):
            assert await tokens(core, with_adapter(digest)) == expected(digest, 8)
        assert not waits.done() and core.stats().waiting == 1
        release.set()
        assert await waits == expected("b", 8)


async def test_additions_that_take_the_room_of_a_load_have_it() -> None:
    """A load that was decided on before two additions had their turn comes after them, and finds no room."""
    made = fake(max_adapters=3)
    await made.warmup()
    table = lora.LoraAdapters(made, 2, lambda: 0.0, lambda: None, lambda digest, error: None)
    for digest in "ab":
        await table.add(digest, f"/{digest}")
    table.lose_all()
    waits: Any = SimpleNamespace(
        request=with_adapter("a"), slot=None, context=SimpleNamespace(arrival_time=0.0)
    )
    additions = [asyncio.create_task(table.add(digest, f"/{digest}")) for digest in "cd"]
    for expected_held in ("cd", "ad"):
        table.begin_step()
        assert not table.ready(waits)
        table.look(tuple, [])
        await asyncio.gather(*additions)
        await until(lambda: table._task is None)
        assert {use.digest for use in table.uses([], []) if use.is_loaded} == set(expected_held)
    assert table.ready(waits)
    assert await table.add("e", "/e"), "there is still room to try one"
    await made.shutdown()


@pytest.mark.parametrize("moment", ["added", "wanted", "canceled"])
async def test_what_another_epoch_may_hold_takes_no_room(moment: str) -> None:
    """A load whose answer comes in a later epoch than its call, or to no one: the executor may hold the adapter or not."""
    made = fake(max_adapters=2)
    await made.warmup()
    table = lora.LoraAdapters(made, 1, lambda: 0.0, lambda: None, lambda digest, error: None)
    load, begun, go_on = made.load_adapter, asyncio.Event(), asyncio.Event()

    async def slow(name: str, path: str, digest: str) -> None:
        if name == "b":
            await load(name, path, digest)
            begun.set()
            await go_on.wait()
        else:
            await load(name, path, digest)

    if moment == "wanted":
        await table.add("b", "/b")
        table.lose_all()
        await made.unload_adapter("b")
        made.load_adapter = slow  # type: ignore[method-assign]
        waits: Any = SimpleNamespace(
            request=with_adapter("b"), slot=None, context=SimpleNamespace(arrival_time=0.0)
        )
        table.begin_step()
        assert not table.ready(waits)
        table.look(tuple, [])
    else:
        made.load_adapter = slow  # type: ignore[method-assign]
        addition = asyncio.create_task(table.add("b", "/b"))
    await begun.wait()
    if moment == "canceled":
        addition.cancel()
    else:
        table.lose_all()
    go_on.set()
    await until(lambda: table._task is None and not table._turn.locked())
    for digest in "cdef":
        assert await table.add(digest, f"/{digest}")
    await made.shutdown()


async def test_a_busy_adapter_gives_way_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "PATIENCE", 0.05)
    async with serving(1, "ab") as core:
        end = asyncio.Event()

        async def stream_on() -> None:
            """Somebody always runs with "a"."""
            while not end.is_set():
                assert await tokens(core, with_adapter("a", 30)) == expected("a", 30)

        busy = [asyncio.create_task(stream_on()) for _ in range(3)]
        await asyncio.sleep(0.02)
        async with asyncio.timeout(10):
            assert await tokens(core, with_adapter("b")) == expected("b", 8)
        end.set()
        await asyncio.gather(*busy)


@pytest.mark.parametrize("kind", ["die", "step_failed"])
async def test_streams_go_on_after_a_failure(kind: str) -> None:
    for step in range(2, 12, 3):
        made = fake(max_adapters=3, step_delay_ms=0.5)
        made.failures.append(Failure(kind, step=step))
        async with serving(2, "abc", made) as core:
            asked = [*"abc", None, *"ab"]
            got = await asyncio.gather(*(tokens(core, with_adapter(one, 12)) for one in asked))
            assert got == [expected(one, 12) for one in asked]
            assert core.stats().epoch == 2


async def test_preempted_with_an_adapter() -> None:
    made = fake(max_adapters=3, num_blocks=12, step_delay_ms=0.2)
    async with serving(2, "abc", made) as core:
        asked = [*"abcabc", None]
        got = await asyncio.gather(*(tokens(core, with_adapter(one, 20)) for one in asked))
        assert got == [expected(one, 20) for one in asked]
        assert core.stats().preemptions > 0


async def test_a_dropped_adapter_serves_its_streams_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "LINGER", 0.0)
    made = fake(max_adapters=3, step_delay_ms=1.0)
    gone: list[str] = []
    async with engine(made, max_loras=2) as core:
        await core.add_adapter("a", "/a", lambda: gone.append("a"))
        mailbox = Mailbox()
        core.submit(with_adapter("a", 40), mailbox)
        whole: TokenDelta = (await mailbox.take())[0]
        core.drop_adapter("a")
        await asyncio.sleep(0.01)
        assert gone == [] and "a" in made.adapters
        whole.merge(await read(mailbox))
        assert [token.token_id for token in whole.tokens] == expected("a", 40)
        await until(lambda: not made.adapters)
        assert gone == ["a"] and core.adapter_uses() == []
        with pytest.raises(ModelNotFound):
            core.submit(with_adapter("a"), Mailbox())
        # Loaded again, it is what it was.
        await core.add_adapter("a", "/a")
        assert await tokens(core, with_adapter("a")) == expected("a", 8)


async def test_a_request_of_the_moment_before_the_drop_is_served() -> None:
    async with serving(1, "a") as core:
        core.drop_adapter("a")
        await asyncio.sleep(0.02)
        assert await tokens(core, with_adapter("a")) == expected("a", 8)


async def test_added_again_while_it_is_being_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "LINGER", 0.05)
    async with serving(1, "a") as core:
        core.drop_adapter("a")
        await core.add_adapter("a", "/elsewhere")
        await asyncio.sleep(0.1)
        assert await tokens(core, with_adapter("a")) == expected("a", 8)


async def test_a_bad_adapter_is_refused_and_nothing_changes() -> None:
    async with serving(1, "a") as core:
        with pytest.raises(InvalidRequest, match="a bad adapter"):
            await core.add_adapter("b", "/bad")
        with pytest.raises(ModelNotFound):
            core.submit(with_adapter("b"), Mailbox())
        assert await tokens(core, with_adapter("a")) == expected("a", 8)


async def test_one_that_goes_bad_later_ends_its_own_requests_only() -> None:
    made = fake(max_adapters=2, step_delay_ms=0.5)
    async with serving(1, "ab", made) as core:
        load = made.load_adapter

        async def broken(name: str, path: str, digest: str) -> None:
            if name == "b":
                raise ConfigError("the file has changed")
            await load(name, path, digest)

        made.load_adapter = broken
        first, second = await asyncio.gather(
            tokens(core, with_adapter("a")), tokens(core, with_adapter("b")), return_exceptions=True
        )
        assert first == expected("a", 8)
        assert isinstance(second, InvalidRequest) and "the file has changed" in second.message


async def test_without_adapters_none_is_added() -> None:
    async with engine(fake()) as core:
        with pytest.raises(InvalidRequest, match="--enable-lora"):
            await core.add_adapter("a", "/a")


async def test_an_executor_that_died_adds_none() -> None:
    made = fake(max_adapters=2)

    async def dead(name: str, path: str, digest: str) -> None:
        raise ExecutorDied("gone", "test")

    async with serving(1, "a", made) as core:
        made.load_adapter = dead
        with pytest.raises(Unavailable):
            await core.add_adapter("b", "/b")
    with pytest.raises(Unavailable):
        await core.add_adapter("c", "/c")


async def test_aborted_while_it_waits_for_its_adapter() -> None:
    made = fake(max_adapters=2)
    async with serving(1, "ab", made) as core:
        release = asyncio.Event()
        load = made.load_adapter

        async def slow(name: str, path: str, digest: str) -> None:
            await release.wait()
            await load(name, path, digest)

        made.load_adapter = slow
        seq_id = core.submit(with_adapter("b"), Mailbox())
        await asyncio.sleep(0.02)
        core.abort(seq_id)
        await asyncio.sleep(0.02)
        assert core.stats().waiting == 0
        release.set()
        assert await tokens(core, with_adapter("a")) == expected("a", 8)
        assert await tokens(core, with_adapter("b")) == expected("b", 8)


async def test_stopped_while_one_is_loaded() -> None:
    made = fake(max_adapters=2)
    async with serving(1, "ab", made) as core:

        async def stuck(name: str, path: str, digest: str) -> None:
            await asyncio.Event().wait()

        made.load_adapter = stuck
        mailbox = Mailbox()
        core.submit(with_adapter("b"), mailbox)
        await asyncio.sleep(0.02)
    whole = await read(mailbox)
    assert whole.finish_reason is FinishReason.ERROR and isinstance(whole.error, Unavailable)


async def test_thousands_of_generations_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "LINGER", 0.0)
    made = fake(max_adapters=3)
    gone = 0

    def count() -> None:
        nonlocal gone
        gone += 1

    async with engine(made, max_loras=2) as core:
        for number in range(2000):
            await core.add_adapter(str(number), f"/{number}", count)
            core.drop_adapter(str(number))
        await until(lambda: not core.adapter_uses())
        assert gone == 2000
        assert await tokens(core, with_adapter(None)) == expected(None, 8)
