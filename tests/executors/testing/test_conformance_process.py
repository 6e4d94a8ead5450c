"""The conformance kit through the client: an executor in a child process, or on a thread, is as good as the bare one."""

import pytest

from executors.contract import ExecutorConfig, ModelExecutor
from executors.process import connect
from executors.testing.conformance import check
from tests.executors.testing.conformance_subjects import ADAPTERS
from tests.tiers import sweep

pytestmark = pytest.mark.long


@sweep(every=4)
@pytest.mark.parametrize("mode", ["inline", "process"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "split"])
@pytest.mark.parametrize("name", ["echo", "paged_fake"])
async def test_fakes_conform_through_the_client(name: str, native: bool, mode: str) -> None:
    options = {"vocab_size": 200, "native": native}
    config = ExecutorConfig(name, max_num_seqs=8, max_model_len=256, options=options)

    def make() -> ModelExecutor:
        return connect(config, mode)  # type: ignore[arg-type]  # parametrized

    report = await check(make, adapters=ADAPTERS)
    report.raise_for_failures()
    assert len(report.passed) >= 34
