"""Large bodies are gone with their request: what waited for the garbage collector was hundreds of megabytes, since collections
come by the number of objects made, and a body is one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest

from server.system.gc_tuning import CollectorPause
from server.system.worker_threads import FencedThreads


class Body:
    """Something that can be watched."""


@pytest.mark.parametrize("fails", [False, True])
async def test_fenced_work_leaves_nothing_behind(fails: bool, no_collector: None) -> None:
    threads = FencedThreads()

    async def one() -> weakref.ref[Body]:
        body = Body()
        gone = weakref.ref(body)

        def work() -> str:
            if fails:
                raise ValueError(str(body))
            return str(body)

        try:
            assert await threads.run(work, 5.0)
            assert not fails
        except ValueError:
            assert fails
        return gone

    gone = await one()
    for _ in range(100):  # the thread lets go of it a moment after it has told
        if gone() is None:
            break
        await asyncio.sleep(0.01)
    threads.close()
    assert gone() is None, gc.get_referrers(gone())


def test_the_collector_comes_back_after_the_last_who_keeps_it_away() -> None:
    pause = CollectorPause()
    first, second = pause(), pause()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_the_collector_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="broken"), CollectorPause()():
        assert not gc.isenabled()
        raise ValueError("broken")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(no_collector: None) -> None:
    pause = CollectorPause()
    with pause(), pause():
        pass
    assert not gc.isenabled()


def test_pauses_without_a_gap_are_no_pause_for_ever() -> None:
    now = 0.0
    pause = CollectorPause(lambda: now)
    collections: list[str] = []
    with contextlib.ExitStack() as last:
        last.enter_context(pause())
        gc.callbacks.append(lambda phase, info: collections.append(phase))
        last.callback(lambda: gc.callbacks.pop())
        for _ in range(12):
            with pause():
                now += 1.0
        assert collections == ["start", "stop"] * 2
    assert gc.isenabled()
