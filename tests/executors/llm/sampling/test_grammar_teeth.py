"""The conformance cases on grammars have teeth: each executor that is wrong in one way is caught by the case that names it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executors.contract.config import OptimizationConfig
from executors.contract.errors import ExecutorError, StepFailed
from executors.contract.token_history import TokenHistory
from executors.llm.executor import LlmExecutor, LlmLoraExecutor
from executors.llm.sampling import slot_grammars
from executors.llm.sampling.grammar import GrammarCompiler, GrammarState, Mask
from executors.llm.sampling.slot_grammars import SlotGrammars
from executors.llm.step.states import SequenceStates
from executors.testing import conformance_grammars
from executors.testing.conformance import CASES, Nonconformance, run_case
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import config
from tests.executors.llm.test_conformance import write_adapters


def _forgets_masks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotGrammars, "begin", lambda self, start: None)


def _ends_anywhere(patch: pytest.MonkeyPatch) -> None:
    mask = GrammarState.mask
    patch.setattr(
        GrammarState, "mask", lambda self: Mask(np.union1d(mask(self).ids, self._ends), mask(self).negated)
    )


def _never_ends(patch: pytest.MonkeyPatch) -> None:
    mask = GrammarState.mask

    def endless(self: GrammarState) -> Mask:
        ids = np.setdiff1d(mask(self).ids, self._ends)
        return Mask(ids if len(ids) else mask(self).ids, False)

    patch.setattr(GrammarState, "mask", endless)


def _masks_everybody(patch: pytest.MonkeyPatch) -> None:
    """The first row's mask is every row's."""
    from executors.llm.sampling.edits import EditsBuilder

    add, seen = EditsBuilder.add, []

    def one_mask(self: EditsBuilder, row, shaper, mask=None):  # type: ignore[no-untyped-def]
        if self._rows == []:
            seen[:] = []
        seen.append(mask)
        add(self, row, shaper, seen[0])

    patch.setattr(EditsBuilder, "add", one_mask)


def _drops_the_adapter_under_a_grammar(patch: pytest.MonkeyPatch) -> None:
    start_of = SequenceStates.begin

    def begin(self, start):  # type: ignore[no-untyped-def]
        start_of(self, replace(start, adapter=None) if start.grammar else start)

    patch.setattr(SequenceStates, "begin", begin)


def _forgets_the_output_of_a_start(patch: pytest.MonkeyPatch) -> None:
    init = slot_grammars._Output.__init__
    patch.setattr(slot_grammars._Output, "__init__", lambda self, prompt, output: init(self, prompt, ()))
    patch.setattr(slot_grammars._Output, "sync", lambda *_: None)


def _starts_over_when_preempted(patch: pytest.MonkeyPatch) -> None:
    def truncate_kv(self: LlmExecutor, handle, new_len: int) -> int:  # type: ignore[no-untyped-def]
        assert self._runtime is not None
        slot = self._runtime.unified.states.slots.slot_of(handle.cache_id)
        assert slot is not None
        self._runtime.unified.states.grammars._of[slot]._state = None
        self._runtime.unified.states.grammars._of[slot].output.output.clear()
        patch.setattr(slot_grammars._Output, "sync", lambda *_: None)
        return new_len

    patch.setattr(LlmExecutor, "truncate_kv", truncate_kv)


def _keeps_drafts(patch: pytest.MonkeyPatch) -> None:
    """What a draft led to is not taken back."""
    patch.setattr(GrammarState, "rewind", lambda self, length: None)
    patch.setattr(TokenHistory, "truncate", lambda self, length: None)


def _stops_at_drafts(patch: pytest.MonkeyPatch) -> None:
    """A row after a draft sees the mask of the row before it."""
    follow = slot_grammars.Follower._follow

    def same_mask(self, compiler, drafts, into):  # type: ignore[no-untyped-def]
        found = follow(self, compiler, drafts, into)
        return found._replace(masks=[found.masks[0]] * len(found.masks))

    patch.setattr(slot_grammars.Follower, "_follow", same_mask)


def _takes_broken_grammars(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrammarCompiler, "compile", lambda self, grammar: None)


def _fails_the_step(patch: pytest.MonkeyPatch) -> None:
    masks = slot_grammars.Follower.masks

    def raising(self, compiler, inputs, into=None):  # type: ignore[no-untyped-def]
        found = masks(self, compiler, inputs, into)
        if found.failed is not None:
            raise StepFailed(str(found.failed.error))
        return found

    patch.setattr(slot_grammars.Follower, "masks", raising)


MUTANTS = [
    (_forgets_masks, "grammar_is_kept"),
    (_ends_anywhere, "grammar_is_kept"),
    (_never_ends, "grammar_is_kept"),
    (_masks_everybody, "grammar_leaves_neighbours_alone"),
    (_drops_the_adapter_under_a_grammar, "grammar_goes_with_an_adapter"),
    (_forgets_the_output_of_a_start, "grammar_resumes_anywhere"),
    (_starts_over_when_preempted, "grammar_survives_preemption"),
    (_keeps_drafts, "grammar_holds_drafts"),
    (_stops_at_drafts, "grammar_holds_drafts"),
    (_takes_broken_grammars, "broken_grammar_fails_alone"),
    (_fails_the_step, "broken_grammar_fails_alone"),
]


@pytest.mark.parametrize(("mutate", "case"), MUTANTS, ids=lambda v: v if isinstance(v, str) else v.__name__)
async def test_mutant_is_caught(
    mutate, case: str, qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization = OptimizationConfig(num_threads=1, max_loras=2)
    settings = config(qwen3, tokenizer=str(write_tokenizer(tmp_path, 200)), optimization=optimization)
    adapters = write_adapters(qwen3, tmp_path)
    mutate(monkeypatch)
    with pytest.raises((ExecutorError, Nonconformance)):
        await run_case(case, lambda: LlmLoraExecutor.from_config(settings), tolerance=1e-3, adapters=adapters)


def test_every_case_catches_a_mutant() -> None:
    ours = {name for name, case in CASES.items() if case.__module__ == conformance_grammars.__name__}
    assert ours == {case for _, case in MUTANTS}
