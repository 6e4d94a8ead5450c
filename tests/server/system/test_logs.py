"""Log lines as JSON: one object a line, whatever they contain."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from server.system import logs

CODE = r"""
import logging, structlog
from server.system import logs
logs.configure("info", "json")
log = structlog.get_logger("server")
log.info("GET /\x1b[31m", client_request_id="a\nb", ms=1.5, odd=object)
log.debug("not shown")
logging.getLogger("cohort.engine").warning("half a pair: %s", "\ud800")
def fails(prompt):
    raise ValueError("boom")
try:
    fails("a secret prompt")
except ValueError:
    log.exception("it failed")
"""


def test_each_line_is_an_object() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    first, second, third = map(json.loads, done.stderr.splitlines())
    assert first["event"] == "GET /\x1b[31m" and first["client_request_id"] == "a\nb" and first["ms"] == 1.5
    assert first["level"] == "info" and first["timestamp"].endswith("Z")
    assert second["level"] == "warning" and second["event"] == "half a pair: \ud800"
    assert "ValueError: boom" in third["exception"] and "secret" not in done.stderr
    assert "\x1b" not in done.stderr, "no line controls the terminal that shows it"


@pytest.mark.parametrize(
    "args",
    [
        ["--port", "0", "--max-num-seqs", "-1"],
        ["--model", "/no/such"],
        ["--prot", "1"],
        ["a", "b"],
        ["--port"],
    ],
)
def test_an_error_before_the_start_is_an_object_too(args: list[str]) -> None:
    command = [sys.executable, "-m", "server.cli", "serve", "--log-format", "json", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    *_, error = map(json.loads, done.stderr.splitlines())
    assert done.returncode == 2 and error["event"].startswith("cohort: error: ") and error["level"] == "error"


def test_an_error_that_cannot_be_written_keeps_its_exit_code() -> None:
    """systemd does not restart after exit code 2; where the log's disk is full, too."""
    command = [sys.executable, "-m", "server.cli", "serve", "--port", "x"]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full).returncode == 2


def test_json_is_not_read_by_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a terminal (`docker run -t`) that logs JSON shows neither bars nor the admin key."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert logs.is_terminal("pretty") and not logs.is_terminal("json")
