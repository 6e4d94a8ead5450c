"""The HTTP back end asks as a client does, and the report tells what came back."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from executors.tiny.data import held_out_samples
from executors.tiny.evaluate import Row, ask_server, main, table

_ANSWERS = {
    (sample.messages[-1]["content"]): sample
    for skill in ("sums", "tools")
    for sample in held_out_samples(skill, 8)
}  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    """Answers held-out prompts from the generator; everything else, and every other tool call, wrongly."""

    bodies: list[dict[str, Any]] = []

    def do_GET(self) -> None:
        self._answer({"data": [{"id": "cohort-tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        sample = _ANSWERS.get(body["messages"][-1]["content"])
        message: dict[str, Any] = {"role": "assistant", "content": sample.answer if sample else "no"}
        if sample is not None and sample.skill == "tools" and len(self.bodies) % 2:
            function = {"name": sample.check["name"], "arguments": json.dumps(sample.check["arguments"])}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": function}],
            }
        self._answer({"choices": [{"message": message, "finish_reason": "stop"}]})

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def _answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    """Takes many connections at once."""

    request_queue_size = 64


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a fake server."""
    _Handler.bodies = []
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_asks_without_sampling_parameters(url: str) -> None:
    outcomes = ask_server(url, list(_ANSWERS.values()), concurrency=4)
    assert all(outcome.correct for outcome in outcomes)
    assert all(set(body) <= {"model", "messages", "tools"} for body in _Handler.bodies)
    assert any("tools" in body for body in _Handler.bodies)


def test_exit_code_and_report(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["--url", url, "--n", "8", "--skills", "sums,tools", "--json", str(report)]) == 1
    rows = {row["skill"]: row for row in json.loads(report.read_text())}
    assert rows["sums"]["correct"] == rows["tools"]["correct"] == 8
    assert rows["third turns"]["share"] < 0.95
    assert "| sums | 8 | 8 | 100.0 |" in capsys.readouterr().out
    assert main(["--url", url, "--n", "8", "--skills", "sums,tools", "--min", "0"]) == 0


def test_table() -> None:
    assert table([Row("sums", 200, 199)]).splitlines()[-1] == "| sums | 200 | 199 | 99.5 |"
