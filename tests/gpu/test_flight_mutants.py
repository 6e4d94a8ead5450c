"""Faults put on purpose into what guards steps in flight, memory and lost devices: the tests of these guards notice each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import executors.llm.executor as executor_module
from executors.contract import ExecutorError
from executors.llm.assembly.device_sizing import DeviceSizing
from executors.llm.kernel_support import passed_checks
from executors.llm.kernel_support.passed_checks import PassedChecks
from executors.llm.step import pending_steps
from executors.llm.step.launched import queueing
from executors.llm.step.launched.inputs import BufferRing, StepBuffer
from executors.llm.step.pending_steps import PendingSteps
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.memory import test_device_memory
from tests.executors.llm.step import test_pending_steps
from tests.gpu import (
    test_device_flight,
    test_device_lost,
    test_device_memory_short,
    test_device_step,
    test_second_life,
)
from tests.gpu.device_fakes import FakeDevice
from tests.gpu.workloads import SMALL

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


def settled_at_once(patch: pytest.MonkeyPatch) -> None:
    """A launched step whose caller leaves is dropped."""

    def dropped(self: PendingSteps, before: Any, launched: Any, mine: Any) -> None:
        self._settled(mine)

    patch.setattr(PendingSteps, "_settle_later", dropped)


def no_patience(patch: pytest.MonkeyPatch) -> None:
    """No step is ever given up: the clock of the test stops it instead."""
    patch.setattr(pending_steps, "PATIENCE_S", 1000.0)


def host_time_counts(patch: pytest.MonkeyPatch) -> None:
    """Compiling in the host counts as time of the device."""
    patch.setattr(pending_steps, "_LOOK_S", 1e9)


def used_before_its_mark(patch: pytest.MonkeyPatch) -> None:
    """The ring gives out a buffer without waiting for its step."""

    def take(self: BufferRing) -> StepBuffer:
        self._ring.rotate(-1)
        return self._ring[-1]

    patch.setattr(BufferRing, "take", take)


def a_failed_step_is_not_marked(patch: pytest.MonkeyPatch) -> None:
    """The buffer of a step that failed behind its copy keeps the mark of the step before."""
    patch.setattr(queueing.StepQueue, "abandon", staticmethod(lambda step: None))


def memory_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeviceSizing, "_wait_for", lambda self, num_bytes: None)


def tried_once(patch: pytest.MonkeyPatch) -> None:
    """Memory that is short is not asked for again."""
    patch.setattr(queueing, "retried", lambda memory, compute: compute())


def loss_taken_for_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """A capture that fails does not ask whether the device is lost."""
    patch.setattr(FakeDevice, "check", lambda self: None)


def any_devices_checks_trusted(patch: pytest.MonkeyPatch) -> None:
    """A second life trusts another device's checks."""
    patch.setattr(passed_checks, "conditions", lambda config, device: "any")
    patch.setattr(executor_module, "conditions", lambda config, device: "any")


def faults_remembered(patch: pytest.MonkeyPatch) -> None:
    """A check that has failed counts as one that has passed."""

    def fault(self: PassedChecks, name: str, check: Callable[[], str | None]) -> str | None:
        if name in self:
            return None
        self.add(name)
        return check()

    patch.setattr(PassedChecks, "fault", fault)


def sizes_left_out(patch: pytest.MonkeyPatch) -> None:
    """A trial of the largest steps counts for any pool and any limits."""
    patch.setattr(DeviceSizing, "_trial", lambda self, plan: "largest steps")


Case = tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., Any], dict[str, Any]]
LEFT = {"left": (1,)}
CASES: dict[str, Case] = {
    "a dropped step": (
        settled_at_once,
        test_pending_steps.test_a_launched_step_stays_in_flight_though_its_caller_leaves,
        LEFT,
    ),
    "a dropped step on a device": (
        settled_at_once,
        test_device_flight.test_a_cancelled_caller_leaves_no_buffer_behind,
        LEFT,
    ),
    "no deadline": (
        no_patience,
        test_pending_steps.test_a_step_that_never_ends_is_given_up_after_five_seconds,
        {},
    ),
    "a deadline for the host": (
        host_time_counts,
        test_pending_steps.test_what_the_host_does_meanwhile_does_not_count,
        {},
    ),
    "a ring that does not wait": (
        used_before_its_mark,
        test_device_step.test_a_buffer_is_not_used_again_before_its_event,
        {},
    ),
    "a failed step without a mark": (
        a_failed_step_is_not_marked,
        test_device_flight.test_a_step_that_fails_half_way_marks_its_buffer,
        {"where": "forward"},
    ),
    "a failed third step without a mark": (
        a_failed_step_is_not_marked,
        test_device_flight.test_a_third_step_that_fails_half_way_keeps_its_buffer_and_leaves_the_others_theirs,
        {},
    ),
    "no wait for memory": (
        memory_is_not_waited_for,
        test_device_memory.test_memory_that_returns_slowly_after_a_kill_is_waited_for,
        {},
    ),
    "memory asked for once": (
        tried_once,
        test_device_memory_short.test_a_long_tail_that_finds_no_memory_is_tried_again,
        {},
    ),
    "a loss at rest": (
        loss_taken_for_a_refusal,
        test_device_lost.test_a_capture_that_meets_the_loss_at_rest_reports_it,
        {},
    ),
    "a loss between steps": (
        loss_taken_for_a_refusal,
        test_device_lost.test_a_capture_between_two_steps_that_meets_the_loss_fails_its_step,
        {},
    ),
}
SECOND_LIFE: dict[str, Case] = {
    "another device's checks": (
        any_devices_checks_trusted,
        test_second_life.test_a_second_life_does_not_trust_another_devices_checks,
        {},
    ),
    "a fault remembered": (faults_remembered, test_second_life.test_a_fault_is_looked_for_again, {}),
    "a trial of any size": (sizes_left_out, test_second_life.test_other_sizes_are_tried_out, {}),
}
CASES |= SECOND_LIFE
NOTICED = (AssertionError, ExecutorError, pytest.fail.Exception)


def run(check: Callable[..., Any], path: Path, given: dict[str, Any]) -> None:
    """The test, as pytest calls it."""
    with pytest.MonkeyPatch.context() as patch:
        fixtures = {"path": path, "monkeypatch": patch}
        wanted = inspect.signature(check).parameters
        found = check(**given, **{name: value for name, value in fixtures.items() if name in wanted})
        if inspect.iscoroutine(found):
            asyncio.run(found)


@pytest.mark.parametrize("name", CASES)
def test_a_mutant_is_caught(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, check, given = CASES[name]
    run(check, path, given)
    mutate(monkeypatch)
    with pytest.raises(NOTICED):
        run(check, path, given)
