"""Warm-up measures how fast steps are, in little time, and leaves nothing behind."""

from __future__ import annotations

import time

import pytest
import torch

from executors.contract import OutOfMemory
from executors.contract.batch import UnifiedBatch
from executors.contract.status import Pace
from executors.llm.executor import LlmExecutor
from executors.llm.runtime import ExecutorRuntime
from executors.llm.step.pace import MOST_TOKENS_ON_DEVICE, measure_pace
from executors.llm.step.pipeline import StepPipeline
from tests.executors.llm.driver import Driver, config, start


class Machine:
    """Computes steps in a time of its own: `base` seconds each, `row` for each sequence and `token` for each prompt token."""

    def __init__(self, base: float, row: float, token: float, cold: float = 5.0) -> None:
        self.now = 0.0
        self.steps: list[tuple[int, int]] = []
        """(sequences, tokens of each)"""
        self._base, self._row, self._token, self._cold = base, row, token, cold

    def run(self, batch: UnifiedBatch) -> None:
        self.steps.append((len(batch), int(batch.num_q_tokens[0])))
        factor = self._cold if len(self.steps) == 1 else 1.0
        tokens = batch.total_q_tokens()
        prompt_tokens = tokens if tokens > len(batch) else 0
        self.now += factor * (self._base + self._row * len(batch) + self._token * prompt_tokens)

    def measure(self, seqs: int = 64, tokens: int = 2048, length: int = 2048, blocks: int = 1000) -> Pace:
        return measure_pace(self.run, seqs, tokens, length, 16, [blocks], clock=lambda: self.now)


def test_the_pace_is_that_of_the_machine() -> None:
    machine = Machine(base=0.004, row=0.0002, token=0.001)
    pace = machine.measure()
    assert pace.prompt_token == pytest.approx(0.001, rel=0.02)
    assert dict(pace.decode_steps) == pytest.approx({1: 0.0042, 8: 0.0056, 64: 0.0168})
    assert [count for count, _ in pace.decode_steps] == [1, 8, 64], "by rising number"


@pytest.mark.parametrize("token", [1e-6, 1e-4, 1e-3, 1e-2, 0.3])
def test_it_takes_a_moment_on_any_machine(token: float) -> None:
    """0.2 s, the last step and one that is not timed."""
    machine = Machine(base=5 * token, row=token / 10, token=token, cold=1.0)
    pace = machine.measure()
    longest = max(tokens for _, tokens in machine.steps) * token + 5 * token
    assert machine.now <= 0.2 + longest + 21 * token + 12 * token
    assert pace.prompt_token == pytest.approx(token, rel=0.1)
    assert len(machine.steps) >= 3 and max(tokens for _, tokens in machine.steps) <= 256


@pytest.mark.parametrize("number", [3, 7])
def test_a_moment_of_other_work_is_not_the_pace(number: int) -> None:
    """In the first or the second of the decode steps of one sequence."""

    class Disturbed(Machine):
        def run(self, batch: UnifiedBatch) -> None:
            super().run(batch)
            if len(self.steps) == number:
                assert self.steps[-1] == (1, 1)
                self.now += 0.05

    pace = Disturbed(base=0.004, row=0.0, token=0.001).measure()
    assert pace.decode_step(1) == pytest.approx(0.004), "measured twice: the shorter time counts"


@pytest.mark.parametrize("token", [0.0, 1e-9])
def test_what_no_clock_can_tell_is_more_than_nothing(token: float) -> None:
    pace = Machine(base=0.0, row=0.0, token=token).measure()
    assert pace.prompt_token > 0 and pace.decode_step(1) > 0


@pytest.mark.parametrize(
    ("seqs", "tokens", "length", "blocks"), [(1, 1, 1, 1), (1, 2048, 20, 1), (4, 2, 2048, 1), (64, 16, 8, 9)]
)
def test_the_smallest_limits_are_kept(seqs: int, tokens: int, length: int, blocks: int) -> None:
    machine = Machine(base=0.001, row=0.0001, token=0.001)
    seen: list[UnifiedBatch] = []
    pace = measure_pace(
        lambda batch: (seen.append(batch), machine.run(batch)),
        seqs, tokens, length, 16, [blocks], clock=lambda: machine.now,
    )  # fmt: skip
    assert pace.prompt_token > 0
    for batch in seen:
        ends = batch.pos_offsets + batch.num_q_tokens
        assert (
            len(batch) <= seqs and batch.total_q_tokens() <= tokens and ends.max() <= min(length, 16 * blocks)
        )
        assert batch.tables.block_ids.max() < blocks


async def test_an_executor_reports_what_its_steps_take(qwen3) -> None:
    executor = LlmExecutor.from_config(config(qwen3))
    await executor.warmup()
    pace = executor.pace()
    assert pace is not None and pace.decode_steps[0][0] == 1
    assert executor.cache_metrics_snapshot()["sequences"] == 0 and executor.metrics().total_steps == 0
    assert executor._runtime is not None and executor._runtime.runner.forwards == 0
    await executor.begin_epoch(1)
    driver = Driver(executor)
    prompts = [list(range(1, 200)) for _ in range(3)]
    took = []
    for prompt in prompts:
        began = time.perf_counter()
        await driver.generate([driver.add(prompt)], 1)
        took.append(time.perf_counter() - began)
    # A machine with other work to do may be several times as slow at one moment as at another.
    assert min(took) / 20 < 199 * pace.prompt_token + pace.decode_step(1) < max(took) * 20


async def test_answers_are_those_of_an_executor_that_measured_nothing(qwen3, monkeypatch) -> None:
    async def answer() -> list[int]:
        driver = Driver(await start(qwen3))
        sequence = driver.add([5, 6, 7, 8])
        return list((await driver.generate([sequence], 12))[0])

    measured = await answer()
    monkeypatch.setattr(ExecutorRuntime, "measure", lambda self, config, clock: None)
    assert await answer() == measured


@pytest.mark.parametrize(
    "error", [OutOfMemory("none is left"), torch.OutOfMemoryError("CUDA out of memory"), MemoryError("none")]
)
async def test_want_of_memory_for_it_is_no_reason_not_to_start(qwen3, error, monkeypatch) -> None:
    def none(self: ExecutorRuntime, batch: UnifiedBatch) -> None:
        raise error

    monkeypatch.setattr(ExecutorRuntime, "run_alone", none)
    executor = await start(qwen3)
    assert executor.pace() is None


def test_a_device_whose_steps_cost_much_whatever_is_in_them_is_timed_with_a_long_prompt() -> None:
    """4 ms to launch a step, and 20 us a token: 256 tokens would tell four fifths of launching."""
    machine = Machine(base=0.004, row=0.00001, token=2e-5)
    pace = measure_pace(
        machine.run, 64, 2048, 8192, 16, [1000], clock=lambda: machine.now, most_tokens=MOST_TOKENS_ON_DEVICE
    )
    assert max(tokens for _, tokens in machine.steps) == 2048
    assert pace.prompt_token == pytest.approx(2e-5, rel=0.05)
    assert pace.decode_step(64) == pytest.approx(0.00464, rel=0.01)
    assert machine.now < 0.35


async def test_steps_that_were_tried_out_are_no_reason_for_graphs(qwen3, monkeypatch) -> None:
    """Whatever a device counts while its pace is measured is forgotten, and the pace is reported."""
    forgotten: list[int] = []
    monkeypatch.setattr(StepPipeline, "max_in_flight", 2)
    monkeypatch.setattr(StepPipeline, "forget_trials", lambda self: forgotten.append(1))
    monkeypatch.setattr(
        "executors.llm.runtime.measure_pace",
        lambda *args: measured.append(args[-1]) or Pace(0.1, ((1, 0.1),)),
    )
    measured: list[int] = []
    executor = await start(qwen3)
    assert executor.pace() == Pace(0.1, ((1, 0.1),)) and forgotten and measured == [MOST_TOKENS_ON_DEVICE]


async def test_a_later_life_runs_no_step_before_the_first_call(qwen3, monkeypatch) -> None:
    def measured(self: ExecutorRuntime, *_: object) -> None:
        raise AssertionError("calls wait for a trial")

    monkeypatch.setattr(ExecutorRuntime, "measure", measured)
    monkeypatch.setattr(ExecutorRuntime, "try_out", measured)
    known = Pace(0.1, ((1, 0.2), (8, 0.3)), ((1, 0.05),))
    executor = await start(qwen3, pace=known)
    assert executor.pace() == known
