"""Streams under grammars through an executor process that is killed: they go on where they were, and stay valid."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import InvalidRequest
from engine.mailbox import Mailbox
from engine.request import FinishReason
from executors.contract import ExecutorConfig, OptimizationConfig
from executors.process import connect
from tests.engine.harness import read, run
from tests.engine.test_grammars import ASKED, TINY, ask, served, undisturbed

pytestmark = pytest.mark.long

LONG = replace(
    ask({"type": "array", "items": {"enum": ["abc", "xyz", 7]}, "minItems": 99}, "Hello", 3, 1.0),
    max_tokens=100,
)


async def test_a_killed_executor_changes_no_token() -> None:
    """Killed twice, each time after the first tokens of a long request came."""
    expected = await undisturbed()
    async with served(max_in_flight=1, prefix_caching=False) as quiet:
        long = await run(quiet, LONG)
    config = ExecutorConfig(
        "llm", str(Path(TINY)), max_num_seqs=8, optimization=OptimizationConfig(num_threads=1)
    )
    executor = connect(config, "process")
    settings = EngineConfig(
        max_num_seqs=8, max_num_batched_tokens=128, max_in_flight=2, num_speculative_tokens=3, restart_pause=0.01
    )  # fmt: skip
    core = EngineCore(executor, settings)
    await core.start()
    try:
        assert executor.capabilities().grammars
        for asked in ASKED:
            if asked.grammar is not None:
                await core.prepare_grammar(asked.grammar)
        with pytest.raises(InvalidRequest, match="lexer error"):
            await core.prepare_grammar('start: "a')
        running = [asyncio.ensure_future(run(core, asked)) for asked in ASKED]
        pids = set()
        for _ in range(2):
            pids.add(executor.pid)  # type: ignore[union-attr]
            mailbox = Mailbox()
            core.submit(LONG, mailbox)
            first = (await mailbox.take())[0]
            assert first.finish_reason is None, "there is something left to do after the death"
            os.kill(executor.pid, signal.SIGKILL)  # type: ignore[union-attr, arg-type]
            rest = await read(mailbox)
            ids = [token.token_id for token in (*first.tokens, *rest.tokens)]
            assert (ids, rest.finish_reason) == long
        assert await asyncio.gather(*running) == expected
        assert len(pids) == 2 and executor.pid not in pids  # type: ignore[union-attr]
    finally:
        await core.stop()
    core.check_integrity()
    assert long[1] is FinishReason.LENGTH and len(long[0]) == LONG.max_tokens
