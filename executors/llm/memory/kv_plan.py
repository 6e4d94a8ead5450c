"""The number of KV blocks that fit beside weights, steps and adapters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executors.cgroup import cgroup_memory, memory_limit, resident_bytes
from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError, Unavailable
from executors.contract.status import KvLayout
from executors.llm.device.base import DeviceMemory
from executors.llm.device.table import device_of
from executors.llm.memory.device_memory import look
from executors.llm.memory.kv_sizes import KvSizes
from executors.llm.memory.sizing import Claim
from executors.llm.model.caches import KvSpec, StateSpec

CPU_SHARE = 0.6
"""Share of the free memory after loading that KV may take if no size is configured. The rest is for activations, other
processes of this server and the page cache."""
_LARGE_PAGE = 2 << 20


def on_demand(device: torch.device, config: ExecutorConfig) -> bool:
    """Return whether KV takes memory at its first use and returns it when it is unused.

    It does not if a flag or a container's limit sets the memory of KV: a machine that is too small must then fail at the start
    and not in the middle of a stream. Several models have a limit for all that an executor takes (`memory_limit_bytes`) instead,
    of a budget within the container's limit, and KV gives back what another executor needs. It does not on a device, which
    allocates its memory at once.
    """
    memory = config.memory
    if device.type != "cpu":
        return False
    if memory.kv_on_demand is not None:
        return memory.kv_on_demand
    return memory.kv_cache_memory_bytes is None and (
        memory.memory_limit_bytes is not None or not cgroup_memory()
    )


def _blocks_per_span(spec: KvSpec, block_size: int) -> int:
    """Return the number of blocks that fill a large page: giving back less would cut one."""
    return math.ceil(_LARGE_PAGE / spec.bytes_per_block(block_size))


@dataclass(frozen=True, slots=True)
class KvPlan:
    """Result of sizing: the layout, and the longest sequence that fits."""

    layout: KvLayout
    max_model_len: int
    note: str | None = None


def plan_kv(
    spec: KvSpec, config: ExecutorConfig, context_length: int, claims: Sequence[Claim] = (), measured: int | None = None,
    beside: Sequence[int] = (), states: StateSpec | None = None,
) -> KvPlan:  # fmt: skip
    """Compute how many blocks of each group to allocate. Called once the weights are in memory.

    A group has no more blocks than `max_num_seqs` sequences of `max_model_len` can use, and a window group no more than twice
    what their windows can (`KvSizes`). `claims` stay free for other uses. `beside`: bytes per token of each group of a draft
    model's KV, which lies in the blocks that keep all tokens. `states` of the model's layers lie in the same memory. `measured`:
    bytes that KV may take, from a measurement that already accounts for the claims; None: free memory is read here.

    Raises ConfigError with the figures if a sequence of the requested length does not fit. If neither the length nor the
    memory was given, the length is reduced instead.
    """
    block_size = config.attention.block_size
    max_len = config.max_model_len or context_length
    sizes = KvSizes(spec, config, max_len, beside, states)
    explicit = config.memory.kv_cache_memory_bytes
    bytes_for_kv = measured if explicit is None else explicit
    free, share = (
        (bytes_for_kv, 1.0) if bytes_for_kv is not None else free_bytes(device_of(spec.device).memory, config)
    )
    reserved = sum(claim.num_bytes for claim in claims) if bytes_for_kv is None else 0
    allowed = max(0, int((free - reserved) * share))
    fitting = sizes.longest(allowed)
    note = None
    if fitting < math.ceil(max_len / block_size):
        if fitting < 1 and reserved and int(free * share) >= sizes.of_one(1):
            raise ConfigError(_claims_too_much(claims, free, sizes.of_one(1)))
        fixed = config.max_model_len is not None and not config.shrink_length
        if explicit is not None or fixed or fitting < 1:
            needed = sizes.of_one(math.ceil(max_len / block_size))
            message = _does_not_fit(explicit, allowed, max_len, needed, fitting * block_size)
            if sizes.least_state_bytes:
                message += (
                    f" (or a smaller --max-num-seqs: states of {config.max_num_seqs} sequences are "
                    f"{sizes.least_state_bytes:,} of these bytes)"
                )
            passing = bytes_for_kv is None and _fits_later(config, reserved, share, needed)
            raise (Unavailable if passing else ConfigError)(message + (_beside(claims) if reserved else ""))
        note = f"max_model_len reduced from {max_len} to {fitting * block_size}: KV memory allows no more"
        max_len = fitting * block_size
        sizes = KvSizes(spec, config, max_len, beside, states)  # a window may be as long as a sequence now
    span = _blocks_per_span(spec, block_size) if on_demand(spec.device, config) else 0
    return KvPlan(sizes.layout(allowed, span), max_len, note)


def _fits_later(config: ExecutorConfig, reserved: int, share: float, needed: int) -> bool:
    """Return whether KV of `needed` bytes fits in the machine's memory once other processes hold none of it."""
    if config.memory.memory_limit_bytes is not None:
        return False
    most = memory_limit().total // config.parallel.world_size - resident_bytes()
    return int((most - reserved) * share) >= needed


def _beside(claims: Sequence[Claim]) -> str:
    most = max(claims, key=lambda claim: claim.num_bytes)
    return f" (or a smaller {most.setting}: {most.value} reserves {most.num_bytes:,} bytes)"


def _claims_too_much(claims: Sequence[Claim], free: int, kv_bytes: int) -> str:
    most = max(claims, key=lambda claim: claim.num_bytes)
    return (
        f"{most.setting} {most.value}: a step of that size needs {most.num_bytes:,} bytes, {max(0, free):,} bytes are "
        f"free and KV needs at least {kv_bytes:,} of them; set a smaller {most.setting}"
    )


def _does_not_fit(explicit: int | None, allowed: int, max_len: int, needed: int, fitting_tokens: int) -> str:
    source = "kv_cache_memory_bytes" if explicit is not None else "free memory allows for KV"
    return (
        f"max_model_len {max_len}: one sequence needs {needed:,} bytes of KV, {source} {allowed:,} bytes, enough for "
        f"{fitting_tokens} tokens; take --max-model-len {max(fitting_tokens, 1)} or less, or more --kv-cache-memory-bytes"
    )


def free_bytes(memory: DeviceMemory | None, config: ExecutorConfig) -> tuple[int, float]:
    """Return the free bytes of a device's own memory, or of the machine's for None, if none is configured; and the share of
    them that KV may take."""
    if memory is not None:
        return look(memory, config).usable, 1.0
    # Ranks on CPUs have equal shares of one machine's memory.
    ranks = config.parallel.world_size
    available = memory_limit().available // ranks
    if config.memory.memory_limit_bytes is not None:
        available = min(available, config.memory.memory_limit_bytes // ranks - resident_bytes())
    return available, CPU_SHARE
