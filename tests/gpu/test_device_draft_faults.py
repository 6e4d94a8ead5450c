"""Draft models on a device that is played, with steps in flight at random, without memory, and on a device that is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError, DeviceLost, ExecutorDied
from executors.llm.assembly.full_steps import full_steps
from executors.llm.executor import LlmExecutor
from executors.llm.spec.device_companion import DeviceDraftCompanion
from executors.llm.step.runner import ModelRunner
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.spec import test_companion as on_cpu
from tests.executors.llm.spec.test_companion import drafts_of
from tests.gpu import test_device_draft_models as models
from tests.gpu.device_fakes import FakeDevice
from tests.gpu.test_device_draft_models import (
    GREEDY,
    companion_of,
    faked,
    playing,
    submitted,
)
from tests.gpu.test_executor import GEMMA4
from tests.gpu.workloads import SMALL

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


# -- steps in flight -------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Stream:
    """A sequence whose steps may be in flight: its last `unknown` tokens are those of steps that have not answered. `verifying`:
    a step of it that has not, either, verifies drafts; `drafts` for its next step; `life` counts how often it began anew."""

    seq: DrivenSequence
    truth: list[int]
    unknown: int = 0
    verifying: bool = False
    drafts: list[int] = field(default_factory=list)
    life: int = 0


class Traffic:
    """Streams by hand, with up to three steps in flight, which answer in order."""

    def __init__(self, driver: Driver, rng: random.Random) -> None:
        self.driver, self.rng = driver, rng
        self.live: list[Stream] = []
        self.flying: list[tuple[asyncio.Task[Any], list[tuple[Stream, Feed, int, bool]]]] = []
        self.judged = 0

    def _feed(self, stream: Stream) -> Feed | None:
        seq, rng = stream.seq, self.rng
        left = len(seq.tokens) - seq.num_computed
        if stream.verifying or rng.random() < 0.25 or len(seq.output) > on_cpu.OUTPUT - 8:
            return None
        asked = rng.choice((0, 1, 2, 4))
        if left - stream.unknown > 1 and rng.random() < 0.5:
            return Feed(seq, rng.randrange(1, left - stream.unknown), num_drafts=asked)
        if stream.unknown:
            return Feed(seq, pending=True, num_drafts=asked)
        drafts = stream.drafts[: rng.randrange(5)] if left == 1 else []
        if drafts and rng.random() < 0.3:
            drafts[rng.randrange(len(drafts))] = rng.randrange(211)
        return Feed(seq, drafts=drafts, num_drafts=asked)

    async def launch(self) -> None:
        """Launch a step of some of them."""
        chosen = [(stream, feed) for stream in self.live if (feed := self._feed(stream)) is not None]
        if not chosen:
            return
        batch = self.driver.batch(*(feed for _, feed in chosen))
        launched = []
        for (stream, feed), count in zip(chosen, batch.num_q_tokens.tolist(), strict=True):
            seq, final = stream.seq, feed.count is None
            stream.drafts = []
            if feed.drafts:
                stream.verifying = True
            else:
                seq.num_computed += count
                if final:
                    seq.tokens.append(stream.truth[len(seq.output)])
                    stream.unknown += 1
            launched.append((stream, feed, stream.life, final))
        self.flying.append((await submitted(self.driver.executor, batch), launched))

    async def land(self) -> None:
        """Take in the answer of the oldest step."""
        task, launched = self.flying.pop(0)
        for (stream, feed, life, final), item in zip(launched, await task, strict=True):
            if stream.life != life:
                continue
            seq = stream.seq
            tokens = [] if item is None else [token.token_id for token in item.tokens]
            if feed.drafts:
                stream.verifying = False
                seq.num_computed += len(tokens)
                seq.tokens += tokens
            elif final:
                stream.unknown -= 1
            assert seq.output == stream.truth[: len(seq.output)]
            stream.drafts = [] if item is None or stream.unknown else list(item.drafts)
            assert stream.drafts == stream.truth[len(seq.output) : len(seq.output) + len(stream.drafts)]
            self.judged += len(stream.drafts)

    def disturb(self) -> None:
        """End some of them, in flight or not, and take the blocks of others away."""
        for stream in list(self.live):
            done = len(stream.seq.output) > on_cpu.OUTPUT - 8 and not stream.unknown
            if done or self.rng.random() < 0.02:
                self.driver.release(stream.seq)
                self.live.remove(stream)
                stream.life += 1
            elif stream.unknown < 2 and not stream.verifying and self.rng.random() < 0.1:
                on_cpu._preempt(self.driver, stream.seq)
                stream.drafts = []


@pytest.mark.parametrize("out", [1, 2, 3])
async def test_drafts_are_right_whatever_is_in_flight(path: Path, out: int) -> None:
    """Steps are launched before those before them have answered, beside others whose tokens are known."""
    rng = random.Random(out)
    family = [rng.randrange(211) for _ in range(90)]
    prompts = [family[:70], [*family[:50], 9, 8, 7], family[:33], [rng.randrange(211) for _ in range(25)]]
    asked = [(prompt, sampling) for prompt in prompts for sampling in on_cpu.SETTINGS]
    said = await on_cpu.truths(path, asked)
    traffic = Traffic(Driver(await faked(path, path, lateness=2)), rng)
    for _ in range(160):
        if len(traffic.live) < 4 and rng.random() < 0.4:
            number = rng.randrange(len(asked))
            others = [stream.seq for stream in traffic.live]
            seq = on_cpu._begin(traffic.driver, rng, *asked[number], others)
            traffic.live.append(Stream(seq, said[number]))
        await traffic.launch()
        while len(traffic.flying) >= out or (traffic.flying and rng.random() < 0.4):
            await traffic.land()
        traffic.disturb()
    while traffic.flying:
        await traffic.land()
    assert traffic.judged > 60


def drafting_behind_any_step(patch: pytest.MonkeyPatch) -> None:
    """A drafting begins although a later step was launched."""
    patch.setattr(DeviceDraftCompanion, "_is_as_in", lambda self, launch, slot: self._since[slot] <= launch)


def tokens_of_those_that_are_gone(patch: pytest.MonkeyPatch) -> None:
    """What a step gave an ended sequence is written among the tokens of the next one in its slot."""
    record = DeviceDraftCompanion._record
    patch.setattr(
        DeviceDraftCompanion, "_record", lambda self, batch, output, launch: record(self, batch, output, 1 << 40)
    )  # fmt: skip


def pending_tokens_read_early(patch: pytest.MonkeyPatch) -> None:
    """Inputs that the host does not know yet are read as if it knew them."""
    read = DeviceDraftCompanion._read_prompts
    patch.setattr(
        DeviceDraftCompanion, "_read_prompts", lambda self, batch: read(self, replace(batch, pending=None))
    )


def read_by(executor: LlmExecutor) -> list[tuple[int, list[int]]]:
    """A list that gets what the draft model's forwards are given for one sequence: position and token ids, without its drafts."""
    forwards, read = companion_of(executor).forwards, list[tuple[int, list[int]]]()
    send = forwards.send

    def noted(slots: np.ndarray, *given: Any, pending: bool = False) -> Any:
        _, offsets, tokens, _ = given
        if not pending:
            assert len(slots) == 1
            read.append((int(offsets[0]), tokens.tolist()))
        return send(slots, *given, pending=pending)

    forwards.send = noted  # type: ignore[method-assign]
    return read


async def test_an_ended_sequence_writes_nothing_among_the_tokens_of_the_next_one(path: Path) -> None:
    """It ends in flight. The next one has its slot already, and is read by the draft model only later."""
    prompt = [(7 * i) % 211 for i in range(30)]
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 8)
    driver = Driver(executor := await faked(path, path, lateness=40))
    ended = driver.add([5, 6, 7], GREEDY)
    before = await submitted(driver.executor, driver.batch(Feed(ended, num_drafts=2)))
    driver.release(ended)
    seq = driver.add(prompt, GREEDY, slot=ended.slot)
    first = await submitted(driver.executor, driver.batch(Feed(seq)))
    [gone], [begun] = await before, await first
    assert gone.tokens[0].token_id != prompt[3], "its token would not be noticed here"
    seq.num_computed, seq.tokens = 30, [*prompt, begun.tokens[0].token_id]
    read = read_by(executor)
    await driver.step(Feed(seq, num_drafts=3))
    assert read == [(0, [*prompt, *truth[:2]])]
    assert seq.output == truth[:2] and drafts_of(seq) == truth[2:5]


async def test_a_prompt_whose_last_token_is_unknown_is_read_later(path: Path) -> None:
    """It lost its blocks in flight: its next step computes its prompt again, with the token that is still to come."""
    prompt = [(7 * i) % 211 for i in range(30)]
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 8)
    driver = Driver(executor := await faked(path, path, lateness=40))
    seq = driver.add(prompt, GREEDY)
    first = await submitted(executor, driver.batch(Feed(seq)))
    on_cpu._preempt(driver, seq)
    seq.tokens = [*prompt, truth[0]]
    read = read_by(executor)
    second = await submitted(executor, driver.batch(Feed(seq, pending=True, num_drafts=3)))
    [begun], [next_one] = await first, await second
    assert [begun.tokens[0].token_id, next_one.tokens[0].token_id] == truth[:2]
    assert read == [(0, [*prompt, *truth[:2]])]
    assert list(next_one.drafts) == truth[2:5]


@pytest.mark.parametrize(
    ("mutate", "moment"),
    [
        (drafting_behind_any_step, models.test_a_step_behind_decides_who_gets_drafts),
        (
            tokens_of_those_that_are_gone,
            test_an_ended_sequence_writes_nothing_among_the_tokens_of_the_next_one,
        ),
        (pending_tokens_read_early, test_a_prompt_whose_last_token_is_unknown_is_read_later),
    ],
)
async def test_mistakes_in_flight_show(
    path: Path,
    mutate: Callable[[pytest.MonkeyPatch], None],
    moment: Callable[[Path], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each in the moment that it spoils: at random, whether there is one depends on the numbers that a CPU computes."""
    mutate(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        await moment(path)


# -- memory that is short, devices that are lost -----------------------------------------------------------------------------


def failing(
    patch: pytest.MonkeyPatch,
    executor: LlmExecutor,
    phase: str,
    fails: Callable[[int], bool],
    error: Exception,
) -> list[int]:
    """Raise an error from the draft model's calls whose numbers `fails` names, once their KV is written if `phase` is "sample".
    Returns a list that gets the numbers."""
    program = companion_of(executor).forwards.program
    call, numbers = getattr(program, phase), list[int]()

    def tried(*given: Any) -> None:
        numbers.append(len(numbers))
        if fails(numbers[-1]):
            raise error
        call(*given)

    patch.setattr(program, phase, tried)
    return numbers


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 is full")


@pytest.mark.parametrize("phase", ["forward", "sample"])
async def test_a_drafting_without_memory_costs_its_drafts_alone(
    path: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has its tokens already: it does not fail, and what was not computed does not count as filled."""
    seed = random.Random(3)

    async def short_of_memory(model: Path, draft: Path) -> Driver:
        driver = await playing(model, draft)
        assert isinstance(driver.executor, LlmExecutor)
        failing(monkeypatch, driver.executor, phase, lambda number: seed.random() < 0.05, NO_MEMORY)
        return driver

    await on_cpu.whatever_happens(path, short_of_memory, 100)


@pytest.mark.parametrize(
    ("missing", "number_of_drafts"),
    [(0, 4), (1, 0), (2, 1), (3, 2), (4, 3)],
    ids=["prompt", "1", "2", "3", "4"],
)
async def test_drafts_before_the_memory_ended_count(
    path: Path, missing: int, number_of_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [5, 6, 7, 8]
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 16)
    executor = await faked(path, path)
    read = read_by(executor)
    calls = failing(monkeypatch, executor, "forward", lambda number: number == missing, NO_MEMORY)
    driver = Driver(executor)
    seq = driver.add(prompt, GREEDY)
    await driver.step(Feed(seq, num_drafts=4))
    begin = 4 if missing else 0
    assert read == [(0, prompt), (begin, [*prompt, truth[0]][begin:])]
    assert drafts_of(seq) == truth[1 : 1 + number_of_drafts]
    before = len(calls)
    await driver.step(Feed(seq, drafts=drafts_of(seq), num_drafts=4))
    # The last draft, whose KV is not computed, and the token behind it.
    assert read[2:] == [(len(seq.tokens) - 2, seq.tokens[-2:])]
    assert drafts_of(seq) == truth[len(seq.output) : len(seq.output) + 4] and len(calls) == before + 4


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_the_largest_steps_tell_that_a_drafting_has_no_memory(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV is sized by what these steps take: they must not go on without drafts."""
    executor = await faked(path, path)
    runtime = executor._ready()
    blocks = [group.num_blocks for group in runtime.plan.layout.groups]
    *_, largest = full_steps(executor.config, runtime.info.max_model_len, blocks, 4096)
    failing(monkeypatch, executor, "forward", lambda at: at == number, NO_MEMORY)
    with pytest.raises(torch.OutOfMemoryError):
        runtime.run_alone(largest)
    runtime.run_alone(largest)


def filled_before_it_is_queued(patch: pytest.MonkeyPatch) -> None:
    """Tokens count as filled although no forward read them."""
    first = DeviceDraftCompanion._first_round

    def filled(self: DeviceDraftCompanion, wishes: Any) -> Any:
        for wish in wishes:
            self._fill(self._blocks_of(wish.slot), wish.begin, wish.end)
        return first(self, wishes)

    patch.setattr(DeviceDraftCompanion, "_first_round", filled)


def all_counted_as_computed(patch: pytest.MonkeyPatch) -> None:
    """The last draft counts as filled, where no forward behind it was queued."""
    end = DeviceDraftCompanion.end

    def ended(self: DeviceDraftCompanion, drafting: Any) -> Any:
        drafts = end(self, drafting)
        for wish in drafting.wishes:
            if wish.slot in self._ahead:
                self._ahead[wish.slot].token_ids = drafts.by_item().get(wish.item, [])
        return drafts

    patch.setattr(DeviceDraftCompanion, "end", ended)


@pytest.mark.parametrize(
    ("mutate", "missing", "number_of_drafts"),
    [(filled_before_it_is_queued, 0, 4), (all_counted_as_computed, 4, 3)],
)
async def test_forwards_that_were_not_queued_show(
    path: Path,
    mutate: Callable[[pytest.MonkeyPatch], None],
    missing: int,
    number_of_drafts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        await test_drafts_before_the_memory_ended_count(path, missing, number_of_drafts, monkeypatch)


async def test_a_block_that_could_not_be_copied_holds_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [(7 * i) % 211 for i in range(30)]
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 8)
    driver = await playing(path, path)
    assert isinstance(driver.executor, LlmExecutor)
    companion = companion_of(driver.executor)
    for _ in range(3):  # blocks that hold something of others
        await driver.step(Feed(other := driver.add(range(60), GREEDY), num_drafts=2))
        driver.release(other)
    first = driver.add(prompt, GREEDY)
    await driver.step(Feed(first, num_drafts=2))

    def none(pairs: Any) -> None:
        raise NO_MEMORY

    for cache in companion._caches:
        monkeypatch.setattr(cache, "copy_blocks", none)
    copy = driver.free_blocks[0].pop(0)
    driver.block_copies.append((0, first.blocks[0][1], copy))
    second = driver.add(prompt, GREEDY, shared_blocks=[[first.blocks[0][0], copy]], num_computed=29)
    await driver.step(Feed(second, num_drafts=3))
    assert second.output == truth[:1] and drafts_of(second) == truth[1:4]


@pytest.mark.parametrize("number", [0, 1, 3], ids=["reading a prompt", "first draft", "third draft"])
async def test_a_device_that_is_lost_within_a_drafting_ends_the_executor(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As within a step of the model."""
    executor = await faked(path, path)
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    failing(monkeypatch, executor, "forward", lambda at: at >= number, error)
    driver = Driver(executor)
    with pytest.raises(ExecutorDied) as died:
        await driver.step(Feed(driver.add([5, 6, 7], GREEDY), num_drafts=4))
    assert died.value.cause == "device"
    with pytest.raises(DeviceLost):
        await executor.begin_epoch(2)


@pytest.mark.parametrize("polls", range(0, 24, 3))
async def test_a_step_whose_caller_gives_up_still_drafts_right(path: Path, polls: int) -> None:
    """Cancelled before its tokens came, or while its drafts are queued: the next step goes on with what it wrote."""
    prompt = [(7 * i) % 211 for i in range(40)]
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 20)
    executor = await faked(path, path, lateness=8)
    driver = Driver(executor)
    seq = driver.add(prompt, GREEDY)
    task = await submitted(executor, driver.batch(Feed(seq, num_drafts=3)))
    for _ in range(polls):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    seq.num_computed, seq.tokens = 40, [*seq.tokens, truth[0]]
    for _ in range(3):
        await driver.step(Feed(seq, drafts=drafts_of(seq) if seq.outputs else (), num_drafts=3))
        assert drafts_of(seq) == truth[len(seq.output) : len(seq.output) + 3]
    assert seq.output == truth[: len(seq.output)]


async def test_more_drafts_than_buffers(path: Path) -> None:
    """A drafting of more forwards than it has buffers waits for the first of them."""
    [truth] = await on_cpu.truths(path, [([5, 6, 7], GREEDY)], 40)
    executor = await faked(path, path)
    assert len(companion_of(executor).forwards.queue.ring._ring) < 20
    driver = Driver(executor)
    seq = driver.add([5, 6, 7], GREEDY)
    await driver.step(Feed(seq, num_drafts=20))
    assert drafts_of(seq) == truth[1:21]


async def test_graphs_of_a_draft_model_alone_have_reserved_memory(tmp_path: Path) -> None:
    """A model that attends by inputs that are not packed has no graphs, and reserves nothing."""
    model = write_checkpoint(tmp_path / "model", GEMMA4)
    draft = write_checkpoint(tmp_path / "draft", {**SMALL, "vocab_size": GEMMA4["vocab_size"]})
    executor = await faked(model, draft, captures=True)
    device = executor.device
    assert isinstance(device, FakeDevice) and executor.launched.graphs is None and device.graphs
    loaded = executor._ready().draft
    assert loaded is not None and device.reserved > 256 * loaded.activation_bytes_per_token


async def test_a_model_whose_steps_are_not_launched_has_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelRunner, "takes_packed", False)
    with pytest.raises(ConfigError, match="models of Decoder are not launched on"):
        await faked(path, path)
