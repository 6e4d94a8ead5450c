"""Grammars in launched steps: the tokens that the host's stages give, the forward ahead of the mask, and faults on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executors.contract import ExecutorError
from executors.contract.batch import ItemOutput, SamplingParams
from executors.contract.errors import OutOfMemory
from executors.llm.executor import LlmExecutor
from executors.llm.sampling.grammar import GrammarState
from executors.llm.sampling.slot_grammars import Follower, SlotGrammars
from executors.llm.step import pending_steps
from executors.llm.step.launched.grammar_rows import GrammarRows, LateSampler
from executors.llm.step.launched.packing import StepPacker
from executors.llm.step.launched.queueing import StepQueue
from executors.llm.step.pending_steps import PendingStep
from tests.executors.checkpoints import write_checkpoint
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import Driver, Sequence, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, begun
from tests.gpu.workloads import HOSTED, PLAIN, SHAPED, SMALL, Maker, Op, play

pytestmark = pytest.mark.long

GRAMMARS = (
    None, "start: /[a-m ]{2,40}/", 'start: ("x" | "yz")+', '{"grammars": [{"json_schema": {"type": "array", "items": '
    '{"type": "integer"}}}]}', "start: /(.|\\n)*/",
)  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(write_checkpoint(tmp_path_factory.mktemp("small"), SMALL), 200)


class Grammatical(Maker):
    """As `Maker`; most sequences follow a grammar."""

    def _join(self) -> None:
        rng = self._rng
        prompt = [rng.randrange(200) for _ in range(rng.choice((1, 2, 5, 17, 30)))]
        extra = {} if (grammar := rng.choice(GRAMMARS)) is None else {"grammar": grammar}
        seq = self._driver.add(prompt, rng.choice(self._settings), **extra)
        self._live.append((seq, rng.randrange(3, 12)))


async def faked(path: Path, captures: bool = True, lateness: int = 3) -> FakeDeviceExecutor:
    return await begun(config(path), FakeDevice(lateness, captures))


async def plain(path: Path) -> LlmExecutor:
    executor = LlmExecutor.from_config(config(path))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


def tokens_of(heard: dict[int, list[Any]]) -> dict[int, list[Any]]:
    return {seq: [one[0] if isinstance(one, tuple) else one for one in found] for seq, found in heard.items()}


async def same_tokens(
    path: Path, seed: int, settings: tuple[SamplingParams, ...], out: int, captures: bool = True
) -> tuple[FakeDeviceExecutor, list[Op]]:
    ours, theirs = await faked(path, captures), await plain(path)
    ops = Grammatical(theirs, seed, settings).make(60)
    heard = await asyncio.wait_for(play(ours, ops, out), 200)
    assert tokens_of(heard) == tokens_of(await play(theirs, ops))
    if not set(settings) & set(SHAPED):  # which may ban all that a grammar leaves
        assert not any(isinstance(one, str) for found in tokens_of(heard).values() for one in found)
    return ours, ops


@pytest.mark.parametrize(
    ("seed", "settings", "out", "captures"),
    [
        (1, PLAIN, 1, True), (2, PLAIN, 2, True), (3, PLAIN + SHAPED, 2, True), (4, PLAIN + SHAPED, 2, False),
        (5, PLAIN * 2 + SHAPED + HOSTED, 2, True),
    ],
)  # fmt: skip
async def test_rows_with_grammars_give_what_the_host_gives(
    path: Path, seed: int, settings: tuple[SamplingParams, ...], out: int, captures: bool
) -> None:
    ours, ops = await same_tokens(path, seed, settings, out, captures)
    steps = sum(not isinstance(op, int) for op in ops)
    if captures and not set(settings) & set(HOSTED):
        assert ours.device is not None and ours.device.replays == 2 * steps, "a step left its graphs"


def steady(executor: LlmExecutor, seed: int, steps: int) -> list[Op]:
    """The same sequences decode again and again, by steps that repeat each other."""
    driver = Driver(executor, seed)
    seqs = [
        driver.add(
            [number] * (1 + 3 * number), PLAIN[number % len(PLAIN)], **({"grammar": one} if one else {})
        )
        for number, one in enumerate(GRAMMARS)
    ]
    ops: list[Op] = [driver.batch([(seq, seq.tokens, True, 0) for seq in seqs])]
    for seq in seqs:
        seq.computed = seq.num_prompt
    for _ in range(steps):
        pending = np.ones(len(seqs), np.bool_)
        ops.append(driver.batch([(seq, [-1], True, 0) for seq in seqs], pending=pending))
        for seq in seqs:
            seq.computed += 1
    return ops


@pytest.mark.parametrize("mutated", [False, True])
async def test_steps_that_repeat_each_other_have_masks_of_their_own(
    path: Path, mutated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault on purpose: they keep the mask of the step that they repeat."""
    ours, theirs = await faked(path), await plain(path)
    ops, repeated = steady(theirs, 3, 24), [0]
    again = ours.launched._launch_again

    def counted(*given: Any) -> Any:
        repeated[0] += 1
        return again(*given)

    monkeypatch.setattr(ours.launched, "_launch_again", counted)
    if mutated:
        one_mask_for_long(monkeypatch)
    found, expected = tokens_of(await play(ours, ops, 2)), tokens_of(await play(theirs, ops))
    assert repeated[0] >= 20 and (found != expected) == mutated


async def started(executor: FakeDeviceExecutor, *grammars: str | None) -> tuple[Driver, list[Sequence]]:
    """Sequences behind their prompts, one for each grammar."""
    driver = Driver(executor)
    extras = [{} if one is None else {"grammar": one} for one in grammars]
    seqs = [driver.add([number + 1, 2, 3], PLAIN[number % 3], **extra) for number, extra in enumerate(extras)]
    await driver.step([(seq, seq.tokens, True, 0) for seq in seqs])
    return driver, seqs


def decode(driver: Driver, seqs: list[Sequence], launch: Callable[[Any], PendingStep]) -> PendingStep:
    """Launch a step whose tokens the host does not know."""
    batch = driver.batch([(seq, [-1], True, 0) for seq in seqs], pending=np.ones(len(seqs), np.bool_))
    for seq in seqs:
        seq.computed += 1
    return launch(batch)


def counts(executor: FakeDeviceExecutor) -> tuple[int, int]:
    """Replays of forwards and of samplers."""
    graphs = executor.launched.graphs
    assert graphs is not None
    forwards, samplers = graphs._forwards.values(), graphs._samplers.values()
    return sum(one.replays for one in forwards), sum(one.replays for one in samplers)  # type: ignore[attr-defined]


async def test_the_forward_is_launched_before_the_mask_can_be_made(path: Path) -> None:
    """And the sampler as soon as it is: nothing goes back to the engine in between."""
    executor = await faked(path, lateness=5)
    driver, seqs = await started(executor, GRAMMARS[1], None, GRAMMARS[2])
    launch, before = executor.unified.launch, counts(executor)
    first, second = (decode(driver, seqs, launch) for _ in range(2))

    def done() -> tuple[int, int]:
        now = counts(executor)
        return now[0] - before[0], now[1] - before[1]

    async def until(what: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not what():  # noqa: ASYNC110
                await asyncio.sleep(0)

    assert done()[0] == 2 and done()[1] <= 1, "the first knows its tokens, the second cannot"
    await until(first.ready)
    assert done() == (2, 1)
    assert len(first.result().token_ids) == 3
    assert second.late_sampler is not None and second.late_sampler._masks is not None, (
        "masks are made from then on"
    )  # type: ignore[attr-defined]
    await until(second.ready)
    assert done() == (2, 2) and len(second.result().token_ids) == 3


async def test_a_row_without_a_grammar_reads_no_mask(path: Path) -> None:
    executor = await faked(path)
    driver, seqs = await started(executor, None, None)
    step = decode(driver, seqs, executor.unified.launch)
    assert step.late_sampler is None and counts(executor)[0] == counts(executor)[1], "nothing waits"  # type: ignore[attr-defined]
    step.result()
    assert not executor.launched.queue.ring._ring[-1].masks.numel()


async def test_the_next_launch_queues_a_sampler_that_is_held(path: Path) -> None:
    """What it would overwrite are the logits of the step before."""
    executor = await faked(path)
    driver, seqs = await started(executor, GRAMMARS[1], GRAMMARS[3])
    steps = []
    for number in range(4):
        steps.append(decode(driver, seqs, executor.unified.launch))
        forwards, samplers = counts(executor)
        assert forwards - samplers == (1 if steps[-1].late_sampler._done is False else 0), number  # type: ignore[attr-defined]
        if len(steps) > 2:
            steps.pop(0).result()
    for step in steps:
        step.result()
    executor.launched.captures._drain()
    assert counts(executor)[0] == counts(executor)[1]


async def test_a_grammar_that_cannot_go_on_ends_its_own_item_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = await faked(path)
    driver, seqs = await started(executor, GRAMMARS[1], GRAMMARS[2], None)
    failure = GrammarState.failure

    def failing(self: GrammarState) -> Any:
        stuck = self._matcher is executor.unified.states.grammars.follower(seqs[1].slot)._state._matcher  # type: ignore[union-attr]
        return ItemOutput(error="the grammar is too large") if stuck else failure(self)

    monkeypatch.setattr(GrammarState, "failure", failing)
    output = decode(driver, seqs, executor.unified.launch).result()
    assert output.num_tokens.tolist() == [1, 0, 1] and len(output.token_ids) == 2
    assert output[1] is not None and "too large" in str(output[1].error)


async def test_a_sampler_that_fails_is_told_by_its_own_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch behind it goes on, and its buffer is marked and comes back."""
    executor = await faked(path, captures=False)
    driver, seqs = await started(executor, GRAMMARS[1])
    other = driver.add([9, 8])
    launch, program = executor.unified.launch, executor.launched.program
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OutOfMemory("no memory for the sampler")

        patch.setattr(program, "sample", fail)
        broken = decode(driver, seqs, launch)
        executor.launched.grammars.settle()
    behind = launch(driver.batch([(other, other.tokens, True, 0)]))
    assert len(behind.result().token_ids) == 1
    with pytest.raises(OutOfMemory, match="sampler"):
        broken.result()
    for _ in range(4):
        other.tokens.append(5)
        other.computed = len(other.tokens) - 1
        assert len(launch(driver.batch([(other, [5], True, 0)])).result().token_ids) == 1


async def test_a_step_behind_one_that_failed_is_skipped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = await faked(path)
    driver, seqs = await started(executor, GRAMMARS[1])
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise OutOfMemory("no memory for masks")

        patch.setattr(SlotGrammars, "start_packed", fail)
        first = decode(driver, seqs, executor.unified.launch)
    second = decode(driver, seqs, executor.unified.launch)
    for step, message in ((first, "no memory for masks"), (second, "a step that this one follows failed")):
        with pytest.raises(ExecutorError, match=message):
            step.result()
        step.settle()  # type: ignore[attr-defined]


async def test_masks_that_take_long_are_no_hung_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a grammar is compiled anew."""
    executor = await faked(path)
    driver, seqs = await started(executor, GRAMMARS[1])
    monkeypatch.setattr(pending_steps, "PATIENCE_S", 0.4)
    monkeypatch.setattr("executors.llm.executor.patience", lambda pace, batch: 0.0)
    executor._ready().pace = object()  # type: ignore[assignment]
    masks = Follower.masks

    def slow(self: Follower, *given: Any) -> Any:
        time.sleep(1.5)
        return masks(self, *given)

    monkeypatch.setattr(Follower, "masks", slow)
    output = await driver.step([(seqs[0], seqs[0].tokens[3:], True, 0)])
    assert len(output.token_ids) == 1


async def test_a_caller_that_leaves_leaves_no_held_sampler(path: Path) -> None:
    executor = await faked(path)
    driver, seqs = await started(executor, GRAMMARS[1], None)
    pending = np.ones(2, np.bool_)
    callers = []
    for _ in range(2):
        batch = driver.batch([(seq, [-1], True, 0) for seq in seqs], pending=pending)
        callers.append(asyncio.create_task(executor.unified_decode(batch)))
        for seq in seqs:
            seq.computed += 1
        await asyncio.sleep(0)
    callers[1].cancel()
    await callers[0]
    async with asyncio.timeout(20):
        await executor._steps.settled()
    assert counts(executor)[0] == counts(executor)[1]
    assert all(buffer.owner is None for buffer in executor.launched.queue.ring._ring)


# -- faults on purpose -----------------------------------------------------------------------------------------------------


def mask_before_the_token(patch: pytest.MonkeyPatch) -> None:
    """Masks are made without waiting for the token before them: they are those of another token."""
    patch.setattr(LateSampler, "_take_tokens", lambda self, wait: True)

    def start(self: LateSampler) -> None:
        self._before = ()
        if self._masks is None:
            into = self._queue.mask_rows(self._queued, len(self._work))
            self._masks = self._grammars.start_packed(
                [(follower, inputs._replace(pending=None, tokens=[5])) for follower, inputs in self._work],
                into,
            )

    patch.setattr(LateSampler, "start", start)


def a_neighbours_mask(patch: pytest.MonkeyPatch) -> None:
    """The masks lie in the order of items, not of rows."""
    items = GrammarRows.items
    patch.setattr(GrammarRows, "items", lambda self, *given: np.sort(items(self, *given))[::-1])


def the_first_row_for_all(patch: pytest.MonkeyPatch) -> None:
    """Every row reads the mask of the first."""
    write = StepPacker._write_settings

    def settings(self: StepPacker, host: Any, *given: Any) -> None:
        write(self, host, *given)
        section = host._sections["masked"]
        view = host._words[section.begin : section.begin + section.words]
        view[:] = np.minimum(view, 0)

    patch.setattr(StepPacker, "_write_settings", settings)


def a_neighbours_token(patch: pytest.MonkeyPatch) -> None:
    """A grammar takes the token of another row."""
    patch.setattr(
        LateSampler,
        "record",
        lambda self, tokens: [one.output.append(int(tokens[-1])) for one, _ in self._work],
    )


def masks_that_do_not_travel(patch: pytest.MonkeyPatch) -> None:
    """The sampler reads what lay on the device."""
    finish = StepQueue.finish
    patch.setattr(StepQueue, "finish", lambda self, step, masks: finish(self, step, 0))


def nothing_is_settled(patch: pytest.MonkeyPatch) -> None:
    """The next step is queued between a forward and its sampler."""
    patch.setattr(GrammarRows, "settle", lambda self: None)


def the_host_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """A step that the host computes follows a grammar whose tokens are in flight."""
    patch.setattr(GrammarRows, "settle_host", lambda self, slots, ring: None)


def one_mask_for_long(patch: pytest.MonkeyPatch) -> None:
    """A mask is kept from one token to the next."""
    masks = Follower.masks
    kept: dict[int, np.ndarray] = {}

    def same(self: Follower, compiler: Any, inputs: Any, into: Any = None) -> Any:
        found = masks(self, compiler, inputs, into)
        if into is not None:
            into[:] = kept.setdefault(id(self), into.copy())
        return found

    patch.setattr(Follower, "masks", same)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], tuple[int, tuple[SamplingParams, ...]]] = {
    mask_before_the_token: (2, PLAIN),
    a_neighbours_mask: (2, PLAIN),
    the_first_row_for_all: (2, PLAIN),
    a_neighbours_token: (2, PLAIN),
    masks_that_do_not_travel: (2, PLAIN),
    one_mask_for_long: (2, PLAIN),
    the_host_does_not_wait: (5, PLAIN * 2 + SHAPED + HOSTED),
}


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda one: one.__name__)
async def test_a_mutant_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of several plays: whether a fault changes a token depends on the numbers that a CPU computes."""
    first_seed, settings = MUTANTS[mutate]
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ExecutorError)):
        for seed in range(first_seed, first_seed + 50, 10):
            await same_tokens(path, seed, settings, 2, captures=False)


async def test_a_sampler_that_is_not_settled_is_caught(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In played steps it is a matter of time whether a sampler is held when the next step comes."""
    nothing_is_settled(monkeypatch)
    with pytest.raises(AssertionError):
        await test_the_next_launch_queues_a_sampler_that_is_held(path)
