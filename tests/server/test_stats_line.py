"""The line about the load: while there is some, and what was done since the last one."""

from dataclasses import replace

import structlog

from engine.request import EngineStats
from server.stats_line import StatsLine
from tests.server.fakes import House


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
