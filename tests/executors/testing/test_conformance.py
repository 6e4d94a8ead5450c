"""The fakes, the split path and SamplingWrapper pass the conformance kit, exactly and with a tolerance."""

import pytest

from executors.testing import (
    conformance_adoption,
    conformance_drafts,
    conformance_grammars,
    conformance_states,
    conformance_windows,
)
from executors.testing.conformance import CASES, Nonconformance, check, run_case
from executors.testing.conformance_kit import STATES
from executors.testing.conformance_loras import NO_ADAPTERS
from executors.testing.fakes.echo import EchoExecutor
from tests.executors.testing.conformance_subjects import ADAPTERS, SUBJECTS, inject, maker
from tests.tiers import sweep


@sweep(every=3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("subject", SUBJECTS)
async def test_fakes_conform(subject: str, case: str) -> None:
    reason = await run_case(case, SUBJECTS[subject], inject=inject, adapters=ADAPTERS)
    if reason == NO_ADAPTERS:
        assert subject.startswith("adapter-")  # SamplingWrapper passes no adapters on
    elif reason == conformance_windows.NO_WINDOW:
        assert "windows" not in subject
    elif reason == conformance_windows.ONE_GROUP:
        assert "windows" not in subject or subject == "paged_fake-all-windows"
    elif reason == conformance_states.NO_STATES:
        assert "state" not in subject
    elif reason == STATES:
        assert "state" in subject
    elif reason == conformance_adoption.NOT_DECLARED:
        assert "outliving" not in subject
    elif reason not in (None, conformance_grammars.NOT_DECLARED, conformance_drafts.NOT_DECLARED):
        assert "echo" in subject, f"{subject} must run every case: {reason}"
        assert reason == "the executor owns its KV"


@pytest.mark.long(every=5)
@sweep(every=4)
@pytest.mark.parametrize("subject", SUBJECTS)
async def test_fakes_conform_with_a_tolerance(subject: str) -> None:
    report = await check(SUBJECTS[subject], tolerance=1e-4, inject=inject, adapters=ADAPTERS)
    report.raise_for_failures()
    assert len(report.passed) + len(report.not_applicable) == len(CASES)


async def test_check_runs_the_cases_that_are_named_and_no_other() -> None:
    report = await check(
        maker(EchoExecutor),
        cases=["truncate_equals_never_decoded", "nan_is_isolated", "chunked_equals_whole"],
    )
    assert report.passed == ["chunked_equals_whole", "truncate_equals_never_decoded"]
    assert list(report.not_applicable) == ["nan_is_isolated"] and not report.failed
    assert str(await check(maker(EchoExecutor), cases=[])).startswith("0 passed, 0 failed, 0 not")
    with pytest.raises(ValueError, match="no cases of the conformance kit: chunks"):
        await check(maker(EchoExecutor), cases=["chunks", "chunked_equals_whole"])


async def test_report_names_what_failed() -> None:
    class Broken(EchoExecutor):
        def truncate_kv(self, handle: object, new_len: int) -> int:
            """Forgets to."""
            return new_len

    report = await check(maker(Broken))
    assert set(report.failed) >= {"truncate_equals_never_decoded", "preempted_equals_uninterrupted"}
    assert "chunked_equals_whole" in report.passed
    assert report.not_applicable["nan_is_isolated"] == "no way to inject failures was given"
    with pytest.raises(Nonconformance, match="FAILED truncate_equals_never_decoded"):
        report.raise_for_failures()
