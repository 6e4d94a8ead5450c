"""A rank of several models, one after the other: `python -m tests.executors.llm.parallel.rank_process`, with a job in JSON on
stdin. The first rank writes the logits of all models into one file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from executors.contract import (
    ExecutorConfig,
    LogitsMode,
    ParallelConfig,
    PrefillInput,
    Tensor,
    replace,
)

IDS = [(7 * i) % 97 + 1 for i in range(40)]


async def logits_of(config: ExecutorConfig, adapter: Sequence[str] = ()) -> np.ndarray:
    """float32 [40, V] of IDS; `adapter`: name, path and digest of one that is used."""
    from executors.llm.executor import LlmLoraExecutor
    from executors.llm.factory import LlmFactory

    executor = LlmFactory().create_executor(config)
    await executor.warmup()
    await executor.begin_epoch(1)
    capabilities, parallel = executor.capabilities(), config.parallel
    assert capabilities.tensor_parallel == (parallel.tensor_parallel_size > 1)
    assert capabilities.pipeline_parallel == (parallel.pipeline_parallel_size > 1)
    name = None
    if adapter:
        assert isinstance(executor, LlmLoraExecutor)
        name = adapter[0]
        await executor.load_adapter(*adapter)
    ids = Tensor.of([IDS], "int32")
    output = await executor.prefill(PrefillInput(ids, logits=LogitsMode.ALL, adapter=name))
    assert output.logits is not None
    found = np.array(output.logits.numpy()[0])
    await executor.shutdown()
    return found


def on_ranks(
    sizes: tuple[int, int], jobs: dict[str, tuple[ExecutorConfig, Sequence[str]]], folder: Path
) -> dict[str, np.ndarray]:
    """Logits by name, of models on so many tensor-parallel ranks and stages. Raises AssertionError if a rank fails."""
    folder.mkdir()
    told = {
        name: {"config": asdict(config), "adapter": list(adapter)} for name, (config, adapter) in jobs.items()
    }
    ranks = []
    for rank in range(sizes[0] * sizes[1]):
        text = json.dumps({"sizes": sizes, "rank": rank, "folder": str(folder), "jobs": told})
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.executors.llm.parallel.rank_process"],
            stdin=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        ranks.append(process)
    try:
        assert [process.wait(240) for process in ranks] == [0] * len(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    with np.load(folder / "logits.npz") as found:
        return dict(found)


def main(job: dict[str, Any]) -> None:
    """Compute as this rank."""
    folder, found = Path(job["folder"]), {}
    for number, (name, one) in enumerate(job["jobs"].items()):
        parallel = ParallelConfig(*job["sizes"], job["rank"], str(folder / f"meeting-{number}"))
        config = msgspec.convert(one["config"], ExecutorConfig)
        config = replace(config, parallel=parallel, executor_type=parallel.executor_type)
        found[name] = asyncio.run(logits_of(config, one["adapter"]))
    if job["rank"] == 0:
        np.savez(folder / "logits.npz", **found)


if __name__ == "__main__":
    main(json.load(sys.stdin))
    # As the executors' processes end: threads of gloo that still run abort an interpreter that tears itself down.
    os._exit(0)
