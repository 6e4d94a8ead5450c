"""Builds the scheduler from a configuration and the limits of a warm executor."""

from __future__ import annotations

import logging
from dataclasses import replace

from engine.config import STEP_TOKENS, EngineConfig
from engine.core.journal import Journal
from engine.core.lora import LoraAdapters
from engine.core.policies import Policies
from engine.core.scheduler import Scheduler
from engine.core.steps import StepDepth
from engine.kv.kv_cache_manager import KvCacheManager
from engine.observer import Observer
from engine.waiting.forecast import Forecast
from engine.waiting.queue import WaitingQueue
from executors.contract import ConfigError, LoraExecutor, ModelExecutor

logger = logging.getLogger("cohort.engine")

_OF_LONG_STEPS = 2
"""Steps in flight that hide the host's work behind steps that take longer than it."""


def make_scheduler(
    executor: ModelExecutor,
    config: EngineConfig,
    journal: Journal,
    waiting: WaitingQueue,
    adapters: LoraAdapters,
    observer: Observer,
) -> Scheduler:
    """Return a scheduler for this executor. Raises ConfigError for settings that the executor does not support."""
    limits = executor.capabilities()
    if config.speculative_if_usable and not (limits.speculative and limits.drafts):
        config = replace(config, num_speculative_tokens=0)
    if config.num_speculative_tokens and not limits.speculative:
        raise ConfigError("num_speculative_tokens: this executor does not verify drafts")
    from_model = config.speculative_method != "ngram"
    if config.num_speculative_tokens and from_model and not limits.drafts:
        what = "draft model" if config.speculative_method == "draft_model" else "MTP head that drafts"
        raise ConfigError(f"speculative_method {config.speculative_method}: this executor has no {what}")
    if config.max_loras and not takes_adapters(executor):
        raise ConfigError("max_loras: this executor loads no LoRA adapters")
    most_tokens = limits.max_batched_tokens or config.max_num_batched_tokens or STEP_TOKENS
    step_tokens = min(config.max_num_batched_tokens or most_tokens, most_tokens)
    num_slots = min(config.max_num_seqs or limits.max_batch_size, limits.max_batch_size)
    layout = executor.kv_layout()
    if (pace := executor.pace()) is not None:
        shares = layout.paged and config.prefix_caching
        shared = (layout.state.interval if layout.state else layout.block_size) if shares else 0
        waiting.expect(Forecast(pace, step_tokens, num_slots, config.target_itl), shared)
    policies = Policies.of(config)
    depth = step_depth(executor, config)
    policies.lengths.expect(executor.pace(), overlaps=depth.most > 1, room=limits.max_step_drafts)
    most_granted = depth.most_granted(step_tokens)
    return Scheduler(
        KvCacheManager(layout, executor.info().name, config.prefix_caching, most_granted),
        journal,
        max_num_seqs=num_slots,
        max_num_batched_tokens=step_tokens,
        policies=policies,
        waiting=waiting,
        adapters=adapters,
        observer=observer,
        whole_prompts_only=limits.whole_prompts_only,
    )


def takes_adapters(executor: ModelExecutor) -> bool:
    """Whether a warm executor loads LoRA adapters."""
    return bool(getattr(executor, "supports_adapters", isinstance(executor, LoraExecutor)))


def step_depth(executor: ModelExecutor, config: EngineConfig) -> StepDepth:
    """Return how many steps may be in flight at once. More than two are out only while steps are short, unless the configuration
    asks for them: each delays a newcomer by a step, and a sequence that ends has one more computed in vain."""
    limits = executor.capabilities()
    # On a CPU the host's work runs on the cores that compute the step, so overlap makes the streams less even.
    apart = executor.info().device != "cpu"
    limit = config.max_in_flight or (limits.max_in_flight if apart else 1)
    if limit > limits.max_in_flight:
        logger.warning("max_in_flight %d: the executor takes %d", limit, limits.max_in_flight)
    most = min(limit, limits.max_in_flight)
    return StepDepth(most, most if config.max_in_flight else min(most, _OF_LONG_STEPS))
