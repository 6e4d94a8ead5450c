"""The feed of steps and the kill button of a real server."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.checkpoints import VOCAB_SIZE
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

ADMIN = {"Authorization": "Bearer admin"}
FAKE = ["--executor", "paged_fake", "--executor-option", f"vocab_size={VOCAB_SIZE}"]


def frames(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_a_kill_as_the_feed_tells_it_and_a_drain_beside_it(tokenizer_dir: Path, tmp_path: Path) -> None:
    args = [str(tokenizer_dir), *FAKE, "--executor-option", "step_delay_ms=10"]
    args += ["--enable-kill-button", "--admin-key", "admin", "--drain-timeout", "20"]
    body = {"prompt": ["abc"] * 4, "max_tokens": 600, "ignore_eos": True, "stream": True}
    with ServerProcess(args, tmp_path) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        refused = client.post("/v1/kill_executor", headers={"Authorization": "Bearer no"})
        assert refused.status_code == 401
        with (
            client.stream("GET", "/v1/steps") as feed,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            told = frames(feed)
            first = next(told)
            assert first["server"]["kill_button"] and first["pid"] in server.children()
            while not any(step.get("kinds", "") == "dddd" for step in next(told)["steps"]):
                pass
            killed = client.post("/v1/kill_executor", headers=ADMIN).json()["killed"]
            assert killed == first["pid"]
            kinds: dict[int, str] = {}
            while not kinds.get(2, "").endswith("dddd"):
                for step in next(told)["steps"]:
                    kinds[step["epoch"]] = kinds.get(step["epoch"], "") + step.get("kinds", "")
            last = next(told)
            assert kinds[2].startswith("r") and last["resumed"] == 4 and last["pid"] != killed
            assert [view["prompt_tokens"] for view in last["sequences"]] == [3] * 4
            answer.close()
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            for _ in told:  # it ends
                pass
            assert server.process.wait(15) == 0 and time.monotonic() - began < 10
