"""`Qwen3Factory`, registered as "qwen3". This module does not import torch, so that configurations are checked quickly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from executors.contract import ConfigError, ExecutorConfig, ExecutorType
from executors.llm.factory import LlmFactory
from executors.llm.model.config import read_config
from executors.llm.model.gguf_source import config_path
from executors.qwen3 import FAMILY

if TYPE_CHECKING:
    from executors.llm.executor import LlmExecutor


class Qwen3Factory(LlmFactory):
    """Makes `Qwen3ModelExecutor`s for Qwen3 checkpoint directories."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        from executors.qwen3.executor import Qwen3ModelExecutor

        return Qwen3ModelExecutor

    def adapter_executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`. Raises ConfigError: this executor has no adapters."""
        raise ConfigError("max_loras: the executor qwen3 has no LoRA adapters; take the executor llm")

    def supported_types(self) -> tuple[ExecutorType, ...]:
        """See the contract. It computes in one process; the executor llm serves a Qwen3 on several ranks."""
        return (ExecutorType.CONTINUOUS_BATCH, ExecutorType.BATCH, ExecutorType.SEQUENTIAL)

    def validate_config(self, config: ExecutorConfig) -> None:
        """See `LlmFactory`; also check that the model is a Qwen3. Raises ConfigError that names the architecture of another
        model."""
        super().validate_config(config)
        directory = Path(config.model)
        model = read_config(directory)
        if model.family.name != FAMILY:
            raise ConfigError(
                f"{config_path(directory)}: architecture {model.architecture!r} is not supported by executor "
                f"{config.executor}; supported: Qwen3ForCausalLM (--executor llm serves this one)"
            )
