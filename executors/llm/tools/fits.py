"""The context that fits into this machine's memory, for many checkpoints at once; used by `cohort list`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ExecutorError
from executors.llm.tools.describe import describe


def run(job: dict[str, Any], stage: Callable[[str], None]) -> list[dict[str, Any]]:
    """`job`: `configs`, a list of ExecutorConfig as plain data. Return a row for each: `context` in tokens, and `problem`,
    the reason why there is none; one of the two is None."""
    return [_fit(msgspec.convert(config, ExecutorConfig)) for config in job["configs"]]


def _fit(config: ExecutorConfig) -> dict[str, Any]:
    try:
        memory = describe(config)["memory"]
    except ExecutorError as error:
        return {"context": None, "problem": str(error)}
    except Exception as error:  # a file that is no checkpoint at all must not hide the others
        return {"context": None, "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    problem = memory["problem"]
    return {"context": None if problem else memory["max_model_len"], "problem": problem}
