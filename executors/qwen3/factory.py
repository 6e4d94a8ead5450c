"""`Qwen3Factory`, registered as "qwen3". Nothing here imports torch: configurations are checked without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from executors.contract import ConfigError, ExecutorConfig
from executors.llm.factory import LlmFactory
from executors.llm.model.config import read_config
from executors.qwen3 import FAMILY

if TYPE_CHECKING:
    from executors.llm.executor import LlmExecutor


class Qwen3Factory(LlmFactory):
    """Makes `Qwen3ModelExecutor`s for Qwen3 checkpoint directories."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        from executors.qwen3.executor import Qwen3ModelExecutor

        return Qwen3ModelExecutor

    def validate_config(self, config: ExecutorConfig) -> None:
        """As `LlmFactory`'s, and the model is a Qwen3. Raises ConfigError naming the architecture of another."""
        super().validate_config(config)
        directory = Path(config.model)
        model = read_config(directory)
        if model.family.name != FAMILY:
            raise ConfigError(
                f"{directory / 'config.json'}: architecture {model.architecture!r} is not supported by executor "
                f"{config.executor}; supported: Qwen3ForCausalLM (--executor llm serves this one)"
            )
