"""Slots, blocks, rows of tables and counters that change hands under churn: every finished text equals itself alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from executors.contract.batch import SequenceStart
from executors.llm.sampling.shaped_slots import ShapedSlots
from executors.llm.step.launched.inputs import DeviceTables
from executors.llm.step.launched.packing import StepPacker
from executors.llm.step.launched.steps import LaunchedSteps
from tests.executors.checkpoints import write_checkpoint
from tests.gpu import device_churn as churn
from tests.gpu import test_shaping
from tests.gpu.workloads import SMALL

pytestmark = pytest.mark.long
VISITS, SEED = 50, 7
Mutant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture(scope="module")
def known() -> dict[str, churn.Heard]:
    """What each request hears by itself, computed once."""
    return {}


async def expected(path: Path, known: dict[str, churn.Heard]) -> churn.Heard:
    if "alone" not in known:
        known["alone"] = await churn.alone(path, churn.visits(VISITS, SEED))
    return known["alone"]


@pytest.mark.parametrize("captures", [True, False], ids=["graphs", "launch by launch"])
async def test_a_finished_text_depends_on_nobody_else(
    path: Path, captures: bool, known: dict[str, churn.Heard]
) -> None:
    executor = await churn.device(path, captures)
    slots = executor.launched.shaped
    found, stats = await churn.crowd(executor, churn.visits(VISITS, SEED), SEED)
    assert found == await expected(path, known)
    assert stats.preemptions > 2 and stats.prefix_hits > 50, "there was no churn"
    assert sum(one is None for one in found) > VISITS // 5, "too few were aborted"
    assert not slots._slots and len(slots._free) == slots.table.shape[0] - 1, "a row was not given back"


# -- mutants ---------------------------------------------------------------------------------------------------------------


def counts_that_are_not_reset(patch: pytest.MonkeyPatch) -> None:
    """A sequence that takes a slot keeps how many inputs its row counted for the one before."""
    begin = ShapedSlots.begin

    def kept(self: ShapedSlots, start: SequenceStart) -> bool:
        before = self._counted[start.slot]
        took = begin(self, start)
        self._counted[start.slot] = before
        return took

    patch.setattr(ShapedSlots, "begin", kept)


def turns_that_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """What a step in flight sampled for a sequence that is gone is taken for a token of the next one in its slot."""
    drop = ShapedSlots.drop

    def dropped(self: ShapedSlots, slot: int) -> None:
        drop(self, slot)
        self._turn[slot] = 0

    patch.setattr(ShapedSlots, "drop", dropped)


def a_mask_that_is_stale(patch: pytest.MonkeyPatch) -> None:
    """Whether the host must choose a slot's tokens is what it was for the sequence before."""
    begin = LaunchedSteps.begin

    def stale(self: LaunchedSteps, start: SequenceStart) -> bool:
        before = bool(self.host_steps.slow[start.slot])
        follows = begin(self, start)
        self.host_steps.slow[start.slot] = before
        return follows

    patch.setattr(LaunchedSteps, "begin", stale)


def a_table_that_lacks_its_last_block(patch: pytest.MonkeyPatch) -> None:
    """The last block of a change never reaches the device: it reads that of the sequence that had the slot before."""
    unsent = DeviceTables.unsent

    def short(self: DeviceTables) -> tuple[np.ndarray, np.ndarray]:
        places, values = unsent(self)
        return places[:-1], values[:-1]

    patch.setattr(DeviceTables, "unsent", short)


def noise_of_another_position(patch: pytest.MonkeyPatch) -> None:
    """A seeded sequence draws by a position one late."""
    settings = StepPacker._write_settings

    def late(
        self: StepPacker, host: Any, slots: np.ndarray, positions: np.ndarray, sampled: np.ndarray
    ) -> None:
        settings(self, host, slots, positions + 1, sampled)

    patch.setattr(StepPacker, "_write_settings", late)


MUTANTS = (
    a_mask_that_is_stale,
    a_table_that_lacks_its_last_block,
    noise_of_another_position,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
async def test_a_mutant_is_caught(
    path: Path, mutant: Mutant, known: dict[str, churn.Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = await expected(path, known)
    mutant(monkeypatch)
    for _ in range(3):  # which sequence takes whose slot is a matter of time
        executor = await churn.device(path, False)
        try:
            found, _ = await churn.crowd(executor, churn.visits(VISITS, SEED), SEED)
        except (AssertionError, EngineError):
            return  # a step failed: noticed, too
        if found != wanted:
            return
    pytest.fail("three crowds heard what each request hears alone")


def test_results_for_a_sequence_that_is_gone_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Churn alone rarely shows it: the new sequence has to be further on than the result of the old one."""
    turns_that_are_not_counted(monkeypatch)
    with pytest.raises(AssertionError):
        test_shaping.test_what_is_heard_of_a_sequence_that_is_gone_is_nobodys()


def test_counts_of_the_sequence_before_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Churn alone rarely shows it: both sequences have to be of one length."""
    counts_that_are_not_reset(monkeypatch)
    with pytest.raises(AssertionError):
        test_shaping.test_a_sequence_takes_over_no_count_of_its_slot()
