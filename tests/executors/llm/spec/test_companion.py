"""A draft model beside the model. Where both are the same model, every draft must be the token that comes: one that is not shows
wrong KV, a wrong position or a wrong row."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
    SamplingParams,
)
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.spec.companion import DraftCompanion
from executors.llm.step_arrays import StepArrays
from executors.testing.conformance import run_case
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.llm.models import Reference, build

OUTPUT = 40
SETTINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.8, seed=9, top_k=20, top_p=0.9),
]


def config(model: Path, draft: Path | None, **changes: object) -> ExecutorConfig:
    optimization = OptimizationConfig(
        deterministic=True,
        draft_model=str(draft or ""),
        num_threads=1,  # threads that wait for each other on a busy machine make small tests ten times slower
    )
    return replace(
        ExecutorConfig(
            "llm", str(model), dtype="float32", max_num_seqs=8, max_num_batched_tokens=256, max_model_len=256
        ),
        optimization=optimization,
        **changes,  # type: ignore[arg-type]
    )


async def driver_of(model: Path, draft: Path | None) -> Driver:
    return await Driver.start(LlmExecutor.from_config(config(model, draft)))


async def truths(
    model: Path, asked: list[tuple[list[int], SamplingParams]], count: int = OUTPUT
) -> list[list[int]]:
    """What the model says to each, alone."""
    driver = await driver_of(model, None)
    found = []
    for prompt, sampling in asked:
        seq = driver.add(prompt, sampling)
        await driver.decode(count, seq)
        found.append(seq.output)
        driver.release(seq)
    return found


def drafts_of(seq: DrivenSequence) -> list[int]:
    last = seq.outputs[-1]
    return [] if last is None else list(last.drafts)


@pytest.mark.parametrize("sampling", SETTINGS)
async def test_drafts_of_the_same_model_are_the_tokens_that_come(
    qwen3: Path, sampling: SamplingParams
) -> None:
    prompt = list(range(3, 40))
    [truth] = await truths(qwen3, [(prompt, sampling)])
    driver = await driver_of(qwen3, qwen3)
    assert driver.executor.capabilities().drafts
    seq = driver.add(prompt, sampling)
    await driver.step(Feed(seq, 20, num_drafts=1))
    assert drafts_of(seq) == []
    steps = 0
    await driver.step(Feed(seq, num_drafts=3))
    while len(seq.output) < OUTPUT - 4:
        drafts = drafts_of(seq)
        assert drafts == truth[len(seq.output) : len(seq.output) + 3]
        await driver.step(Feed(seq, drafts=drafts, num_drafts=3))
        steps += 1
    assert seq.output == truth[: len(seq.output)] and steps <= OUTPUT / 4


@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ("gemma2-caps-alternating-windows", [23, None]),
        ("mistral-window", [None]),
        # Heads of two sizes, each with tensors of its own; layers that read the KV of others.
        ("gemma4-inputs-of-layers-and-shared-kv", [19, None]),
        ("gpt-oss-sinks-windows", [17, None]),
    ],
)
async def test_drafts_beside_windows(
    shape: str, windows: list[int | None], reference: Callable[[str], Reference]
) -> None:
    """The draft model's layers lie beside those that keep all tokens, whatever windows they have themselves. Beside a model of
    windows alone no block is freed."""
    path, prompt = reference(shape).path, [3 + 7 * i % 90 for i in range(60)]
    [truth] = await truths(path, [(prompt, SETTINGS[0])])
    driver = await driver_of(path, path)
    groups = driver.executor.kv_layout().groups
    assert [group.window for group in groups] == windows
    seq = driver.add(prompt, SETTINGS[0])
    companion = driver.executor._runtime.companion  # type: ignore[attr-defined]
    forward, computed = companion.runner.forward, 0

    def counted(step: StepArrays) -> torch.Tensor:
        nonlocal computed
        computed += len(step.token_ids)
        return forward(step)

    companion.runner.forward = counted
    await driver.step(Feed(seq, num_drafts=3))
    while len(seq.output) < OUTPUT - 4:
        drafts = drafts_of(seq)
        assert drafts == truth[len(seq.output) : len(seq.output) + 3]
        await driver.step(Feed(seq, drafts=drafts, num_drafts=3))
    assert seq.output == truth[: len(seq.output)]
    assert computed <= len(seq.tokens) + 8, "KV is computed twice"


async def test_drafts_are_right_whatever_happens_between(qwen3: Path) -> None:
    await whatever_happens(qwen3)


def _keeps_old_cells(patch: pytest.MonkeyPatch) -> None:
    """What a block held for another sequence counts as filled."""
    patch.setattr(DraftCompanion, "_note_tables", lambda self, batch: None)


def _copies_too_much(patch: pytest.MonkeyPatch) -> None:
    """A copied block counts as filled behind the tokens that its new owner shares."""
    patch.setattr(DraftCompanion, "_cut", lambda self, block, position: None)


def _keeps_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    """KV of drafts counts as filled whether they were accepted or not."""
    first_missing = DraftCompanion._first_missing

    def believing(self, slot, blocks, known):  # type: ignore[no-untyped-def]
        if (ahead := self._ahead.get(slot)) is not None:
            history = self._history[slot].copy()
            self._history[slot, ahead.begin : ahead.begin + len(ahead.token_ids)] = ahead.token_ids
            begin = first_missing(self, slot, blocks, known)
            self._history[slot] = history
            return begin
        return first_missing(self, slot, blocks, known)

    patch.setattr(DraftCompanion, "_first_missing", believing)


def _wrong_row(patch: pytest.MonkeyPatch) -> None:
    """A sequence's draft comes from its neighbour's row."""
    choose = DraftCompanion._choose
    patch.setattr(
        DraftCompanion,
        "_choose",
        lambda self, hidden, rows, slots, positions: choose(
            self, hidden, rows[::-1].copy(), slots, positions
        ),
    )


@pytest.mark.parametrize("mutate", [_keeps_old_cells, _copies_too_much, _wrong_row])
async def test_mistakes_show(
    qwen3: Path, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        await whatever_happens(qwen3)


@pytest.mark.parametrize(
    "case", ["drafts_come_as_asked", "own_drafts_change_no_token", "verify_in_a_mixed_batch"]
)
async def test_conformance(qwen3: Path, tmp_path: Path, case: str) -> None:
    other = build("qwen3-untied-one-kv-head", tmp_path / "other").path
    for draft in (qwen3, other):
        assert await run_case(case, lambda draft=draft: LlmExecutor.from_config(config(qwen3, draft))) is None


async def whatever_happens(
    qwen3: Path, start: Callable[[Path, Path], Awaitable[Driver]] = driver_of, steps: int = 400
) -> None:
    """Chunks, prefix hits, forks, wrong drafts, steps without drafts, preemption, and blocks that change hands, at random.
    `start` makes the executor."""
    rng = random.Random(7)
    family = [rng.randrange(211) for _ in range(90)]
    prompts = [family[:70], [*family[:50], 9, 8, 7], family[:33], [rng.randrange(211) for _ in range(25)]]
    said = await truths(qwen3, [(prompt, sampling) for prompt in prompts for sampling in SETTINGS])
    driver = await start(qwen3, qwen3)
    live: dict[int, tuple[DrivenSequence, list[int]]] = {}
    judged = 0
    for _ in range(steps):
        if len(live) < 5 and rng.random() < 0.3:
            i, j = rng.randrange(len(prompts)), rng.randrange(len(SETTINGS))
            prompt = prompts[i]
            seq = _begin(driver, rng, prompt, SETTINGS[j], [one for one, _ in live.values()])
            live[seq.seq_id] = seq, said[i * len(SETTINGS) + j]
        feeds = []
        for seq, truth in live.values():
            if rng.random() < 0.3:
                continue
            left = len(seq.tokens) - seq.num_computed
            count = rng.randrange(1, left + 1) if rng.random() < 0.5 else None
            final = count is None or count == left
            drafts = drafts_of(seq) if seq.outputs and left == 1 and final else []
            assert drafts == truth[len(seq.output) : len(seq.output) + len(drafts)]
            judged += len(drafts)
            if drafts and rng.random() < 0.4:
                drafts[rng.randrange(len(drafts))] = rng.randrange(211)
            feeds.append(
                Feed(seq, count, drafts=drafts[: rng.randrange(5)], num_drafts=rng.choice((0, 1, 2, 4)))
            )
        if feeds:
            await driver.step(*feeds)
        for seq, truth in list(live.values()):
            assert seq.output == truth[: len(seq.output)]
            if len(seq.output) > OUTPUT - 8 or rng.random() < 0.02:
                driver.release(live.pop(seq.seq_id)[0])
            elif rng.random() < 0.03:
                _preempt(driver, seq)
    assert judged > 0.75 * steps


def _begin(
    driver: Driver,
    rng: random.Random,
    prompt: list[int],
    sampling: SamplingParams,
    others: list[DrivenSequence],
) -> DrivenSequence:
    """A sequence that shares the blocks of another one with the same beginning, where there is one, and may copy its last."""
    size = driver.block_size
    for other in others:
        same = 0
        while same < min(len(prompt), len(other.tokens)) and prompt[same] == other.tokens[same]:
            same += 1
        usable = min(same, other.num_computed, len(prompt) - 1)
        whole = usable // size
        if not whole or rng.random() < 0.3:
            continue
        blocks = [list(other.blocks[0][:whole])]
        computed = whole * size
        if usable % size and rng.random() < 0.7 and driver.free_blocks[0]:
            copy = driver.free_blocks[0].pop(0)
            driver.block_copies.append((0, other.blocks[0][whole], copy))
            blocks[0].append(copy)
            computed = usable
        return driver.add(prompt, sampling, shared_blocks=blocks, num_computed=computed)
    return driver.add(prompt, sampling)


def _preempt(driver: Driver, seq: DrivenSequence) -> None:
    """Roll it back to nothing, and let its blocks go to whoever comes next."""
    driver.truncate(seq, 0)
    gone = [
        block
        for block in seq.blocks[0]
        if not any(block in other.blocks[0] for other in driver.live.values() if other is not seq)
    ]
    driver.free_blocks[0][:0] = gone
    seq.blocks[0].clear()
    seq.num_sent_blocks = 0
    seq.outputs.append(None)


async def test_a_late_wish_is_met_after_the_draft_model_has_caught_up(qwen3: Path) -> None:
    prompt = [(7 * i) % 211 for i in range(200)]
    [truth] = await truths(qwen3, [(prompt, SETTINGS[0])], 12)
    driver = await Driver.start(
        LlmExecutor.from_config(replace(config(qwen3, qwen3), max_num_batched_tokens=220))
    )
    seq = driver.add(prompt, SETTINGS[0])
    await driver.decode(4, seq)
    await driver.step(Feed(seq, num_drafts=3))
    await driver.step(Feed(seq, num_drafts=3))
    assert drafts_of(seq) == truth[6:9]


async def test_another_model_costs_acceptance_and_no_token(qwen3: Path, tmp_path: Path) -> None:
    other = build("qwen3-untied-one-kv-head", tmp_path / "other").path
    [truth] = await truths(qwen3, [([5, 6, 7], SETTINGS[0])])
    driver = await driver_of(qwen3, other)
    seq = driver.add([5, 6, 7], SETTINGS[0])
    await driver.step(Feed(seq, num_drafts=4))
    while len(seq.output) < 30:
        await driver.step(Feed(seq, drafts=drafts_of(seq), num_drafts=4))
    assert seq.output == truth[: len(seq.output)]


async def test_heads_of_two_sizes_beside_a_model_of_one(reference: Callable[[str], Reference]) -> None:
    """The blocks of the model's only group hold the KV of both sizes, and the figures count both."""
    model, draft = reference("olmo2").path, reference("gemma4-keys-that-are-values").path
    driver = await driver_of(model, draft)
    [group] = driver.executor.kv_layout().groups
    size = driver.executor.kv_layout().block_size
    parts = [
        heads * dim * layers * 2 * 4 * size for heads, dim, layers in [(2, 12, 3), (2, 16, 5), (1, 24, 3)]
    ]
    assert group.bytes_per_block == sum(-(-part // 4096) * 4096 for part in parts)
    asked = [([3 + 7 * i % 90 for i in range(60)], SETTINGS[0])]
    [truth] = await truths(model, asked, 12)
    seq = driver.add(*asked[0])
    await driver.step(Feed(seq, num_drafts=3))
    while len(seq.output) < 12:
        assert len(drafts_of(seq)) == 3
        await driver.step(Feed(seq, drafts=drafts_of(seq), num_drafts=3))
    assert seq.output[:12] == truth


async def test_a_draft_model_is_stretched_as_far_as_the_model(
    reference: Callable[[str], Reference],
) -> None:
    """longrope's factors are those of the context that is served; the draft model's own context of 64 tokens has others."""
    path, prompt = reference("phi4-mini-tied-longrope-of-a-part").path, [3 + 7 * i % 90 for i in range(80)]
    [truth] = await truths(path, [(prompt, SETTINGS[0])], 8)
    driver = await driver_of(path, path)
    seq = driver.add(prompt, SETTINGS[0])
    await driver.step(Feed(seq, num_drafts=3))
    assert drafts_of(seq) == truth[1:4]


async def test_the_pool_has_room_for_both(qwen3: Path) -> None:
    sized = {"memory": ExecutorMemoryConfig(kv_cache_memory_bytes=8 << 20)}
    alone, both = (
        LlmExecutor.from_config(config(qwen3, None, **sized)),
        LlmExecutor.from_config(config(qwen3, qwen3, **sized)),
    )
    await alone.warmup()
    await both.warmup()
    assert both.kv_layout().groups[0].bytes_per_block == 2 * alone.kv_layout().groups[0].bytes_per_block
    weights = [one.capabilities().memory.parameter_memory for one in (alone, both)]
    assert weights[1] == 2 * weights[0]
    pace = both.pace()
    assert pace is not None and [count for count, _ in pace.draft_steps] == [1, 8]
    assert alone.capabilities().drafts is False


@pytest.mark.parametrize(
    ("shape", "why"), [("llama-biases-llama3-rope", "its vocabulary has 130 tokens, the model's 211")]
)
async def test_another_vocabulary_is_refused(qwen3: Path, tmp_path: Path, shape: str, why: str) -> None:
    other = build(shape, tmp_path / "other").path
    with pytest.raises(ConfigError, match=why):
        await LlmExecutor.from_config(config(qwen3, other)).warmup()


def test_a_folder_that_is_not_there_is_refused(qwen3: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft_model '/nowhere': no such directory"):
        LlmFactory().validate_config(config(qwen3, Path("/nowhere")))
