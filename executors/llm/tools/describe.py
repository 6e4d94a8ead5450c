"""Facts about a checkpoint for `cohort info`: sizes, KV, and how many sequences fit. No weight is read.

The model is built on torch's meta device, where tensors have shapes and no memory. Sizes and the plan of the KV memory come
from the code that the executor loads with, so that both report the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from executors.cgroup import memory_limit, resident_bytes, resident_bytes_of_a_fork
from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.status import KvGroup, KvLayout
from executors.kernels.cpu import CpuKernels, packed_bytes
from executors.llm.assembly.device_sizing import graph_bytes
from executors.llm.checkpoint import loader
from executors.llm.checkpoint.claims import refuse_claim
from executors.llm.checkpoint.draft import draft_config, refuse_draft
from executors.llm.checkpoint.files import Checkpoint, index_path
from executors.llm.checkpoint.fp8_layers import hold
from executors.llm.checkpoint.mtp_choice import choose_head
from executors.llm.checkpoint.weights import (
    check_load,
    embedding_stays,
    lacks,
    row_table_stays,
    settle_config,
)
from executors.llm.device.table import device_of, find_device
from executors.llm.encoder.reading import family_in
from executors.llm.factory import LlmFactory
from executors.llm.kernel_support.kernel_choice import choose_attention
from executors.llm.memory import sizing
from executors.llm.memory.device_memory import CONTEXT_BYTES, Room, look, margin
from executors.llm.memory.kv_groups import blocks_of_sequence
from executors.llm.memory.kv_plan import CPU_SHARE, KvPlan, plan_kv
from executors.llm.memory.kv_sizes import KvSizes
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model.api import LoadedModel
from executors.llm.model.caches import HasCaches, KvSpec, StateSpec, kv_group, state_group
from executors.llm.model.config import DecoderConfig, read_config, read_json
from executors.llm.model.decoder import Decoder
from executors.llm.model.gguf_source import is_gguf
from executors.llm.model.linear import can_pack_onednn
from executors.llm.parallel.rank_decoder import RankDecoder
from executors.llm.parallel.shard import plan_shard
from executors.llm.tools.describe_encoder import describe_encoder
from executors.llm.tools.lora_check import check_adapter

SERVER_BYTES = 120 << 20
"""Memory of the serving process beside the executor's, in bytes: 90 MiB resident with the embedded model when idle, plus a
reserve."""
LENGTHS = tuple(512 * 4**n for n in range(12))
"""Sequence lengths in tokens: 512, 2k, 8k, 32k, ... The table has one row for each, up to the context."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of a server, and what takes of it beside a model. `memory`: bytes in all, None: this machine's. `draft`: the draft
    model that is loaded, too. `process_bytes`: of the executor's process without weights and KV, None: as much as this one."""

    memory: int | None = None
    draft: LoadedModel | None = None
    process_bytes: int | None = None


def run(job: dict[str, Any], stage: Callable[[str], None]) -> dict[str, Any]:
    """`job`: `config`, an ExecutorConfig as plain data; `memory`, bytes the server may use, or None for this machine's;
    `adapter`, where one is part of the model: the `path` of its file, and its name in messages, `shown`; `is_forked`: whether the
    executor will be forked from a process that has imported, which counts where there is a limit of its memory.

    Raises ConfigError for a checkpoint that cannot be served, with the sentence that a load would raise before it reads weights.
    Missing weights (`checkpoint`: `problem`) and insufficient memory are reported in the result.
    """
    config = msgspec.convert(job["config"], ExecutorConfig)
    forks = job.get("is_forked", False) and config.memory.memory_limit_bytes is not None
    facts = describe(config, job.get("memory"), resident_bytes_of_a_fork() if forks else None)
    if (adapter := job.get("adapter")) is not None:
        directory = Path(config.model)
        _, shape = checkpoint_facts(directory, read_config(directory))
        check_adapter(Path(adapter["path"]), adapter["shown"], shape, config.optimization.max_lora_rank)
    return facts


def describe(
    config: ExecutorConfig, memory: int | None = None, process_bytes: int | None = None
) -> dict[str, Any]:
    """See `run`. All sizes are bytes, all lengths tokens. `process_bytes`: what the executor's process takes beside weights and
    KV; None: as much as this one."""
    LlmFactory().validate_config(config)
    directory = Path(config.model)
    if family_in(directory) is not None:
        return describe_encoder(config, memory)
    shape = read_config(directory)
    device = find_device(config.device).place
    stored, shape = checkpoint_facts(directory, shape)
    refuse_claim(shape.quantization)
    here = stored["problem"] is None
    sketch = sketch_model(config, shape, device, stored["dtype"], here)
    if here:
        stored["left_out"] = refuse_unloadable(config, shape, device, sketch)
    parts = _sketch_ranks(config, shape, device, stored)
    budget = Budget(memory, _sketch_draft(config, sketch, device), process_bytes)
    initial, config = config, _sized(config, parts or [sketch], budget)
    spec = kv_group(sketch.model)
    # What the files hold, when they are not here: as many parameters, in the dtype that config.json names.
    dtype = stored["dtype"] or shape.dtype or sketch.info.dtype
    size = stored["bytes"] or sketch.info.num_parameters * getattr(torch, dtype).itemsize
    return {
        "name": directory.name,
        "architecture": shape.architecture,
        "family": shape.family.name,
        "text_only": bool(shape.family.nested),
        "generates": not shape.headless,
        "labels": shape.num_labels,
        "warnings": [*shape.notes, *([stored["left_out"]] if stored["left_out"] else [])],
        "parameters": sketch.info.num_parameters,
        "checkpoint": {**stored, "bytes": size, "dtype": dtype},
        "dtype": sketch.info.dtype,
        "device": str(device),
        "weight_bytes": sketch.info.num_parameters * spec.dtype.itemsize,
        "loaded_bytes": sketch.parameter_bytes,
        "quantization": loader.whole_numbers(config) or sketch.info.quantization,
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "heads": shape.num_heads,
        "kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "other_heads": _other_heads(shape),
        "layers_that_share_kv": sum(layer.kv_from is not None for layer in shape.layers),
        "experts": [shape.moe.num_experts, shape.moe.top_k] if shape.moe else None,
        "vocab_size": shape.vocab_size,
        "context_length": shape.context_length,
        "max_context_length": shape.max_context_length,
        "kv": _kv_facts(spec),
        "states": _state_facts(state_group(sketch.model)),
        "ranks": [
            {
                "loaded_bytes": part.parameter_bytes,
                "kv_bytes_per_token": kv_group(part.model).bytes_per_token(),
            }
            for part in parts
        ],
        "memory": _least_memory(config, parts or [sketch], budget),
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        # A host's limits follow its threads when it serves.
        "limits": sizing.limits_note(initial, config, device_of(device))
        if device_of(device).batch_limits
        else "",
        "info": asdict(sketch.info),
    }


def refuse_unloadable(
    config: ExecutorConfig, shape: DecoderConfig, device: torch.device, sketch: LoadedModel
) -> str | None:
    """Raise the ConfigError that `load_model` and a start after it would raise from headers alone, by the functions that they
    call. Return a note on tensors that are not used, or None. The files must be there."""
    directory = Path(config.model)
    plan, _ = loader.fp8_plan(config, shape, device, directory)
    loader.formats_on_device(config, shape, device, directory, plan)
    refuse_states(sketch.model, config)
    left_out = None
    if config.load_format != "dummy":
        dtype = getattr(torch, sketch.info.dtype)
        decoder = Decoder(shape, dtype, torch.device("meta"))
        decoder.mtp_used, decoder.mtp_fault = choose_head(config, shape, device.type)
        left_out = check_load(decoder, directory)
    if device.type == "cpu":  # on a GPU the choice runs kernels
        choose_attention(
            kv_group(sketch.model), config.attention.backend, config.optimization.deterministic, config.optimization.cpu_isa,
            config.attention.block_size,
        )  # fmt: skip
    return left_out


def _sketch_ranks(
    config: ExecutorConfig, shape: DecoderConfig, device: torch.device, stored: dict[str, Any]
) -> list[LoadedModel]:
    """Return what each rank would load; [] for one process."""
    if config.parallel.world_size == 1:
        return []
    here = stored["problem"] is None
    of_ranks = (replace(config.parallel, rank=rank) for rank in range(config.parallel.world_size))
    return [
        sketch_model(replace(config, parallel=one), shape, device, stored["dtype"], here, part=True)
        for one in of_ranks
    ]


def _sketch_draft(config: ExecutorConfig, sketch: LoadedModel, device: torch.device) -> LoadedModel | None:
    """Return what would be loaded of the draft model; None without one. Raises ConfigError as `load_draft`, from headers."""
    if not config.optimization.draft_model:
        return None
    own = draft_config(config, sketch.info)
    directory = Path(own.model)
    stored, shape = checkpoint_facts(directory, read_config(directory))
    draft = sketch_model(own, shape, device, stored["dtype"], stored["problem"] is None)
    refuse_states(draft.model, config)
    refuse_draft(own.model, draft.info, sketch.info)
    return draft


def _sized(config: ExecutorConfig, parts: list[LoadedModel], budget: Budget) -> ExecutorConfig:
    """Return the configuration with the batch limits that the ranks will choose."""
    device = device_of(kv_group(parts[0].model).device)
    least = min(parts, key=lambda part: free_after_loading(config, part, budget)[0])
    free = free_after_loading(config, least, budget)[0]
    if device.batch_limits is None:
        return sizing.fitting(config, least, free, device)
    return sizing.fitting(
        config, least, free + graph_bytes(config), device,
        lambda at: graph_bytes(at) + sizing.draft_bytes(at, budget.draft),
    )  # fmt: skip


def _least_memory(config: ExecutorConfig, parts: list[LoadedModel], budget: Budget) -> dict[str, Any]:
    """Return the facts of the rank with the least room: the others have no more blocks."""
    facts_of = [_memory_facts(config, part, budget) for part in parts]
    return min(facts_of, key=lambda facts: facts["num_blocks"] if facts["problem"] is None else -1)


def sketch_model(
    config: ExecutorConfig, shape: DecoderConfig, device: torch.device, stored_dtype: str | None, here: bool,
    part: bool = False,
) -> LoadedModel:  # fmt: skip
    """Return what `load_model` would return, with a model that only has a KV shape. `here`: whether all weights are; `part`:
    only what the rank that `config` names has of the model."""
    directory = Path(config.model)
    if config.dtype == "auto" and shape.dtype is None and not stored_dtype:
        config = replace(config, dtype="float32")
    dtype = loader.weights_dtype(config, shape, directory)
    max_len = config.max_model_len or shape.context_length
    # Without rotary tables, which the executor makes once KV is planned.
    # As if all linears were FP8 where the checkpoint's are: its files need not be there.
    plan, _ = loader.fp8_plan(replace(config, load_format="dummy"), shape, device, directory)
    kv = loader.kv_dtype(config, device)  # in the order of a load, so that the same setting is named
    kernels, missing = loader.choose_kernels(config, device)
    if kernels is None:
        loader.refuse_without_kernels(config, device, missing)
    make: Callable[..., Decoder] = partial(Decoder, shape)
    if part:
        loader.refuse_for_ranks(shape, plan)
        stored = loader.kept_formats(config, shape, kernels, directory) if here else {}
        shard = plan_shard(shape, config.parallel, stored, loader.whole_numbers(config))
        make = partial(RankDecoder, shard, None)
    decoder = make(
        dtype,
        torch.device("meta"),
        fp8=plan,
        each_layer=None if plan is None else partial(hold, plan=plan),
    )
    decoder.kv_dtype = kv
    specs = tuple(replace(one, device=device) for one in decoder.cache_specs)
    model: Any = SimpleNamespace(cache_specs=specs)
    loader.refuse_unreadable_kv(kv_group(model), config.attention.backend)
    num_bytes = _bytes_when_loaded(config, decoder, device, kernels, here)
    info = replace(loader.model_info(config, decoder, max_len), device=str(device))
    return LoadedModel(
        model,
        info,
        num_bytes,
        loader.activation_bytes(decoder, kernels),
        adapter_bytes_per_rank=decoder.adapter_bytes_per_rank(),
    )


def _bytes_when_loaded(
    config: ExecutorConfig, decoder: Decoder, device: torch.device, kernels: CpuKernels | None, here: bool
) -> int:
    """Return the bytes that the weights of an unpacked `decoder` will take on `device`, packed as they would be there. `here`:
    whether the files are, so that they can say what they hold quantized."""
    num_bytes, embed = decoder.num_bytes(), decoder.embed.numel() * decoder.dtype.itemsize
    tied, dummy = decoder.config.tied, config.load_format == "dummy"
    if (table := decoder.row_table) is not None and device.type == "cpu" and not dummy:
        num_bytes -= (
            table.num_bytes if not here or row_table_stays(Path(config.model), kernels is not None) else 0
        )
    if kernels is None:
        return num_bytes + embed if tied and can_pack_onednn(decoder.dtype, device) else num_bytes
    stored = loader.kept_formats(config, decoder.config, kernels, Path(config.model)) if here else {}
    parts_of = decoder.kept_parts(stored)
    for linear, how in decoder.packing(loader.whole_numbers(config)):
        assert linear.weight is not None
        rows, columns = linear.weight.shape
        parts = parts_of[id(linear)].joined if id(linear) in parts_of else [(rows, how.kind)]
        gated = how.gated and len(parts) == 1
        num_bytes += sum(packed_bytes(kernels, rows, columns, kind, gated) for rows, kind in parts)
        num_bytes -= linear.num_bytes
    # A checkpoint's embedding stays in the file. The head's own, where they are tied, was counted as the head's weight.
    stays = not dummy and (not here or embedding_stays(Path(config.model), stored))
    return num_bytes + (embed if tied and not stays else 0) - (0 if tied or not stays else embed)


def checkpoint_facts(directory: Path, shape: DecoderConfig) -> tuple[dict[str, Any], DecoderConfig]:
    """Return facts from the headers of the weight files, or from the index alone if only the index was downloaded, and
    `shape` with the head that the checkpoint has. `problem`: why there are no weights to load, and `fetched`: whether that is so
    although all files that the checkpoint should have are there."""
    facts: dict[str, Any] = {
        "bytes": None, "dtype": None, "formats": {}, "files": 0, "problem": None, "fetched": True, "left_out": None,
    }  # fmt: skip
    try:
        checkpoint = Checkpoint(directory)
    except ConfigError as error:
        facts["problem"] = str(error)
        facts["bytes"] = _indexed_bytes(directory)
        facts["fetched"] = any(directory.glob("*.safetensors")) or is_gguf(directory)
        return facts, shape
    try:
        shape = settle_config(shape, directory)
        facts["problem"] = lacks(shape, checkpoint)
        if facts["problem"] is not None:
            facts["bytes"] = _indexed_bytes(directory)
            facts["fetched"] = not checkpoint.absent
            return facts, shape
        by_dtype: Counter[str] = Counter()
        for file in checkpoint.files.values():
            for name in file.names():
                dtype = file.stored_as(name)
                if dtype is not None:  # else a mask or the like
                    by_dtype[dtype] += file.num_bytes(name)
        facts |= {
            "bytes": by_dtype.total(),
            "files": len(checkpoint.files),
            "formats": dict(by_dtype.most_common()),
        }
        if by_dtype:
            facts["dtype"] = by_dtype.most_common(1)[0][0]
    except ConfigError as error:
        facts["problem"] = str(error)
    finally:
        checkpoint.close()
    return facts, shape


def _indexed_bytes(directory: Path) -> int | None:
    try:
        path = index_path(directory)
    except ConfigError:
        return None  # which the problem says
    metadata = None if path is None else read_json(path).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def _other_heads(shape: DecoderConfig) -> list[dict[str, int]]:
    """Return the sizes of heads that some layers have in place of the model's, and how many layers have them."""
    counts = Counter(layer.heads for layer in shape.layers if layer.heads is not None)
    return [
        {"kv_heads": heads.num_kv_heads, "head_dim": heads.head_dim, "layers": layers}
        for heads, layers in counts.items()
    ]


def _kv_facts(spec: KvSpec) -> dict[str, Any]:
    windows = Counter(window for window in spec.windows if window is not None)
    return {
        "layers": spec.num_layers,
        "dtype": str(spec.stored_dtype).removeprefix("torch."),
        "bytes_per_token": spec.bytes_per_token(),
        "bytes_per_token_per_layer": spec.bytes_per_token() // spec.num_layers,
        "windows": [{"tokens": window, "layers": layers} for window, layers in sorted(windows.items())],
    }


def _state_facts(spec: StateSpec | None) -> dict[str, Any] | None:
    """Return what layers keep of each sequence beside KV, whatever its length; None if they keep nothing."""
    if spec is None:
        return None
    return {"layers": spec.num_layers, "dtype": "float32", "bytes_per_sequence": spec.bytes_per_slot()}


def _slot_facts(layout: KvLayout, most: int) -> dict[str, int] | None:
    """Return how many slots for states the plan has, those of `most` sequences and those for snapshots; None without states."""
    state = layout.state
    if state is None:
        return None
    return {
        "slots": state.num_slots,
        "snapshots": state.num_slots - most,
        "interval": state.interval,
        "bytes": layout.state_bytes,
    }


def _memory_facts(config: ExecutorConfig, sketch: LoadedModel, budget: Budget) -> dict[str, Any]:
    """Return the KV plan and its capacity for sequences of some lengths; {"problem": ...} if nothing can be served."""
    claims = sizing.claims(config, sketch)
    explicit = config.memory.kv_cache_memory_bytes
    free, share = free_after_loading(config, sketch, budget)
    memory, beside = budget.memory, sizing.kv_bytes_beside(budget.draft)
    reserved = sum(claim.num_bytes for claim in claims)
    allowed = explicit if explicit is not None else max(0, int((free - reserved) * share))
    facts: dict[str, Any] = {
        "given": memory, "free_after_loading": free, "reserved": reserved, "share": share, "kv_bytes": allowed,
    }  # fmt: skip
    if free < 0 and explicit is None:
        weights = _weight_bytes(sketch, budget.draft)
        rest = "" if memory is None else f" beside {memory - free - weights:,} for the processes"
        problem = f"the weights need {weights:,} bytes{rest}, {-free:,} more than are available"
        return {**facts, "problem": problem}
    try:
        plan = plan_for(sketch.model, config, sketch.info.max_model_len, allowed, beside)
    except ConfigError as error:
        return {
            **facts,
            "problem": str(error) if explicit is not None else _too_little(config, sketch, allowed, beside),
        }
    layout = plan.layout
    return facts | {
        "problem": None,
        "block_size": layout.block_size,
        "num_blocks": layout.num_blocks,
        "groups": [
            {"window": one.window, "num_blocks": one.num_blocks, "bytes_per_block": one.bytes_per_block}
            for one in layout.groups
        ],
        "states": _slot_facts(layout, config.max_num_seqs),
        "capacity_tokens": layout.capacity_tokens,
        "pool_bytes": layout.num_bytes,
        # The pool is no larger than max_num_seqs can use; so many full sequences memory would hold.
        "full_sequences_in_memory": allowed // _bytes_of_one(plan.max_model_len, layout),
        "max_model_len": plan.max_model_len,
        "note": plan.note,
        "sequences": [
            _row(length, layout, config.max_num_seqs) for length in lengths_up_to(plan.max_model_len)
        ],
    }


def plan_for(
    model: HasCaches, config: ExecutorConfig, context_length: int, allowed: int, beside: Sequence[int] = ()
) -> KvPlan:
    """Return the executor's plan for `allowed` bytes of KV and states. If no length was requested, the plan is shortened instead
    of refused. `beside`: see `plan_kv`."""
    explicit = replace(config, memory=replace(config.memory, kv_cache_memory_bytes=allowed))
    block_size = config.attention.block_size
    spec, states = kv_group(model), state_group(model)
    length = config.max_model_len or context_length
    fitting = KvSizes(spec, config, length, beside, states).longest(allowed) * block_size
    chosen = _demanded_length(config) is not None or config.memory.kv_cache_memory_bytes is not None
    if chosen or fitting < block_size or fitting >= length:
        return plan_kv(spec, explicit, context_length, beside=beside, states=states)
    note = f"max_model_len reduced from {length} to {fitting}: KV memory allows no more"
    shorter = replace(explicit, max_model_len=fitting)
    return replace(plan_kv(spec, shorter, context_length, beside=beside, states=states), note=note)


def _too_little(config: ExecutorConfig, sketch: LoadedModel, allowed: int, beside: Sequence[int]) -> str:
    block_size = config.attention.block_size
    length = _demanded_length(config) or block_size
    sizes = KvSizes(kv_group(sketch.model), config, length, beside, states=state_group(sketch.model))
    needed = sizes.of_one(math.ceil(length / block_size))
    return f"{allowed:,} bytes are left for KV, and a sequence of {length:,} tokens needs {needed:,}"


def _demanded_length(config: ExecutorConfig) -> int | None:
    """Return the length that a start needs KV for, in tokens; None if it takes a shorter one."""
    return None if config.shrink_length else config.max_model_len


def _weight_bytes(sketch: LoadedModel, draft: LoadedModel | None) -> int:
    return sketch.parameter_bytes + (0 if draft is None else draft.parameter_bytes)


def free_after_loading(config: ExecutorConfig, sketch: LoadedModel, budget: Budget) -> tuple[int, float]:
    """Return the bytes that would be free with the weights in memory, those of a draft model too (negative: they do not fit),
    and the share that KV may take.

    For `memory` bytes in all, the processes themselves count too: torch and its libraries are loaded in this one.
    """
    device, weights = kv_group(sketch.model).device, _weight_bytes(sketch, budget.draft)
    ranks, memory = config.parallel.world_size, budget.memory
    if (own := device_of(device).memory) is not None:
        room = look(own, config)
        if memory is not None:
            room = Room(
                memory,
                memory - CONTEXT_BYTES,
                CONTEXT_BYTES,
                room.share,
                margin(memory),
                standby=room.standby,
            )
        return room.usable - weights - graph_bytes(config), 1.0
    if memory is not None:
        return (memory - SERVER_BYTES) // ranks - resident_bytes() - weights, CPU_SHARE
    available = memory_limit().available // ranks
    if config.memory.memory_limit_bytes is not None:
        own_bytes = resident_bytes() if budget.process_bytes is None else budget.process_bytes
        available = min(available, config.memory.memory_limit_bytes // ranks - own_bytes)
    return available - weights, CPU_SHARE


def lengths_up_to(context: int) -> list[int]:
    """Return the LENGTHS that are shorter than the context, and the context."""
    return [*(length for length in LENGTHS if length < context), context]


def _blocks_of_one(length: int, layout: KvLayout) -> list[tuple[KvGroup, int]]:
    """Return the groups with the blocks that a sequence of `length` tokens holds in each."""
    return [(group, blocks_of_sequence(group.window, length, layout.block_size)) for group in layout.groups]


def _bytes_of_one(length: int, layout: KvLayout) -> int:
    """Return the bytes of the blocks of a sequence of `length` tokens, and of its state."""
    blocks = sum(count * group.bytes_per_block for group, count in _blocks_of_one(length, layout))
    return blocks + (layout.state.slot_bytes if layout.state else 0)


def _row(length: int, layout: KvLayout, most: int) -> dict[str, int]:
    """Return the bytes of the blocks and the state of a sequence of `length` tokens, and how many such sequences fit the
    layout."""
    fit = min(group.num_blocks // blocks for group, blocks in _blocks_of_one(length, layout))
    if layout.state is not None:
        fit = min(fit, layout.state.num_slots)
    return {
        "length": length, "kv_bytes": _bytes_of_one(length, layout), "fit": fit, "at_once": min(fit, most),
    }  # fmt: skip
