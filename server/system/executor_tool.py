"""Asks the executor's tools, each in a process of its own: what they do takes torch, which no process of the server imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from cohort_server import run

TOOL_PROCESS = "executors.llm.tools.tool_process"
"""Run, never imported."""

Stage = Callable[[str], None]


class ToolError(Exception):
    """A tool's answer was an error, or there was none. One sentence."""


class ToolRefusal(ToolError):
    """A tool's answer was an error: what is wrong with its job."""


def ask(tool: str, job: Mapping[str, Any], stage: Stage | None = None, timeout: float | None = None) -> Any:
    """What a tool of the executor answers, from a process of its own. `stage` hears what it is doing.

    Raises ToolError, also after `timeout` seconds. KeyboardInterrupt ends the process, too.
    """
    try:
        process = subprocess.Popen(
            run.command(TOOL_PROCESS, tool),
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=0,  # Ctrl-C in the terminal is ours to answer
        )
    except OSError as error:
        raise ToolError(f"its process cannot be started: {error.strerror}: {error.filename}") from None
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    from threading import Thread, Timer

    complaints: list[str] = []
    reader = Thread(target=lambda: complaints.extend(process.stderr or ()), daemon=True)
    reader.start()
    bound = None if timeout is None else Timer(timeout, process.kill)
    if bound is not None:
        bound.daemon = True
        bound.start()
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            match json.loads(line):
                case {"stage": str(text)}:
                    if stage is not None:
                        stage(text)
                case {"result": result}:
                    return result
                case {"error": str(sentence)}:
                    raise ToolRefusal(sentence)
        code = process.wait()
        reader.join(2)
        raise ToolError(_last_words(complaints, code))
    except BrokenPipeError:
        raise ToolError(_last_words(complaints, process.wait())) from None
    finally:
        if bound is not None:
            bound.cancel()
        process.kill()
        process.wait()
        reader.join(2)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def _last_words(complaints: list[str], code: int) -> str:
    lines = [line.strip() for line in complaints if line.strip()]
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"its process ended with {how}" + (f": {lines[-1][:300]}" if lines else "")


def _environment() -> dict[str, str]:
    """Ours without the settings: keys are among them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
