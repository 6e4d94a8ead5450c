"""A rank of a model on two ranks is killed or stopped: all ranks are started again, and every stream goes on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from executors.tiny import weights_dir
from tests.chaos.asked import kinds
from tests.chaos.client import Stream, answers, open_client, reaches
from tests.e2e.server_process import ServerProcess
from tests.tiers import part_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

CAUSES = {signal.SIGKILL: "signal", signal.SIGSTOP: "hang"}


def ranks_of(server: ServerProcess) -> dict[int, int]:
    """Process ids of the ranks."""
    found = {}
    for pid in server.children():
        title = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")
        if title.startswith("cohort: executor rank "):
            found[int(title.rpartition(" ")[2])] = pid
    return found


def words(streams: list[Stream]) -> list[Any]:
    """What each choice said, without logprobs: those depend on the rest of a step in their last bits."""
    return [
        (
            stream.error,
            [(one.ids, one.text, one.calls, one.finish) for _, one in sorted(stream.choices.items())],
        )
        for stream in streams
    ]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-tp", "2"], id="tp2"),
        pytest.param(["-pp", "2"], id="pp2", marks=pytest.mark.long(extended=True)),
    ],
)
async def test_streams_survive_the_death_of_either_rank(
    flags: list[str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """A short run kills the first rank and stops the second."""
    restarts: Counter[str] = Counter()
    bodies = list(kinds().values())
    model = ["--model", str(weights_dir()), "--dtype", "float32"]
    with ServerProcess([*model, *flags], tmp_path, ready_within=120) as server:
        server.wait_until_ready()
        expected = words(await answers(server, bodies))
        for number, rank in part_of(pytestconfig, product(CAUSES, (0, 1)), every=3):
            before = ranks_of(server)
            assert sorted(before) == [0, 1]
            streams = [Stream(body) for body in bodies]
            async with open_client(server) as client:
                running = [asyncio.create_task(stream.run(client)) for stream in streams]
                await streams[0].reaches(5)
                os.kill(before[rank], number)
                await asyncio.gather(*running)
            when = f"{number.name} of rank {rank}"
            assert words(streams) == expected, when
            restarts[CAUSES[number]] += 1
            for cause, times in restarts.items():
                await reaches(server, f'cohort_executor_restarts_total{{cause="{cause}"}}', times)
            after = ranks_of(server)
            assert not set(before.values()) & set(after.values()), f"{when}: both are new processes"
        assert set(restarts) == set(CAUSES.values())
        assert "never retrieved" not in server.log()
