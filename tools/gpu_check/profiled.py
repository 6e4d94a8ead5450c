"""`LlmExecutor` that profiles its own device when asked: for `check_steps`, in the executor's process, by its registry's
dotted name. The asking goes through files, so that the executor is otherwise what it always is."""

from __future__ import annotations

import os
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from executors.contract import ExecutorConfig
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory

NAME = f"{__name__}:ProfiledFactory"
FOLDER = "GPU_CHECK_PROFILE"
"""The environment's variable with the folder where `ASK` is looked for and `TRACE` or `PROBLEM` is put."""
ASK, TRACE, PROBLEM = "ask", "trace.json", "problem.txt"
_WINDOW = 0.6
"""Seconds of a profile: some eighty steps of a full batch, a trace of some ten megabytes."""


class ProfiledFactory(LlmFactory):
    """Makes `ProfiledExecutor`s."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return ProfiledExecutor

    def create_executor(self, config: ExecutorConfig) -> LlmExecutor:
        """See `LlmFactory`. Said before CUDA starts: the profiler's library must not be set up anew over captured graphs."""
        os.environ.update(TEARDOWN_CUPTI="0", DISABLE_CUPTI_LAZY_REINIT="1")
        return super().create_executor(config)


class ProfiledExecutor(LlmExecutor):
    """Its device is profiled once, when the file appears."""

    name = "llm"

    async def warmup(self) -> None:
        """As `LlmExecutor`'s. The profiler is started once before graphs are captured, whose kernels it may not see else."""
        if self._loaded is None and torch.cuda.is_available():
            with _profile():
                torch.ones(1, device="cuda").add_(1)
                torch.cuda.synchronize()
        await super().warmup()
        threading.Thread(target=_wait_and_profile, name="profile", daemon=True).start()


def _profile() -> Any:
    kinds = torch.profiler.ProfilerActivity
    wanted = [kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]
    return torch.profiler.profile(activities=wanted)


def _wait_and_profile() -> None:
    folder = Path(os.environ[FOLDER])
    while not (folder / ASK).exists():
        time.sleep(0.05)
    try:
        with _profile() as profile:
            time.sleep(_WINDOW)
        written = folder / f"{TRACE}.part"
        profile.export_chrome_trace(str(written))
        written.replace(folder / TRACE)
    except Exception:
        if not folder.exists():
            return  # nobody waits any more
        (folder / PROBLEM).write_text(traceback.format_exc(), "utf-8")
