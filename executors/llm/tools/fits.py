"""The context that fits into this machine's memory, for many checkpoints at once; used by `cohort list` and by a start without a
model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from executors.cgroup import cpu_threads
from executors.contract.config import ExecutorConfig
from executors.contract.errors import ExecutorError
from executors.kernels import compiler, cpu
from executors.llm.device.table import find_device
from executors.llm.tools.describe import describe


def run(job: dict[str, Any], stage: Callable[[str], None]) -> list[dict[str, Any]] | None:
    """`job`: `configs`, a list of ExecutorConfig as plain data; `compile`, False to return None where the CPU kernels would have
    to be compiled first, which may take a minute.

    Return a row for each config: `context` in tokens, and `problem`, the reason why there is none; one of the two is None. A row
    without a problem has more: `context_length` and `parameters` of the model, `loaded_bytes`, `device`, `threads` that compute
    on a CPU, `generates`, and the ModelInfo as `info`.
    """
    configs = [msgspec.convert(config, ExecutorConfig) for config in job["configs"]]
    if not job.get("compile", True) and _would_compile(configs):
        return None
    return [_fit(config) for config in configs]


def _would_compile(configs: list[ExecutorConfig]) -> bool:
    on_cpu = any(find_device(config.device).place.type == "cpu" for config in configs)
    return on_cpu and not compiler.is_compiled(cpu.SOURCE, configs[0].optimization.cpu_isa)


def _fit(config: ExecutorConfig) -> dict[str, Any]:
    try:
        facts = describe(config)
    except ExecutorError as error:
        return {"context": None, "problem": str(error)}
    except Exception as error:  # a file that is no checkpoint at all must not hide the others
        return {"context": None, "problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    memory = facts["memory"]
    problem = facts["checkpoint"]["problem"] or memory["problem"]
    if problem:
        return {"context": None, "problem": problem}
    names = ("context_length", "parameters", "loaded_bytes", "device", "generates", "info")
    return {
        "context": memory["max_model_len"],
        "problem": None,
        "threads": config.optimization.num_threads or cpu_threads(),
        **{name: facts[name] for name in names},
    }
