"""Loads the model that an `ExecutorConfig` names, with its facts. Every fault is a ConfigError of one line."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from executors.cgroup import memory_limit
from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError, OutOfMemory
from executors.contract.faults import no_memory
from executors.contract.status import ModelInfo
from executors.kernels.compiler import KernelUnavailable
from executors.kernels.cpu import (
    CpuKernels,
    MergedWeight,
    cpu_kernels,
    operand_bytes,
    use_kernels,
    value_dtype,
)
from executors.llm.attention.cpu_attention import INT8_BLOCK, supports
from executors.llm.checkpoint.claims import refuse_claim
from executors.llm.checkpoint.device_layers import keep, keep_head
from executors.llm.checkpoint.fp8_layers import hold
from executors.llm.checkpoint.mtp_choice import choose_head
from executors.llm.checkpoint.weights import (
    Progress,
    checkpoint_dtype,
    embedding_stays,
    fill_dummy,
    fp8_names,
    load_weights,
    row_table_stays,
    settle_config,
    stored_formats,
)
from executors.llm.device.table import device_of, find_device
from executors.llm.fused import cpu_experts, cpu_forward
from executors.llm.kernel_support import fp8_support, stored_support
from executors.llm.kernel_support.passed_checks import PassedChecks
from executors.llm.memory.fingerprint import checkpoint_files
from executors.llm.memory.kv_groups import equal_heads
from executors.llm.memory.kv_plan import plan_kv
from executors.llm.memory.sizing import Claim, adjustable, fewest
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model import fp8
from executors.llm.model.api import LoadedModel
from executors.llm.model.caches import KvSpec, kv_group, state_group
from executors.llm.model.config import DTYPES, DecoderConfig, check_length, read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.gguf_source import config_path, is_gguf, model_path, read_source
from executors.llm.model.linear import StoredFormat
from executors.llm.parallel.rank_decoder import RankDecoder
from executors.llm.parallel.ranks import Ranks
from executors.llm.parallel.shard import plan_shard

_log = logging.getLogger(__name__)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_NAMES = {value: name for name, value in _DTYPES.items()}
INT8_BACKENDS = ("torch", "triton")
"""Attention backends beside Cohort's CPU kernels that read KV in int8."""


def load_model(
    config: ExecutorConfig, progress: Progress, ranks: Ranks | None = None, checks: PassedChecks | None = None
) -> LoadedModel:
    """Load the checkpoint that `config.model` names; with `ranks`, the part of this rank. `checks` of kernels that have passed
    before. Raises ConfigError, OutOfMemory."""
    directory = Path(config.model)
    files = checkpoint_files(directory)  # before they are read: what changes meanwhile is not what was read
    decoder_config = read_config(directory)
    if config.load_format != "dummy":
        decoder_config = settle_config(decoder_config, directory)
    refuse_claim(decoder_config.quantization)
    warnings = decoder_config.notes
    for note in warnings:
        _log.warning("%s: %s", config_path(directory), note)
    max_model_len = _max_model_len(config, decoder_config, directory)
    hardware = find_device(config.device)
    device = hardware.place
    hardware.use()
    dtype = weights_dtype(config, decoder_config, directory)
    kv = kv_dtype(config, device, checks)
    kernels, missing = choose_kernels(config, device)
    if kernels is not None:
        use_kernels(kernels)
    else:
        refuse_without_kernels(config, device, missing)
    plan, widened = fp8_plan(config, decoder_config, device, directory, checks)
    each_layer = None if plan is None else partial(hold, plan=plan)
    stored = kept_formats(config, decoder_config, kernels, directory)
    on_device = formats_on_device(config, decoder_config, device, directory, plan, checks)
    if on_device:
        each_layer = partial(keep, stored=on_device)
    make: Callable[..., Decoder] = partial(Decoder, decoder_config)
    if ranks is not None:
        refuse_for_ranks(decoder_config, plan)
        shard = plan_shard(decoder_config, config.parallel, stored or on_device, whole_numbers(config))
        make = partial(RankDecoder, shard, ranks)
    try:
        decoder = make(dtype, device, kernels, whole_numbers(config), plan, each_layer, stored)
        if on_device:
            keep_head(decoder, on_device)
        decoder.kv_dtype = kv
        decoder.mtp_used, decoder.mtp_fault = choose_head(config, decoder_config, device.type)
        refuse_unreadable_kv(kv_group(decoder), config.attention.backend)
        refuse_states(decoder, config)
        if config.optimization.deterministic:
            decoder.be_steady()
        # Refuse before the long part: there is no more memory afterwards.
        plan_kv(
            kv_group(decoder), fewest(config, device_of(device)), decoder_config.context_length,
            _step(config, decoder, kernels),
            states=state_group(decoder),
        )  # fmt: skip
        _check_room(decoder, config, stored)
        if config.load_format == "dummy":
            fill_dummy(decoder, config.seed, progress)
        else:
            left_out = load_weights(decoder, directory, progress)
            if left_out is not None:
                _log.warning("%s: %s", model_path(directory), left_out)
                warnings = (*warnings, left_out)
        info, num_bytes = model_info(config, decoder, max_model_len), decoder.num_bytes()
        # Packed weights are no tensors any more.
        per_rank = decoder.adapter_bytes_per_rank()
        num_bytes += decoder.pack_onednn()
    except (MemoryError, RuntimeError) as error:
        why = no_memory(error)
        if why is None:
            raise
        raise OutOfMemory(f"{directory}: no memory for the weights: {why[:200]}") from None
    widened = widened or _widened(decoder, config, _why_not_kept(config, device, missing, checks))
    notes = _notes(_how_fast(decoder, kernels, missing), widened, decoder)
    return LoadedModel(
        decoder, info, num_bytes, activation_bytes(decoder, kernels), notes, warnings, per_rank, files
    )


def refuse_for_ranks(decoder: DecoderConfig, plan: fp8.Fp8Plan | None) -> None:
    """Raise ConfigError for a model that ranks cannot share."""
    if decoder.family.attention.full_heads:
        raise ConfigError(
            f"tensor_parallel_size, pipeline_parallel_size: layers of {decoder.family.name} have heads of different sizes, "
            "inputs, and KV of other layers, which are not cut; take 1 for both"
        )
    if decoder.transforms is not None:
        raise ConfigError(
            f"{decoder.transforms.where}: transform_config: online transforms are of whole rows and are not "
            "cut; take tensor_parallel_size 1 and pipeline_parallel_size 1"
        )
    if decoder.fp8 is not None or plan is not None:
        raise ConfigError(
            "tensor_parallel_size, pipeline_parallel_size: weights in FP8 are not cut: a block of 128 x 128 has one scale; "
            "take a checkpoint in bfloat16 or in whole numbers"
        )


def refuse_without_kernels(config: ExecutorConfig, device: torch.device, missing: str) -> None:
    """Raise ConfigError if a setting needs Cohort's own kernels; `missing` says why they are unavailable."""
    quantization, int8_kv = whole_numbers(config), config.memory.kv_cache_dtype == "int8"
    # On devices, and where another backend was asked for, others read it.
    int8_kv &= device.type == "cpu" and config.attention.backend not in INT8_BACKENDS
    if config.optimization.deterministic or quantization or int8_kv:
        setting = (
            f"quantization {quantization}"
            if quantization
            else "kv_cache_dtype int8"
            if int8_kv
            else "deterministic"
        )
        cure = ""
        if quantization and (eight_bits := device_of(device).eight_bits):
            cure = f"; take --quantization {eight_bits}"
        raise ConfigError(f"{setting}: needs Cohort's own kernels, which are unavailable: {missing}{cure}")


def fp8_plan(
    config: ExecutorConfig,
    decoder: DecoderConfig,
    device: torch.device,
    directory: Path,
    checks: PassedChecks | None = None,
) -> tuple[fp8.Fp8Plan | None, str | None]:
    """Choose the linear layers that hold e4m3; return the plan, and a note if FP8 weights of the checkpoint are widened.
    Raises ConfigError if `quantization` asks for something unsupported."""
    quantization, scheme = config.optimization.quantization, decoder.fp8
    if scheme is None and quantization != "fp8":
        return None, None
    blocks = scheme is not None and scheme.blocks
    why = fp8_support.why_not(device, config.attention.backend, blocks, checks)
    if why is not None and scheme is None:
        cure = "; take int8" if device.type == "cpu" else ""
        raise ConfigError(f"quantization fp8: {why}{cure}")
    if why is not None:
        return None, f"the checkpoint's FP8 weights were widened: {why}"
    stored = None
    if scheme is not None and config.load_format != "dummy":
        stored = fp8_names(directory, decoder.family)
    has_triton = fp8_support.has_triton(device, config.attention.backend, checks)
    return fp8.Fp8Plan(blocks, stored, has_triton), None


def whole_numbers(config: ExecutorConfig) -> str | None:
    """Return the format of whole numbers that `quantization` asks for: int8, int4 or None."""
    quantization = config.optimization.quantization
    return quantization if quantization in ("int8", "int4") else None


def kept_formats(
    config: ExecutorConfig, decoder: DecoderConfig, kernels: CpuKernels | None, directory: Path
) -> dict[str, StoredFormat]:
    """Return the formats that the decoder keeps of what the files hold quantized, by usual names of tensors; none if a setting
    asks for another, or if there are no kernels for them."""
    if kernels is None or config.load_format == "dummy" or config.optimization.quantization is not None:
        return {}
    return stored_formats(directory, decoder.family)


def formats_on_device(
    config: ExecutorConfig,
    decoder: DecoderConfig,
    device: torch.device,
    directory: Path,
    plan: fp8.Fp8Plan | None,
    checks: PassedChecks | None = None,
) -> dict[str, StoredFormat]:
    """Return the formats that linear layers keep in a GPU's memory, by usual names of tensors; none where the files have none, a
    setting asks for another, or the kernels do not run."""
    if config.load_format == "dummy" or config.optimization.quantization is not None or plan is not None:
        return {}
    if stored_support.why_not(device, config.attention.backend, checks) is not None:
        return {}
    return stored_formats(directory, decoder.family)


def kv_dtype(
    config: ExecutorConfig, device: torch.device, checks: PassedChecks | None = None
) -> torch.dtype | None:
    """Return the dtype that keys and values are stored in, None for the model's dtype. Raises ConfigError."""
    if config.memory.kv_cache_dtype == "auto":
        return None
    if config.memory.kv_cache_dtype == "int8":
        if (why := _why_no_int8_kv(config, device)) is not None:
            raise ConfigError(f"kv_cache_dtype int8: {why}")
        return torch.int8
    why = None
    if device.type != "cpu":
        why = fp8_support.why_not(device, config.attention.backend, checks=checks)
    if why is not None:
        raise ConfigError(f"kv_cache_dtype {config.memory.kv_cache_dtype}: {why}")
    if device.type == "cpu" and config.optimization.deterministic:
        raise ConfigError(
            f"kv_cache_dtype {config.memory.kv_cache_dtype}: not supported with deterministic on a CPU; take int8"
        )
    return fp8.E4M3


def _why_no_int8_kv(config: ExecutorConfig, device: torch.device) -> str | None:
    backend = config.attention.backend
    if backend not in ("auto", *INT8_BACKENDS):
        return f"attention backend {backend} does not read it; take auto"
    if backend != "auto" and config.optimization.deterministic and device.type == "cpu":
        return f"not supported with deterministic and attention backend {backend}; take auto"
    if config.attention.block_size % INT8_BLOCK:
        size = config.attention.block_size
        return f"block_size is {size}; a multiple of {INT8_BLOCK} is needed (--block-size {INT8_BLOCK})"
    return None


def refuse_unreadable_kv(spec: KvSpec, backend: str = "auto") -> None:
    """Raise ConfigError if KV of this model is to be stored in int8 and the attention `backend` has no code for its heads."""
    for part in equal_heads(spec):
        if part.kv_dtype is not torch.int8:
            continue
        if part.head_dim % 2 and (part.device.type != "cpu" or backend != "auto"):
            raise ConfigError(
                f"kv_cache_dtype int8: heads of {part.head_dim} numbers, an odd number, are for Cohort's CPU kernels; take auto"
            )
        if part.device.type == "cpu" and backend == "auto" and not supports(part):
            raise ConfigError(
                f"kv_cache_dtype int8: Cohort's CPU kernel has no code for {part.num_heads} heads of {part.head_dim} over "
                f"{part.num_kv_heads}; take auto"
            )


def _notes(speed: str | None, widened: str | None, decoder: Decoder) -> str | None:
    kv = {None: None, torch.int8: "KV in int8, a scale per head and token"}.get(
        decoder.kv_dtype, "KV in fp8 (e4m3)"
    )
    form_note = None
    if decoder.fp8 is not None:
        count = sum(linear.fp8 is not None for linear in decoder.linears())
        form = "scales of 128 x 128 blocks" if decoder.fp8.blocks else "a scale per row"
        form_note = f"fp8: {count} of {len(decoder.linears())} linear layers, {form}"
    stored = [linear for linear in decoder.linears() if linear.on_device is not None]
    if stored:
        formats = ", ".join(sorted({kind for linear in stored for kind in linear.stored}))
        form_note = (
            f"{len(stored)} of {len(decoder.linears())} linear layers as the file holds them: {formats}"
        )
    headless = None
    if decoder.config.num_labels:
        headless = "a classification head: the model scores and generates nothing"
    elif decoder.config.headless:
        headless = "no lm_head: the model makes embeddings and generates nothing"
    alone = "text only: the checkpoint's other parts are left out" if decoder.config.family.nested else None
    return "; ".join(note for note in (speed, form_note, widened, kv, headless, alone) if note) or None


def choose_kernels(config: ExecutorConfig, device: torch.device) -> tuple[CpuKernels | None, str]:
    """Return Cohort's CPU kernels for a model, or None and the reason. May compile for some seconds.

    Raises ConfigError if this CPU lacks the requested instruction set.
    """
    isa, missing = config.optimization.cpu_isa, ""
    if device.type != "cpu":
        missing = f"the kernels are for CPUs, and this model is on {device}"
    elif config.attention.backend != "auto":
        missing = f"attention backend {config.attention.backend} is set"
    else:
        try:
            return cpu_kernels(isa), ""
        except KernelUnavailable as error:
            missing = str(error)
            if isa is None:
                _log.warning("linear layers: torch, which is slower than Cohort's CPU kernels: %s", missing)
    if isa is not None:
        raise ConfigError(f"cpu_isa {isa} cannot be used: {missing}")
    return None, missing


def _how_fast(decoder: Decoder, kernels: CpuKernels | None, missing: str) -> str | None:
    """Return a note on how linear layers and decoder layers are computed."""
    if decoder.device.type != "cpu":
        return None
    if kernels is not None:
        why = cpu_forward.why_not(decoder)
        form = weights_format(decoder) or DTYPE_NAMES[decoder.dtype]
        layers = "in one call" if why is None else f"by torch around the kernels, because of {why}"
        return f"CPU kernels {kernels.isa}, {form}; layers: {layers}"
    if decoder.dtype is torch.float16:
        return "float16 linear layers are slow on this CPU: --dtype bfloat16 is several times as fast"
    packed = " packed for oneDNN" if decoder.packed else ""
    return f"linear layers: torch{packed}, slower than Cohort's CPU kernels: {missing}"


def _why_not_kept(
    config: ExecutorConfig, device: torch.device, missing: str, checks: PassedChecks | None = None
) -> str:
    """Return why no kernels multiply weights as a file holds them here, "" if some do; `missing`: why not those for CPUs."""
    if device.type == "cpu" and config.attention.backend != "triton":
        return missing
    return stored_support.why_not(device, config.attention.backend, checks) or ""


def _widened(decoder: Decoder, config: ExecutorConfig, missing: str) -> str | None:
    """Return a note if linear layers that the checkpoint has in few bits hold wider numbers; `missing`: why there are no
    kernels."""
    scheme = decoder.config.integers
    if decoder.quantization:
        return None
    if decoder.fp8 is not None:
        if scheme is None or decoder.config.fp8 is None:  # --quantization asked for FP8
            return None
        return f"the checkpoint's {scheme.label} weights were widened beside those in FP8"
    if decoder.keeps_stored or any(linear.on_device for linear in decoder.linears()):
        return None
    if scheme is not None:
        return f"the checkpoint's {scheme.label} weights were widened: {missing or 'their groups are not supported'}"
    if kinds := _kinds_of_gguf(config, decoder):
        return f"the file's {kinds} weights were widened: {missing or 'no kernel reads them'}"
    return None


def _kinds_of_gguf(config: ExecutorConfig, decoder: Decoder) -> str:
    """Return the kinds of blocks that a GGUF file has its matrices in, "" for none or another file."""
    directory = Path(config.model)
    if config.load_format == "dummy" or not is_gguf(directory):
        return ""
    return ", ".join(sorted({one.kind for one in stored_formats(directory, decoder.config.family).values()}))


def weights_format(decoder: Decoder) -> str | None:
    """Return the format of quantized weights: int8, int4, fp8, or that of a file, by which most of its weights are held; None for
    weights of a plain dtype."""
    if decoder.quantization:
        return decoder.quantization
    if decoder.fp8:
        return "fp8"
    sizes: Counter[str] = Counter()
    for linear in decoder.linears():
        if isinstance(linear.packed, MergedWeight):
            for name, part in zip(linear.stored, linear.packed.parts, strict=True):
                sizes[name] += part.num_bytes
        elif linear.stored:
            sizes[linear.stored[0]] += linear.num_bytes
    return sizes.most_common(1)[0][0] if sizes else None


def _max_model_len(config: ExecutorConfig, decoder: DecoderConfig, directory: Path) -> int:
    check_length(config.max_model_len, decoder, directory)
    return config.max_model_len or decoder.context_length


def weights_dtype(config: ExecutorConfig, decoder: DecoderConfig, directory: Path) -> torch.dtype:
    """Return the dtype that weights are stored in, and activations. Raises ConfigError for one that is not supported."""
    name = decoder.dtype if config.dtype == "auto" else config.dtype
    if config.dtype == "auto" and name == "float16" and _rather_bfloat16(config, decoder, directory):
        name = "bfloat16"
    if name is None:
        return torch.float32 if config.load_format == "dummy" else checkpoint_dtype(directory, decoder.family)
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is not supported; supported: auto, {', '.join(DTYPES)}")
    return _DTYPES[name]


def _rather_bfloat16(config: ExecutorConfig, decoder: DecoderConfig, directory: Path) -> bool:
    """Return whether a model whose files name float16 is computed in bfloat16. Raises ConfigError."""
    device = find_device(config.device).place
    if decoder.integers is not None:
        # Most checkpoints in whole numbers name float16, whatever they were made from, and bfloat16 has the quicker attention.
        return device.type == "cpu"
    # The numbers of a GGUF file mostly were bfloat16 or fit into it; float16 keeps all of their digits.
    return is_gguf(directory) and choose_kernels(config, device)[0] is None


def _check_room(decoder: Decoder, config: ExecutorConfig, stored: Mapping[str, StoredFormat]) -> None:
    if decoder.device.type != "cpu":
        return
    available = memory_limit().available
    if config.memory.memory_limit_bytes is not None:
        available = min(available, config.memory.memory_limit_bytes)
    needed = decoder.num_bytes()
    if (
        decoder.maps_embedding
        and config.load_format != "dummy"
        and embedding_stays(Path(config.model), stored)
    ):
        needed -= decoder.embed.numel() * decoder.embed.element_size()  # it will stay in the file
    if (table := decoder.row_table) is not None and config.load_format != "dummy":
        needed -= table.num_bytes if row_table_stays(Path(config.model), decoder.kernels is not None) else 0
    if needed > available:
        directory = Path(config.model)
        gguf = is_gguf(directory) and config.load_format != "dummy"
        narrower = "a file of a smaller quantization" if gguf else "--quantization int8"
        raise ConfigError(
            f"{read_source(directory).path if gguf else directory}: the weights need {needed / 2**30:.1f} GiB of memory, "
            f"{available / 2**30:.1f} GiB are free: take {narrower} or a smaller model"
        )


def _step(config: ExecutorConfig, decoder: Decoder, kernels: CpuKernels | None) -> tuple[Claim, ...]:
    """The memory that the largest step takes, if its size is not to be reduced."""
    tokens = config.max_num_batched_tokens
    if "max_num_batched_tokens" in adjustable(config, device_of(decoder.device)):
        return ()
    return (Claim("max_num_batched_tokens", tokens, tokens * activation_bytes(decoder, kernels)),)


def activation_bytes(decoder: Decoder, kernels: CpuKernels | None) -> int:
    """Estimate the peak memory of a forward, in bytes per token."""
    config = decoder.config
    size = (decoder.dtype if kernels is None else value_dtype(decoder.dtype)).itemsize
    # By torch experts run one after the other: at worst every token is in the same one.
    moe = config.moe
    inner = max(config.intermediate_size, *((moe.intermediate_size, moe.shared_size) if moe else (0,)))
    inner = max(inner, *(layer.inner for layer in config.layers))
    mixers = [cpu_forward.mixer_columns(layer) for layer in decoder.layers]
    qkv = max(one.inputs for one in mixers)
    if kernels is not None and cpu_forward.why_not(decoder) is None:
        # As in forward.h: the residual in float32, of wanted rows a second one; a product's operand; q, k and v in float32, or
        # what another mixer takes, and its rates; queries, attention's result and inner; what layers get beside the residual, and
        # the operand that it is made of.
        inner, queries = cpu_experts.mlp_size(decoder), max(one.outputs for one in mixers)
        widest = max(config.hidden_size, queries, inner, config.layer_input_size)
        stored_kind = next(
            (linear.stored[0] for linear in decoder.layers[0].mixer.linears if linear.stored), None
        )
        kind = stored_kind or decoder.quantization or DTYPE_NAMES[decoder.dtype]
        operand = operand_bytes(kernels, widest, kind)
        names = config.family.names
        residuals = (
            12 if names.attn_post_norm or names.mlp_post_norm else 8
        )  # what is normed before it is added
        beside = residuals * config.hidden_size + operand + size * (2 * queries + inner)
        beside += 4 * max(qkv, config.layer_input_size) + 4 * config.num_layers * config.layer_input_size
        if rates := max(one.rates for one in mixers):
            beside += 4 * rates + operand_bytes(kernels, config.hidden_size, DTYPE_NAMES[decoder.dtype])
        if (inputs := decoder.layer_inputs) is not None:
            [projected, *_] = (*inputs.projection.stored, decoder.quantization or DTYPE_NAMES[decoder.dtype])
            beside += operand_bytes(kernels, config.hidden_size, projected)
        return beside + cpu_experts.bytes_per_token(decoder, kernels)
    # The residual, qkv with its rotated copy, and gate, up and their product; and a product's operand in e4m3.
    operand = max(config.hidden_size, config.q_size, inner) if decoder.fp8 is not None else 0
    stored = 4 * inner
    if config.moe is not None and decoder.device.type != "cpu":
        # All experts at once: what those of a token make inside, and their results, see triton_experts.py.
        stored = max(stored, config.moe.top_k * (config.moe.intermediate_size + config.hidden_size))
    # A row of the table as its file has it, widened, with what is projected, and their sum.
    of_layers = 4 * config.num_layers * config.layer_input_size
    return size * (3 * config.hidden_size + 2 * qkv + stored + of_layers) + operand


def model_info(config: ExecutorConfig, decoder: Decoder, max_model_len: int) -> ModelInfo:
    """Return the facts about a model that the contract defines."""
    c = decoder.whole
    return ModelInfo(
        name=Path(config.model).resolve().name,
        family=c.family.name,
        num_layers=c.num_layers,
        num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        hidden_size=c.hidden_size,
        vocab_size=c.vocab_size,
        logits_width=c.vocab_size,
        max_model_len=max_model_len,
        dtype=DTYPE_NAMES[decoder.dtype],
        quantization=weights_format(decoder),
        num_parameters=decoder.num_parameters(),
        device=str(decoder.device),
        generates=not c.headless,
        num_labels=c.num_labels,
    )
