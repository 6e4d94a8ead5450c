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
from tests.metrics_text import without_model
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


@pytest.mark.long(extended=True)
def test_stories_of_calls_that_workers_answer(tokenizer_dir: Path, tmp_path: Path) -> None:
    """The process that schedules tells the whole story; a call that never came to the engine has one, too."""
    args = [
        str(tokenizer_dir), *ECHO, "--served-model-name", "echo", "--admin-key", "boss", "--log-format", "json",
        "--api-server-count", "1", "--enable-kill-button", "--executor-option", "step_delay_ms=20", "--log-prompts",
    ]  # fmt: skip
    file = tmp_path / "keys"
    file.write_text("alice sesame\n")
    with ServerProcess([*args, "--api-key-file", str(file)], tmp_path) as server:
        key = {"Authorization": "Bearer sesame"}
        with httpx.Client(base_url=server.url, timeout=60, headers=key) as client:
            body = {"prompt": ["a", "b"], "max_tokens": 40, "n": 2, "ignore_eos": True, "stream": True}
            with client.stream(
                "POST", "/v1/completions", json=body, headers={"x-request-id": "mine"}
            ) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("data: ")
                [active] = client.get("/v1/requests", headers=ADMIN).json()["data"]
                assert active["state"] == "running"
                assert client.post("/v1/kill_executor", headers=ADMIN).status_code == 200
                assert [line for line in lines if line][-1] == "data: [DONE]"
            whole = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "timings": True})
            assert client.post("/v1/completions", json={"prompt": "x" * 200_000}).status_code == 400
            assert client.get("/v1/steps").status_code == 401
            with client.stream("GET", "/v1/steps", headers=ADMIN) as steps:
                assert "data: {" in next(line for line in steps.iter_lines() if line.startswith("data"))
            settings = client.get("/v1/settings", headers=ADMIN).json()
            assert settings["in_force"]["served_model_name"] == ["echo"]
            first = client.get(f"/v1/requests/{active['request_id']}", headers=ADMIN).json()
            refused = client.get("/v1/requests?outcome=refused", headers=ADMIN).json()["data"]
            scraped = without_model(client.get("/metrics").text)
            assert "cohort_request_queue_time_seconds_count 2.0" in scraped.splitlines()
            file.write_text("alice other\n")
            assert client.get("/v1/models").status_code == 401
        lines_of_log = [json.loads(line) for line in server.log().splitlines()]
    assert (first["outcome"], first["output_tokens"], first["key"], first["id"]) == (
        "length", 160, "alice", active["id"],
    )  # fmt: skip
    assert {event.get("choice") for event in first["events"]} == {None, 0, 1, 2, 3}
    assert first["resumed"] >= 1 and first["events"][-1]["event"] == "answered"
    assert [one["code"] for one in refused] == ["context_length_exceeded"]
    assert whole.headers["server-timing"].startswith("prepare;dur=")
    told = [line for line in lines_of_log if line.get("request_id") == active["request_id"]]
    [line] = [line for line in told if "status" in line]
    assert (line["client_request_id"], line["key"], line["output_tokens"], line["prompt"][-1]) == (
        "mine", "alice", 160, "a",
    )  # fmt: skip
