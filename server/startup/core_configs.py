"""What the settings mean to the executor and to the engine: `ExecutorConfig` and `EngineConfig`."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig
from executors.contract import (
    BATCH_LIMITS,
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
    ParallelConfig,
)
from executors.devices import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from server.lora.start import uses_adapters
from server.model_files.made_tokenizer import tokenizer_directory
from server.settings.environment import SettingsError
from server.settings.table import Settings
from server.startup.speculation import read_speculation


def executor_config(
    settings: Settings, model_dir: Path, draft: Path | None = None, memory_limit: int | None = None
) -> ExecutorConfig:
    """The executor's configuration; `draft`: the directory of a draft model; `memory_limit`: bytes that it may use."""
    # A step has a token for every running sequence: a default follows a limit that is set.
    tokens = settings.max_num_batched_tokens or max(MAX_NUM_BATCHED_TOKENS, settings.max_num_seqs or 0)
    seqs = settings.max_num_seqs or min(MAX_NUM_SEQS, tokens)
    speculation = read_speculation(settings)
    standby = settings.standby_executor
    if settings.executor_mode == "inline" and standby in ("imports", "device"):
        raise SettingsError(
            f"--standby-executor {standby} does not go with --executor-mode inline: a thread has no next process"
        )
    parallel = ParallelConfig(settings.tensor_parallel_size, settings.pipeline_parallel_size)
    return ExecutorConfig(
        executor=settings.executor,
        executor_type=parallel.executor_type,
        model=str(model_dir),
        tokenizer=_grammar_tokenizer(settings.tokenizer, model_dir),
        load_format=settings.load_format,
        dtype=settings.dtype,
        device=settings.device,
        max_model_len=settings.max_model_len,
        # A length that is not given is that of the model's package.
        shrink_length=settings.max_model_len is not None and "max_model_len" not in settings.explicit,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        default_limits=tuple(name for name in BATCH_LIMITS if getattr(settings, name) is None),
        seed=settings.seed,
        attention=ExecutorAttentionConfig(settings.block_size, settings.attention_backend),
        memory=ExecutorMemoryConfig(
            kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
            kv_cache_dtype=settings.kv_cache_dtype,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            memory_limit_bytes=memory_limit,
            standby_context=standby == "device",
        ),
        optimization=OptimizationConfig(
            enforce_eager=settings.enforce_eager,
            deterministic=settings.deterministic,
            quantization=settings.quantization,
            cpu_isa=settings.cpu_isa,
            draft_model="" if draft is None else str(draft),
            mtp=speculation.method == "mtp" and not speculation.if_usable,
            mtp_if_usable=speculation.if_usable,
            # MTP heads draft on a CPU only, which needs no room for drafts.
            max_drafts=0 if speculation.method == "mtp" else speculation.num_tokens,
            # One more than steps use: a new one is tried beside them.
            max_loras=settings.max_loras + 1 if uses_adapters(settings) else 0,
            max_lora_rank=settings.max_lora_rank,
        ),
        parallel=parallel,
        options=dict(settings.executor_option),
    )


def _grammar_tokenizer(tokenizer: str | None, model_dir: Path) -> str:
    """The directory of the tokenizer.json that grammars refer to; empty: the model's own."""
    directory = tokenizer_directory(Path(tokenizer) if tokenizer else model_dir)
    return "" if directory == model_dir else str(directory)


def engine_config(settings: Settings) -> EngineConfig:
    """The engine's configuration."""
    target, speculation = settings.target_itl_ms, read_speculation(settings)
    return EngineConfig(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        recovery_timeout=settings.recovery_timeout,
        max_queued_seqs=settings.max_queued_seqs,
        max_queued_tokens=settings.max_queued_tokens,
        max_queue_wait=settings.max_queue_wait,
        scheduling_policy=settings.policy,
        target_itl=None if target is None else target / 1000,
        prefix_caching=settings.enable_prefix_caching,
        max_in_flight=settings.max_in_flight,
        num_speculative_tokens=speculation.num_tokens,
        speculative_method=speculation.method,
        speculative_if_usable=speculation.if_usable,
        prompt_lookup_max=speculation.prompt_lookup_max,
        prompt_lookup_min=speculation.prompt_lookup_min,
        max_loras=settings.max_loras if uses_adapters(settings) else 0,
    )
