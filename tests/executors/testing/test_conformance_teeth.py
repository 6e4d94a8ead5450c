"""The conformance kit has teeth: each broken fake is caught by the case that names its fault, and every case catches one."""

import pytest

from executors.testing import conformance_grammars
from executors.testing.conformance import CASES, run_case
from tests.executors.testing import (
    mutants_adoption,
    mutants_history,
    mutants_life,
    mutants_sampling,
    mutants_states,
    mutants_windows,
)
from tests.executors.testing import mutants_loras as mutants_adapters
from tests.executors.testing.conformance_subjects import ADAPTERS, MUTANTS, inject, maker

pytestmark = pytest.mark.long

# Importing them registered their mutants.
assert (
    mutants_adapters.__name__
    and mutants_adoption.__name__
    and mutants_states.__name__
    and mutants_windows.__name__
)

# Wrong in the arrays of the plain step only; with logprobs another part of the fake samples.
PLAIN_PATH_ONLY = (
    mutants_history.SharesSamplingBetweenSlots,
    mutants_history.NoiseCountsSteps,
    mutants_life.KeepsTheOldParameters,
    mutants_sampling.SeedMixedWithSlot,
)


def _judged(mutant: type, case: str, tolerance: float) -> bool:
    """Judging with a tolerance asks for logprobs, which these faults do not touch."""
    return not (tolerance and mutant in PLAIN_PATH_ONLY and case != "tokens_do_not_depend_on_logprobs")


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("mutant", "case", "tolerance"),
    [(m, c, t) for m, c in MUTANTS for t in (0.0, 1e-4) if _judged(m, c, t)],
    ids=lambda v: v.__name__ if isinstance(v, type) else str(v),
)
async def test_mutant_is_caught(mutant: type, case: str, tolerance: float) -> None:
    with pytest.raises(Exception) as caught:
        await run_case(case, maker(mutant), inject=inject, tolerance=tolerance, adapters=ADAPTERS)
    assert not isinstance(caught.value, AttributeError | NameError | TypeError), "the mutant itself is broken"


def test_every_case_catches_a_mutant() -> None:
    """Those on grammars have their mutants with the executor that has grammars: llm/sampling/test_grammar_teeth.py."""
    elsewhere = {name for name, case in CASES.items() if case.__module__ == conformance_grammars.__name__}
    assert set(CASES) - elsewhere == {case for _, case in MUTANTS}
