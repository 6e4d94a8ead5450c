"""Stories, logs and traces of a real server whose executor is killed under a stream."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess
from tests.otlp_receiver import Receiver

pytestmark = pytest.mark.long

ADMIN = {"Authorization": "Bearer boss"}


def test_a_killed_executor_is_in_story_log_and_trace(tokenizer_dir: Path, tmp_path: Path) -> None:
    with Receiver() as receiver:
        args = [
            str(tokenizer_dir), *ECHO, "--served-model-name", "echo", "--executor-option", "step_delay_ms=20",
            "--admin-key", "boss", "--log-format", "json", "--otlp-traces-endpoint", receiver.url, "--log-prompts",
        ]  # fmt: skip
        with ServerProcess(args, tmp_path) as server:
            (executor,) = server.children()
            body = {"prompt": "a\x1b[31mb", "max_tokens": 40, "ignore_eos": True, "stream": True}
            headers = {"x-request-id": "mine"}
            with httpx.stream(
                "POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=60
            ) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                os.kill(executor, signal.SIGKILL)
                chunks = [line for line in lines if line.startswith("data: {")]
                request_id = answer.headers["x-request-id"]
            assert "error" not in chunks[-1]
            assert httpx.get(f"{server.url}/v1/requests/{request_id}").status_code == 401
            story = httpx.get(f"{server.url}/v1/requests/{request_id}", headers=ADMIN).json()
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2, "n": 2})
        lines_of_log = [json.loads(line) for line in server.log().splitlines()]
    assert (story["outcome"], story["resumed"], story["output_tokens"]) == ("length", 1, 40)
    assert [event["event"] for event in story["events"]] == [
        "received", "queued", "admitted", "first_token", "restart", "admitted", "resumed", "finished", "answered",
    ]  # fmt: skip
    assert story["events"][4]["cause"] == "executor_died:signal"
    [line] = [line for line in lines_of_log if line.get("request_id") == request_id]
    assert (line["client_request_id"], line["resumed"], line["output_tokens"]) == ("mine", 1, 40)
    assert "\x1b" not in line["prompt"] and line["prompt"].endswith("b")
    first, second = sorted(receiver.trees(), key=lambda tree: tree.span.begin)
    assert first.names() == ["text_completion echo", "queue", "prefill", ["decode", "recovery"]]
    assert second.names() == ["text_completion echo", "queue", "prefill", "decode"]
    assert line["trace_id"] == story["trace_id"] == first.span.trace
    recovery = first.children[2].children[0].span
    assert recovery.attributes["cohort.cause"] == "executor_died:signal"
