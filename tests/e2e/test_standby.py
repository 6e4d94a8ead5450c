"""A server whose executor is not forked: a process stands by, and streams go on in it after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_executors import card_of
from tests.e2e.test_forked_lives import BODY, answer_while
from tests.executors.process.helpers import state_of, until

pytestmark = pytest.mark.long

FLAGS = ["cohort-tiny", "--executor", "executors.llm.factory:LlmFactory", "--standby-executor", "imports"]
"""An executor by its factory's path is begun by a command, as a third party's is."""


async def test_no_stream_notices_a_kill_and_nothing_outlives_the_server(tmp_path: Path) -> None:
    with ServerProcess(FLAGS, tmp_path) as server:
        whole = server.post("/v1/completions", BODY).json()["choices"][0]["text"]
        executor = card_of(server)["pid"]

        def note() -> str:
            notes = card_of(server)["status"]["notes"]
            return next((one for one in notes if one.startswith("standby: process")), "")

        await until(lambda: bool(note()), 60.0)
        [standby] = set(server.children()) - {executor}
        assert note() == f"standby: process {standby}, with all imports done"
        assert answer_while(server, executor) == whole
        assert card_of(server)["pid"] == standby and state_of(executor) is None
        assert server.metric('cohort_executor_restarts_total{cause="signal"}') == 1
        await until(lambda: bool(note()), 60.0)
        pids = server.processes()
        assert len(pids) == 3 and standby in pids
        assert server.stop() == 0
    assert all(state_of(pid) in (None, "Z") for pid in pids)
