"""The whole way of a log line out of a process and its children, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

START = """
import logging, os, subprocess, sys, threading, warnings
import structlog
from server.system import log_output, logs
log_output.take_over(sys.argv[1])
logs.configure("info", sys.argv[1])
log = structlog.get_logger("server")
"""
ALL_WAYS = r"""
log.info("own", n=1)
logging.getLogger("uvicorn.error").warning("of uvicorn")
print("printed\nin two lines", file=sys.stderr)
print("no end of line", file=sys.stderr, end="")
print(" until now", file=sys.stderr)
warnings.warn("careful")
os.write(2, b"native code\n\n")
subprocess.run(["sh", "-c", "echo a child >&2"])
with log_output.pipe_for("executor") as stderr:
    subprocess.run([sys.executable, "-c",
        "import os, signal; os.write(2, b'1%\\r100%\\n{\"event\": \"of its own\", \"n\": 2}\\n{broken\\n\\xff\\n"
        "[E1126 12:00:00 torch] bad\\nlast words'); os.kill(os.getpid(), signal.SIGKILL)"],
        stderr=stderr, stdout=stderr)
def fails():
    raise ValueError("in a thread")
thread = threading.Thread(target=fails)
thread.start()
thread.join()
raise RuntimeError("at the end")
"""


def run(code: str, form: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + code, form],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
    )


def test_every_line_is_an_object() -> None:
    done = run(ALL_WAYS, "json")
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(
        {"event", "level", "timestamp"} <= set(line) or line["event"] == "of its own" for line in lines
    )
    events = {line["event"]: line for line in lines}
    own = [line["event"] for line in lines if "process" not in line]
    for event in (
        "own",
        "of uvicorn",
        "printed",
        "in two lines",
        "no end of line until now",
        "native code",
        "a child",
    ):
        assert event in own, own
    assert "UserWarning: careful" in next(event for event in own if "careful" in event)
    executor = [line["event"] for line in lines if line.get("process") == "executor"]
    assert executor == [
        "100%",
        "of its own",
        "{broken",
        "\\xff",
        "[E1126 12:00:00 torch] bad",
        "last words",
    ]
    assert events["of its own"] == {"event": "of its own", "n": 2, "process": "executor"}
    assert (
        events["[E1126 12:00:00 torch] bad"]["level"] == "error"
        and events["native code"]["level"] == "warning"
    )
    [thread] = [line for line in lines if "in thread" in line["event"]]
    assert "ValueError: in a thread" in thread["exception"]
    # Where it stands among lines of others depends on when the thread that reads their pipes runs.
    [end] = [line for line in lines if "RuntimeError: at the end" in line.get("exception", "")]
    assert end["level"] == "critical"


def test_text_stays_as_it_is() -> None:
    done = run(ALL_WAYS, "pretty")
    for words in (
        "printed\nin two lines\n",
        "no end of line until now\n",
        "\nnative code\n",
        "\na child\n",
        "\nlast words\n",
    ):
        assert words in done.stderr, done.stderr
    assert "{broken\n" in done.stderr and "\x1b" not in done.stderr
    assert "\nRuntimeError: at the end\n" in done.stderr


STALLED = """
import time
began = time.monotonic()
for number in range(40000):
    log.info("a line", number=number)
print("printed", file=sys.stderr)
with log_output.pipe_for("child") as stderr:
    subprocess.run(["sh", "-c", "yes | head -c 200000 >&2"], stderr=stderr)
os.write(2, b"native " * 20_000)
print(log_output.dropped() > 10_000, time.monotonic() - began < 20)
"""


@pytest.mark.parametrize("reads", [False, True])
def test_a_log_that_is_not_read_holds_up_neither_the_work_nor_the_end(reads: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", START + STALLED, "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "True True\n"
        if not reads:
            assert process.wait(10) == 0
            return
        lines = [json.loads(line) for line in process.stderr]
        assert process.wait(10) == 0
    numbers = [line["number"] for line in lines if "number" in line]
    assert numbers == list(range(len(numbers))), "in order, and the newest are missing"
    assert sum(line.get("dropped", 0) for line in lines) > 10_000


def test_the_readers_end_ends_nothing() -> None:
    code = "log.info('first')\ntime.sleep(0.3)\nfor _ in range(1000): log.info('more')\nprint('done')\n"
    process = subprocess.Popen(
        [sys.executable, "-c", START + "import time\n" + code, "pretty"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert b"first" in process.stderr.readline()
        process.stderr.close()
        assert process.stdout.read() == b"done\n" and process.wait(10) == 0
