"""A client that goes away frees what it held within a step or so, streaming or not."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

LONG = {"max_tokens": 3000, "ignore_eos": True}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **LONG})
TEXT = ("/v1/completions", {"prompt": "Hi", "n": 3, **LONG})


def wait_for_running(server: ServerProcess, count: int, within: float) -> float:
    """Seconds until that many sequences run."""
    begun = time.monotonic()
    while server.metric("cohort_requests_running") != count:
        assert time.monotonic() - begun < within, server.log()
    return time.monotonic() - begun


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "completion"])
def test_disconnect(echo_server: ServerProcess, path: str, body: dict[str, Any], stream: bool) -> None:
    wait_for_running(echo_server, 0, within=10)
    aborted = echo_server.metric('cohort_requests_total{outcome="abort"}')
    sequences = body.get("n", 1)
    with httpx.Client(base_url=echo_server.url) as client:
        if stream:
            with client.stream("POST", path, json={**body, "stream": True}) as response:
                lines = response.iter_lines()  # httpx closes the response when nobody holds this
                next(lines)
                wait_for_running(echo_server, sequences, within=10)
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(path, json=body, timeout=httpx.Timeout(5, read=0.5))
    # A step takes 5 ms; the rest is the way of a closed connection through two processes on a busy machine.
    wait_for_running(echo_server, 0, within=2)
    assert echo_server.metric('cohort_requests_total{outcome="abort"}') == aborted + sequences
