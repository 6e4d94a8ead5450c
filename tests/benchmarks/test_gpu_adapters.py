"""What the part `adapters` says of the costs of LoRA, and what it must not let pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import adapters
from benchmarks.gpu.part import Failed, Options

TINY = Options("cpu", tiny=True, mode="inline")


@pytest.fixture(autouse=True)
def unmeasured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executors.llm.runtime.measure_pace", lambda *_: None)


def rates(monkeypatch: pytest.MonkeyPatch, *given: float) -> None:
    """In the order in which they are measured: without LoRA, of one, idle, active, of one."""
    left = list(given)

    async def made_up(*about: Any) -> float:
        return left.pop(0)

    monkeypatch.setattr(adapters, "_rates", made_up)
    monkeypatch.setattr(adapters, "check_used", lambda *_: None)


@pytest.mark.parametrize(
    ("idle", "active", "reached"), [(98.0, 85.0, True), (97.9, 85.0, False), (98.0, 84.9, False)]
)
def test_costs_are_shares_of_the_speed_before_an_adapter_is_loaded(
    idle: float, active: float, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates(monkeypatch, 100.0, 10.0, idle, active, 5.0)
    found: dict[str, Any] = {}
    adapters.run(TINY, found.update)
    assert found["idle_share_of_speed"] == idle / 100 and found["active_share"] == active / 100
    assert found["one_active_share"] == 0.5 and found["reached"] is reached
    assert (found["adapters"], found["streams"], found["rank"]) == (2, 4, 16)


def test_adapters_that_are_not_loaded_cost_nothing_and_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates(monkeypatch, 100.0, 10.0, 99.0, 99.0, 10.0)

    async def nobody(*given: Any) -> None:
        return None

    monkeypatch.setattr(adapters, "known", nobody)
    with pytest.raises(Failed, match="0 adapters were loaded and 0 gave way, not 2 and 0"):
        adapters.run(TINY, lambda figures: None)


def test_streams_without_an_adapter_are_no_measurement_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = adapters._rates

    async def without(core: Any, shape: str, streams: int, tokens: int, digests: Any) -> float:
        return await measured(core, shape, streams, tokens, [None])

    monkeypatch.setattr(adapters, "_rates", without)
    with pytest.raises(Failed, match="0 of 16 requests had an adapter"):
        adapters.run(TINY, lambda figures: None)


@pytest.mark.parametrize("moves", [(7, 0), (9, 1), (8, 1)])
def test_all_adapters_stay_loaded(moves: tuple[int, int]) -> None:
    core: Any = SimpleNamespace(adapter_moves=(8, 0))
    adapters.check_loaded(core, 8)
    core.adapter_moves = moves
    with pytest.raises(Failed, match="gave way"):
        adapters.check_loaded(core, 8)


def test_torch_in_place_of_the_kernels_is_no_measurement() -> None:
    on_gpu = Options("cuda")
    adapters.check_kernels(on_gpu, ["graphs: none", adapters.NOTE])
    adapters.check_kernels(TINY, [])
    with pytest.raises(Failed, match="adapters: cohort-triton"):
        adapters.check_kernels(on_gpu, ["adapters: torch"])
