"""The conformance kit, over Qwen3ModelExecutor."""

from pathlib import Path

import pytest

from executors.qwen3.executor import Qwen3ModelExecutor
from executors.testing import (
    conformance_adoption,
    conformance_drafts,
    conformance_states,
    conformance_windows,
)
from executors.testing.conformance import CASES, run_case
from executors.testing.conformance_loras import NO_ADAPTERS
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import config
from tests.executors.llm.test_conformance import make_inject
from tests.tiers import sweep


@sweep(every=3)
@pytest.mark.parametrize("case", CASES)
async def test_conformance(case: str, qwen3: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = config(qwen3, executor="qwen3", tokenizer=str(write_tokenizer(tmp_path, 200)))

    def make() -> Qwen3ModelExecutor:
        return Qwen3ModelExecutor.from_config(settings)

    reason = await run_case(case, make, tolerance=1e-3, inject=make_inject(monkeypatch))
    elsewhere = (
        conformance_drafts.NOT_DECLARED,
        conformance_adoption.NOT_DECLARED,
        conformance_windows.NO_WINDOW,
        conformance_windows.ONE_GROUP,
        conformance_states.NO_STATES,
    )
    assert reason in (None, NO_ADAPTERS, *elsewhere), "every other case concerns it"
