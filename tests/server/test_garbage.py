"""Large bodies are gone with their request: what waited for the garbage collector was hundreds of megabytes, since collections
come by the number of objects made, and a body is one."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from server.chat.fence import FencedThreads


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
