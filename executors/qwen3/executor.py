"""`Qwen3ModelExecutor`: the parts of `LlmExecutor`, restricted to one family so that its decode steps can be specialised."""

from __future__ import annotations

from dataclasses import replace

from executors.contract import ExecutorStatus
from executors.llm.executor import LlmExecutor
from executors.qwen3 import FAMILY
from executors.qwen3.decode_runner import Qwen3Runner


class Qwen3ModelExecutor(LlmExecutor):
    """Serves Qwen3 models (`model_type` qwen3) as `LlmExecutor` does, with decode steps through a `DecodeRunner`.

    warmup raises ConfigError for a model of another family.
    """

    name = "qwen3"
    family = FAMILY
    runner_class = Qwen3Runner

    def status(self) -> ExecutorStatus:
        """See the contract; the notes name the decode runner."""
        status, loaded = super().status(), self._runtime
        if loaded is None or not isinstance(loaded.runner, Qwen3Runner):
            return status
        return replace(status, notes=(*status.notes, loaded.runner.note))

    def release_sequence(self, cache_id: int) -> None:
        """Alias of `release_cache`: free everything the sequence holds. Unknown ids are ignored."""
        self.release_cache(cache_id)
