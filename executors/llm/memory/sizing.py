"""Memory that a configuration takes beside weights and KV, and the setting to change if memory is insufficient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from executors.cgroup import cpu_threads, machine_bytes
from executors.contract.config import BATCH_LIMITS, ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.status import MemoryRequirements
from executors.llm.device.base import Device
from executors.llm.device.table import device_of
from executors.llm.memory.kv_groups import draft_parts, group_windows
from executors.llm.memory.kv_sizes import LEAST_SNAPSHOTS
from executors.llm.model.caches import HasCaches, kv_group, state_group
from executors.llm.sampling.draft_rows import draft_rows
from executors.llm.sampling.shaped_slots import table_bytes

if TYPE_CHECKING:
    from executors.llm.model.api import LoadedModel

_TOKENS_PER_THREAD = 512
_LEAST_TOKENS, _LEAST_SEQS = 128, 4
"""Lower limits of shrinking: a smaller step does not help a model that does not fit."""
_RUNTIME_BYTES = 16 << 20
"""Memory that every model takes, in bytes: kernels that oneDNN compiles, scratch memory of threads, tables of slots."""
_ADAPTERS = "max_loras"
"""The setting whose memory the batch limits do not change."""
_SETTINGS_BYTES = 72
"""Memory per slot in bytes: the sampling settings and the entries of lists and small arrays."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory kept free of KV because of a setting's value, in bytes."""

    setting: str
    value: int
    num_bytes: int


def num_slots(config: ExecutorConfig) -> int:
    """Return the number of slots. A slot stays taken until its sequence is released, even while the sequence is preempted or
    its last step is in flight, so there are more slots than sequences in a batch."""
    return 4 * config.max_num_seqs + 64


def claims(config: ExecutorConfig, source: LoadedModel) -> tuple[Claim, ...]:
    """Return the memory that a full step and loaded adapters need, by setting."""
    seqs, tokens = config.max_num_seqs, config.max_num_batched_tokens
    per_seq, spec = _logits_bytes(config, source), kv_group(source.model)
    if not device_of(spec.device).memory_on_demand:
        length = config.max_model_len or source.info.max_model_len
        per_seq += _slot_bytes(config, source.info.max_model_len, len(group_windows(spec, length)))
        drafts = draft_rows(seqs, config.optimization.max_drafts)
        per_seq += table_bytes(seqs, source.info.logits_width, drafts=drafts)
    most, rank = config.optimization.max_loras, config.optimization.max_lora_rank
    return (
        Claim("max_num_batched_tokens", tokens, tokens * source.activation_bytes_per_token),
        Claim("max_num_seqs", seqs, per_seq),
        *([Claim(_ADAPTERS, most, most * rank * source.adapter_bytes_per_rank)] if most else ()),
    )


def adjustable(config: ExecutorConfig, device: Device) -> tuple[str, ...]:
    """Return the names of the batch limits that are to suit device and memory. On a device without limits of its own they
    belong together: one that is set fixes the other."""
    names = config.default_limits
    return names if device.batch_limits is not None or len(names) == len(BATCH_LIMITS) else ()


def suited(config: ExecutorConfig, device: Device) -> ExecutorConfig:
    """Return `config` with the device's batch limits where none were set. A step has a token for every sequence, so a default
    follows a limit that was set.

    On a device without limits of its own a step has at most 512 tokens per thread: more do not make it faster, and running
    streams wait for it.
    """
    names, seqs, tokens = adjustable(config, device), config.max_num_seqs, config.max_num_batched_tokens
    if not names:
        return config
    if device.batch_limits is None:
        threads = config.optimization.num_threads or cpu_threads()
        return replace(config, max_num_batched_tokens=min(tokens, max(seqs, _TOKENS_PER_THREAD * threads)))
    own_seqs, own_tokens = device.batch_limits
    if "max_num_seqs" in names:
        seqs = own_seqs if "max_num_batched_tokens" in names else min(own_seqs, tokens)
    if "max_num_batched_tokens" in names:
        tokens = max(own_tokens, seqs)
    return replace(config, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def fitting(
    config: ExecutorConfig,
    source: LoadedModel,
    free: int,
    device: Device,
    beside: Callable[[ExecutorConfig], int] = lambda config: 0,
) -> ExecutorConfig:
    """Return `config` with batch limits that suit the device and fit `free` bytes, where none were set (`default_limits`).

    Those limits are halved until a full step, the states of all sequences, and what is taken `beside` them at the same limits,
    leave to KV three quarters of the `free` bytes that adapters do not take.
    """
    names = adjustable(config, device)
    if not names:
        return config
    chosen = suited(config, device)

    # Adapters take the same with any limits.
    free -= sum(claim.num_bytes for claim in claims(config, source) if claim.setting == _ADAPTERS)

    def needed(at: ExecutorConfig) -> int:
        steps = sum(claim.num_bytes for claim in claims(at, source) if claim.setting != _ADAPTERS)
        return beside(at) + steps + _state_bytes(at, source.model)

    for_kv = config.memory.kv_cache_memory_bytes

    def is_large(at: ExecutorConfig) -> bool:
        # Of memory that was given for KV, states take at most half.
        return 4 * needed(at) > free or (for_kv is not None and 2 * _state_bytes(at, source.model) > for_kv)

    while is_large(chosen) and (smaller := _halved(chosen, names)) != chosen:
        chosen = smaller
    return chosen


def _halved(config: ExecutorConfig, names: tuple[str, ...]) -> ExecutorConfig:
    """Halve these limits, as far as it helps."""
    seqs, tokens = config.max_num_seqs, config.max_num_batched_tokens
    if "max_num_seqs" in names:
        seqs = max(min(seqs, _LEAST_SEQS), seqs // 2)
    if "max_num_batched_tokens" in names:
        tokens = max(min(tokens, _LEAST_TOKENS), tokens // 2, seqs)
    return replace(config, max_num_seqs=seqs, max_num_batched_tokens=tokens)


def fewest(config: ExecutorConfig, device: Device) -> ExecutorConfig:
    """Return `config` with the fewest sequences that `fitting` may come to."""
    names = adjustable(config, device)
    return (
        replace(config, max_num_seqs=min(config.max_num_seqs, _LEAST_SEQS))
        if "max_num_seqs" in names
        else config
    )


def limits_note(initial: ExecutorConfig, final: ExecutorConfig, device: Device) -> str:
    """Return a line for the operator: the limits of a step in `final`, made of `initial`, and why they are what they are."""
    wished = suited(initial, device)
    parts = []
    for name, what in zip(BATCH_LIMITS, ("sequences", "tokens"), strict=True):
        value, usual = getattr(final, name), getattr(wished, name)
        why = "set" if name not in initial.default_limits else "default"
        if value != usual:
            why = f"lowered from {usual:,} because memory is short"
        parts.append(f"{value:,} {what} ({name}: {why})")
    return f"steps: at most {parts[0]} and {parts[1]}"


def requirements(
    config: ExecutorConfig, source: LoadedModel, draft: LoadedModel | None = None
) -> MemoryRequirements:
    """Return the memory figures of the contract's capabilities, a draft model's included. A test compares them with measured
    memory.

    The heap keeps about as much again as a step's activations: blocks that one layer frees do not fit the requests of the
    next (measured: 97 MB resident for 49 MB of tensors).
    """
    spec, tokens = kv_group(source.model), config.max_num_batched_tokens
    kv_bytes = spec.bytes_per_token() + sum(kv_bytes_beside(draft))
    return MemoryRequirements(
        parameter_memory=source.parameter_bytes + (draft.parameter_bytes if draft else 0),
        activation_memory_per_token=source.activation_bytes_per_token,
        kv_memory_per_token_per_layer=kv_bytes // spec.num_layers,
        overhead_memory=_RUNTIME_BYTES
        + _state_bytes(config, source.model)
        + _logits_bytes(config, source)
        + tokens * source.activation_bytes_per_token,
        max_batched_tokens=tokens,
    )


def kv_bytes_beside(draft: LoadedModel | None) -> tuple[int, ...]:
    """Return the bytes per token of each group of a draft model's KV."""
    return (
        () if draft is None else tuple(part.bytes_per_token() for part in draft_parts(kv_group(draft.model)))
    )


def draft_bytes(config: ExecutorConfig, draft: LoadedModel | None) -> int:
    """Return the bytes that the largest forward of a draft model takes on a device, beside weights and KV; 0 without one."""
    if draft is None:
        return 0
    logits = draft.info.logits_width * kv_group(draft.model).dtype.itemsize
    return config.max_num_batched_tokens * draft.activation_bytes_per_token + config.max_num_seqs * logits


def _state_bytes(config: ExecutorConfig, model: HasCaches) -> int:
    spec = state_group(model)
    return 0 if spec is None else (config.max_num_seqs + LEAST_SNAPSHOTS) * spec.bytes_per_slot()


def _logits_bytes(config: ExecutorConfig, source: LoadedModel) -> int:
    # float32 logits of a full batch, and the sampler's copy of them.
    return 2 * 4 * source.info.logits_width * config.max_num_seqs


def check_slots(config: ExecutorConfig, max_model_len: int, num_groups: int = 1) -> None:
    """Raise ConfigError if the tables of all slots exceed the machine's memory: the kernel would refuse them, although few of
    their pages are ever written. `num_groups` of blocks."""
    if _slot_bytes(config, max_model_len, num_groups) > machine_bytes():
        raise slots_do_not_fit(config, max_model_len, num_groups)


def slots_do_not_fit(config: ExecutorConfig, max_model_len: int, num_groups: int = 1) -> ConfigError:
    """Make the error for tables that cannot be allocated."""
    return ConfigError(
        f"max_num_seqs {config.max_num_seqs}: tables for {num_slots(config)} slots of {max_model_len} tokens take "
        f"{_slot_bytes(config, max_model_len, num_groups):,} bytes, this machine has {machine_bytes():,}; "
        f"set a smaller max_num_seqs or max_model_len"
    )


def _slot_bytes(config: ExecutorConfig, max_model_len: int, num_groups: int) -> int:
    # int32: the token pool's row and those of the block tables, see `SequenceStates`.
    row = 4 * (max_model_len + 1) + 4 * num_groups * math.ceil(max_model_len / config.attention.block_size)
    return num_slots(config) * (row + _SETTINGS_BYTES)
