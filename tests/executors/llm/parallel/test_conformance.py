"""The conformance kit over two ranks, through the client: what holds for one process holds for a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.contract import ModelExecutor, OptimizationConfig, ParallelConfig, replace
from executors.llm.executor import LlmExecutor
from executors.process import connect
from executors.testing.conformance import CASES, check
from executors.testing.driver import Driver, Feed
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.driver import config
from tests.executors.llm.parallel.test_logits import WINDOWS
from tests.executors.llm.test_conformance import write_adapters
from tests.tiers import part_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


async def tokens_of(executor: ModelExecutor) -> list[list[int]]:
    """Of prompts longer than several windows, one of which is computed in chunks."""
    driver = await Driver.start(executor)
    layout = executor.kv_layout()
    assert [group.window for group in layout.groups] == [None, 9] and layout.max_tokens > 0
    first, second = driver.add(range(3, 60)), driver.add(range(90, 20, -1))
    for _ in range(3):
        await driver.step(Feed(second, 20), Feed(first))
    await driver.decode(12, first, second)
    await executor.shutdown()
    return [first.output, second.output]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=["tp2", "pp2"])
async def test_windows(sizes: tuple[int, int], tmp_path: Path) -> None:
    """Ranks agree on the blocks of each group; of two stages neither has layers of both."""
    settings = config(write_checkpoint(tmp_path / "model", WINDOWS), dtype="float32")
    alone = await tokens_of(LlmExecutor.from_config(settings))
    parallel = ParallelConfig(*sizes)
    ranks = replace(settings, parallel=parallel, executor_type=parallel.executor_type)
    assert await tokens_of(connect(ranks)) == alone


@pytest.mark.long(every=2)
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=["tp2", "pp2"])
async def test_conformance(sizes: tuple[int, int], tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Each case starts ranks of its own, which takes two seconds: a short run takes a third of the cases."""
    model = write_checkpoint(tmp_path / "model", QWEN3)
    parallel = ParallelConfig(*sizes)
    settings = replace(
        config(
            model,
            dtype="float32",
            tokenizer=str(write_tokenizer(tmp_path, 200)),
            optimization=OptimizationConfig(num_threads=1, max_loras=2),
        ),
        parallel=parallel,
        executor_type=parallel.executor_type,
    )

    def make() -> ModelExecutor:
        return connect(settings)

    cases = part_of(pytestconfig, CASES, every=3)
    report = await check(make, tolerance=1e-3, adapters=write_adapters(model, tmp_path), cases=cases)
    report.raise_for_failures()
    assert len(report.passed) + len(report.not_applicable) == len(cases)
    assert len(report.passed) >= len(cases) // 2
