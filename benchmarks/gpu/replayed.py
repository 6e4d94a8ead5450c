"""`LlmExecutor` that replays a decode step's graph when asked, and times steps by events: for `served`, in the executor's
process, by its registry's dotted name. The asking goes through files, so that the executor is otherwise what it always is.

A replay computes the last step once more over the same inputs: it writes the same keys and values to the same places and samples
the same tokens, so that the streams go on unchanged. Rows with penalties would count their tokens again: none may run then.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.part import Failed
from benchmarks.gpu.profiled import Marks
from benchmarks.gpu.serving import until
from executors.llm.assembly.parts import Assembly
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.runtime import ExecutorRuntime
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.queueing import QueuedStep
from executors.llm.step.launched.steps import LaunchedSteps

NAME = f"{__name__}:ReplayedFactory"
FOLDER = "GPU_CHECK_REPLAYS"
"""The environment's variable with the folder of `ASK` and of answers."""
ASK = "ask.json"
"""{"name": of the answer's file, "rows": R, "replays": N} or {"name": ..., "seconds": S}."""
_LOOK_EVERY = 0.01


class Replays:
    """Replays of one step's graph between two events, `seconds_each` when they are over. `asked` is written by the thread that
    waits, the rest by the thread that queues steps."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self.asked: tuple[int, int] | None = None
        """Rows of the step, and how often it is replayed."""
        self._done: tuple[Any, Any, int] | None = None

    def after(self, shape: StepShape, graph: Any) -> None:
        """A step of this shape was queued; `graph` is another `StepWork` where it was launched call by call."""
        if self.asked is None or self.asked[0] != shape.tokens or shape.listed or not graph.captured:
            return
        count = self.asked[1]
        began, ended = self._event(), self._event()
        began.record()
        for _ in range(count):
            graph.replay()
        ended.record()
        self._done, self.asked = (began, ended, count), None

    def seconds_each(self) -> float | None:
        """Seconds of the device for one replay; None until all were queued."""
        if self._done is None:
            return None
        began, ended, count = self._done
        ended.synchronize()
        self._done = None
        return float(began.elapsed_time(ended)) / 1e3 / count


class ReplayedFactory(LlmFactory):
    """Makes `ReplayedExecutor`s."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return ReplayedExecutor


class ReplayedExecutor(LlmExecutor):
    """Its steps can be replayed and timed, whenever the file appears."""

    name = "llm"
    _over: threading.Event
    """Ends `_answering`, the thread of the newest runtime; None before there is one."""
    _answering: threading.Thread | None = None

    def _assemble(self, assembly: Assembly, plan: KvPlan) -> ExecutorRuntime:
        loaded = super()._assemble(assembly, plan)
        if isinstance(launched := loaded.unified.launched, LaunchedSteps):
            marks, replays = Marks(self._event), Replays(self._event)
            launched.queue.queueing = marks.step
            finish = launched.queue._finish

            def finish_and_replay(step: QueuedStep) -> None:
                finish(step)
                replays.after(step.shape, step.work)

            launched.queue._finish = finish_and_replay  # type: ignore[method-assign]
            self._stop_answering()
            self._over = threading.Event()
            self._answering = threading.Thread(
                target=_answer, args=(marks, replays, self._over), name="replays", daemon=True
            )
            self._answering.start()
        return loaded

    async def shutdown(self) -> None:
        """As `LlmExecutor`'s. The thread ends with it: one that frees a device's events while the interpreter ends aborts the
        process."""
        self._stop_answering()
        await super().shutdown()

    def _stop_answering(self) -> None:
        if self._answering is not None:
            self._over.set()
            self._answering.join()
            self._answering = None

    def _event(self) -> Any:
        return torch.cuda.Event(enable_timing=True)


def _answer(marks: Marks, replays: Replays, over: threading.Event) -> None:
    folder = Path(os.environ[FOLDER])
    while folder.exists() and not over.is_set():
        try:
            wish = json.loads((folder / ASK).read_text("utf-8"))
        except (OSError, ValueError):
            over.wait(_LOOK_EVERY)
            continue
        (folder / ASK).unlink()
        if "seconds" in wish:
            answer: Any = marks.watched(wish["seconds"], over.wait)
        else:
            replays.asked = wish["rows"], wish["replays"]
            # Another wish means that the caller of this one has given up.
            while (answer := replays.seconds_each()) is None and folder.exists():
                if (folder / ASK).exists() or over.wait(_LOOK_EVERY):
                    break
            replays.asked = None
        part = folder / f"{wish['name']}.part"
        part.write_text(json.dumps(answer), "utf-8")
        part.replace(folder / wish["name"])


class Asking:
    """The other side: asks the executor whose environment names `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._asked = 0

    async def replay(self, rows: int, replays: int, patience: float) -> float:
        """Seconds of the device for one replay of a decode step of so many rows. Raises Failed if no such step is queued."""
        answer: float | None = await self._ask({"rows": rows, "replays": replays}, patience)
        if answer is None:
            raise Failed(f"no graph of {rows} rows was replayed")
        return answer

    async def steps(self, seconds: float, patience: float) -> Sequence[tuple[float, float]]:
        """(begin, end), seconds, of the steps that are queued meanwhile: see `Marks`."""
        answer: list[tuple[float, float]] = await self._ask({"seconds": seconds}, patience)
        return answer

    async def _ask(self, wish: dict[str, Any], patience: float) -> Any:
        self._asked += 1
        answer = self._folder / f"answer-{self._asked}.json"
        part = self._folder / f"{ASK}.part"
        part.write_text(json.dumps({"name": answer.name, **wish}), "utf-8")
        part.replace(self._folder / ASK)
        if not await until(answer.exists, patience):
            raise Failed(f"the executor did not measure {wish} within {patience:g} s")
        return json.loads(await asyncio.to_thread(answer.read_text, "utf-8"))
