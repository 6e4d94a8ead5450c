"""Every mistake in `mutants.py` is noticed by a seed, soon."""

from __future__ import annotations

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.seeds import MistakeTable

pytestmark = pytest.mark.long

TABLE = MistakeTable(
    MUTANTS,
    count=500,
    first={
        "abort_in_flight_forgotten": 150,
        "void_results_count": 2050,
        "partial_block_named": 40,
        "read_in_the_same_step": 40,
        "stride_outlives_a_slide": 80,
        "stride_whatever_is_in_flight": 150,
    },
)


@pytest.mark.long(every=5)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    TABLE.notice(name, monkeypatch, caplog)
