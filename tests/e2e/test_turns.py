"""A session of turns with tools in three APIs: what a turn has in common with the one before is found in the prefix cache."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.turns import APIS, MODEL, Client, Session, common
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long
TURNS = 4


def test_turns_are_found_again_in_three_apis(tmp_path: Path) -> None:
    with ServerProcess(["cohort-tiny", "--served-model-name", MODEL], tmp_path) as server:
        client = Client(server.url)
        for name, ask in APIS.items():
            session = Session(0, TURNS, f"{name}.", words=60, tools=2, result=10)
            before: list[int] = []
            for turn in range(1, TURNS + 1):
                ids = client.call("/tokenize", session.chat(turn))["tokens"]
                asked = ask(client, session, turn)
                assert asked.tokens == len(ids), f"{name} makes another prompt than a chat"
                shared = common(before, ids)
                assert shared >= 0.95 * len(before), (
                    f"{name}, turn {turn}: {shared} of {len(before)} are the same"
                )
                assert asked.cached >= 0.95 * shared, f"{name}, turn {turn}: {asked.cached} of {shared} found"
                before = ids
            assert len(before) > 800
        epoch = server.metric("cohort_executor_epoch")
        os.kill(client.executor, signal.SIGKILL)
        # A request that comes before the death is heard counts what it found in the cache that is gone.
        while server.metric("cohort_executor_epoch") == epoch:
            time.sleep(0.05)
        server.wait_until("/ready", 200)
        again = ask(client, session, TURNS)
        assert again.tokens == len(before) and again.cached >= 0.95 * len(before), (
            "the next executor adopts the cache"
        )
        assert ask(client, session, TURNS).cached >= 0.95 * len(before)
        client.close()
