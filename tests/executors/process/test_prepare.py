"""Grammars are compiled beside the calls: steps go on meanwhile, callers may go, and the child may die."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ExecutorConfig, ExecutorDied, InvalidInput, NotReady, Unsupported
from executors.process.client import RemoteExecutor
from executors.process.inline import InlineExecutor
from tests.executors.process.grammar_stub import DEADLY, REFUSED
from tests.executors.process.helpers import SHORT, config, step, until

FACTORY = "tests.executors.process.grammar_stub:Factory"
MakeRemote = Callable[..., RemoteExecutor]


@pytest.fixture
async def compiling() -> AsyncIterator[MakeRemote]:
    """Makes remote executors of the grammar stub, shut down after the test."""
    made: list[RemoteExecutor] = []

    def make(**options: Any) -> RemoteExecutor:
        made.append(RemoteExecutor(ExecutorConfig(FACTORY), limits=SHORT, **options))
        return made[-1]

    yield make
    for executor in made:
        await executor.shutdown()


class Gate:
    """A grammar that is being compiled until it is opened."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._path = folder / name
        self.grammar = str(self._path)

    async def reached(self) -> None:
        await until(self._path.with_suffix(".waiting").exists)

    def open(self) -> None:
        self._path.touch()


async def test_steps_go_on_while_a_grammar_is_compiled(compiling: MakeRemote, tmp_path: Path) -> None:
    """For longer than a step may take: it is no call, and does not count as a hang."""
    executor, gate = compiling(), Gate(tmp_path)
    await executor.warmup()
    assert executor.capabilities().grammars
    prepared = asyncio.ensure_future(executor.prepare_grammar(gate.grammar))
    await gate.reached()
    loop = asyncio.get_running_loop()
    began, number = loop.time(), 0
    while loop.time() < began + 3 * SHORT.step_floor_s:
        assert (await executor.unified_decode(step(number % 90, step_id=number))).token_ids.tolist() == [
            number % 90 + 1
        ]
        number += 1
    assert number > 20 and not prepared.done()
    gate.open()
    await prepared


async def test_answers_come_in_any_order_and_to_who_asked(compiling: MakeRemote, tmp_path: Path) -> None:
    executor = compiling()
    await executor.warmup()
    gates = [Gate(tmp_path, f"gate{i}") for i in range(3)]
    asked = [asyncio.ensure_future(executor.prepare_grammar(gate.grammar)) for gate in gates]
    for gate in gates:
        await gate.reached()
    for i in (1, 2, 0):
        assert not asked[i].done()
        gates[i].open()
        await asked[i]
        assert sum(one.done() for one in asked) == (1, 2, 0).index(i) + 1
        with pytest.raises(InvalidInput, match="unexpected end"):
            await executor.prepare_grammar(REFUSED)


async def test_a_cancelled_caller_disturbs_nobody(compiling: MakeRemote, tmp_path: Path) -> None:
    executor, gate, other = compiling(), Gate(tmp_path), Gate(tmp_path, "other")
    await executor.warmup()
    cancelled = asyncio.ensure_future(executor.prepare_grammar(gate.grammar))
    kept = asyncio.ensure_future(executor.prepare_grammar(other.grammar))
    await gate.reached()
    await other.reached()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    gate.open()
    assert (await executor.unified_decode(step(3))).token_ids.tolist() == [4]
    other.open()
    await kept
    assert not executor._ready_life()._preparing, "nothing is remembered of either"


@pytest.mark.parametrize("cause", ["signal", "exit"])
async def test_death_meanwhile_answers_everybody(compiling: MakeRemote, tmp_path: Path, cause: str) -> None:
    deaths: list[ExecutorDied] = []
    executor, gate = compiling(on_death=deaths.append), Gate(tmp_path)
    await executor.warmup()
    asked = [asyncio.ensure_future(executor.prepare_grammar(gate.grammar)) for _ in range(2)]
    await gate.reached()
    if cause == "signal":
        assert executor.pid is not None
        os.kill(executor.pid, signal.SIGKILL)
    else:
        asked.append(asyncio.ensure_future(executor.prepare_grammar(DEADLY)))
    for one in asked:
        with pytest.raises(ExecutorDied) as caught:
            await one
        assert caught.value.cause == cause
    assert [death.cause for death in deaths] == [cause]
    with pytest.raises(ExecutorDied):
        await executor.prepare_grammar(gate.grammar)
    await executor.begin_epoch(2)
    gate.open()
    await executor.prepare_grammar(gate.grammar)
    assert (await executor.unified_decode(step(3, epoch=2))).token_ids.tolist() == [4]


async def test_shutdown_meanwhile(compiling: MakeRemote, tmp_path: Path) -> None:
    executor, gate = compiling(), Gate(tmp_path)
    with pytest.raises(NotReady):
        await executor.prepare_grammar(gate.grammar)
    await executor.warmup()
    asked = asyncio.ensure_future(executor.prepare_grammar(gate.grammar))
    await gate.reached()
    await executor.shutdown()
    with pytest.raises(NotReady):
        await asked
    gc.collect()  # an exception that nobody fetched would be told here, and fail the test


async def test_without_grammars_it_is_unsupported() -> None:
    executor = RemoteExecutor(config(), limits=SHORT)
    await executor.warmup()
    assert not executor.capabilities().grammars
    with pytest.raises(Unsupported, match="no grammars"):
        await executor.prepare_grammar("x")
    await executor.shutdown()


async def test_inline_compiles_beside_its_thread(tmp_path: Path) -> None:
    executor, gate = InlineExecutor(ExecutorConfig(FACTORY)), Gate(tmp_path)
    await executor.warmup()
    prepared = asyncio.ensure_future(executor.prepare_grammar(gate.grammar))
    await gate.reached()
    assert (await executor.unified_decode(step(3))).token_ids.tolist() == [4]
    assert not prepared.done()
    with pytest.raises(InvalidInput):
        await executor.prepare_grammar(REFUSED)
    gate.open()
    await prepared
    await executor.shutdown()
