"""What the engine decides at start by what its executor says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from executors import registry
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, KvLayout, Pace, StateLayout
from executors.testing.fakes.base import FakeExecutor
from tests.engine.harness import request


@pytest.mark.parametrize(
    ("layout", "prefix_caching", "again"), [("kv", True, 5), ("states", True, 37), ("kv", False, 37)]
)
async def test_a_prompt_is_forecast_as_shared_only_where_the_cache_can_hit(
    monkeypatch: pytest.MonkeyPatch, layout: str, prefix_caching: bool, again: int
) -> None:
    """The same prompt of 37 tokens twice, with blocks of 16. With states a prefix ends at a
    snapshot, of which there are none within it."""
    attention = ExecutorAttentionConfig(block_size=16)
    executor = registry.create(
        ExecutorConfig(
            "paged_fake", max_num_seqs=4, max_model_len=64, attention=attention, options={"num_blocks": 32}
        )
    )
    assert isinstance(executor, FakeExecutor)
    pace = Pace(0.001, ((1, 0.01),))
    monkeypatch.setattr(executor, "pace", lambda: pace)
    whole = type(executor).kv_layout

    def with_states(self: FakeExecutor) -> KvLayout:
        return replace(whole(self), state=StateLayout(64, 4, 64))

    if layout == "states":
        monkeypatch.setattr(type(executor), "kv_layout", with_states)
    core = EngineCore(executor, EngineConfig(max_num_seqs=4, prefix_caching=prefix_caching))
    await core.start()
    try:
        fresh = core._waiting._prefixes.fresh
        assert [fresh(request(list(range(2, 39)), 4)) for _ in range(2)] == [37, again]
    finally:
        await core.stop()
