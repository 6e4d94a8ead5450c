"""A server with a real model: its executors are forked, and no stream notices when what forks them dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server_process import ServerProcess
from tests.executors.process.helpers import state_of

pytestmark = pytest.mark.long

BODY = {"prompt": "One, two, three", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(["cohort-tiny"], tmp_path_factory.mktemp("server")) as running:
        yield running


def answer_while(server: ServerProcess, kill: int) -> str:
    """The text of an answer during which the process is killed."""
    answers: list[Any] = []
    call = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", BODY)))
    steps = server.metric("cohort_steps_total")
    call.start()
    while server.metric("cohort_steps_total") < steps + 5:
        pass
    os.kill(kill, signal.SIGKILL)
    call.join()
    assert answers[0].status_code == 200, answers[0].text
    return str(answers[0].json()["choices"][0]["text"])


def test_no_stream_notices_the_death_of_either(server: ServerProcess) -> None:
    whole = server.post("/v1/completions", BODY).json()["choices"][0]["text"]
    [fork_server], [executor] = server.fork_servers(), server.children()
    assert answer_while(server, executor) == whole
    [second] = server.children()
    assert second != executor and server.fork_servers() == [fork_server]
    assert answer_while(server, fork_server) == whole
    [third] = server.children()
    assert third != second and server.fork_servers() not in ([], [fork_server])
    assert state_of(fork_server) is None
    assert server.metric('cohort_executor_restarts_total{cause="signal"}') == 2


def test_nothing_outlives_the_server(server: ServerProcess) -> None:
    pids = server.processes()
    assert len(pids) == 3
    assert server.stop() == 0
    assert all(state_of(pid) in (None, "Z") for pid in pids)
