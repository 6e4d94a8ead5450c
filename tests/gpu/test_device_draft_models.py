"""A draft model beside a model on a device that is played.

Where both are the same model every draft must be the token that comes: one that is not shows wrong KV, a wrong position or
a wrong row. With any draft model the texts are those without drafts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.part import Options
from engine.mailbox import Mailbox
from engine.policies.draft_length import DraftLengths
from engine.policies.draft_rests import DraftRests
from engine.request import Request
from executors.contract import (
    ConfigError,
    ExecutorAttentionConfig,
    ExecutorMemoryConfig,
    ModelExecutor,
    Pace,
)
from executors.contract.batch import SamplingParams, UnifiedBatch
from executors.contract.config import OptimizationConfig
from executors.llm.assembly.device_sizing import GRAPH_BYTES, graph_bytes
from executors.llm.executor import LlmExecutor
from executors.llm.spec.device_companion import DeviceDraftCompanion
from executors.llm.spec.device_forwards import DraftForwards
from executors.llm.step.launched.inputs import StepShape, section_of
from executors.llm.step.launched.packing import StepPacker
from executors.process.client import RemoteExecutor
from executors.process.inline import InlineExecutor
from executors.testing.conformance import run_case
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.engine import harness
from tests.executors.checkpoints import write_checkpoint
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.devices import Device
from tests.executors.llm.spec import test_companion as on_cpu
from tests.executors.llm.spec.test_companion import drafts_of
from tests.gpu import draft_agreement
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, begun
from tests.gpu.test_device_grammars import GRAMMARS
from tests.gpu.test_device_loras import OnDevice, adapters_of
from tests.gpu.test_device_windows import GEMMA2, WINDOWED
from tests.gpu.test_executor import GEMMA4
from tests.gpu.workloads import HOSTED, PLAIN, SHAPED, SMALL

pytestmark = pytest.mark.long

MOST = 4
PLAYED = Options("cpu", tiny=True, executor="tests.gpu.device_fakes:LateOnceFactory", mode="inline")
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of the same tokens, with a shorter context. Its drafts are wrong."""
    shape = {**SMALL, "num_hidden_layers": 1, "max_position_embeddings": 64}
    return write_checkpoint(tmp_path_factory.mktemp("draft"), shape, seed=5)


def settings(model: Path, draft: Path | None, **changes: Any) -> Any:
    chosen = on_cpu.config(model, draft)
    optimization = OptimizationConfig(
        draft_model=str(draft or ""), num_threads=1, max_drafts=MOST if draft else 0
    )
    return replace(chosen, optimization=optimization, **changes)


async def faked(
    model: Path, draft: Path | None, captures: bool = False, lateness: int = 3, **changes: Any
) -> FakeDeviceExecutor:
    return await begun(settings(model, draft, **changes), FakeDevice(lateness, captures))


def companion_of(executor: LlmExecutor) -> DeviceDraftCompanion:
    companion = executor._ready().companion
    assert isinstance(companion, DeviceDraftCompanion)
    return companion


async def playing(model: Path, draft: Path) -> Driver:
    return Driver(await faked(model, draft))


# -- drafts that must be right ---------------------------------------------------------------------------------------------


async def test_drafts_are_right_whatever_happens_between(path: Path) -> None:
    await on_cpu.whatever_happens(path, playing, 100)


async def test_drafts_are_right_from_graphs(path: Path) -> None:
    """Each forward of a draft model, with its sampler, is one graph."""
    executor = await faked(path, path, captures=True)
    device = executor.device
    assert isinstance(device, FakeDevice)
    sent: list[int] = []
    forwards = companion_of(executor).forwards
    send = forwards.send

    def noted(slots: np.ndarray, *given: Any, **more: Any) -> Any:
        sent.append(len(slots))
        return send(slots, *given, **more)

    forwards.send = noted  # type: ignore[method-assign]
    [truth] = await on_cpu.truths(path, [(list(range(3, 20)), PLAIN[1])], 24)
    driver = Driver(executor)
    seqs = [driver.add(range(3, 20), PLAIN[1]) for _ in range(3)]
    before, steps = device.replays, 1
    await driver.step(*(Feed(seq, num_drafts=3) for seq in seqs))
    while len(seqs[0].output) < 20:
        for seq in seqs:
            assert drafts_of(seq) == truth[len(seq.output) : len(seq.output) + 3]
        await driver.step(*(Feed(seq, drafts=drafts_of(seq), num_drafts=3) for seq in seqs))
        steps += 1
    assert [seq.output for seq in seqs] == 3 * [truth[: len(seqs[0].output)]]
    assert len(sent) == 1 + 3 * steps and device.replays - before == 2 * steps + len(sent)
    assert not executor.launched.host_steps.counts


def kv_in_a_neighbours_block(patch: pytest.MonkeyPatch) -> None:
    """A draft's KV goes where the block table of another slot says."""
    write = StepPacker.write

    def moved(self: StepPacker, host: Any, shape: StepShape, batch: UnifiedBatch, plan: Any) -> None:
        write(self, host, shape, batch, plan)
        if batch.pending is not None and batch.step_id == 0:
            cells = section_of(host._words, shape, "cells")
            cells[: len(batch)] = np.roll(cells[: len(batch)], 1) if len(batch) > 1 else -1

    patch.setattr(StepPacker, "write", moved)


def a_draft_of_the_round_before(patch: pytest.MonkeyPatch) -> None:
    """A forward reads the token before the last draft."""
    write = StepPacker.write

    def stale(self: StepPacker, host: Any, shape: StepShape, batch: UnifiedBatch, plan: Any) -> None:
        write(self, host, shape, batch, plan)
        if batch.pending is not None and batch.step_id == 0:
            section_of(host._words, shape, "source")[: len(batch)] -= 1

    patch.setattr(StepPacker, "write", stale)


def a_neighbours_draft(patch: pytest.MonkeyPatch) -> None:
    """Drafts are read in the order of rows, not of items."""
    send = DraftForwards.send

    def swapped(self: DraftForwards, *given: Any, **more: Any) -> Any:
        step = send(self, *given, **more)
        step._places = step._places[::-1].copy()
        return step

    patch.setattr(DraftForwards, "send", swapped)


def old_cells(patch: pytest.MonkeyPatch) -> None:
    """What a block held for another sequence counts as filled."""
    patch.setattr(DeviceDraftCompanion, "_note_tables", lambda self, batch: None)


@pytest.mark.parametrize(
    "mutate", [kv_in_a_neighbours_block, a_draft_of_the_round_before, a_neighbours_draft, old_cells]
)
async def test_mistakes_show(
    path: Path, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        await on_cpu.whatever_happens(path, playing, 100)


@pytest.mark.interpreted
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize(
    ("fields", "backend", "tokens"),
    [
        pytest.param(WINDOWED, "auto", 14, id="windows"),
        pytest.param(GEMMA4, "auto", 14, id="heads of two sizes, attention that is not packed"),
        pytest.param(SMALL, "triton", 3, id="kernels"),
        pytest.param(GEMMA2, "triton", 3, id="kernels, windows", marks=pytest.mark.long(extended=True)),
    ],
)
async def test_drafts_of_other_layers(
    fields: dict[str, Any], backend: str, tokens: int, tmp_path: Path
) -> None:
    model = write_checkpoint(tmp_path, fields)
    prompt = [3 + 7 * i % 90 for i in range(22)]
    [truth] = await on_cpu.truths(model, [(prompt, PLAIN[1])], tokens + MOST)
    driver = Driver(await faked(model, model, attention=ExecutorAttentionConfig(16, backend)))
    seq = driver.add(prompt, PLAIN[1])
    await driver.step(Feed(seq, 20, num_drafts=3))
    await driver.step(Feed(seq, num_drafts=3))
    while len(seq.output) < tokens:
        assert drafts_of(seq) == truth[len(seq.output) : len(seq.output) + 3]
        await driver.step(Feed(seq, drafts=drafts_of(seq), num_drafts=3))
    assert seq.output == truth[: len(seq.output)]


async def test_a_prompt_in_chunks_is_read_with_its_steps(path: Path) -> None:
    """Behind the last chunk only the token that it gave is missing."""
    prompt = [(7 * i) % 211 for i in range(100)]
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 5)
    executor = await faked(path, path)
    forwards, lens = companion_of(executor).forwards, []
    send = forwards.send

    def noted(slots: np.ndarray, q_lens: np.ndarray, *given: Any, **more: Any) -> Any:
        lens.append(q_lens.tolist())
        return send(slots, q_lens, *given, **more)

    forwards.send = noted  # type: ignore[method-assign]
    driver = Driver(executor)
    seq = driver.add(prompt, GREEDY)
    for _ in range(2):
        await driver.step(Feed(seq, 40, num_drafts=MOST))
    await driver.step(Feed(seq, num_drafts=MOST))
    assert drafts_of(seq) == truth[1:5] and lens == [[40], [40], [20], [1], [1], [1], [1]]


# -- steps launched ahead --------------------------------------------------------------------------------------------------


async def submitted(executor: ModelExecutor, batch: UnifiedBatch) -> asyncio.Task[Any]:
    task = asyncio.create_task(executor.unified_decode(batch))
    await asyncio.sleep(0)
    return task


async def test_a_step_behind_decides_who_gets_drafts(path: Path) -> None:
    """It may go on with a sequence, or have blocks that one has lost, and no tokens are to wait for it: none are made."""
    prompts = [[5, 6, 7], [9, 8], [1, 2, 3, 4], [30, 31]]
    said = await on_cpu.truths(path, [(prompt, GREEDY) for prompt in prompts], 8)
    driver = Driver(await faked(path, path, lateness=40))
    seqs = [driver.add(prompt, GREEDY) for prompt in prompts]
    first = await submitted(driver.executor, driver.batch(*(Feed(seq, num_drafts=2) for seq in seqs)))
    # The second goes on, the third loses its blocks to a newcomer, the fourth is gone.
    seqs[1].num_computed, seqs[1].tokens = 2, [*seqs[1].tokens, said[1][0]]
    driver.release(seqs[3])
    on_cpu._preempt(driver, seqs[2])
    newcomer = driver.add([40, 41, 42, 43], GREEDY)
    second = await submitted(
        driver.executor, driver.batch(Feed(seqs[1], pending=True), Feed(newcomer, num_drafts=2))
    )
    drafts = [list(one.drafts) for one in await first]
    assert drafts == [[], [], [], []]
    [truth] = await on_cpu.truths(path, [([40, 41, 42, 43], GREEDY)], 4)
    assert [list(one.drafts) for one in await second] == [[], truth[1:3]]
    # What the draft model has not seen it reads behind the next step.
    seqs[0].num_computed, seqs[0].tokens = 3, [*seqs[0].tokens, said[0][0]]
    await driver.step(Feed(seqs[0], num_drafts=2))
    assert drafts_of(seqs[0]) == said[0][2:4]


async def test_drafting_whatever_was_launched_meanwhile_shows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceDraftCompanion, "_is_as_in", lambda self, launch, slot: True)
    with pytest.raises(AssertionError):
        await test_a_step_behind_decides_who_gets_drafts(path)


async def test_work_of_an_epoch_is_forgotten(path: Path) -> None:
    """In its second life a draft model computes everything again."""
    prompt = list(range(3, 40))
    [truth] = await on_cpu.truths(path, [(prompt, GREEDY)], 12)
    executor = await faked(path, path)
    driver = Driver(executor)
    seq = driver.add(prompt, GREEDY)
    await driver.step(Feed(seq, num_drafts=3))
    for cache in companion_of(executor)._caches:
        for layer in cache.layers:
            layer.fill_(np.nan)
    await executor.begin_epoch(2)
    driver = Driver(executor, 2)
    seq = driver.add(prompt, GREEDY, output=truth[:4])
    await driver.step(Feed(seq, num_drafts=3))
    assert seq.output == truth[:5] and drafts_of(seq) == truth[5:8]


async def test_a_draft_that_is_not_finite_ends_the_drafts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = await faked(path, path)
    program = companion_of(executor).forwards.program
    forward, calls = program.forward, list[None]()

    def broken(*given: Any) -> None:
        forward(*given)
        calls.append(None)
        if len(calls) == 3:  # the prompt, the first draft, the second
            program.logits().fill_(np.nan)

    monkeypatch.setattr(program, "forward", broken)
    driver = Driver(executor)
    seq = driver.add([5, 6, 7], GREEDY)
    await driver.step(Feed(seq, num_drafts=4))
    assert len(drafts_of(seq)) == 1 and len(calls) == 5


@pytest.mark.parametrize("captures", [False, True])
async def test_beside_grammars_logprobs_and_penalties(tmp_path: Path, captures: bool) -> None:
    """A step that waits for a mask has its prompts read between its forward and its sampler."""
    path = write_tokenizer(write_checkpoint(tmp_path, SMALL), 200)
    asked = list[tuple[list[int], SamplingParams, dict[str, Any]]]()
    for number in range(10):
        sampling = (*PLAIN, *SHAPED[:2], replace(PLAIN[0], logprobs=2))[number % 6]
        options: dict[str, Any] = {"grammar": one} if (one := GRAMMARS[number % len(GRAMMARS)]) else {}
        asked.append(([3 + (7 * i + number) % 190 for i in range(5 + 9 * (number % 3))], sampling, options))
    heard = []
    for executor in (LlmExecutor.from_config(settings(path, None)), await faked(path, path, captures)):
        drafting = isinstance(executor, FakeDeviceExecutor)
        driver = Driver(executor) if drafting else await Driver.start(executor)
        waiting, live, done = list(asked), list[DrivenSequence](), list[DrivenSequence]()
        while waiting or live:
            if waiting and len(live) < 5:
                prompt, sampling, options = waiting.pop(0)
                live.append(driver.add(prompt, sampling, **options))
            await driver.step(
                *(
                    Feed(seq, drafts=drafts_of(seq) if seq.outputs else (), num_drafts=3 * drafting)
                    for seq in live
                )
            )
            for seq in [one for one in live if len(one.output) >= 12 or not one.outputs[-1].tokens]:  # type: ignore[union-attr]
                driver.release(seq)
                live.remove(seq)
                done.append(seq)
        done.sort(key=lambda one: one.seq_id)
        heard.append([(seq.output[:12], [one.logprob for one in seq.samples[:12]]) for seq in done])
    for (tokens, logprobs), (expected, theirs) in zip(heard[1], heard[0], strict=True):
        assert tokens == expected
        assert [one is None for one in logprobs] == [one is None for one in theirs]
        assert [one or 0.0 for one in logprobs] == pytest.approx([one or 0.0 for one in theirs], abs=1e-4)
    assert not executor._ready().unified.launched.host_steps.counts  # type: ignore[union-attr]


async def test_beside_adapters(path: Path, tmp_path: Path) -> None:
    """The draft model has none: its drafts for rows with adapters are those of the model alone."""
    packed, _ = adapters_of(path, tmp_path, (4, 2))
    prompts = [[3 + (7 * i + number) % 190 for i in range(20)] for number in range(3)]
    heard = []
    for draft in (None, path):
        given = settings(path, draft)
        executor = OnDevice.from_config(
            replace(given, optimization=replace(given.optimization, max_loras=3, max_lora_rank=8))
        )
        executor.device = FakeDevice(captures=False)
        driver = await Driver.start(executor)
        for number, one in enumerate(packed):
            await executor.load_adapter(f"a{number}", str(one.path), one.digest)
        named = zip(prompts, (None, "a0", "a1"), strict=True)
        seqs = [driver.add(prompt, PLAIN[1], adapter=adapter) for prompt, adapter in named]
        accepted = 0
        while min(len(seq.output) for seq in seqs) < 12:
            feeds = []
            for seq in seqs:
                drafts = drafts_of(seq) if seq.outputs else []
                feeds.append(Feed(seq, drafts=drafts, num_drafts=3 if draft else 0))
            before = len(seqs[0].output)
            await driver.step(*feeds)
            accepted += len(seqs[0].output) - before == 4
        heard.append([seq.output[:12] for seq in seqs])
    assert heard[0] == heard[1] and accepted >= 2


# -- with an engine --------------------------------------------------------------------------------------------------------

PROMPTS = [[*range(3, 20), number] for number in range(4)] + [[9, 8, 7], [5], [40, 41, 42, 43, 44]]
"""Some begin alike: prefix hits."""
ALL_SETTINGS = (GREEDY, *PLAIN, *SHAPED[:3], *HOSTED)


def asked(tokens: int) -> list[Request]:
    """Calls with all settings, two of three choices each."""
    calls = []
    for number, sampling in enumerate(ALL_SETTINGS):
        calls.append(harness.request(PROMPTS[number % len(PROMPTS)], tokens, sampling))
    return calls


async def texts(
    executor: Any, tokens: int, drafts: int, out: int, pace: Pace | None = None, aborts: bool = False,
    preempts: bool = False,
) -> list[Any]:  # fmt: skip
    """What an engine answers to `asked`. `pace`: by which it judges whether drafts pay; None: all are verified."""
    method: dict[str, Any] = (
        {"speculative_method": "draft_model", "num_speculative_tokens": drafts} if drafts else {}
    )
    async with harness.engine(executor, max_in_flight=out, max_num_batched_tokens=64, **method) as core:
        assert core._scheduler is not None
        lengths = core._scheduler.policies.lengths
        lengths._verify = None  # all drafts are verified, whether they pay or not
        if pace is not None:
            lengths.expect(pace, overlaps=out > 1)
        elif drafts and out > 1:
            lengths._rests = DraftRests()  # steps overlap: one that drafts waits for those before it
        tasks = [asyncio.create_task(harness.run(core, one)) for one in asked(tokens)]
        if aborts:
            for number in range(3):
                box = Mailbox()
                seq_id = core.submit(harness.request(PROMPTS[number], 30), box)
                await asyncio.sleep(0.05)
                core.abort(seq_id)
        found = await asyncio.gather(*tasks)
        seen = core.stats()
        if drafts and pace is None:
            assert seen.drafts.num_draft_tokens > 30
        assert (seen.preemptions > 0) == preempts and seen.prefix_hits > 0
    return found


async def plain_texts(path: Path, tokens: int) -> list[Any]:
    executor = LlmExecutor.from_config(settings(path, None))
    await executor.warmup()
    return await texts(InlineExecutor(executor.config, executor), tokens, 0, 1)


@pytest.mark.parametrize(("out", "same"), [(1, True), (2, False), (3, True)])
async def test_an_engine_gives_what_it_gives_without(path: Path, other: Path, out: int, same: bool) -> None:
    """Beside steps that the host computes, prefix hits, aborts and preemption."""
    draft = path if same else other
    few: dict[str, Any] = {"attention": ExecutorAttentionConfig(4), "max_model_len": 64}
    [group] = (await faked(path, draft, **few)).kv_layout().groups
    small = ExecutorMemoryConfig(kv_cache_memory_bytes=24 * group.bytes_per_block)
    inner = await faked(path, draft, lateness=1, memory=small, **few)
    executor = InlineExecutor(inner.config, inner)
    assert await texts(executor, 14, MOST, out, aborts=True, preempts=True) == await plain_texts(path, 14)


async def test_an_engine_that_rests_gives_what_it_gives_without(path: Path, other: Path) -> None:
    """Drafts that never pay: steps launched ahead and steps that draft take turns."""
    inner = await faked(path, other, lateness=1)
    pace = Pace(1e-5, ((1, 1e-3), (8, 1.1e-3)), ((1, 1e-5), (8, 1e-5)))
    executor = InlineExecutor(inner.config, inner)
    assert await texts(executor, 40, MOST, 2, pace) == await plain_texts(path, 40)


@pytest.mark.parametrize("out", [2, 3])
async def test_drafts_are_right_after_steps_launched_ahead(
    path: Path, out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few steps draft and a few are launched ahead, in turns: what those computed, the draft model reads later."""
    monkeypatch.setattr(DraftLengths, "could_pay", lambda self, num_seqs: self._step // 4 % 2 == 0)
    inner = await faked(path, path, lateness=1)
    executor: Any = InlineExecutor(inner.config, inner)
    method: dict[str, Any] = {"speculative_method": "draft_model", "num_speculative_tokens": MOST}
    async with harness.engine(executor, max_in_flight=out, max_num_batched_tokens=64, **method) as core:
        assert core._scheduler is not None
        lengths = core._scheduler.policies.lengths
        lengths._rests = DraftRests()
        calls = [harness.request(prompt, 60, one) for prompt, one in zip(PROMPTS, PLAIN, strict=False)]
        found = await asyncio.gather(*(harness.run(core, one) for one in calls))
        stats, steps = core.stats().drafts, core.stats().steps
    assert [len(text) for text, _ in found] == len(calls) * [60]
    assert stats.num_accepted_tokens > 0.97 * stats.num_draft_tokens > 100 and steps < 60


async def test_streams_go_on_after_a_kill(path: Path) -> None:
    expected = await plain_texts(path, 24)
    chosen = replace(settings(path, path), executor="tests.gpu.device_fakes:Factory")
    remote = RemoteExecutor(replace(chosen, optimization=replace(chosen.optimization, enforce_eager=True)))
    served: Any = remote
    method: dict[str, Any] = {"speculative_method": "draft_model", "num_speculative_tokens": MOST}
    async with harness.engine(served, recovery_timeout=60.0, max_in_flight=2, **method) as core:
        assert core._scheduler is not None
        core._scheduler.policies.lengths._verify = None  # as large as the model, it would not pay
        calls = asked(24)
        boxes = [Mailbox() for _ in calls]
        for one, box in zip(calls, boxes, strict=True):
            core.submit(one, box)
        first = await boxes[0].take()
        remote.kill()
        texts = await harness.read_all(boxes, first[0])
        found = [([token.token_id for token in whole.tokens], whole.finish_reason) for whole in texts]
        assert core.stats().resumed > 0 and core.stats().drafts.num_accepted_tokens > 0
    assert found == expected


@pytest.mark.interpreted
def test_the_part_of_gpu_check_runs() -> None:
    figures: dict[str, Any] = {}
    draft_agreement.run(PLAYED, figures.update)
    assert figures["model_drafts_identical"] == figures["identical"] == figures["sequences"]
    assert figures["model_drafts_accepted"] > 10


@pytest.mark.parametrize(
    "case", ["drafts_come_as_asked", "own_drafts_change_no_token", "verify_in_a_mixed_batch"]
)
async def test_conformance(path: Path, other: Path, case: str) -> None:
    for draft in (path, other):

        def make(draft: Path = draft) -> LlmExecutor:
            executor = FakeDeviceExecutor.from_config(settings(path, draft))
            executor.device = FakeDevice(1, False)
            return executor

        assert await run_case(case, make) is None


# -- start -----------------------------------------------------------------------------------------------------------------


async def test_another_vocabulary_is_refused(path: Path, tmp_path: Path) -> None:
    strange = write_checkpoint(tmp_path / "strange", {**SMALL, "vocab_size": 130})
    with pytest.raises(ConfigError, match="its vocabulary has 130 tokens"):
        await faked(path, strange)


class Sized(FakeDeviceExecutor):
    """With memory of its own."""

    memory = Device()


async def test_the_pool_is_sized_for_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the largest forwards of a draft model run with the largest steps."""
    sent: list[tuple[int, int]] = []
    send = DraftForwards.send

    def noted(self: DraftForwards, slots: np.ndarray, q_lens: np.ndarray, *more: Any, **given: Any) -> Any:
        sent.append((len(slots), int(q_lens.sum())))
        return send(self, slots, q_lens, *more, **given)

    monkeypatch.setattr(DraftForwards, "send", noted)
    layouts = []
    for draft in (None, path):
        chosen = settings(path, draft, max_num_seqs=3, max_num_batched_tokens=16, max_model_len=32)
        executor = Sized.from_config(replace(chosen, memory=ExecutorMemoryConfig()))
        await executor.warmup()
        layouts.append(executor.kv_layout())
        assert executor.capabilities().drafts == (draft is not None)
        assert executor.capabilities().max_step_drafts == (3 * MOST if draft else None)
        await executor.shutdown()
    assert sent == 2 * [(3, 16), *MOST * [(3, 3)]]
    [alone], [both] = (layout.groups for layout in layouts)
    assert both.bytes_per_block == 2 * alone.bytes_per_block and both.num_blocks == alone.num_blocks
    with_draft, without = (settings(path, draft, max_num_seqs=64) for draft in (path, None))
    assert graph_bytes(with_draft) > graph_bytes(without) + 10 * GRAPH_BYTES


async def test_a_forward_is_timed(path: Path) -> None:
    executor = await faked(path, path)
    runtime, companion = executor._ready(), companion_of(executor)
    assert runtime._time_draft(companion, 3, 31) > 0 and not len(executor.slot_table())
    driver = Driver(executor)
    seq = driver.add([1, 2, 3], GREEDY)
    output = await executor.unified_decode(driver.batch(Feed(seq, num_drafts=2)))
    assert output.drafts is not None and output.drafts.rounds == 2 and output.drafts.seconds > 0
