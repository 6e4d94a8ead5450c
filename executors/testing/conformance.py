"""The conformance kit: does an executor keep the contract? Standard library and NumPy only.

With pytest, a test for each case:

    from executors.testing.conformance import CASES, run_case

    @pytest.mark.parametrize("case", CASES)
    async def test_conformance(case):
        if reason := await run_case(case, make_my_executor, tolerance=1e-3):
            pytest.skip(reason)

Without: `report = await check(make_my_executor, tolerance=1e-3)`, then `print(report)`.

`make_my_executor` takes nothing and returns an executor that was not warmed up. The cases drive it through `UnifiedBatch`
(`executors/testing/driver.py`), so no engine and no tokenizer is needed. What is judged and how strictly is told in
`docs/executors.md`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from executors.contract import ModelExecutor
from executors.testing import (
    conformance_adoption,
    conformance_drafts,
    conformance_grammars,
    conformance_history,
    conformance_life,
    conformance_sampling,
    conformance_segments,
    conformance_settings,
    conformance_states,
    conformance_windows,
)
from executors.testing import conformance_loras as conformance_adapters
from executors.testing.conformance_kit import (
    CASES,
    Inject,
    Kit,
    LoraSource,
    MakeExecutor,
    Nonconformance,
    NotApplicable,
)

__all__ = [
    "CASES",
    "Inject",
    "Kit",
    "LoraSource",
    "MakeExecutor",
    "Nonconformance",
    "NotApplicable",
    "Report",
    "check",
    "run_case",
]  # fmt: skip

# Importing the modules registered their cases.
assert all(
    module.__name__
    for module in (
        conformance_adoption,
        conformance_drafts,
        conformance_adapters,
        conformance_grammars,
        conformance_history,
        conformance_life,
        conformance_sampling,
        conformance_segments,
        conformance_settings,
        conformance_states,
        conformance_windows,
    )
)


@dataclass(slots=True)
class Report:
    """The outcome of every case by name: those passed; those failed and those not applicable with the reason."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_applicable)} not applicable"
        ]
        lines += [f"FAILED {name}: {why}" for name, why in self.failed.items()]
        lines += [f"not applicable {name}: {why}" for name, why in self.not_applicable.items()]
        return "\n".join(lines)

    def raise_for_failures(self) -> None:
        """Raises Nonconformance with the whole report if a case failed."""
        if self.failed:
            raise Nonconformance(str(self))


async def check(
    make: MakeExecutor,
    *,
    tolerance: float = 0.0,
    inject: Inject | None = None,
    adapters: Sequence[LoraSource] = (),
    cases: Collection[str] | None = None,
) -> Report:
    """Run every case, or those of `cases`, against one executor, an epoch or more each.

    `tolerance`: 0 demands equality bit for bit; above 0 it is the largest permitted difference between logprobs, and
    tokens may differ where the two best candidates are no further apart. `inject` makes steps fail (`Inject`); without
    it, cases on failures do not apply. `adapters`: two that the executor can load; without them, cases on adapters do not
    apply. `cases`: names of `CASES`, which run in its order. Raises ValueError for a name that is none.
    """
    if unknown := sorted(set(cases or ()) - CASES.keys()):
        raise ValueError(f"no cases of the conformance kit: {', '.join(unknown)}")
    report = Report()
    executor = make()
    epoch = 1
    try:
        await executor.warmup()
        for name in CASES if cases is None else [name for name in CASES if name in cases]:
            kit = Kit(make, executor, tolerance, inject, epoch, adapters)
            try:
                await CASES[name](kit)
                report.passed.append(name)
            except NotApplicable as reason:
                report.not_applicable[name] = str(reason)
            except Exception as error:  # whatever an executor raises where it should not is a finding
                report.failed[name] = f"{type(error).__name__}: {error}"
            epoch = kit.epoch
    finally:
        await executor.shutdown()
    return report


async def run_case(
    name: str,
    make: MakeExecutor,
    *,
    tolerance: float = 0.0,
    inject: Inject | None = None,
    executor: ModelExecutor | None = None,
    epoch: int = 1,
    adapters: Sequence[LoraSource] = (),
) -> str | None:
    """Run one case; None if it passed, the reason if it does not apply.

    A fresh executor is made and shut down, unless a warm one is given with `epoch`, the first number it may use.
    Raises Nonconformance, or whatever the executor raised where it should not have.
    """
    subject = executor or make()
    try:
        await subject.warmup()
        await CASES[name](Kit(make, subject, tolerance, inject, epoch, adapters))
    except NotApplicable as reason:
        return str(reason)
    finally:
        if executor is None:
            await subject.shutdown()
    return None
