"""A child on a device is killed: the next one waits for the memory of the one before, and streams go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.mailbox import Mailbox
from executors.contract.config import OptimizationConfig
from executors.process.client import RemoteExecutor
from executors.process.inline import InlineExecutor
from tests.engine import harness
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import config, start
from tests.gpu.workloads import PLAIN, SHAPED, SMALL

pytestmark = pytest.mark.long
EAGER = OptimizationConfig(num_threads=1, enforce_eager=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def test_streams_go_on_after_a_kill_though_memory_comes_back_slowly(path: Path) -> None:
    """With a pool of the same size, in the first load: none fails."""
    asked = [harness.request([number, 7], 40, (*SHAPED[:2], *PLAIN)[number]) for number in range(6)]
    plain = await start(path)
    async with harness.engine(InlineExecutor(plain.config, plain)) as core:  # type: ignore[arg-type]
        expected = [(await harness.run(core, one))[0] for one in asked]
    remote = RemoteExecutor(
        config(path, executor="tests.gpu.slow_memory:Factory", max_num_seqs=8, optimization=EAGER)
    )
    starts: list[str] = []
    began, remote._start = remote._start, lambda begin: (starts.append("life"), began(begin))[0]  # type: ignore[method-assign]
    stages = set[str]()
    remote.set_progress(lambda stage, done, total: stages.add(stage))
    async with harness.engine(remote, recovery_timeout=60.0) as core:  # type: ignore[arg-type]
        boxes = [Mailbox() for _ in asked]
        for one, box in zip(asked, boxes, strict=True):
            core.submit(one, box)
        first = await boxes[0].take()
        layout = remote.kv_layout()
        stages.clear()
        remote.kill()
        texts = await harness.read_all(boxes, first[0])
        found = [[token.token_id for token in whole.tokens] for whole in texts]
        assert found == expected
        assert remote.kv_layout() == layout and starts == ["life"] * 2
        assert "waiting for the device's memory" in stages
        assert core.stats().resumed > 0
