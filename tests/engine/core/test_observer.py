"""Every event reaches every observer, once and in order; stories are written in one place."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.observer import EVENTS, Observer, Observers
from executors.testing.fakes.base import Failure
from tests.engine.harness import engine, fake, read, request, run

ROOT = Path(__file__).resolve().parents[3]


class Recorder(Observer):
    """Keeps all events with their arguments."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def of(self, seq_id: int) -> list[str]:
        """Events whose first argument is that sequence."""
        return [name for name, args in self.events if args and getattr(args[0], "seq_id", None) == seq_id]


def _recorder_of(event: str) -> Callable[..., None]:
    return lambda self, *args: self.events.append((event, args))


for _event in EVENTS:
    setattr(Recorder, _event, _recorder_of(_event))


def listen(core: EngineCore) -> Recorder:
    """A recorder behind the engine's own observers."""
    recorder = Recorder()
    observers = core.observer
    assert isinstance(observers, Observers)
    observers.add(recorder)
    return recorder


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_goes_to_each_observer_with_all_arguments(event: str) -> None:
    arguments = tuple(object() for _ in list(inspect.signature(getattr(Observer, event)).parameters)[1:])
    one, other = Recorder(), Recorder()
    getattr(Observers(one, other), event)(*arguments)
    assert one.events == other.events == [(event, arguments)]


def test_the_methods_of_an_observer_are_the_events() -> None:
    assert set(EVENTS) == {name for name, _ in inspect.getmembers(Observer, inspect.isfunction)}
    for event in EVENTS:
        arguments = [object()] * (len(inspect.signature(getattr(Observer, event)).parameters) - 1)
        assert getattr(Observers(Observer()), event)(*arguments) is None


async def test_a_sequences_events_come_once_and_in_order() -> None:
    async with engine(fake()) as core:
        recorder = listen(core)
        await run(core, request([1, 2, 3], 4))
        assert recorder.of(1) == ["queued", "admitted", "output_started", "finished"]
        names = recorder.names()
        assert names.count("step_submitted") == names.count("step_landed") == core.stats().steps == 4
        gaps = [args[0] for name, args in recorder.events if name == "tokens_committed"]
        assert [[count for count, _ in step] for step in gaps] == [[1], [1], [1]], "one event a step"


async def test_a_death_interrupts_a_preemption_does_not() -> None:
    made = fake(num_blocks=8)  # 32 tokens of KV for two sequences of 21
    made.failures.append(Failure("die", step=3))
    async with engine(made) as core:
        recorder, boxes = listen(core), [Mailbox(), Mailbox()]
        for number, box in enumerate(boxes):
            core.submit(request([1, 2 + number], 19), box)
        await asyncio.gather(*map(read, boxes))
        names = recorder.names()
        assert names.count("step_failed") == names.count("executor_restarted") == 1
        assert [args for name, args in recorder.events if name == "sequences_rewound"] == [(2,)]
        assert names.count("interrupted") == 2 and names.count("preempted") >= 1
        stats = core.stats()
        assert stats.preemptions == names.count("interrupted") + names.count("preempted")
        assert stats.resumed == 2
        again = names.count("interrupted") + names.count("preempted")
        assert names.count("admitted") == 2 + again and names.count("output_resumed") == again
        for seq_id in (1, 2):
            assert recorder.of(seq_id).count("output_started") == recorder.of(seq_id).count("finished") == 1


async def test_a_sequence_that_leaves_while_it_waits_was_not_admitted() -> None:
    async with engine(fake(step_delay_ms=2), max_num_seqs=1) as core:
        recorder = listen(core)
        first = asyncio.create_task(run(core, request([1], 9)))
        await asyncio.sleep(0.005)
        core.abort(core.submit(request([2], 9), Mailbox()))
        await first
        assert recorder.of(2) == ["queued", "left_queue", "finished"]


def test_only_the_story_writer_writes_stories() -> None:
    """Other code of the engine may read one: `too_late` reads when a call was queued."""
    writers = []
    for file in sorted((ROOT / "engine").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                holder = ast.unparse(node.func.value)
                if holder == "story" or holder.endswith(".story"):
                    writers.append(file.relative_to(ROOT).as_posix())
    assert set(writers) == {"engine/core/story_writer.py"}
