"""`Qwen3ModelExecutor`: `LlmExecutor`, restricted to one family.

Its steps are those of `LlmExecutor`: on a GPU `LaunchedSteps` captures graphs of decode steps, with lm_head, sampling and the
token pool in them.
"""

from __future__ import annotations

from executors.llm.executor import LlmExecutor
from executors.qwen3 import FAMILY


class Qwen3ModelExecutor(LlmExecutor):
    """Serves Qwen3 models (`model_type` qwen3). warmup raises ConfigError for a model of another family."""

    name = "qwen3"
    family = FAMILY

    def release_sequence(self, cache_id: int) -> None:
        """Alias of `release_cache`: free everything the sequence holds. Unknown ids are ignored."""
        self.release_cache(cache_id)
