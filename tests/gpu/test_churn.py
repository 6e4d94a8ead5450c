"""Part churn of gpu-check: over the device that is played, and what it must catch there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.gpu.part import Failed, Options
from engine.core.engine import EngineCore
from engine.core.scheduler import Scheduler
from engine.core.sequences import Sequences
from engine.kv.kv_cache_manager import KvCacheManager
from engine.request import FinishReason
from executors.contract import SamplingParams
from executors.llm.sampling.shaped_slots import ShapedSlots
from tests.gpu import churn
from tests.gpu.churn import Call, compare, judge

PLAYED = Options("cpu", tiny=True, executor="tests.gpu.device_fakes:LateOnceFactory", mode="inline")


def outcome(options: Options = PLAYED) -> tuple[dict[str, Any], str]:
    """Figures, and what failed."""
    found: dict[str, Any] = {}
    try:
        churn.run(options, found.update)
    except Exception as error:
        return found, f"{type(error).__name__}: {error}"
    return found, ""


FIGURES: dict[str, Any] = {
    "calls": 100, "finished": 70, "aborted": 30, "preemptions": 9, "prefix_hit_tokens": 64, "steps_overlapped": 80,
}  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, ""),
        ({"finished": 69}, "1 of 100 calls neither ended nor left"),
        ({"finished": 95, "aborted": 5}, "5 of 100 calls were aborted"),
        ({"finished": 40, "aborted": 60}, "60 of 100 calls were aborted"),
        ({"preemptions": 0}, "preemptions: 0"),
        ({"prefix_hit_tokens": 0}, "prefix_hit_tokens: 0"),
        ({"steps_overlapped": 0}, "steps_overlapped: 0"),
    ],
)
def test_a_crowd_that_was_none_says_nothing(wrong: dict[str, int], words: str) -> None:
    if not words:
        judge(FIGURES)
        return
    with pytest.raises(Failed, match=words):
        judge(FIGURES | wrong)


def test_texts_have_their_length_and_are_equal() -> None:
    calls = [Call([1], 3, SamplingParams()), Call([2], 2, SamplingParams(presence_penalty=1.0))]
    texts = [[5, 6, 7], [8, 9]]
    assert compare([3, 4], calls, texts, texts) == {"identical": 2}
    with pytest.raises(Failed, match=r"1 of 2 texts .*: 4 \(penalties\) at token 1 of 2"):
        compare([3, 4], calls, texts, [[5, 6, 7], [8, 1]])
    with pytest.raises(Failed, match="call 3 ended with 2 of 3 tokens"):
        compare([3, 4], calls, [[5, 6], [8, 9]], [[5, 6], [8, 9]])


def test_the_work_is_what_the_part_is_for() -> None:
    calls = churn.work(tiny=False)
    edited = sum(call.sampling.edits_logits for call in calls)
    assert len(calls) == 300 and 0.4 * 300 <= edited <= 0.6 * 300
    assert max(call.length for call in calls) <= 256 and churn.work(tiny=False) == calls
    assert sum(call.sampling.typical_p < 1.0 for call in calls[-40:]) >= 5
    kept = [call.sampling for call in calls if call.sampling.temperature > 0.0]
    assert len(kept) > 100 and all(0 < one.top_k <= 8 for one in kept), (
        "rounding decides draws from many tokens"
    )
    pages = churn.pool_bytes(calls, 16) // (16 * 1024)
    assert 8 <= pages * 16 / (sum(call.length for call in calls) / 300) <= 10 < churn.SLOTS


@pytest.mark.long
@pytest.mark.timeout(300)
def test_texts_are_the_same_in_a_crowd() -> None:
    found, wrong = outcome()
    assert not wrong
    assert found["identical"] == found["finished"] > 30 and found["aborted_while"]["running"] > 3
    assert any(re.match(r"graphs: (\d+) of \1 captured", note) for note in found["executor_notes"])


# -- mutants -----------------------------------------------------------------------------------------------------------------


def reuse_slots_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A slot is free once its sequence has ended, although a step with it is out."""
    finish = Sequences.finish

    def early(self: Any, seq: Any, reason: Any) -> None:
        finish(self, seq, reason)
        if seq.in_flight and seq.slot is not None:
            self._free_slots.appendleft(seq.slot)
            seq.slot = None

    patch.setattr(Sequences, "finish", early)


def keep_counters(patch: pytest.MonkeyPatch) -> None:
    """A row of penalties keeps what it counted for the request before."""
    begin, write = ShapedSlots.begin, ShapedSlots._write
    written = set[int]()

    def stale(self: Any, start: Any) -> bool:
        taken = begin(self, start)
        row = int(self.row_of[start.slot])
        if taken and row in written:
            self._counted[start.slot] = len(start.prompt_token_ids) + len(start.output_token_ids)
        return taken

    def noted(self: Any, slot: int, length: int) -> None:
        written.add(int(self.row_of[slot]))
        write(self, slot, length)

    patch.setattr(ShapedSlots, "begin", stale)
    patch.setattr(ShapedSlots, "_write", noted)


def register_too_early(patch: pytest.MonkeyPatch) -> None:
    """All blocks of a prompt can be found once its first chunk is granted."""
    register = KvCacheManager.register

    def early(self: Any, seq: Any, num_computed: int) -> None:
        register(self, seq, max(num_computed, seq.prompt_len))

    patch.setattr(KvCacheManager, "register", early)


def free_blocks_too_early(patch: pytest.MonkeyPatch) -> None:
    """A sequence gives its blocks back when its last step is put together, and others of that step may take them."""
    grant = Scheduler._grant_decodes

    def early(self: Any, plan: Any) -> Any:
        chunks = grant(self, plan)
        for seq in plan.grants:
            if seq.num_to_generate == 1:
                for group, table in zip(self.kv.groups, seq.free_tables(), strict=False):
                    group.release(reversed(table.blocks))
        return chunks

    patch.setattr(Scheduler, "_grant_decodes", early)


def lose_aborts(patch: pytest.MonkeyPatch) -> None:
    """A sequence goes on although it was aborted."""
    patch.setattr(EngineCore, "abort", lambda self, seq_id: None)


def leak_blocks(patch: pytest.MonkeyPatch) -> None:
    """A sequence that was aborted with a step out keeps its blocks."""
    let_go = Sequences.let_go

    def leaking(self: Any, seq: Any) -> None:
        if seq.finish_reason is FinishReason.ABORT:
            seq.free_tables()
        let_go(self, seq)

    patch.setattr(Sequences, "let_go", leaking)


DIFFER = "texts differ from themselves alone"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        (reuse_slots_in_flight, "restarted or reset"),
        (keep_counters, f"{DIFFER}|not finite"),
        (register_too_early, DIFFER),
        (free_blocks_too_early, DIFFER),
        (lose_aborts, "after its abort"),
        (leak_blocks, "blocks are held by nothing"),
    ],
)
def test_mutants_are_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of several crowds: whether a fault changes a text depends on the moment, and on the numbers that a CPU computes."""
    mutate(monkeypatch)
    monkeypatch.setattr(churn, "_PATIENCE", 0.5)
    # Short prompts share more of small blocks.
    options = replace(PLAYED, block_size=8) if mutate is register_too_early else PLAYED
    failures = []
    for seed in range(47, 57):
        monkeypatch.setattr(churn, "_SEED", seed)
        failures.append(outcome(options)[1])
        if re.search(words, failures[-1]):
            return
    pytest.fail(f"not caught: {failures}")
