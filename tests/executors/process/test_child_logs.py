"""The executor's log: text, or an object a record, whatever the record contains."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from executors.process.output import JSON_VARIABLE

CODE = r"""
import logging, warnings
from executors.process import child_logs
child_logs.configure()
log = logging.getLogger("cohort.executor")
log.info("loaded %d", 3)
log.debug("not shown")
log.error("first\nsecond \ud800")
warnings.warn("careful")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
"""


def run(**env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env={**os.environ, **env}
    )
    return done.stderr


def test_an_object_a_record() -> None:
    first, second, third, fourth = map(json.loads, run(**{JSON_VARIABLE: "1"}).splitlines())
    assert first["event"] == "loaded 3" and first["level"] == "info" and first["logger"] == "cohort.executor"
    assert first["timestamp"].endswith("Z") and "exception" not in first
    assert second["event"] == "first\nsecond \ud800" and second["level"] == "error"
    assert "UserWarning: careful" in third["event"] and third["level"] == "warning"
    assert fourth["event"] == "it failed" and "ZeroDivisionError: division by zero" in fourth["exception"]


def test_text() -> None:
    text = run()
    assert text.startswith("executor: INFO cohort.executor: loaded 3\n")
    assert "executor: WARNING py.warnings: " in text and "ZeroDivisionError" in text
