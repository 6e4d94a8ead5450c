"""`LlmFactory`, registered as "llm". This module does not import torch, so that configurations are checked quickly."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorType,
    ModelExecutorFactory,
    ProgressCallback,
)
from executors.devices import kind_of, settings_of_device
from executors.kernels import ATTENTION_BACKENDS, CPU_ISAS
from executors.llm.device.ranges import PROFILE_RANGES
from executors.llm.encoder.reading import family_in, read_encoder
from executors.llm.model.config import DTYPES, check_length, read_config

if TYPE_CHECKING:
    from executors.llm.encoder.executor import EncoderExecutor
    from executors.llm.executor import LlmExecutor

LOAD_FORMATS = ("auto", "safetensors", "dummy")
QUANTIZATIONS = ("int8", "int4", "fp8")
STORED = ("gptq", "awq", "compressed-tensors", "gptq_marlin", "awq_marlin", "modelopt", "modelopt_fp4")
"""What other servers ask for by that setting and is a checkpoint's own format here."""
KV_CACHE_DTYPES = ("auto", "int8", "fp8", "fp8_e4m3")
"""Accepted values of `kv_cache_dtype`. "fp8" and "fp8_e4m3" are the same."""
MAX_RANKS = 64
"""Largest number of ranks that share a layer, and of stages."""
_OF_ONE_PROCESS = (ExecutorType.CONTINUOUS_BATCH, ExecutorType.BATCH, ExecutorType.SEQUENTIAL)
_MOST = {"max_num_seqs": 1 << 16, "max_num_batched_tokens": (1 << 31) - 1}
"""Upper limits, far above what any machine computes at once, checked before the weights are loaded. The limit that memory
sets is known only after loading (`sizing.py`). Offsets within a step are int32."""


class LlmFactory(ModelExecutorFactory):
    """Makes `LlmExecutor`s, or `EncoderExecutor`s, for Hugging Face checkpoint directories."""

    serves_encoders = True

    def create_executor(self, config: ExecutorConfig) -> LlmExecutor | EncoderExecutor:
        """See the contract. This call imports torch."""
        self.validate_config(config)
        # Read when torch loads its OpenMP. By default idle threads spin while they wait for each other; with another
        # process on the same cores each such wait lasts a scheduler slice (measured: a decode step of 130 ms, not 1.4).
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if self.serves_encoders and family_in(Path(config.model)) is not None:
            return self.encoder_class()(config)
        return self._class_for(config).from_config(config)

    def load_shared(
        self, config: ExecutorConfig, progress: ProgressCallback
    ) -> Callable[[ExecutorConfig], LlmExecutor | EncoderExecutor] | None:
        """See the contract: weights that lie in the machine's memory are shared. This call imports torch."""
        if config.parallel.world_size > 1:
            return None
        self.validate_config(config)
        if self.serves_encoders and family_in(Path(config.model)) is not None:
            return self.encoder_class().over_shared_weights(config, progress)
        return self._class_for(config).over_shared_weights(config, progress)

    def stand_by(self, config: ExecutorConfig, opens_device: bool) -> str:
        """See the contract. This call imports torch. A device is opened only if it has a memory of its own."""
        self.validate_config(config)
        if self.serves_encoders and family_in(Path(config.model)) is not None:
            return self.encoder_class().stand_by(config, opens_device)
        return self._class_for(config).stand_by(config, opens_device)

    def _class_for(self, config: ExecutorConfig) -> type[LlmExecutor]:
        return self.adapter_executor_class() if config.optimization.max_loras else self.executor_class()

    def encoder_class(self) -> type[EncoderExecutor]:
        """Return the class of an executor of encoders, like `executor_class`."""
        from executors.llm.encoder.executor import EncoderExecutor

        return EncoderExecutor

    def executor_class(self) -> type[LlmExecutor]:
        """Return the executor's class. This call imports its module, and torch with it."""
        from executors.llm.executor import LlmExecutor

        return LlmExecutor

    def adapter_executor_class(self) -> type[LlmExecutor]:
        """Return the class of an executor with LoRA adapters, like `executor_class`."""
        from executors.llm.executor import LlmLoraExecutor

        return LlmLoraExecutor

    def supported_types(self) -> tuple[ExecutorType, ...]:
        """Return the executor types that this executor serves. It always uses continuous batching."""
        return (*_OF_ONE_PROCESS, ExecutorType.TENSOR_PARALLEL, ExecutorType.PIPELINE_PARALLEL)

    def validate_config(self, config: ExecutorConfig) -> None:
        """Check the options and the contents of config.json. Raises ConfigError."""
        super().validate_config(config)
        _check_choices(config)
        _check_numbers(config)
        _check_parallel(config)
        directory = Path(config.model)
        if not config.model or not directory.is_dir():
            raise ConfigError(
                f"model {config.model!r}: no such directory; a Hugging Face checkpoint directory is needed"
            )
        if self.serves_encoders and family_in(directory) is not None:
            _check_encoder(config, directory)
            return
        check_length(config.max_model_len, read_config(directory), directory)
        if config.optimization.mtp and config.optimization.draft_model:
            raise ConfigError("mtp, draft_model: one of them drafts; leave the other out")
        if draft := config.optimization.draft_model:
            if not Path(draft).is_dir():
                raise ConfigError(f"draft_model {draft!r}: no such directory")
            read_config(Path(draft))


def _check_encoder(config: ExecutorConfig, directory: Path) -> None:
    """Raise ConfigError for settings that an encoder has no use for, or that would be left out."""
    length = read_encoder(directory).longest
    if config.max_model_len is not None and config.max_model_len > length and not config.shrink_length:
        raise ConfigError(
            f"{directory}: max_model_len is {config.max_model_len}; this encoder reads {length} tokens at most"
        )
    optimization = config.optimization
    unused = {
        "draft_model": bool(optimization.draft_model),
        "mtp": optimization.mtp,
        "max_loras": bool(optimization.max_loras),
        "quantization fp8": optimization.quantization == "fp8",
        "kv_cache_dtype": config.memory.kv_cache_dtype != "auto",
        "tensor_parallel_size, pipeline_parallel_size": config.parallel.world_size > 1,
    }
    for name, is_set in unused.items():
        if is_set:
            raise ConfigError(f"{name}: not for an encoder, which is computed by one process and keeps no KV")
    if optimization.quantization is not None and config.device not in ("auto", "cpu"):
        raise ConfigError(
            f"quantization {optimization.quantization}, device {config.device}: an encoder is quantized for Cohort's CPU kernels "
            "alone; leave quantization out, or take device cpu"
        )


def _check_choices(config: ExecutorConfig) -> None:
    if config.load_format not in LOAD_FORMATS:
        raise ConfigError(
            f"load_format {config.load_format!r} is not supported; supported: {', '.join(LOAD_FORMATS)}"
        )
    if config.dtype not in ("auto", *DTYPES):
        raise ConfigError(f"dtype {config.dtype!r} is not supported; supported: auto, {', '.join(DTYPES)}")
    if config.device != "auto" and kind_of(config.device) is None:
        raise ConfigError(
            f"device {config.device!r} is not supported; supported: {', '.join(settings_of_device())}"
        )
    if config.attention.backend not in ATTENTION_BACKENDS:
        raise ConfigError(
            f"attention backend {config.attention.backend!r} is not supported; supported: {', '.join(ATTENTION_BACKENDS)}"
        )
    if (quantization := config.optimization.quantization) not in (None, *QUANTIZATIONS):
        cure = ": the checkpoint says that by itself, leave the setting out" if quantization in STORED else ""
        raise ConfigError(
            f"quantization {quantization!r} is not supported{cure}; supported: {', '.join(QUANTIZATIONS)}"
        )
    if config.memory.kv_cache_dtype not in KV_CACHE_DTYPES:
        raise ConfigError(
            f"kv_cache_dtype {config.memory.kv_cache_dtype!r} is not supported; supported: {', '.join(KV_CACHE_DTYPES)}"
        )
    if config.optimization.cpu_isa not in (None, *CPU_ISAS):
        raise ConfigError(
            f"cpu_isa {config.optimization.cpu_isa!r} is not supported; supported: {', '.join(CPU_ISAS)}"
        )
    for name, value in sorted(config.options.items()):
        if name != PROFILE_RANGES:
            raise ConfigError(
                f"option {name!r} is unknown; {config.executor} has no options but {PROFILE_RANGES}"
            )
        if not isinstance(value, bool):
            raise ConfigError(f"option {name}: {value!r} is not true or false")


def _check_parallel(config: ExecutorConfig) -> None:
    """Raise ConfigError for sizes that do not fit the executor's type, and for what ranks do not do."""
    parallel, kind = config.parallel, config.executor_type
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    for name, size in zip(("tensor_parallel_size", "pipeline_parallel_size"), sizes, strict=True):
        if not 1 <= size <= MAX_RANKS:
            raise ConfigError(f"{name} is {size}; 1 to {MAX_RANKS} are supported")
    executor_type = parallel.executor_type
    if (kind in _OF_ONE_PROCESS) != (executor_type in _OF_ONE_PROCESS) or (
        kind != executor_type and executor_type not in _OF_ONE_PROCESS
    ):
        raise ConfigError(
            f"executor_type {kind} does not fit tensor_parallel_size {sizes[0]} and pipeline_parallel_size {sizes[1]}"
        )
    if executor_type in _OF_ONE_PROCESS:
        return
    where = f"tensor_parallel_size {sizes[0]}, pipeline_parallel_size {sizes[1]}"
    if config.optimization.deterministic:
        raise ConfigError(
            f"{where}: not with deterministic: sums over ranks are added in an order that depends on the step's size"
        )
    if config.optimization.draft_model:
        raise ConfigError(
            f"{where}: not with a draft model, which would need ranks of its own; drafts by ngram work"
        )
    if config.optimization.mtp:
        raise ConfigError(
            f"{where}: not with mtp: an MTP head is computed by one process alone; drafts by ngram work"
        )
    if config.optimization.quantization == "fp8" or config.memory.kv_cache_dtype in ("fp8", "fp8_e4m3"):
        raise ConfigError(f"{where}: not with fp8, whose scales belong to whole tensors; take int8 on a CPU")


def _check_numbers(config: ExecutorConfig) -> None:
    numbers = {
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "block_size": config.attention.block_size,
        "kv_cache_memory_bytes": config.memory.kv_cache_memory_bytes,
        "memory_limit_bytes": config.memory.memory_limit_bytes,
        "num_threads": config.optimization.num_threads,
        "max_loras": config.optimization.max_loras or None,
        "max_lora_rank": config.optimization.max_lora_rank,
    }
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; at least 1 is needed")
        if value is not None and value > _MOST.get(name, value):
            raise ConfigError(f"{name} is {value}; at most {_MOST[name]} is supported")
    share = config.memory.gpu_memory_utilization
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"gpu_memory_utilization is {share}; more than 0 and at most 1 is needed")
