"""Steps in flight on a device that is late: buffers, marks and results stay whose they are, whatever fails or leaves between."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import StepFailed
from executors.contract.batch import SamplingParams, UnifiedBatch
from executors.llm.device import base
from executors.llm.step.launched import steps as launched_steps
from executors.llm.step.launched.inputs import BufferRing, StepBuffer
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.launched.queueing import RING
from executors.llm.step.launched.steps import LaunchedSteps
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, Sequence, config, start
from tests.gpu.device_fakes import GARBAGE, FakeDevice, FakeDeviceExecutor
from tests.gpu.workloads import PLAIN, SMALL

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
DRAWN = SamplingParams(temperature=0.8, seed=5, logprobs=3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def faked(path: Path, lateness: int = 3, captures: bool = True) -> FakeDeviceExecutor:
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = FakeDevice(lateness, captures)
    await executor.warmup()
    executor._idle.stop()
    await executor.begin_epoch(1)
    return executor


def buffers(executor: FakeDeviceExecutor) -> list[StepBuffer]:
    return list(executor.launched.queue.ring._ring)


def decoding(driver: Driver, seq: Sequence) -> UnifiedBatch:
    """The next decode step of a sequence whose last token the host does not know."""
    batch = driver.batch([(seq, [-1], True, 0)], pending=np.array([True]))
    seq.computed += 1
    return batch


def prompt(driver: Driver, seq: Sequence) -> UnifiedBatch:
    batch = driver.batch([(seq, seq.tokens, True, 0)])
    seq.computed = len(seq.tokens)
    return batch


# -- buffers and their marks -----------------------------------------------------------------------------------------------


def test_there_is_a_buffer_more_than_steps_in_flight() -> None:
    assert LaunchedSteps.max_in_flight + 1 <= RING


@pytest.mark.parametrize("change", [("RING", RING - 1), ("max_in_flight", RING)], ids=str)
async def test_a_ring_that_is_one_short_is_refused(
    path: Path, change: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, value = change
    monkeypatch.setattr(launched_steps if name == "RING" else LaunchedSteps, name, value)
    with pytest.raises(ValueError, match="buffers"):
        await faked(path)


class Copies:
    """Notes the copies from buffers that the device may not have made yet: begun when a step is queued, certain to be over when
    the mark recorded behind it has passed."""

    def __init__(self, executor: FakeDeviceExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ring = executor.launched.queue.ring
        self.begun: set[int] = set()
        monkeypatch.setattr(executor.launched.queue, "queueing", self.queueing)
        for buffer in buffers(executor):
            self._watch(buffer, monkeypatch)
        take = BufferRing.take

        def taken(ring: BufferRing) -> StepBuffer:
            buffer = take(ring)
            assert id(buffer) not in self.begun, "the device may still have to read what is overwritten now"
            return buffer

        monkeypatch.setattr(BufferRing, "take", taken)

    def _watch(self, buffer: StepBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
        record: Any = buffer.event.record

        def recorded() -> None:
            record()
            self.begun.discard(id(buffer))

        monkeypatch.setattr(buffer.event, "record", recorded)

    @contextlib.contextmanager
    def queueing(self) -> Iterator[None]:
        self.begun.add(id(self._ring._ring[-1]))
        yield


@pytest.mark.parametrize("where", ["forward", "sample", "described"])
async def test_a_step_that_fails_half_way_marks_its_buffer(
    path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is queued: the buffer's old mark would say that the device is done with it."""
    executor = await faked(path, lateness=40, captures=False)
    copies = Copies(executor, monkeypatch)
    driver = Driver(executor)
    seq = driver.add([1, 2, 3], DRAWN)
    await driver.step([(seq, seq.tokens, True, 0)])

    def fail(*_: object) -> None:
        raise RuntimeError("an odd thing")

    with monkeypatch.context() as patch:
        patch.setattr(executor.launched.program, where, fail)
        with pytest.raises(StepFailed, match="an odd thing"):
            await driver.step([(seq, seq.tokens[3:], True, 0)])
    assert not copies.begun
    for epoch in range(2, 4 + RING):
        await executor.begin_epoch(epoch)
        again = Driver(executor, epoch=epoch)
        fresh = again.add([1, 2, 3], DRAWN)
        await again.step([(fresh, fresh.tokens, True, 0)])
        assert fresh.tokens[3:] == seq.tokens[3:4]


async def test_a_third_step_that_fails_half_way_keeps_its_buffer_and_leaves_the_others_theirs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are out, whose results are not taken yet, and the copy of the third is queued when it fails."""
    executor = await faked(path, lateness=40, captures=False)
    copies = Copies(executor, monkeypatch)
    driver, plain = Driver(executor), Driver(await start(path))
    seq = driver.add([1, 2, 3], PLAIN[1])
    (expected,) = await plain.generate([plain.add([1, 2, 3], PLAIN[1])], 2)
    steps = [prompt(driver, seq), decoding(driver, seq), decoding(driver, seq)]
    callers = [asyncio.create_task(executor.unified_decode(step)) for step in steps[:2]]
    await asyncio.sleep(0)

    def fail(*_: object) -> None:
        raise RuntimeError("an odd thing")

    with monkeypatch.context() as patch:
        patch.setattr(executor.launched.program, "forward", fail)
        callers.append(asyncio.create_task(executor.unified_decode(steps[2])))
        await asyncio.sleep(0)
    assert sum(buffer.owner is not None for buffer in buffers(executor)) == 2
    assert not copies.begun, "its mark says that the device is done with it"
    first, second, third = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(third, StepFailed)
    assert [one[0].tokens[0].token_id for one in (first, second)] == expected  # type: ignore[index]
    await executor.begin_epoch(2)
    again = Driver(executor, epoch=2)
    fresh = again.add([1, 2, 3], PLAIN[1])
    assert (await again.generate([fresh], 2 + RING))[0][:2] == expected


async def test_an_error_while_marking_does_not_hide_why_a_step_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that is lost both raise."""
    executor = await faked(path, captures=False)
    driver = Driver(executor)
    seq = driver.add([1, 2, 3])

    def fail(*_: object) -> None:
        raise RuntimeError("the first error")

    def refuse() -> None:
        raise RuntimeError("the second error")

    monkeypatch.setattr(executor.launched.program, "forward", fail)
    for buffer in buffers(executor):
        monkeypatch.setattr(buffer.event, "record", refuse)
    with pytest.raises(StepFailed, match="the first error"):
        await driver.step([(seq, seq.tokens, True, 0)])


# -- callers that leave ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
async def test_a_cancelled_caller_leaves_no_buffer_behind(path: Path, left: tuple[int, ...]) -> None:
    """The one polls its event, the other waits for the one before it. The device computes both."""
    executor = await faked(path, lateness=40)
    driver = Driver(executor)
    seq = driver.add([1, 2, 3], PLAIN[1])
    steps = [prompt(driver, seq), decoding(driver, seq)]
    callers = [asyncio.create_task(executor.unified_decode(step)) for step in steps]
    await asyncio.sleep(0)
    for number in left:
        callers[number].cancel()
    found = await asyncio.gather(*(callers[number] for number in left), return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found)
    assert executor._steps.busy, "idle work would begin beside the device"
    held = [buffer for buffer in buffers(executor) if buffer.owner is not None]
    assert len(held) == 2, "results were taken before the device had them"
    await executor.begin_epoch(2)
    assert not executor._steps.busy and all(buffer.owner is None for buffer in buffers(executor))
    assert all(event.waited == 0 for event in executor.device.events)  # type: ignore[union-attr]
    for number in {0, 1} - set(left):
        assert len((await callers[number])[0].tokens) == 1
    again, plain = Driver(executor, epoch=2), Driver(await start(path))
    assert await again.generate([again.add([1, 2, 3], PLAIN[1])], 6) == await plain.generate(
        [plain.add([1, 2, 3], PLAIN[1])], 6
    )


async def test_a_penalty_counts_a_token_whose_caller_left(path: Path) -> None:
    """The step's results are recorded though its caller has left: later tokens of the sequence depend on them."""
    settings = SamplingParams(temperature=0.7, seed=3, repetition_penalty=1.7, presence_penalty=1.0)
    executor, plain = await faked(path, lateness=50), Driver(await start(path))
    (expected,) = await plain.generate([plain.add([1, 2, 3], settings)], 6)
    driver = Driver(executor)
    seq = driver.add([1, 2, 3], settings)
    tokens: list[int] = []
    for number in range(6):
        caller = asyncio.create_task(
            executor.unified_decode(decoding(driver, seq) if number else prompt(driver, seq))
        )
        await asyncio.sleep(0)
        if number in (1, 2, 4):
            caller.cancel()
            await asyncio.wait((caller,))
            await executor._steps.settled()
            tokens.append(int(executor.launched.shaped._tokens[seq.slot, 3 + number]))
        else:
            tokens += [one.token_id for one in (await caller)[0].tokens]
    assert tokens == expected


# -- results that the next launch overwrites -------------------------------------------------------------------------------


async def described_by(executor: Any, settings: list[SamplingParams], out: int) -> list[list[Any]]:
    """Tokens and their logprobs of prompts and five decode steps, with up to `out` steps in flight."""
    driver = Driver(executor)
    seqs = [driver.add([7 + number, 3], one) for number, one in enumerate(settings)]
    first = driver.batch([(seq, seq.tokens, True, 0) for seq in seqs])
    for seq in seqs:
        seq.computed = len(seq.tokens)
    steps = [first]
    for _ in range(5):
        steps.append(
            driver.batch([(seq, [-1], True, 0) for seq in seqs], pending=np.ones(len(seqs), np.bool_))
        )
        for seq in seqs:
            seq.computed += 1
    heard: list[list[Any]] = [[] for _ in seqs]
    callers: list[asyncio.Task[Any]] = []
    for step in steps:
        callers.append(asyncio.create_task(executor.unified_decode(step)))
        await asyncio.sleep(0)
        if len(callers) >= out:
            _hear(heard, await callers.pop(0))
    for caller in callers:
        _hear(heard, await caller)
    return heard


def _hear(heard: list[list[Any]], output: Any) -> None:
    for one, item in zip(heard, output, strict=True):
        (token,) = item.tokens
        one.append(
            (token.token_id, round(token.logprob, 3), [number for number, _ in token.top_logprobs[:2]])
        )


def overwriting(executor: FakeDeviceExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the launch of a step on, its device may overwrite what the step before it left: here it does so at once."""

    @contextlib.contextmanager
    def queueing() -> Iterator[None]:
        program = executor.launched.program
        if program._logits is not None:
            program.logits().fill_(torch.nan)
        program.result.fill_(GARBAGE)
        yield

    monkeypatch.setattr(executor.launched.queue, "queueing", queueing)


LOGPROBS = [SamplingParams(temperature=0.8, seed=number, logprobs=2) for number in range(3)]


@pytest.mark.parametrize("captures", [True, False])
async def test_results_are_read_before_the_next_launch(
    path: Path, captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = await faked(path, captures=captures)
    overwriting(executor, monkeypatch)
    assert await described_by(executor, LOGPROBS, 3) == await described_by(await start(path), LOGPROBS, 1)


async def test_logprobs_that_are_read_behind_the_next_launch_are_caught(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that a second stream, or a read when the result is asked for, would bring in."""
    executor = await faked(path, captures=False)
    overwriting(executor, monkeypatch)
    program = executor.launched.program
    described, result = program.described, PendingDeviceStep.result
    asked: list[Any] = []

    def later(shape: Any, rows: torch.Tensor, most: int) -> torch.Tensor:
        asked.append((shape, rows.clone(), most))
        return torch.zeros_like(described(shape, rows, most))

    def read(self: PendingDeviceStep) -> Any:
        if self._output is None:
            self._buffer.event.synchronize()
            more = described(*asked.pop(0)).view(-1)
            self._buffer.more[: len(more)].copy_(more)
        return result(self)

    monkeypatch.setattr(program, "described", later)
    monkeypatch.setattr(PendingDeviceStep, "result", read)
    expected = await described_by(await start(path), LOGPROBS, 1)
    assert await described_by(executor, LOGPROBS, 2) != expected
    assert not asked


def test_steps_are_queued_on_one_stream() -> None:
    """All steps share one tensor of logits and one of results, which the order of the queue alone protects. A `StepDevice` gives
    out no stream, and no file but the device's own makes or enters one."""
    members = {name for name in vars(base.StepDevice) if not name.startswith("_")}
    assert members | set(base.StepDevice.__annotations__) == {
        "pinned", "captures", "compiles", "event", "reserve", "capture", "check",
    }  # fmt: skip
    streams = re.compile(r"\bStream\(|\.stream\(|wait_stream|set_stream|current_stream")
    users = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "executors").rglob("*.py"))
        if streams.search(file.read_text())
    ]
    assert users == ["executors/llm/device/cuda.py"]
