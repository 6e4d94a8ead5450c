"""`python -m executors.llm.tools.tool_process TOOL`: the process of one tool. Only this process imports torch, not its
caller.

The job is the first line of stdin, a JSON object. stdin then stays open; when it closes, this process ends. Lines of JSON on
stdout answer: {"stage": TEXT} any number of times, then {"result": ...} or {"error": SENTENCE}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any

TOOLS = ("box", "compare", "describe", "fits", "kernels")
"""Modules in this package with a function `run(job, stage)`."""


def main() -> None:
    """Do the job, answer, and exit without waiting for the threads of libraries."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    say(_answer(sys.argv[1], job, lambda text: say({"stage": text})))
    os._exit(0)


def _answer(tool: str, job: dict[str, Any], stage: Any) -> dict[str, Any]:
    if tool not in TOOLS:
        return {"error": f"tool {tool!r} is unknown; known: {', '.join(TOOLS)}"}
    # Read when torch loads its OpenMP, see `LlmFactory.create_executor`.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from executors.contract.errors import ExecutorError

    try:
        return {"result": importlib.import_module(f"executors.llm.tools.{tool}").run(job, stage)}
    except ExecutorError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
