"""Each family in each mode of the engine: transformers says the same of every token.

The engine runs in this process over a small model with the layers of the published ones: windows are passed, YaRN's bounds and
the lengths at which queries grow are reached, experts are chosen, layers read the KV of others. Each mode counts what it is
about, so that a mode which no longer happens fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.contract import UnifiedBatch
from executors.llm.model.config import read_config
from executors.llm.model.families import FAMILIES
from tests.e2e.family_calls import BLOCK, HYBRIDS, NEW, OTHERS, Call, Judge, served, too_few_bytes
from tests.executors.llm.checkpoint.gpt_oss_files import in_mxfp4
from tests.executors.llm.models import build
from tests.executors.llm.spec.mtp_heads import with_head

pytestmark = pytest.mark.long
_names = [*NEW, *(pytest.param(name, marks=pytest.mark.long(extended=True)) for name in OTHERS)]
every_family = pytest.mark.parametrize("name", _names)
"""But hybrids, for which a draft model does not work."""
hybrids_too = pytest.mark.parametrize("name", [*_names, *HYBRIDS])


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Judge]:
    """The checkpoint of a shape and its judge, by name."""
    made: dict[str, Judge] = {}

    def get(name: str) -> Judge:
        if name not in made:
            made[name] = Judge(build(name, tmp_path_factory.mktemp("families") / name))
        return made[name]

    return get


def tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(1, 130, count).tolist())


LONG = Call(tokens(101, 1), 12, prompt_logprobs=True)
PROMPTS = (tokens(5, 2), tokens(90, 3), tokens(33, 4), LONG.prompt[:64] + tokens(9, 5))
CROWD = [
    Call(prompt, 12, temperature=number % 2 * 0.9, seed=number, prompt_logprobs=number == 1)
    for number, prompt in enumerate(PROMPTS)
]
SQUEEZE = [Call(tokens(5 * BLOCK - 1, 10 + number), 14) for number in range(6)]
"""Calls whose prompts end just before a block does: all blocks are taken, and each needs one more at once."""
LOOP = Call(tokens(30, 6), 40, allowed=(17, 18))
"""Of two tokens, runs come again soon: drafts are found."""


def _no_copies(batch: UnifiedBatch) -> UnifiedBatch:
    """A choice goes on in a block of which nothing was copied."""
    return replace(batch, block_copies=batch.block_copies[:0])


def _turned_tables(batch: UnifiedBatch) -> UnifiedBatch:
    """Blocks that a table gets at once come in the opposite order."""
    ids, ends = batch.tables.block_ids.copy(), np.cumsum(batch.tables.counts)
    for end, count in zip(ends.tolist(), batch.tables.counts.tolist(), strict=True):
        ids[end - count : end] = ids[end - count : end][::-1]
    return replace(batch, tables=replace(batch.tables, block_ids=ids))


def test_every_family_has_a_model_here(judge: Callable[[str], Judge]) -> None:
    names = {read_config(judge(name).reference.path).family.name for name in (*NEW, *OTHERS, *HYBRIDS)}
    assert names == {family.name for family in FAMILIES}


@hybrids_too
async def test_chunks(name: str, judge: Callable[[str], Judge]) -> None:
    await compute_in_chunks(judge(name))


async def compute_in_chunks(judge: Judge) -> None:
    calls = [LONG, replace(LONG, prompt=LONG.prompt[:80], temperature=0.9, seed=3)]
    async with served(judge.reference.path, budget=13) as engine:
        answers = await engine.alone(calls)
        assert sum(not batch.is_final_chunk[0] for batch in engine.steps) == 101 // 13 + 80 // 13
    judge.check(calls, answers)


@hybrids_too
async def test_a_mixed_batch(name: str, judge: Callable[[str], Judge]) -> None:
    async with served(judge(name).reference.path) as engine:
        answers = await engine.together(CROWD)
        assert any(
            (batch.num_q_tokens == 1).any() and not batch.is_final_chunk.all() for batch in engine.steps
        )
    judge(name).check(CROWD, answers)


@hybrids_too
async def test_few_blocks(name: str, judge: Callable[[str], Judge]) -> None:
    calls, model = [*SQUEEZE, *CROWD], judge(name).reference.path
    async with served(model, kv_bytes=await too_few_bytes(model), budget=256) as engine:
        answers = await engine.together(calls)
        windows = [group.window for group in engine.core.executor.kv_layout().groups]
        assert engine.core.stats().preemptions > 0 or None not in windows, "windows alone need few blocks"
    judge(name).check(calls, answers)


@hybrids_too
async def test_prefix_hits(name: str, judge: Callable[[str], Judge]) -> None:
    await find_prefixes(judge(name))


async def find_prefixes(judge: Judge, **engine_settings: Any) -> None:
    """The same prompt once more, the next turn behind its answer, and two prompts that leave it after 64 tokens: where layers
    have a window, the blocks before that place are found once a prompt has left there, if other layers have none."""
    first = replace(LONG, prompt_logprobs=False)
    async with served(judge.reference.path, **engine_settings) as engine:
        [cold] = await engine.together([first])
        turn = Call((*first.prompt, *cold.ids, *tokens(7, 7)), 10)
        calls = [first, turn, Call(PROMPTS[3], 10), Call(first.prompt[:64] + tokens(6, 8), 10)]
        warm = [(await engine.together([call]))[0] for call in calls]
        layout = engine.core.executor.kv_layout()
        windows = [group.window for group in layout.groups]
        left, left_again = (0 if any(windows) else 64), (64 if None in windows else 0)
        # With states a prefix ends at a snapshot, of which each prompt leaves one here.
        cached = [0, 96, 112, left, left_again] if layout.state is None else [0, *4 * [layout.state.interval]]
        assert [answer.cached for answer in [cold, *warm]] == cached
        assert engine.core.stats().prefix_hits == sum(cached)
    judge.check([first, *calls], [cold, *warm])


@hybrids_too
async def test_three_choices(name: str, judge: Callable[[str], Judge]) -> None:
    await fork(judge(name))


async def fork(judge: Judge, **engine_settings: Any) -> None:
    """Choices fork within a block, which each but one copies, and say what each seed says alone."""
    calls = [Call(PROMPTS[1], 12, temperature=0.9, seed=5, choice=choice) for choice in range(3)]
    async with served(judge.reference.path, **engine_settings) as engine:
        alone = await engine.alone(calls)
        before = engine.core.stats().prompt_tokens
        del engine.steps[:]
        forked = await engine.choices(calls)
        # With states each choice computes the last token by itself, a step of one token.
        once = len(PROMPTS[1]) - (engine.core.executor.kv_layout().state is not None)
        assert engine.core.stats().prompt_tokens - before == once
        copies = np.concatenate([batch.block_copies for batch in engine.steps if len(batch.block_copies)])
        assert (np.bincount(copies[:, 0]) == 2).all(), "a copy in each group for each further choice"
    assert [answer.ids for answer in forked] == [answer.ids for answer in alone]
    assert len({tuple(answer.ids) for answer in forked}) == 3
    judge.check([*calls, *calls], [*alone, *forked])


@hybrids_too
async def test_drafts_of_ngrams(name: str, judge: Callable[[str], Judge]) -> None:
    calls = [LOOP, *CROWD[:2], replace(LOOP, temperature=0.9, seed=2, prompt=LOOP.prompt[:17])]
    async with served(judge(name).reference.path, num_speculative_tokens=3) as engine:
        answers = await engine.together(calls)
        drafts = engine.core.stats().drafts
        assert 0 < drafts.num_accepted_tokens < drafts.num_draft_tokens, "some accepted, some rejected"
    judge(name).check(calls, answers)


@pytest.mark.parametrize(
    "name", ["lfm2-short-convolutions", "lfm2-moe-sigmoid-router", "qwen3.5", "qwen3-next"]
)
async def test_two_ranks_with_states(name: str, judge: Callable[[str], Judge]) -> None:
    """Each has a part of the states: in a mixed batch, from a snapshot, with drafts, and squeezed."""
    one = judge(name)
    ranks = {"mode": "process", "ranks": 2}
    await find_prefixes(one, **ranks)
    calls, model = [*SQUEEZE, *CROWD, LOOP], one.reference.path
    few = await too_few_bytes(model, **ranks)  # a block of a rank is half as large
    async with served(model, kv_bytes=few, budget=64, num_speculative_tokens=3, **ranks) as engine:
        answers = await engine.together(calls)
        stats = engine.core.stats()
        assert stats.preemptions > 0 and stats.drafts.num_accepted_tokens > 0
    one.check(calls, answers)


async def test_two_ranks_with_states_after_a_kill(judge: Callable[[str], Judge]) -> None:
    """Streams go on where they were; each of the new ranks has its part of the states again."""
    one, calls = judge("qwen3.5"), [replace(call, max_tokens=60) for call in CROWD]
    ranks = {"mode": "process", "ranks": 2, "restart_pause": 0.01}
    async with served(one.reference.path, **ranks) as engine:
        waiting = asyncio.ensure_future(engine.together(calls))
        while len(engine.steps) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        os.kill(engine.core.executor.pids[1], signal.SIGKILL)  # type: ignore[attr-defined]
        answers = await waiting
        assert engine.core.stats().epoch == 2
    one.check(calls, answers)


@every_family
async def test_a_draft_model(name: str, judge: Callable[[str], Judge]) -> None:
    """The model drafts for itself: every draft of a greedy answer is the token that comes."""
    model = judge(name).reference.path
    calls = [replace(call, temperature=0.0) for call in CROWD[:3]]
    settings = {"speculative_method": "draft_model", "num_speculative_tokens": 3}
    async with served(model, draft_model=model, deterministic=True, **settings) as engine:
        answers = await engine.together(calls)
        drafts = engine.core.stats().drafts
        assert drafts.num_accepted_tokens == drafts.num_draft_tokens > 20, drafts
    judge(name).check(calls, answers)


@pytest.fixture(scope="module")
def mtp_judge(
    judge: Callable[[str], Judge], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, float], Judge]:
    """The judge of a shape with an MTP head, which guesses what the model would say if its layers added `right` times less."""
    made: dict[tuple[str, float], Judge] = {}

    def get(name: str, right: float) -> Judge:
        if (name, right) not in made:
            folder = tmp_path_factory.mktemp("heads") / name
            made[name, right] = Judge(with_head(judge(name).reference, folder, right=right).ref)
        return made[name, right]

    return get


with_mtp = pytest.mark.parametrize("name", [name for name in HYBRIDS if name.startswith("qwen")])
MTP = {"mtp": True, "speculative_method": "mtp", "num_speculative_tokens": 3}


@with_mtp
async def test_an_mtp_head(name: str, mtp_judge: Callable[[str, float], Judge]) -> None:
    """Some guesses are wrong, in steps beside chunks of prompts; all are right where layers add nothing."""
    calls = [replace(call, max_tokens=24) for call in CROWD]
    for right in (0.02, 0.0):
        one = mtp_judge(name, right)
        async with served(one.reference.path, **MTP) as engine:
            answers = await engine.together(calls)
            drafts = engine.core.stats().drafts
        one.check(calls, answers)
        assert drafts.num_draft_tokens > 30
        wrong = drafts.num_draft_tokens - drafts.num_accepted_tokens
        assert wrong == 0 if right == 0.0 else 0 < wrong < drafts.num_draft_tokens, drafts


@with_mtp
async def test_an_mtp_head_changes_no_bit(name: str, mtp_judge: Callable[[str, float], Judge]) -> None:
    """Under preemption, prefix hits and choices."""
    one = mtp_judge(name, 0.02)
    await give_the_same_bits(one.reference.path, one, **MTP)


async def test_an_mtp_head_after_a_kill(mtp_judge: Callable[[str, float], Judge]) -> None:
    """Another process computes the head's KV again with the model's."""
    one, calls = mtp_judge("qwen3.5", 0.02), [replace(call, max_tokens=60) for call in CROWD]
    async with served(one.reference.path, mode="process", restart_pause=0.01, **MTP) as engine:
        waiting = asyncio.ensure_future(engine.together(calls))
        while engine.core.stats().drafts.num_accepted_tokens < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        os.kill(engine.core.executor.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        answers = await waiting
        stats = engine.core.stats()
        assert stats.epoch == 2 and stats.drafts.num_accepted_tokens > 16
    one.check(calls, answers)


@hybrids_too
async def test_deterministic(name: str, judge: Callable[[str], Judge]) -> None:
    await give_the_same_bits(judge(name).reference.path, judge(name))


@pytest.mark.parametrize("name", ["qwen2-moe-windows-some-dense-layers", "gpt-oss-sinks-windows"])
async def test_deterministic_in_4_bits(name: str, judge: Callable[[str], Judge]) -> None:
    """Of the first some layers stay in 8 bits, so that torch computes it around the kernels, a shared expert's gate among
    the rest."""
    await give_the_same_bits(judge(name).reference.path, quantization="int4")


async def test_deterministic_with_experts_in_mxfp4(tmp_path: Path) -> None:
    model, _ = in_mxfp4(tmp_path)
    await give_the_same_bits(model)


async def give_the_same_bits(model: Path, judge: Judge | None = None, **engine_settings: Any) -> None:
    """With few blocks, drafts, chunks, hits and choices, every bit is that of a call alone. `judge`: of a model whose activations
    are not rounded to 8 bits."""
    calls = [*CROWD[:3], replace(LOOP, max_tokens=20), *SQUEEZE[:4]]
    choices = [Call(PROMPTS[1], 12, temperature=0.9, seed=5, choice=choice) for choice in range(3)]
    settings = {"budget": 96, "num_speculative_tokens": 3, "deterministic": True, **engine_settings}
    kv_bytes = await too_few_bytes(model, **engine_settings)
    async with served(model, kv_bytes=kv_bytes, **settings) as engine:
        alone = await engine.alone([*calls, *choices[:2]])
        crowd = await engine.together(calls)
        forked = await engine.choices(choices)
        [again] = await engine.together(choices[:1])
        stats = engine.core.stats()
        windows = [group.window for group in engine.core.executor.kv_layout().groups]
        assert stats.preemptions > 0 or None not in windows
        assert stats.drafts.num_accepted_tokens > 0 and stats.prefix_hits > 0
    bits = [(answer.tokens, answer.prompt) for answer in alone]
    assert [(answer.tokens, answer.prompt) for answer in [*crowd, *forked[:2]]] == bits
    assert again.tokens == forked[0].tokens
    if judge is not None:
        judge.check([*calls, *choices[:2]], alone)


@pytest.mark.parametrize(("spoil", "mode"), [(_no_copies, fork), (_turned_tables, find_prefixes)])
@pytest.mark.parametrize("name", ["gpt-oss-sinks-windows", "gemma4-inputs-of-layers-and-shared-kv"])
async def test_wrong_steps_show(
    name: str, spoil: Callable[[UnifiedBatch], UnifiedBatch], mode: Callable[..., Any], judge: Callable[[str], Judge]
) -> None:  # fmt: skip
    with pytest.raises(AssertionError):
        await mode(judge(name), spoil=spoil)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gpt-oss-sinks-windows", "sliding_window", 18),
        ("gpt-oss-sinks-windows", "swiglu_limit", 1.6),
        ("gemma4-inputs-of-layers-and-shared-kv", "sliding_window", 20),
        ("gemma4-experts-beside-mlp", "top_k_experts", 2),
    ],
)
async def test_other_models_show(
    name: str, field: str, value: float, judge: Callable[[str], Judge], tmp_path: Path
) -> None:
    """A window that is a token too long, an activation's limit that is higher, an expert less."""
    reference, model = judge(name).reference, tmp_path / "model"
    shutil.copytree(reference.path, model)
    config = json.loads((model / "config.json").read_text())
    assert config[field] != value
    (model / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(AssertionError, match="another logprob"):
        await compute_in_chunks(Judge(replace(reference, path=model)))
