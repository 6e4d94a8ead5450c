"""What a model whose layers have states is not served with yet. Every refusal names the setting."""

from __future__ import annotations

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.llm.model.caches import HasCaches, state_group


def refuse_states(model: HasCaches, config: ExecutorConfig) -> None:
    """Raise ConfigError for a setting that does not work with states, if the model has some. Does nothing for other models."""
    spec = state_group(model)
    if spec is None:
        return
    if spec.device.type != "cpu":
        raise ConfigError(
            f"device {config.device}: layers with a state per sequence run on a CPU only; take cpu"
        )
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "pipeline_parallel_size: a model whose layers have a state per sequence has no stages; take 1, and "
            "tensor_parallel_size for ranks that share each layer"
        )
    if config.optimization.draft_model:
        raise ConfigError(
            "draft_model: the model's or the draft model's layers have a state per sequence, which a draft model cannot share; "
            "leave draft_model out"
        )
