"""A device that is lost within an executor's process: the process must be given up, and the streams go on in a new one.

After an illegal access or an assertion on the device nothing that the process has there can be trusted. Its words alone tell
such an error from one that only fails a step (`executors/contract/faults.py`). Here it happens twice between two steps of
streams, and once while nothing runs, where it shows in the next request only. The streams are held to what
`benchmarks.gpu.recovery` demands.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import shapes
from benchmarks.gpu.engine import check_counts, random_prompts
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.recovery import Load, outages_of, recovery
from benchmarks.gpu.serving import Setup, ask_all, engine, settled, until
from benchmarks.gpu.stages import StageLog
from engine.core.engine import EngineCore
from tests.gpu import sticky_executor

CAUSES = ("executor_died:device", "executor_died:signal")
"""A process that finds its device lost ends itself. On a device, libraries may abort it before."""
_PATIENCE = 10.0


def run(options: Options, found: Found) -> None:
    """Raises Failed where a stream does not go on, or the executor died of something else."""
    before = os.environ.get(sticky_executor.FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[sticky_executor.FOLDER] = folder
        try:
            asyncio.run(_run(replace(options, mode="process"), found, Path(folder)))
        finally:
            del os.environ[sticky_executor.FOLDER]
            if before is not None:
                os.environ[sticky_executor.FOLDER] = before


async def _run(options: Options, found: Found, folder: Path) -> None:
    on_device, log = options.device != "cpu", StageLog()
    count, tokens, kills = (4, 200, (10, 60)) if options.tiny else (24, 400, (64, 192))
    setup = Setup(
        shapes.TINY, max_num_seqs=32, prefix_caching=False, executor=sticky_executor.NAME, deaths=len(kills) + 1,
        progress=log.report,
    )  # fmt: skip
    load = Load(random_prompts(count, 40, 0, shapes.TINY), tokens, kills)
    async with engine(options, setup) as core:
        await settled(core)
        ask = (folder / sticky_executor.IN_A_STEP).touch
        await recovery(
            core, found, log, load, exact=not on_device, on_device=on_device, kill=ask, causes=CAUSES[: 1 + on_device]
        )  # fmt: skip
        await settled(core)
        found({"seconds_after_an_idle_fault": await _idle(core, folder)})


async def _idle(core: EngineCore, folder: Path) -> float:
    """Lose the device while nothing runs; seconds until the next request has its token."""
    before, asked = len(core.outages()), folder / sticky_executor.IDLE
    asked.touch()
    if not await until(lambda: not asked.exists(), _PATIENCE):
        raise Failed("the executor did not take up the request for a fault")
    crowd = await ask_all(core, random_prompts(1, 8, 1, shapes.TINY), [4])
    check_counts(crowd, [4])
    outages_of(list(core.outages())[before:], 1, CAUSES)
    return crowd.first[0] - crowd.asked
