"""How long a decode step of a GPU waits for the host: from a result that was seen to the launch of the second-next step.

    python -m benchmarks.turnaround [--rows 1 256] [--rounds 5] [--step-ms 6] [--settings plain|shaped] [--readers 1] [--out 2]

Two steps are out at a time, or `--out`; several numbers are measured in turn. When the executor's process sees that step n is
done, its output travels to the engine, which commits it and schedules step n + 2 (n + out); that step travels back and is
launched. The device computes step n + 1 meanwhile, and is idle if the host takes longer than the steps that are out. Engine and
executor are those of the server, each in a process of its own, without HTTP. No GPU is needed: the device is a fake whose graphs
do nothing and whose steps take `--step-ms` each.

Times are microseconds of the clock, so other work on the machine is in them: the median over all steps of all rounds, the
tenth percentile, and the median of the fastest round. `late` is the share of steps that the device would have waited for, `idle`
the share of the time in which the device had nothing to compute. Steps have to be longer than most turnarounds, or else the
figures contain waiting for the device.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.host_step import SETTINGS, IdleExecutor
from benchmarks.shapes import write_shape
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, ExecutorMemoryConfig
from executors.contract.batch import SamplingParams
from executors.llm.factory import LlmFactory
from executors.process import connect
from server.system.gc_tuning import freeze_after_load
from tests.gpu.device_fakes import IdleDevice

_STEP_MS = "TURNAROUND_STEP_MS"
_RECORD = "steps.json"
_PROMPT, _STEPS, _WARMUP = 33, 224, 32


class TimedDevice(IdleDevice):
    """Computes steps one after the other, each for `step_s` seconds. Of each step, in seconds of the clock: when it was
    `launched`, and when the host `saw` that it was done (NaN: not yet)."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s
        self.launched: list[float] = []
        self.saw: list[float] = []
        self.done_at = 0.0

    class Event(IdleDevice.Event):
        """Past when the step that it was recorded behind is done."""

        def __init__(self, device: TimedDevice) -> None:
            self._device = device
            self._step = -1
            self._done_at = 0.0

        def record(self) -> None:
            device, now = self._device, time.perf_counter()
            self._step = len(device.launched)
            device.launched.append(now)
            device.saw.append(float("nan"))
            self._done_at = device.done_at = max(now, device.done_at) + device.step_s

        def query(self) -> bool:
            now = time.perf_counter()
            if now < self._done_at:
                return False
            if self._step >= 0 and np.isnan(self._device.saw[self._step]):
                self._device.saw[self._step] = now
            return True

        def synchronize(self) -> None:
            while not self.query():
                time.sleep(1e-4)

    def event(self) -> Event:
        return self.Event(self)


class TimedExecutor(IdleExecutor):
    """`IdleExecutor` over a `TimedDevice`; what it has recorded is written beside the model at shutdown."""

    def make_device(self) -> TimedDevice:
        """See `IdleExecutor`."""
        self._timed = TimedDevice(1e-3 * float(os.environ[_STEP_MS]))
        return self._timed

    async def warmup(self) -> None:
        await super().warmup()
        while self.runner.capture_next():
            pass

    async def shutdown(self) -> None:
        record = {"launched": self._timed.launched, "saw": self._timed.saw}
        (Path(self.config.model) / _RECORD).write_text(json.dumps(record))
        await super().shutdown()


class Factory(LlmFactory):
    """Named in `ExecutorConfig.executor`."""

    def executor_class(self) -> type[TimedExecutor]:
        return TimedExecutor


async def record(rows: int, settings: SamplingParams, readers: int, out: int) -> dict[str, list[float]]:
    """What the device recorded while `rows` sequences decoded with `out` steps in flight; of the steps in which all of them did,
    without the first few."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape("qwen3-tiny", Path(folder))
        limits = ExecutorConfig(
            "benchmarks.turnaround:Factory", str(path), load_format="dummy", device="cpu", max_num_seqs=rows,
            max_num_batched_tokens=64 * rows, max_model_len=1024, attention=ExecutorAttentionConfig(block_size=16),
            memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 29),
        )  # fmt: skip
        # As on a device, though this one calls itself a CPU.
        config = EngineConfig(
            max_num_seqs=rows, max_num_batched_tokens=64 * rows, max_in_flight=out, max_queue_wait=3600.0
        )  # all come at once, and a fake's pace tells nothing
        core = EngineCore(connect(limits), config)
        await core.start()
        freeze_after_load()
        try:
            await _generate(core, rows, settings, readers)
        finally:
            await core.stop()
        found: dict[str, list[float]] = json.loads((path / _RECORD).read_text())
    # Sequences start within a few steps of each other: the last ones are not of all of them.
    return {name: times[-_STEPS + _WARMUP : -_WARMUP // 2] for name, times in found.items()}


async def _generate(core: EngineCore, rows: int, settings: SamplingParams, readers: int) -> None:
    mailboxes = [Mailbox() for _ in range(min(rows, readers))]
    for number in range(rows):
        prompt = np.random.default_rng(number).integers(1, 200, _PROMPT + number % 16).astype(np.int32)
        asked = Request(RequestContext("bench", core.clock()), prompt, settings, _STEPS)
        core.submit(asked, mailboxes[number % len(mailboxes)], number)
    await asyncio.gather(
        *(_read(one, len(range(number, rows, len(mailboxes)))) for number, one in enumerate(mailboxes))
    )


async def _read(mailbox: Mailbox, sequences: int) -> None:
    while sequences:
        for delta in (await mailbox.take()).values():
            if delta.error is not None:
                raise delta.error
            sequences -= delta.finish_reason is not None


def turnarounds(found: dict[str, list[float]], out: int = 2) -> list[float]:
    """Microseconds from each step that was seen to the launch of the one that takes its place among the `out`."""
    return [1e6 * (b - a) for a, b in zip(found["saw"], found["launched"][out:], strict=False) if a < b]


def idle_share(found: dict[str, list[float]], step_s: float) -> float:
    """Share of the time from the first launch to the last in which the device had nothing to compute."""
    launched, busy_until, idle = found["launched"], 0.0, 0.0
    for at in launched:
        idle += max(0.0, at - busy_until) if busy_until else 0.0
        busy_until = max(at, busy_until) + step_s
    return idle / (launched[-1] - launched[0])


async def measure(
    rows: int, settings: SamplingParams, rounds: int, step_ms: float, readers: int, outs: Sequence[int] = (2,)
) -> dict[int, dict[str, float]]:
    """The columns of the table for each number of steps in flight, measured in turn: see `_columns`."""
    os.environ[_STEP_MS] = str(step_ms)
    taken: dict[int, list[dict[str, list[float]]]] = {out: [] for out in outs}
    for _ in range(rounds):
        for out in outs:
            taken[out].append(await record(rows, settings, readers, out))
    return {out: _columns(records, out, step_ms) for out, records in taken.items()}


def _columns(records: list[dict[str, list[float]]], out: int, step_ms: float) -> dict[str, float]:
    """Medians, the tenth percentile, the share of turnarounds that were longer than the steps that hide them, and of the time in
    which the device was idle; and how many turnarounds there were."""
    taken = [turnarounds(found, out) for found in records]
    everything = [one for times in taken for one in times]
    return {
        "median": statistics.median(everything),
        "tenth": float(np.percentile(everything, 10)),
        "best": min(statistics.median(times) for times in taken),
        "late": sum(one > 1e3 * step_ms * (out - 1) for one in everything) / len(everything),
        "idle": statistics.median(idle_share(found, 1e-3 * step_ms) for found in records),
        "steps": float(len(everything)),
    }


def main() -> None:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=(1, 256))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=6.0)
    parser.add_argument("--settings", choices=SETTINGS, default="plain")
    parser.add_argument(
        "--readers", type=int, default=1, help="tasks that take tokens, in the engine's process"
    )
    parser.add_argument("--out", type=int, nargs="*", default=(2,), help="steps in flight")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"{'rows':>6} {'out':>4} {'median':>9} {'tenth':>9} {'best':>9} us {'late':>6} {'idle':>6}")
    found: dict[int, Any] = {}
    for rows in asked.rows:
        settings = SETTINGS[asked.settings]
        found[rows] = asyncio.run(
            measure(rows, settings, asked.rounds, asked.step_ms, asked.readers, asked.out)
        )
        for out, row in found[rows].items():
            print(
                f"{rows:>6} {out:>4} {row['median']:>9.0f} {row['tenth']:>9.0f} {row['best']:>9.0f}    {row['late']:>6.0%} "
                f"{row['idle']:>6.1%}",
                flush=True,
            )
    if asked.json:
        report = {"settings": asked.settings, "step_ms": asked.step_ms, "microseconds": found}
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
