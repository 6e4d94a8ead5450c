"""Drafts in launched steps: the texts that the host samples without drafts, whatever is guessed, and faults on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ExecutorError
from executors.contract.batch import SamplingParams
from executors.contract.config import OptimizationConfig
from executors.llm.executor import LlmExecutor
from executors.llm.sampling.device_shaping import RowShaping, count_inputs, shaped
from executors.llm.sampling.row_images import RowImage, UnsentRows
from executors.llm.sampling.shaped_slots import ShapedSlots
from executors.llm.sampling.slot_grammars import Follower
from executors.llm.step.launched.grammar_rows import LateSampler
from executors.llm.step.launched.host_steps import HostReason
from executors.llm.step.launched.packing import StepPacker
from executors.llm.step.launched.steps import LaunchedSteps
from executors.llm.step.sampled_rows import NO_GUESS, SampledRows
from executors.process.inline import InlineExecutor
from tests.engine import harness
from tests.executors.checkpoints import write_checkpoint
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import GREEDY, Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, begun
from tests.gpu.draft_workloads import DraftMaker, Text, texts_of
from tests.gpu.workloads import HOSTED as HOSTED_SETTINGS
from tests.gpu.workloads import PLAIN, SHAPED, SMALL, Op, play

pytestmark = pytest.mark.long

MOST = 4
"""Drafts of a sequence in a step."""
FIXED = (
    SHAPED[3],
    SamplingParams(temperature=0.75, seed=8, allowed_token_ids=tuple(range(0, 200, 7))),
    SamplingParams(temperature=0.75, seed=5, logprobs=2),
)
"""Biases, bans and logprobs, which do not depend on earlier tokens."""
HISTORY = (
    *SHAPED[:3],
    SHAPED[4],
    PLAIN[1],
    SamplingParams(temperature=0.0, repetition_penalty=1.5, logprobs=2),
)
"""Penalties and `min_tokens`, beside a row without."""
GRAMMAR = "start: /[a-m ]{2,40}/"
GRAMMARS = (None, GRAMMAR, 'start: ("x" | "yz")+', "start: /(.|\\n)*/")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(write_checkpoint(tmp_path_factory.mktemp("small"), SMALL), 200)


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says a token again and again, as n-grams guess."""
    shape = {**SMALL, "tie_word_embeddings": True}
    return write_tokenizer(write_checkpoint(tmp_path_factory.mktemp("repeating"), shape), 200)


async def faked(
    path: Path, captures: bool = True, max_drafts: int = MOST, **changes: Any
) -> FakeDeviceExecutor:
    settings = config(path, optimization=OptimizationConfig(num_threads=1, max_drafts=max_drafts), **changes)
    return await begun(settings, FakeDevice(3, captures))


async def plain(path: Path) -> LlmExecutor:
    executor = LlmExecutor.from_config(config(path))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


_TEXTS: dict[Any, list[Text]] = {}


async def texts(
    theirs: LlmExecutor, seed: int, settings: tuple[SamplingParams, ...], grammars: tuple[str | None, ...] = (None,)
) -> list[Text]:  # fmt: skip
    """As `texts_of`, once for all tests of this process."""
    key = seed, settings, grammars
    if key not in _TEXTS:
        _TEXTS[key] = await texts_of(theirs, seed, settings, grammars)
    return _TEXTS[key]


async def same_texts(
    path: Path, seed: int, settings: tuple[SamplingParams, ...], out: int, captures: bool = True,
    grammars: tuple[str | None, ...] = (None,),
) -> tuple[FakeDeviceExecutor, list[Op]]:  # fmt: skip
    ours, theirs = await faked(path, captures), await plain(path)
    maker = DraftMaker(theirs, seed, await texts(theirs, seed, settings, grammars), MOST)
    ops = maker.make()
    assert maker.accepted > 20 and maker.refused > 20
    heard = await play(ours, ops, out)
    assert {seq: [one[0] for one in found] for seq, found in heard.items()} == maker.heard
    expected = await play(theirs, ops)
    for seq, found in expected.items():
        assert [one[0] for one in found] == maker.heard[seq]
        for one, other in zip(heard[seq], found, strict=True):
            assert (one[1] is None) == (other[1] is None) and one[1] == pytest.approx(other[1], abs=1e-4)
    return ours, ops


@pytest.mark.parametrize(
    ("seed", "settings", "out", "captures"),
    [(1, PLAIN, 1, True), (2, PLAIN, 2, True), (3, PLAIN + FIXED, 2, True), (4, PLAIN + FIXED, 2, False)],
)
async def test_drafts_change_no_text_and_leave_no_graph(
    path: Path, seed: int, settings: tuple[SamplingParams, ...], out: int, captures: bool
) -> None:
    ours, ops = await same_texts(path, seed, settings, out, captures)
    assert not ours.launched.host_steps.counts, "a step went the host's way"
    if captures:
        steps = sum(not isinstance(op, int) for op in ops)
        assert ours.device is not None and ours.device.replays == 2 * steps, "a step left its graphs"


@pytest.mark.parametrize(("seed", "captures"), [(6, True), (7, False)])
async def test_drafts_behind_grammars_change_no_text(path: Path, seed: int, captures: bool) -> None:
    """Each draft's row has a mask of its own; the grammar goes on from what is accepted."""
    ours, ops = await same_texts(path, seed, PLAIN, 2, captures, GRAMMARS)
    assert not ours.launched.host_steps.counts
    if captures:
        steps = sum(not isinstance(op, int) for op in ops)
        assert ours.device is not None and ours.device.replays == 2 * steps, "a step left its graphs"


@pytest.mark.parametrize(("seed", "captures", "out"), [(5, True, 2), (8, False, 1)])
async def test_drafts_behind_penalties_and_min_tokens_change_no_text(
    path: Path, seed: int, captures: bool, out: int
) -> None:
    """A row behind drafts counts them, and what was rejected counts no more; beside grammars, too."""
    ours, ops = await same_texts(path, seed, HISTORY, out, captures, (None, None, GRAMMAR))
    assert not ours.launched.host_steps.counts
    if captures:
        steps = sum(not isinstance(op, int) for op in ops)
        assert ours.device is not None and ours.device.replays == 2 * steps, "a step left its graphs"


async def test_accepted_drafts_are_counted_without_writing_rows_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is written when its sequence begins, and not for a step with drafts."""
    written: list[int] = []
    write = ShapedSlots._write
    monkeypatch.setattr(
        ShapedSlots, "_write", lambda self, slot, length: (written.append(slot), write(self, slot, length))[1]
    )
    _, ops = await same_texts(path, 9, HISTORY, 2, captures=False)
    assert len(written) <= sum(isinstance(op, int) for op in ops)


async def test_an_engine_asks_for_no_more_drafts_than_there_is_room_for(
    repeating: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that repeat themselves, so that there are far more guesses; penalties of all, whose room is their own."""
    monkeypatch.setattr("executors.llm.sampling.draft_rows.DRAFT_ROWS", 7)
    inner = await faked(repeating)
    assert inner.capabilities().max_step_drafts == inner.launched.max_step_drafts == 7
    asked_of_steps: list[int] = []
    host_steps = inner.launched.host_steps
    start = LaunchedSteps.start

    def noted(self: LaunchedSteps, batch: Any) -> Any:
        asked_of_steps.append(int(batch.num_draft_tokens.sum()))
        return start(self, batch)

    monkeypatch.setattr(LaunchedSteps, "start", noted)
    async with harness.engine(  # type: ignore[arg-type]
        InlineExecutor(inner.config, inner), max_num_batched_tokens=64, num_speculative_tokens=MOST
    ) as core:
        assert core._scheduler is not None
        core._scheduler.policies.lengths._verify = None
        settings = SamplingParams(temperature=0.0, frequency_penalty=0.01)
        asked = [harness.request([3 + i, 4, 5, 6] * 3, 16, settings) for i in range(8)]
        await asyncio.gather(*(harness.run(core, one) for one in asked))
        assert core.stats().drafts.num_draft_tokens > 50
    assert max(asked_of_steps) == 7 and not host_steps.counts


async def test_an_executor_that_launches_nothing_has_no_limit_of_drafts(path: Path) -> None:
    assert (await plain(path)).capabilities().max_step_drafts is None
    assert (await faked(path, captures=False, max_drafts=0)).capabilities().max_step_drafts is None
    assert (await faked(path, captures=False)).capabilities().max_step_drafts == 16 * MOST


@pytest.mark.parametrize("out", [1, 2, 3])
async def test_an_engine_that_drafts_gives_what_it_gives_without(repeating: Path, out: int) -> None:
    """Drafts of n-grams, of prompts that repeat themselves, beside sequences that need the host."""
    settings = (GREEDY, *PLAIN, *SHAPED, *HOSTED_SETTINGS)
    prompts = [([3 + i, 4, 5, 6] * 5)[: 9 + i] for i in range(len(settings))]
    found = []
    for inner, drafts in ((await faked(repeating), MOST), (await plain(repeating), 0)):
        executor = InlineExecutor(inner.config, inner)
        async with harness.engine(  # type: ignore[arg-type]
            executor,
            max_in_flight=out if drafts else 1,
            max_num_batched_tokens=64,
            num_speculative_tokens=drafts,
        ) as core:
            assert core._scheduler is not None
            core._scheduler.policies.lengths._verify = None  # all are verified, whether they pay or not
            asked = [harness.request(prompt, 20, one) for prompt, one in zip(prompts, settings, strict=True)]
            found.append(await asyncio.gather(*(harness.run(core, one) for one in asked)))
            stats = core.stats().drafts
            assert (stats.num_draft_tokens > 50 and stats.num_accepted_tokens > 10) == bool(drafts)
    assert found[0] == found[1]


# -- which steps need the host ---------------------------------------------------------------------------------------------

LAUNCHED: list[tuple[str, SamplingParams, dict[str, Any], int]] = [
    ("greedy", GREEDY, {}, 2),
    ("sampled", PLAIN[4], {}, 2),
    ("logprobs", FIXED[2], {}, 2),
    ("biases and bans", SHAPED[3], {}, 2),
    ("allowed ids", FIXED[1], {}, 2),
    ("penalties", SHAPED[0], {}, 0),
    ("min_tokens", SHAPED[4], {}, 0),
    ("penalties, drafts", SHAPED[0], {}, 2),
    ("min_tokens, drafts", SHAPED[4], {}, 2),
    ("grammar", GREEDY, {"grammar": GRAMMAR}, 0),
    ("grammar, drafts", GREEDY, {"grammar": GRAMMAR}, 2),
]
HOSTED: list[tuple[HostReason, SamplingParams, dict[str, Any], int]] = [
    (HostReason.OUTPUT, GREEDY, {"prompt_logprobs": 1}, 0),
    (HostReason.SETTINGS, SamplingParams(temperature=0.75, seed=7, typical_p=0.5), {}, 0),
    (HostReason.SETTINGS, SamplingParams(temperature=0.75, seed=7, typical_p=0.5), {}, 2),
    (HostReason.SETTINGS, SamplingParams(temperature=0.75, seed=6, bad_words=((1, 2), (3,))), {}, 0),
]


async def step_beside_another(
    executor: FakeDeviceExecutor, settings: SamplingParams, extra: dict[str, Any], drafts: int
) -> None:
    """A prompt, and a step with so many drafts of it, beside a greedy sequence without any."""
    driver = Driver(executor)
    seq, other = driver.add([1, 2, 3], settings, **extra), driver.add([4, 5])
    first = await driver.step([(seq, [1, 2, 3], True, 0), (other, [4, 5], True, 0)])
    executor.launched.host_steps.counts.clear()
    inputs = [*first.token_ids.tolist()[:1], *[8] * drafts]
    output = await driver.step([(seq, inputs, True, drafts), (other, [6], True, 0)])
    assert output.num_tokens[0] >= 1 and output.num_tokens[1] == 1


@pytest.mark.parametrize(("name", "settings", "extra", "drafts"), LAUNCHED, ids=[one[0] for one in LAUNCHED])
async def test_these_steps_are_launched(
    path: Path, name: str, settings: SamplingParams, extra: dict[str, Any], drafts: int
) -> None:
    executor = await faked(path, captures=False)
    forwards = executor.launched.runner.forwards
    await step_beside_another(executor, settings, extra, drafts)
    assert not executor.launched.host_steps.counts and executor.launched.runner.forwards == forwards + 2
    assert not any("with the host" in note for note in executor.status().notes)


@pytest.mark.parametrize(("reason", "settings", "extra", "drafts"), HOSTED)
async def test_these_steps_take_the_hosts_way_and_are_counted(
    path: Path, reason: HostReason, settings: SamplingParams, extra: dict[str, Any], drafts: int
) -> None:
    executor = await faked(path, captures=False)
    await step_beside_another(executor, settings, extra, drafts)
    assert executor.launched.host_steps.counts == {reason: 1}
    assert f"steps computed with the host: 1 for {reason}" in executor.status().notes


async def test_every_reason_is_in_the_table() -> None:
    assert {one[0] for one in HOSTED} | {HostReason.TOO_MANY_DRAFTS} == set(HostReason)


async def test_more_drafts_than_there_is_room_for_take_the_hosts_way(path: Path) -> None:
    executor = await faked(path, captures=False, max_drafts=1)  # 16 rows, and as many drafts
    for drafts, counts in ((31, {}), (32, {HostReason.TOO_MANY_DRAFTS: 1})):
        executor.launched.host_steps.counts.clear()
        driver = Driver(executor)
        seq = driver.add([1, 2, 3])
        await driver.step([(seq, [1, 2, 3], True, 0)])
        await driver.step([(seq, [7] + [8] * drafts, True, drafts)])
        assert executor.launched.host_steps.counts == counts
        executor.release_cache(seq.seq_id)


async def test_more_shaped_drafts_than_have_results_take_the_hosts_way(path: Path) -> None:
    executor = await faked(path, captures=False, max_drafts=1)
    for drafts, counts in ((16, {}), (17, {HostReason.TOO_MANY_DRAFTS: 1})):
        executor.launched.host_steps.counts.clear()
        driver = Driver(executor)
        seq = driver.add([1, 2, 3], SHAPED[3])
        await driver.step([(seq, [1, 2, 3], True, 0)])
        await driver.step([(seq, [7] + [8] * drafts, True, drafts)])
        assert executor.launched.host_steps.counts == counts
        executor.release_cache(seq.seq_id)


# -- single steps ----------------------------------------------------------------------------------------------------------


async def test_a_row_without_a_token_fails_its_item_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is not finite behind a wrong draft is computed for nothing; one that counts ends its item."""
    executor = await faked(path, captures=False)
    driver = Driver(executor)
    seqs = [driver.add([one, 2, 3]) for one in (1, 5, 9)]
    output = await driver.step([(seq, seq.tokens, True, 0) for seq in seqs])
    sampled = output.token_ids.tolist()
    program = executor.launched.program
    alone = await plain(path)
    theirs = Driver(alone)
    following = []
    for one in (1, 5, 9):
        seq = theirs.add([one, 2, 3])
        tokens = (await theirs.step([(seq, seq.tokens, True, 0)])).token_ids.tolist()
        for _ in range(2):
            tokens += (await theirs.step([(seq, tokens[-1:], True, 0)])).token_ids.tolist()
        following.append(tokens)
    sample = program.sample

    def broken(step: Any) -> None:
        program.logits()[1], program.logits()[4] = torch.nan, torch.nan
        sample(step)

    monkeypatch.setattr(program, "sample", broken)
    wrong = (following[1][1] + 1) % 200
    items = [
        (seqs[0], [sampled[0], following[0][1]], True, 1),  # rows 0 and 1: its last row counts and is broken
        (seqs[1], [sampled[1], wrong, 7], True, 2),  # rows 2 to 4: the broken one is behind a wrong draft
        (seqs[2], [sampled[2], following[2][1]], True, 1),
    ]
    output = await driver.step(items)
    assert output.num_tokens.tolist() == [0, 1, 2]
    assert output[0] is not None and "finite" in str(output[0].error)
    assert output.token_ids.tolist() == [following[1][1], *following[2][1:3]]


def test_what_counts_is_the_longest_right_beginning() -> None:
    """Against the definition, item by item."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        drafts = rng.integers(0, 4, rng.integers(1, 6))
        sampled = rng.random(len(drafts)) < 0.8
        counts = np.where(sampled, drafts + 1, 0)
        item = np.repeat(np.arange(len(drafts)), counts)
        starts = np.cumsum(counts) - counts
        place = np.arange(len(item)) - starts[item]
        tokens = rng.integers(0, 2, len(item)).astype(np.int32)
        guesses = np.where(place < drafts[item], rng.integers(0, 2, len(item)), NO_GUESS)
        bad = rng.random(len(item)) < 0.1
        rows = SampledRows(drafts, counts, starts, item, place, item, item, guesses)
        counting, num_tokens = rows.keep(tokens, bad)
        expected, number = [], []
        for i in range(len(drafts)):
            own = range(starts[i], starts[i] + counts[i])
            right = next((n for n, row in enumerate(own) if bad[row] or tokens[row] != guesses[row]), 0)
            number.append(right + 1 if sampled[i] else 0)
            expected += [n < number[-1] for n in range(counts[i])]
        assert counting.tolist() == expected and num_tokens.tolist() == number


# -- faults on purpose -----------------------------------------------------------------------------------------------------


def a_neighbours_row(patch: pytest.MonkeyPatch) -> None:
    """Whether a draft is accepted is read from the row beside the one before it."""
    keep = SampledRows.keep
    patch.setattr(SampledRows, "keep", lambda self, tokens, bad: keep(self, np.roll(tokens, 1), bad))


def drafts_of_the_item_before(patch: pytest.MonkeyPatch) -> None:
    """A row is compared with the draft of another place."""
    keep = SampledRows.keep
    patch.setattr(
        SampledRows,
        "keep",
        lambda self, *given: keep(self._replace(guesses=np.roll(self.guesses, -1)), *given),
    )


def kv_of_a_rejected_draft(patch: pytest.MonkeyPatch) -> None:
    """A token counts that was computed behind a rejected draft."""
    keep = SampledRows.keep

    def more(self: SampledRows, *given: Any) -> Any:
        _, num_tokens = keep(self, *given)
        num_tokens = np.minimum(num_tokens + 1, self.counts).astype(np.int32)
        return self.place < num_tokens[self.item], num_tokens

    patch.setattr(SampledRows, "keep", more)


def changed_rows(patch: pytest.MonkeyPatch, change: Callable[[SampledRows], SampledRows]) -> None:
    """The packer finds other rows."""
    of = SampledRows.of
    patch.setattr(SampledRows, "of", staticmethod(lambda *given: change(of(*given))))


def the_last_token_behind_another_input(patch: pytest.MonkeyPatch) -> None:
    """The token behind the last draft is computed from the input before it."""
    changed_rows(patch, lambda rows: rows._replace(rows=rows.rows - ((rows.guesses < 0) & (rows.place > 0))))


def the_last_token_at_another_position(patch: pytest.MonkeyPatch) -> None:
    """The token behind the last draft has the noise of the position before it, and goes there."""
    changed_rows(
        patch, lambda rows: rows._replace(positions=rows.positions - ((rows.guesses < 0) & (rows.place > 0)))
    )


def settings_of_a_neighbour(patch: pytest.MonkeyPatch) -> None:
    """Rows have the settings of the item of the next row."""
    write = StepPacker._write_settings
    patch.setattr(
        StepPacker,
        "_write_settings",
        lambda self, host, slots, *rest: write(self, host, np.roll(slots, 1), *rest),
    )


def one_row_an_item(patch: pytest.MonkeyPatch) -> None:
    """Drafts are computed and not verified: the row behind all of them counts as the one behind the last token."""
    of = SampledRows.of

    def last(batch: Any, step: Any, sampled: np.ndarray) -> SampledRows:
        rows = of(batch, step, sampled)
        ends = (rows.starts + rows.counts - 1)[rows.item]
        return rows._replace(rows=rows.rows[ends])

    patch.setattr(SampledRows, "of", staticmethod(last))


def the_grammar_takes_the_first_token_alone(patch: pytest.MonkeyPatch) -> None:
    """Accepted drafts are unknown to it."""

    def first(self: LateSampler, tokens: np.ndarray) -> None:
        for (follower, _), place in zip(self._work, self._places, strict=True):
            follower.output.append(int(tokens[place]))

    patch.setattr(LateSampler, "record", first)


def drafts_without_masks(patch: pytest.MonkeyPatch) -> None:
    """Only the row behind the last known token is masked."""
    masks = Follower.masks

    def first(self: Follower, compiler: Any, inputs: Any, into: Any = None) -> Any:
        found = masks(self, compiler, inputs, into)
        if into is not None:
            into[1:] = -1
        return found

    patch.setattr(Follower, "masks", first)


def a_mask_for_all_drafts(patch: pytest.MonkeyPatch) -> None:
    """Rows behind drafts have the mask of the row before them."""
    masks = Follower.masks

    def same(self: Follower, compiler: Any, inputs: Any, into: Any = None) -> Any:
        found = masks(self, compiler, inputs, into)
        if into is not None:
            into[1:] = into[0]
        return found

    patch.setattr(Follower, "masks", same)


def shaped_otherwise(patch: pytest.MonkeyPatch, change: Callable[[RowShaping], RowShaping]) -> None:
    """Rows are shaped by something else, and counted as before."""
    patch.setattr(
        "executors.llm.sampling.device_sampler.shaped",
        lambda logits, shaping, part: shaped(logits, change(shaping), part),
    )


def the_drafts_of_another_row(patch: pytest.MonkeyPatch) -> None:
    """A row behind a draft counts the input of the row before it."""

    def change(one: RowShaping) -> RowShaping:
        return replace(one, inputs=torch.where(one.guessed > 0, one.inputs.roll(1), one.inputs))

    shaped_otherwise(patch, change)


def the_known_input_in_place_of_drafts(patch: pytest.MonkeyPatch) -> None:
    """A row counts its sequence's known input once more for each draft before it."""

    def change(one: RowShaping) -> RowShaping:
        first = torch.where(one.guessed == 0, torch.arange(len(one.rows)), 0).cummax(0)[0]
        return replace(one, inputs=one.inputs[first])

    shaped_otherwise(patch, change)


def a_rejected_draft_stays_counted(patch: pytest.MonkeyPatch) -> None:
    """The device counts drafts as it counts inputs."""
    patch.setattr(
        "executors.llm.sampling.device_sampler.count_inputs",
        lambda shaping: count_inputs(replace(shaping, guessed=torch.zeros_like(shaping.guessed))),
    )


def changed_counts(patch: pytest.MonkeyPatch, change: Callable[[RowImage], RowImage]) -> None:
    """The host counts accepted drafts otherwise."""
    put = UnsentRows.put
    patch.setattr(
        UnsentRows,
        "put",
        lambda self, row, image: put(self, row, change(image) if image.otherwise is None else image),
    )


def an_accepted_draft_counts_twice(patch: pytest.MonkeyPatch) -> None:
    changed_counts(
        patch, lambda one: replace(one, values=one.values + (np.arange(len(one.values)) > 0).astype(np.int32))
    )


def an_accepted_draft_does_not_count(patch: pytest.MonkeyPatch) -> None:
    changed_counts(patch, lambda one: replace(one, places=one.places[:1], values=one.values[:1]))


def the_last_input_is_counted_by_the_host_alone(patch: pytest.MonkeyPatch) -> None:
    """The device takes it for counted."""
    changed_counts(
        patch,
        lambda one: replace(one, values=one.values + (np.arange(len(one.values)) == 0).astype(np.int32)),
    )


HISTORY_MUTANTS = (
    the_drafts_of_another_row, the_known_input_in_place_of_drafts, a_rejected_draft_stays_counted, an_accepted_draft_counts_twice,
    an_accepted_draft_does_not_count, the_last_input_is_counted_by_the_host_alone,
)  # fmt: skip
MUTANTS = (
    a_neighbours_row, drafts_of_the_item_before, kv_of_a_rejected_draft, the_last_token_behind_another_input,
    the_last_token_at_another_position, settings_of_a_neighbour, one_row_an_item, the_grammar_takes_the_first_token_alone,
    drafts_without_masks, a_mask_for_all_drafts,
)  # fmt: skip


@pytest.mark.parametrize("mutate", [*MUTANTS, *HISTORY_MUTANTS], ids=lambda one: one.__name__)
async def test_a_mutant_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of several plays: whether a fault changes a token depends on the numbers that a CPU computes."""
    first_seed, settings, grammars = (
        (3, HISTORY, (None,)) if mutate in HISTORY_MUTANTS else (6, PLAIN, GRAMMARS)
    )
    for seed in range(first_seed, first_seed + 8):
        theirs = await plain(path)
        maker = DraftMaker(theirs, seed, await texts(theirs, seed, settings, grammars), MOST)
        ops = maker.make()
        ours = await faked(path, captures=False)
        with monkeypatch.context() as patch:
            mutate(patch)
            try:
                heard = await play(ours, ops, 2)
            except (AssertionError, ExecutorError):
                return
        if {seq: [one and one[0] for one in found] for seq, found in heard.items()} != maker.heard:
            return
    pytest.fail("no play shows it")
