"""The keys of `quantization_config` and of the objects in it: each is read, known to change no answer, or refused by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from executors.contract.errors import ConfigError


@dataclass(frozen=True)
class KnownKeys:
    """The keys of one object. `read`: those that its reader looks at; `harmless`: those that change no answer, by the reason."""

    read: frozenset[str]
    harmless: Mapping[str, tuple[str, ...]]

    @cached_property
    def known(self) -> frozenset[str]:
        """All of them."""
        return self.read.union(*self.harmless.values())


def keys(read: Iterable[str], *harmless: Mapping[str, tuple[str, ...]]) -> KnownKeys:
    """Return the keys of one object; a reason may stand in several tables."""
    merged: dict[str, tuple[str, ...]] = {}
    for table in harmless:
        for reason, names in table.items():
            merged[reason] = (*merged.get(reason, ()), *names)
    return KnownKeys(frozenset(read), merged)


def without(table: Mapping[str, tuple[str, ...]], *names: str) -> dict[str, tuple[str, ...]]:
    """Return a table of harmless keys without some of them, which a method reads."""
    return {reason: tuple(one for one in members if one not in names) for reason, members in table.items()}


def check_keys(values: Mapping[str, Any], table: KnownKeys, where: str) -> None:
    """Raise ConfigError for a key of the object `where` that is not known, unless its value is null, false or empty."""
    names = table.known
    for name, value in values.items():
        if name not in names and not _is_empty(value):
            raise ConfigError(
                f"{where}: key {str(name)[:60]!r} ({short(value)}) is not known, and may change answers: take it out if it only "
                "says how the file was made"
            )


def short(value: object) -> str:
    """Return the value as a message shows it."""
    text = str(value) if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_empty(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


OF_TENSORS = {
    "the tensors show which modules are quantized": (
        "modules_to_not_convert", "modules_to_convert", "ignored_layers", "ignore", "exclude_modules", "lm_head",
        "modules_in_block_to_quantize", "block_name_to_quantize", "to_quant_block_names", "quant_block_list",
        "module_name_preceding_first_block", "packed_modules_mapping", "modules_to_fuse",
    ),
    "the shapes of scales and g_idx show the groups": ("group_size", "q_group_size", "desc_act", "static_groups", "actorder"),
}  # fmt: skip
ORIGIN = {
    "which program made the file": (
        "version", "producer", "provider", "quantizer", "uri", "meta", "autoround_version", "model_name_or_path",
        "model_file_base_name", "quantization_status", "global_compression_ratio", "model_free",
    ),
}  # fmt: skip
KERNELS = {
    "which kernels other programs take, or how they load": (
        "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "use_marlin", "use_triton", "max_input_length",
        "do_fuse", "fuse_max_seq_len", "vllm_backend", "run_compressed", "dequantize", "use_optimized_inference",
    ),
}  # fmt: skip
CALIBRATION = {
    "how the numbers were chosen": (
        "damp_percent", "damp_auto_increment", "percdamp", "true_sequential", "act_group_aware", "mse", "dataset", "tokenizer",
        "batch_size", "pad_token_id", "model_seqlen", "cache_block_outputs", "nsamples", "seqlen", "hessian",
        "hessian_chunk_size", "gptaq", "gptaq_alpha", "gptaq_memory_device", "foem", "v2", "v2_alpha", "v2_memory_device",
        "fail_safe", "fallback", "hyb_act", "mock_quantization", "buffered_fwd", "pack_impl", "offload_to_disk",
        "offload_to_disk_path", "iters", "lr", "minmax_lr", "amp", "enable_minmax_tuning", "enable_norm_bias_tuning",
        "enable_quanted_input", "enable_alg_ext", "enable_torch_compile", "gradient_accumulate_steps", "low_gpu_mem_usage",
        "scale_dtype", "supported_types", "observer", "observer_kwargs", "zp_dtype", "super_group_size", "calibration",
        "duo_scaling", "apply_clip", "max_calib_samples", "max_calib_seq_len", "n_parallel_calib_samples",
    ),
}  # fmt: skip
ACTIVATIONS = {
    "activations keep the model's dtype or are quantized dynamically, per token and group": (
        "activation_scheme", "act_bits", "act_group_size", "act_sym", "act_data_type", "act_dynamic",
    ),
}  # fmt: skip
