"""The part `sticky` without a GPU: a real process raises a lost device's words, and one raises others."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu.part import Options
from executors.contract import UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from tests.gpu import sticky, sticky_executor

pytestmark = [pytest.mark.interpreted, pytest.mark.timeout(120)]


class Unknown(sticky_executor.StickyExecutor):
    """Its device is lost, and says so in words that are no lost device's: steps fail, and the process stays."""

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See the contract."""
        try:
            return await super().unified_decode(batch)
        except RuntimeError:
            raise RuntimeError("the numbers are strange") from None


class UnknownFactory(LlmFactory):
    """Of `Unknown`."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return Unknown


@pytest.mark.long
def test_streams_go_on_in_a_new_process() -> None:
    found: dict[str, Any] = {}
    sticky.run(Options("cpu", tiny=True), found.update)
    assert (
        found["causes"] == ["executor_died:device"] * 2
        and found["same_as_undisturbed"] == found["streams"] == 4
    )
    assert found["drawn_the_same"] == found["drawn_again"] > 0
    # A restart imports torch.
    assert found["pause_seconds"] > 0.1 and found["seconds_after_an_idle_fault"] > 0.1


@pytest.mark.long(extended=True)
def test_a_lost_device_that_is_not_recognized_fails_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sticky_executor, "NAME", f"{__name__}:UnknownFactory")
    with pytest.raises(Exception, match="the numbers are strange"):
        sticky.run(Options("cpu", tiny=True), lambda figures: None)
