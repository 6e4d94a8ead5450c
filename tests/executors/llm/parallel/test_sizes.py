"""What `cohort info` says of ranks is what they load."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from executors.contract import OptimizationConfig, ParallelConfig, replace
from executors.llm.checkpoint.loader import load_model
from executors.llm.model.caches import kv_group
from executors.llm.parallel.ranks import Ranks
from executors.llm.tools.describe import describe
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import config

NO_OTHERS = cast(Ranks, object())
"""Loading asks other ranks nothing."""


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=["tp2", "pp2"])
def test_info_knows_what_each_rank_loads(
    sizes: tuple[int, int], quantization: str | None, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path / "m", QWEN3)
    optimization = OptimizationConfig(num_threads=1, quantization=quantization)
    parallel = ParallelConfig(*sizes)
    asked = replace(
        config(path, dtype="float32", optimization=optimization),
        parallel=parallel,
        executor_type=parallel.executor_type,
    )
    alone = load_model(replace(asked, parallel=ParallelConfig()), _quiet)
    ranks = [
        load_model(replace(asked, parallel=ParallelConfig(*sizes, i)), _quiet, NO_OTHERS) for i in range(2)
    ]
    facts: dict[str, Any] = describe(asked)
    assert [rank["loaded_bytes"] for rank in facts["ranks"]] == [one.parameter_bytes for one in ranks]
    kv = [kv_group(one.model).bytes_per_token() for one in ranks]
    assert [rank["kv_bytes_per_token"] for rank in facts["ranks"]] == kv
    assert sum(kv) == kv_group(alone.model).bytes_per_token()
    assert max(one.parameter_bytes for one in ranks) < 0.8 * alone.parameter_bytes
    assert all(one.info == alone.info for one in ranks), "the model's facts are those of the whole"
    assert (
        describe(replace(asked, parallel=ParallelConfig(), executor_type=ParallelConfig().executor_type))[
            "ranks"
        ]
        == []
    )


def _quiet(stage: str, done: int, total: int) -> None:
    pass
