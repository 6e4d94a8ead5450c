"""docs/executors.md is true: its executor runs, passes the conformance kit, and is as short as it says."""

import re
import types
from pathlib import Path

import pytest

from executors.contract import ExecutorConfig, ModelExecutor
from executors.testing import (
    conformance_adoption,
    conformance_drafts,
    conformance_grammars,
    conformance_states,
    conformance_windows,
)
from executors.testing import conformance_loras as conformance_adapters
from executors.testing.conformance import CASES, run_case
from executors.testing.fakes.base import OPTIONS
from executors.testing.fakes.failures import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "executors.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def example() -> types.ModuleType:
    module = types.ModuleType("successor")
    exec(compile(BLOCKS[0], "docs/executors.md", "exec"), module.__dict__)
    return module


NOT_ITS_OWN = (
    conformance_adapters,
    conformance_adoption,
    conformance_drafts,
    conformance_grammars,
    conformance_states,
    conformance_windows,
)
# The example owns its KV, pools nothing, has no grammars, and offers no way to inject failures.
DOES_NOT_CONCERN_IT = {
    "cached_prefix_equals_cold",
    "block_permutation_changes_nothing",
    "block_copies_come_first",
    "memory_given_back_is_nobody_elses",
    "pooling_is_consistent",
    "a_second_text_counts_or_is_refused",
    "failed_steps_are_skipped_until_a_new_epoch",
    "nan_is_isolated",
} | {name for name, case in CASES.items() if case.__module__ in {kit.__name__ for kit in NOT_ITS_OWN}}


@pytest.mark.parametrize("case", CASES)
async def test_the_example_conforms(example: types.ModuleType, case: str) -> None:
    def make() -> ModelExecutor:
        return example.SuccessorFactory().create_executor(ExecutorConfig("successor", max_num_seqs=6))

    reason = await run_case(case, make)
    assert (reason is not None) == (case in DOES_NOT_CONCERN_IT), reason


def test_the_example_has_about_60_lines() -> None:
    body = BLOCKS[0].split("class Successor(")[1].split("class SuccessorFactory")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 65


def test_the_page_names_everything() -> None:
    for name in (*OPTIONS, *KINDS):
        assert name in PAGE, name
    for path in re.findall(r"`((?:executors|tests)/[\w/]+\.py)`", PAGE):
        assert (Path(__file__).parents[2] / path).is_file(), path
