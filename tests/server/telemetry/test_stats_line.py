"""The line about the load: while there is some, and what was done since the last one."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
import structlog

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import EngineStats
from server.telemetry.stats_line import StatsLine
from tests.engine.harness import fake, read, request
from tests.server.fakes import House
from tests.sim.virtual_loop import run


def test_a_line_tells_what_was_done_since_the_last_one(house: House) -> None:
    now, stats = 0.0, replace(house.core.stats(), running=0, waiting=0)
    house.core.stats = lambda: stats  # type: ignore[method-assign]
    line = StatsLine(house.state, lambda: now)

    def look(at: float, after: EngineStats, tokens: int = 0) -> list[dict[str, object]]:
        nonlocal now, stats
        now, stats = at, after
        if tokens:
            house.state.metrics.tokens(tokens, 0.1)
        with structlog.testing.capture_logs() as logs:
            line.look()
        return [dict(entry) for entry in logs]

    assert look(10.0, stats, 7) == [], "nothing was known before"
    assert look(20.0, stats) == [], "idle"
    busy = replace(
        stats, running=2, steps=99, prompt_tokens=500, prefix_queries=200, prefix_hits=120, preemptions=3
    )
    [told] = look(30.0, busy, 250)
    assert told == {
        "event": "busy", "log_level": "info", "running": 2, "waiting": 0, "prompt_tokens_per_s": 50.0,
        "output_tokens_per_s": 25.0, "kv_used": "25%", "prefix_hits": "60%", "preemptions": 2,
    }  # fmt: skip
    [told] = look(40.0, replace(busy, running=0, steps=100))
    assert told["output_tokens_per_s"] == 0.0, "what ended in between is told"
    assert look(50.0, replace(busy, running=0, steps=100)) == []


def test_a_long_prompt_counts_as_its_chunks_are_computed() -> None:
    """200 tokens in chunks of 16, a second each, twice: the second time 196 of them come from the cache."""

    async def main() -> list[float]:
        clock = asyncio.get_running_loop().time
        core = EngineCore(
            fake(step_delay_ms=1000, num_blocks=100), EngineConfig(max_num_batched_tokens=16), clock=clock
        )
        await core.start()
        state = SimpleNamespace(core=core, metrics=SimpleNamespace(num_output_tokens=0))
        line, told = StatsLine(state, clock), []  # type: ignore[arg-type]
        with structlog.testing.capture_logs() as logs:
            line.look()
            for _ in range(2):
                core.submit(request(list(range(1, 201)), 1), mailbox := Mailbox())
                reading = asyncio.create_task(read(mailbox))
                while not reading.done():
                    await asyncio.sleep(5)
                    line.look()
            told = [entry["prompt_tokens_per_s"] for entry in logs]
        await core.stop()
        return told

    found = run(main())
    assert found[:2] == [16.0 * 4 / 5, 16.0], "four steps are done after five seconds less a moment"
    assert sum(found) * 5 == pytest.approx(200 + 4)
