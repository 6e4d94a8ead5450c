"""Each key of each quantization method is read, known to change nothing, or refused by its name."""

from __future__ import annotations

import inspect
import re
import time
from typing import Any

import pytest

from executors.contract import ConfigError
from executors.llm.model.quantization import (
    IntScheme,
    IntSchemes,
    Quantization,
    Rule,
    auto_round,
    awq,
    compressed,
    fp8,
    gptq,
    modelopt,
    mxfp4,
    parse_quantization,
)
from executors.llm.model.quantization.keys import KnownKeys
from executors.llm.model.quantization.methods import READERS
from executors.llm.model.quantization.schemes import only_match

WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS}
BASES: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8"},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "awq": {"quant_method": "awq", "bits": 4},
    "auto-round": {"quant_method": "auto-round", "bits": 4},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "mxfp4": {"quant_method": "mxfp4"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": GROUP},
    },
}  # fmt: skip
FLOATS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
OTHER_BASES: dict[str, dict[str, Any]] = {
    "compressed-tensors, outputs": {
        **BASES["compressed-tensors"], "config_groups": {"a": {**GROUP, "output_activations": {"num_bits": 8}}},
    },
    "compressed-tensors, weights in FP8": {
        **BASES["compressed-tensors"], "format": "float-quantized", "config_groups": {"a": {**GROUP, "weights": FLOATS}},
    },
}  # fmt: skip
"""Where the objects of a table need more around them."""
TABLES: dict[str, tuple[KnownKeys, str, tuple[str, ...]]] = {
    "fp8": (fp8.KEYS, "fp8", ()),
    "gptq": (gptq.KEYS, "gptq", ()),
    "gptq, dynamic": (gptq.OVERRIDES, "gptq", ("dynamic", "x")),
    "awq": (awq.KEYS, "awq", ()),
    "awq, dynamic": (awq.OVERRIDES, "awq", ("dynamic", "x")),
    "auto-round": (auto_round.KEYS, "auto-round", ()),
    "auto-round, extra_config": (auto_round.MODULE, "auto-round", ("extra_config", "x")),
    "modelopt": (modelopt.KEYS, "modelopt", ()),
    "mxfp4": (mxfp4.KEYS, "mxfp4", ()),
    "compressed-tensors": (compressed.KEYS, "compressed-tensors", ()),
    "compressed-tensors, a group": (compressed.GROUP, "compressed-tensors", ("config_groups", "a")),
    "compressed-tensors, weights": (compressed.WEIGHTS, "compressed-tensors", ("config_groups", "a", "weights")),
    "compressed-tensors, weights in FP8": (compressed.WEIGHTS, "compressed-tensors", ("config_groups", "a", "weights")),
    "compressed-tensors, inputs": (compressed.WEIGHTS, "compressed-tensors", ("config_groups", "a", "input_activations")),
    "compressed-tensors, outputs": (compressed.WEIGHTS, "compressed-tensors", ("config_groups", "a", "output_activations")),
    "compressed-tensors, sparsity": (compressed.SPARSITY, "compressed-tensors", ("sparsity_config",)),
}  # fmt: skip
"""Each table of keys, its method, and where its object is."""
OTHER: dict[str, Any] = {
    "bits": 8, "sym": True, "quant_algo": "FP8_PB_WO", "data_type": "mx_fp", "act_bits": 8, "super_bits": 6, "num_bits": 2,
    "symmetric": False, "dynamic": {"+:x": {"bits": 8}}, "weights": {**WEIGHTS, "num_bits": 2},
    "extra_config": {"x": {"bits": 8}},
    "format": "gptq_v2", "checkpoint_format": "gptq_v2", "quant_method": "hqq",
    "weight_block_size": [128, 128], "version": "gemv", "zero_point": False, "packing_format": "auto_round:awq",
    "backend": "autoround:exllamav2", "config_groups": {}, "sparsity_config": {"format": "sparse-24-bitmask"},
    "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "output_activations": {"num_bits": 8},
    "input_activations": {"num_bits": 4}, "targets": ["model.x"], "strategy": "block", "type": "float",
    "quantization": {"quant_algo": "NVFP4"}, "quantized_layers": {"x": {"quant_algo": "NVFP4"}},
}  # fmt: skip
"""Another value of a key that counts; of others it is a word that nobody knows."""
WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("awq", "bits"): {"bits": 3},
    ("awq", "dynamic"): {"dynamic": {"-:x": {}}},
    ("awq", "backend"): {"backend": "llm-awq"},
    ("awq", "w_bit"): {"bits": None, "w_bit": 3},
    ("awq", "method"): {"quant_method": None, "method": "hqq"},
    ("gptq", "w_bit"): {"bits": None, "w_bit": 8},
    ("gptq", "wbits"): {"bits": None, "wbits": 8},
    ("gptq", "method"): {"quant_method": None, "method": "hqq"},
    ("fp8", "method"): {"quant_method": None, "method": "hqq"},
    ("mxfp4", "method"): {"quant_method": None, "method": "hqq"},
    ("fp8", "bits"): {"bits": 4},
    ("fp8", "dynamic"): {"dynamic": {"x": {}}},
    ("auto-round", "fmt"): {"bits": 8, "packing_format": "auto_round:fp8_static", "fmt": "e5m2"},
    ("auto-round", "weight_block_size"): {"weight_block_size": [128, 128]},
    ("modelopt", "quantized_layers"): {
        "quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {"quant_algo": "NVFP4"}},
    },
    ("compressed-tensors", "format"): {"format": "marlin-24"},
    ("compressed-tensors, a group", "format"): {"format": "marlin-24"},
    ("compressed-tensors, weights", "dynamic"): {"dynamic": True},
    ("compressed-tensors, weights in FP8", "dynamic"): {"dynamic": True},
    ("compressed-tensors, weights in FP8", "block_structure"): {"block_structure": [64, 64]},
    ("compressed-tensors, weights in FP8", "strategy"): {"strategy": "channel"},
    ("compressed-tensors, weights in FP8", "type"): {"type": "int"},
    ("compressed-tensors, inputs", "num_bits"): {"num_bits": 4},
    ("compressed-tensors, outputs", "num_bits"): {"num_bits": 16},
}  # fmt: skip
"""What to set for a key to count, where another value of it alone is not enough."""
SHOWN_ELSEWHERE = {
    ("compressed-tensors", "transform_config"): "its reader has tests of its own",
    ("compressed-tensors, weights", "symmetric"): "the stored zeros of whole numbers show it",
    (
        "compressed-tensors, weights",
        "block_structure",
    ): "whole numbers have no blocks, which their strategy says",
}
"""Keys that change no scheme of these bases."""
SAID_AS = {
    "method": "hqq", "quant_method": "hqq", "quantization": "NVFP4", "quantized_layers": "NVFP4", "is_marlin_format": "marlin",
    "w_bit": "bits", "wbits": "bits", "weights": "num_bits",
}  # fmt: skip
"""What an error names instead of the key."""
ACTIVATIONS = ("compressed-tensors, inputs", "compressed-tensors, outputs")


def base(table: str) -> dict[str, Any]:
    return OTHER_BASES.get(table) or BASES[TABLES[table][1]]


def outcome(base: dict[str, Any], place: tuple[str, ...], values: dict[str, Any]) -> Any:
    """What the settings mean with other values in the object at `place`: their scheme and notes, or the error's text."""

    def put(at: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        if not path:
            return {**at, **values}
        return {**at, path[0]: put(at.get(path[0]) or {}, path[1:])}

    try:
        result = parse_quantization(put(base, place), "x")
    except ConfigError as error:
        return str(error)
    assert isinstance(result, Quantization)
    return result, result.notes


@pytest.mark.parametrize("table", TABLES)
def test_keys_that_are_read_count(table: str) -> None:
    """Another value makes another scheme, a note, or an error that names the key."""
    known, _, place = TABLES[table]
    plain = outcome(base(table), place, {})
    for key in sorted(known.read):
        if (table, key) in SHOWN_ELSEWHERE or (table in ACTIVATIONS and key != "num_bits"):
            continue  # of activations only the bits make a note
        values = WITH.get((table, key), {key: OTHER.get(key, "something else")})
        result = outcome(base(table), place, values)
        assert result != plain, f"{key} is said to count and does not"
        if isinstance(result, str):
            assert key in result or SAID_AS[key] in result, result


@pytest.mark.parametrize("table", TABLES)
def test_harmless_keys_change_nothing(table: str) -> None:
    known, _, place = TABLES[table]
    plain = outcome(base(table), place, {"group_size": 64} if place[-1:] == ("weights",) else {})
    for reason, names in known.harmless.items():
        assert reason and not set(names) & known.read
        for name in names:
            for value in ("something", 7, True, {"a": 1}, ["b"]):
                if name == "group_size" and place[-1:] == ("weights",):
                    continue
                assert outcome(base(table), place, {name: value}) == plain, name


@pytest.mark.parametrize("table", TABLES)
def test_other_keys_are_refused_unless_they_say_nothing(table: str) -> None:
    _, _, place = TABLES[table]
    plain = outcome(base(table), place, {})
    for nothing in (None, False, "", [], {}):
        assert outcome(base(table), place, {"online_rotation": nothing}) == plain
    for something in (True, 0, 1.5, "hadamard", [0], {"a": None}):
        message = outcome(base(table), place, {"online_rotation": something})
        assert isinstance(message, str) and message.startswith("x: quantization_config")
        assert "key 'online_rotation'" in message and "is not known, and may change answers" in message
        assert "\n" not in message and all(part in message for part in place if part not in "ax"), message


def _parameters(name: str) -> set[str]:
    import transformers

    result = inspect.signature(getattr(transformers, name).__init__).parameters
    return {one for one in result if one not in ("self", "kwargs")}


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("gptq", "GPTQConfig"), ("awq", "AwqConfig"), ("auto-round", "AutoRoundConfig"), ("fp8", "FineGrainedFP8Config"),
        ("mxfp4", "Mxfp4Config"),
        ("compressed-tensors", "CompressedTensorsConfig"),
    ],
)  # fmt: skip
def test_keys_of_the_classes_of_transformers_are_known(method: str, kind: str) -> None:
    assert _parameters(kind) - TABLES[method][0].known == set()


REFERENCES: dict[tuple[str, str], str] = {
    ("gptq", "GPTQ-for-LLaMa and AutoGPTQ 0.7"): "bits group_size damp_percent desc_act static_groups sym true_sequential "
    "model_name_or_path model_file_base_name quant_method checkpoint_format is_marlin_format",
    ("gptq", "GPTQModel"): "bits dynamic group_size desc_act lm_head method quant_method format checkpoint_format "
    "pack_dtype rotation "
    "meta sym adapter damp_percent damp_auto_increment mse act_group_aware gptaq foem hessian fallback mock_quantization "
    "offload_to_disk offload_to_disk_path pack_impl",
    ("gptq", "optimum and transformers 4"): "tokenizer dataset use_cuda_fp16 model_seqlen block_name_to_quantize "
    "module_name_preceding_first_block batch_size pad_token_id use_exllama disable_exllama max_input_length exllama_config "
    "cache_block_outputs modules_in_block_to_quantize",
    ("gptq", "auto-round"): "act_bits data_type iters lr minmax_lr nsamples seqlen enable_quanted_input enable_minmax_tuning "
    "enable_norm_bias_tuning gradient_accumulate_steps low_gpu_mem_usage autoround_version scale_dtype provider amp "
    "act_group_size act_sym act_dynamic act_data_type super_bits super_group_size",
    ("awq", "AutoAWQ and transformers 4"): "bits w_bit group_size q_group_size zero_point version quant_method backend do_fuse "
    "fuse_max_seq_len modules_to_fuse modules_to_not_convert exllama_config",
    ("awq", "GPTQModel"): "method format checkpoint_format lm_head desc_act sym pack_dtype meta dynamic rotation",
    ("fp8", "vLLM"): "activation_scheme ignored_layers modules_to_not_convert weight_block_size kv_cache_quant_method "
    "packed_modules_mapping",
    ("fp8", "DeepSeek and GPTQModel"): "fmt scale_fmt expert_dtype weight_scale_method weight_scale_semantics method format "
    "bits",
    ("compressed-tensors", "its pydantic class"): "config_groups quant_method kv_cache_scheme format quantization_status "
    "global_compression_ratio ignore run_compressed version sparsity_config transform_config",
    ("compressed-tensors, a group", "its pydantic class"): "targets weights input_activations output_activations format",
    ("compressed-tensors, weights", "its pydantic class"): "num_bits type symmetric group_size strategy block_structure "
    "dynamic "
    "actorder observer observer_kwargs scale_dtype zp_dtype",
    ("compressed-tensors, sparsity", "its pydantic class"): "format targets ignore global_sparsity sparsity_structure "
    "registry_requires_subclass",
    ("auto-round", "its serialized class and vLLM"): "bits act_bits data_type act_data_type group_size act_group_size sym "
    "act_sym "
    "act_dynamic amp batch_size enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input gradient_accumulate_steps "
    "iters "
    "lr low_gpu_mem_usage minmax_lr nsamples quant_block_list regex_config scale_dtype seqlen supported_types "
    "static_attention_dtype static_kv_dtype static_attention_granularity static_kv_granularity super_bits super_group_size "
    "to_quant_block_names rotation_configs rotation_config packing_format backend vllm_backend extra_config "
    "block_name_to_quantize autoround_version model_free",
    ("auto-round, extra_config", "its scheme"): "bits group_size sym data_type act_bits act_group_size act_sym act_data_type "
    "act_dynamic super_bits super_group_size rotation_config",
    ("modelopt", "hf_quant_config.json and config.json"): "producer quantization quant_algo kv_cache_quant_algo group_size "
    "exclude_modules kv_cache_scheme ignore config_groups quantized_layers quant_method packed_modules_mapping",
}  # fmt: skip


@pytest.mark.parametrize("reference", REFERENCES, ids=": ".join)
def test_keys_that_other_programs_write_are_known(reference: tuple[str, str]) -> None:
    assert set(REFERENCES[reference].split()) - TABLES[reference[0]][0].known == set()


def test_every_method_has_a_table() -> None:
    assert set(READERS) == set(BASES) == {method for _, method, _ in TABLES.values()}


ARGS = {
    "actorder": None, "block_structure": None, "dynamic": False, "group_size": 128, "num_bits": 4, "observer": "minmax",
    "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int", "scale_dtype": None, "zp_dtype": None,
}  # fmt: skip
TOKEN = {**ARGS, "dynamic": True, "num_bits": 8, "strategy": "token", "group_size": None, "observer": None}
STATIC = {**ARGS, "num_bits": 8, "strategy": "tensor", "group_size": None, "type": "float"}
CT = {
    "global_compression_ratio": 1.46, "ignore": ["lm_head", "re:.*visual.*"], "kv_cache_scheme": None, "sparsity_config": {},
    "quant_method": "compressed-tensors", "quantization_status": "compressed", "transform_config": {}, "version": "0.12.2",
}  # fmt: skip
OPTIMUM = {
    "batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.01,
    "dataset": None,
    "desc_act": False, "exllama_config": {"version": 1}, "group_size": 128, "max_input_length": None, "model_seqlen": None,
    "module_name_preceding_first_block": None, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.down_proj"]],
    "pad_token_id": None, "quant_method": "gptq", "sym": True, "tokenizer": None, "true_sequential": True,
    "use_cuda_fp16": False, "use_exllama": True,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen2.5 GPTQ, of optimum": OPTIMUM,
    "Llama 2 GPTQ, of AutoGPTQ": {
        "bits": 4, "group_size": 128, "damp_percent": 0.1, "desc_act": True, "sym": True, "true_sequential": True,
        "model_name_or_path": None, "model_file_base_name": "model", "quant_method": "gptq",
    },
    "GPTQModel 2": {
        "bits": 4, "checkpoint_format": "gptq", "desc_act": True, "dynamic": None, "group_size": 32, "lm_head": False,
        "meta": {"damp_auto_increment": 0.0025, "damp_percent": 0.01, "mse": 0.0, "quantizer": ["gptqmodel:2.0.0"],
        "static_groups": False,
                 "true_sequential": True, "uri": "https://github.com/modelcloud/gptqmodel"},
        "pack_dtype": "int32", "quant_method": "gptq", "sym": True,
    },
    "GPTQModel 6": {
        "bits": 4, "group_size": 128, "desc_act": False, "lm_head": False, "method": "gptq", "quant_method": "gptq",
        "format": "gptq",
        "checkpoint_format": "gptq", "pack_dtype": "int32", "meta": {"pack_impl": "cpu", "gptaq": None}, "sym": True,
    },
    "a mixture of GPTQ, with parts that stay wide": {
        "bits": 4, "group_size": 128, "sym": True, "desc_act": False, "quant_method": "gptq", "lm_head": False,
        "dynamic": {"-:.*mlp.gate.*": {}, "lm_head": {}, "model.embed_tokens": {}}, "pack_dtype": "int32",
        "checkpoint_format": "gptq",
    },
    "AutoRound as GPTQ": {
        "amp": True, "autoround_version": "0.4.2", "batch_size": 8, "bits": 4, "data_type": "int", "enable_quanted_input": True,
        "group_size": 128, "quant_method": "gptq", "damp_percent": 0.01, "desc_act": False, "true_sequential": False,
        "sym": True,
    },
    "AWQ": {
        "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
        "zero_point": True,
    },
    "AWQ of transformers 4": {
        "backend": "autoawq", "bits": 4, "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None, "group_size": 128,
        "modules_to_fuse": None, "modules_to_not_convert": ["visual"], "quant_method": "awq", "version": "gemm",
        "zero_point": True,
    },
    "DeepSeek's FP8": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128,
        128],
    },
    "AutoRound's FP8": {
        "act_bits": 8, "act_data_type": "fp8", "act_dynamic": False, "act_group_size": 0, "act_sym": True,
        "autoround_version": "0.16.1",
        "bits": 8, "data_type": "fp8", "extra_config": {"lm_head": {"bits": 16}}, "fmt": "e4m3",
        "group_size": [128, 128], "iters": 0,
        "ignored_layers": ["lm_head"], "provider": "auto-round", "quant_method": "fp8", "sym": True,
        "weight_block_size": [128, 128],
    },
    "AutoRound's FP8, static": {
        "act_bits": 8, "act_data_type": "fp", "bits": 8, "data_type": "fp", "fmt": "e4m3", "group_size": -1, "sym": True,
        "packing_format": "auto_round:fp8_static", "quant_method": "auto-round",
    },
    "Neural Magic's FP8": {
        "activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8", "kv_cache_scheme": "static",
    },
    "w4a16": {**CT, "format": "pack-quantized", "config_groups": {
        "group_0": {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": {**ARGS,
        "actorder": "weight"}}}},
    "w8a8 of whole numbers": {**CT, "format": "int-quantized", "config_groups": {"group_0": {
        "format": "int-quantized", "input_activations": TOKEN, "output_activations": None, "targets": ["Linear"],
        "weights": {**ARGS, "num_bits": 8, "strategy": "channel", "group_size": None, "observer": "mse"}}}},
    "w8a8 of FP8, static": {**CT, "format": "float-quantized", "config_groups": {"group_0": {
        "input_activations": STATIC, "output_activations": None, "targets": ["Linear"], "weights": STATIC}}},
    "FP8 with keys and values": {**CT, "format": "naive-quantized", "kv_cache_scheme": STATIC, "config_groups": {"group_0": {
        "input_activations": STATIC, "output_activations": None, "targets": ["Linear"], "weights": STATIC}}},
    "AutoRound": {
        "amp": True, "autoround_version": "0.5.1", "backend": "auto_round:gptq", "batch_size": 8, "bits": 4, "data_type": "int",
        "dataset": "NeelNanda/pile-10k", "enable_minmax_tuning": True, "enable_norm_bias_tuning": False,
        "enable_quanted_input": True,
        "gradient_accumulate_steps": 1, "group_size": 128, "iters": 1000, "low_gpu_mem_usage": False, "lr": 0.001,
        "minmax_lr": 0.001,
        "nsamples": 512, "quant_method": "auto-round", "scale_dtype": "torch.float16", "seqlen": 2048, "sym": True,
        "to_quant_block_names": None, "packing_format": "auto_round:auto_gptq", "extra_config": {"lm_head": {"bits": 16,
        "data_type": "float"}},
    },
    "4 bits in bytes, for inputs of 8": {**CT, "format": "int-quantized", "config_groups": {"group_0": {
        "input_activations": {**STATIC, "type": "int", "dynamic": True, "strategy": "token"}, "output_activations": None,
        "targets": ["Linear"], "weights": {**STATIC, "type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}}}},
    "Meta's FP8": {"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"], "quant_method": "fbgemm_fp8"},
    "Model Optimizer": {
        "config_groups": {"group_0": {"input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
                                      "weights": {"dynamic": False, "num_bits": 8, "type": "float"}, "targets": ["Linear"]}},
        "ignore": ["lm_head"], "quant_algo": "FP8", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": {"name": "modelopt", "version": "0.33.0"}, "quant_method": "modelopt",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("compressed_tensors", "compressed-tensors"), ("sparseml", "compressed-tensors"), ("fbgemm_fp8", "fp8"),
        ("intel/auto-round", "auto-round"), ("modelopt_fp4", "modelopt"),
    ],
)  # fmt: skip
def test_methods_have_other_names(name: str, base: str) -> None:
    assert parse_quantization({**BASES[base], "quant_method": name}, "x") == parse_quantization(
        BASES[base], "x"
    )


def test_model_optimizers_awq_is_refused_by_its_algorithm() -> None:
    settings = {
        "quant_algo": "W4A16_AWQ",
        "has_zero_point": False,
        "pre_quant_scale": True,
        "group_size": 128,
    }
    for algorithm, word in (
        ("W4A16_AWQ", "quant_algo 'W4A16_AWQ'"),
        ("FP8", "pre_quant_scale True is not supported"),
    ):
        with pytest.raises(ConfigError, match=word):
            parse_quantization({"quantization": {**settings, "quant_algo": algorithm}}, "x")


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_settings_are_read(case: str) -> None:
    result = parse_quantization(PUBLISHED[case], "config.json")
    assert result is not None and result.refusal is None
    assert (result.fp8 is None) != (result.integers is None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a rotation of GPTQModel": ({**OPTIMUM, "rotation": "hadamard"},
    "rotation 'hadamard' is not supported: inputs would have to be rotated"),
    "an adapter of GPTQModel": ({**OPTIMUM, "adapter": {"name": "lora"}}, "adapter {'name': 'lora'} is not supported"),
    "two formats": ({**OPTIMUM, "format": "gptq", "checkpoint_format": "gptq_v2"}, "checkpoint_format 'gptq and gptq_v2'"),
    "planar words": ({**OPTIMUM, "format": "gptq_p"}, "'gptq_p'"),
    "sym that is no switch": ({**OPTIMUM, "sym": "yes"}, "gptq with sym 'yes'"),
    "bits of a layer": ({**OPTIMUM, "dynamic": {"+:x": {"bits": 3}}},
    "dynamic '+:x': gptq with bits 3 is not supported; supported: 4, 8"),
    "an adapter of a layer": ({**OPTIMUM, "dynamic": {"x": {"adapter": {"rank": 8}}}}, "dynamic 'x': adapter"),
    "no expression": ({**OPTIMUM, "dynamic": {"+:(": {}}}, "dynamic '+:(': not a regular expression"),
    "no settings": ({**OPTIMUM, "dynamic": {"x": 4}}, "dynamic 'x': 4 is not a map"),
    "the packing of llm-awq": ({"quant_method": "awq", "bits": 4, "backend": "llm-awq"}, "backend 'llm-awq'"),
    "FP4 experts": ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype 'fp4'"),
    "other packings": (
        {"quant_method": "auto-round", "packing_format": "auto_round:fake"},
        "packing_format 'auto_round:fake' is not supported",
    ),
    "other numbers": ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "auto-round with data_type 'mx_fp'"),
    "narrow activations": ({"quant_method": "auto-round", "bits": 4, "act_bits": 8}, "auto-round with act_bits 8"),
    "AutoRound's rotation": (
        {"quant_method": "auto-round", "bits": 4, "rotation_config": {"hadamard": True}},
        "rotation_config {'hadamard': True} is not",
    ),
    "bits of AutoRound": ({"quant_method": "auto-round", "bits": 2},
    "auto-round with bits 2 is not supported; supported: 4, 8"),
    "bits of a module": (
        {"quant_method": "auto-round", "bits": 4, "extra_config": {"x": {"bits": 3}}},
        "extra_config 'x': auto-round with bits 3",
    ),
    "8 bits as awq": (
        {"quant_method": "auto-round", "bits": 8, "packing_format": "auto_round:auto_awq"}, "packed as awq with bits 8",
    ),
    "other algorithms": ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' is not supported"),
    "a mix with another algorithm": (
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W4A8_AWQ"}}},
        "'W4A8_AWQ'",
    ),
    "no method": ({"config": 3}, "(no quant_method) is not supported; supported: fp8, gptq, awq"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_changes_answers_is_refused_by_name(case: str) -> None:
    settings, words = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        parse_quantization(settings, "a/config.json")
    message = str(caught.value)
    assert (
        message.startswith("a/config.json: quantization_config") and words in message and "\n" not in message
    )


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"^model\.layers\.0\.mlp\.up_proj$", "model.layers.0.mlp.up_proj"),
        (r"model\.layers\.0\-a\Z", "model.layers.0-a"),
        ("lm_head$", "lm_head"),
        ("lm_head", None),
        (r"model.layers\.0$", None),
        (r"up_proj\$", None),
        (r"layers\.\d$", None),
        (r"a|b$", None),
        (r".*up_proj$", None),
        ("$", ""),
    ],
)
def test_expressions_of_one_name_are_told_from_others(pattern: str, name: str | None) -> None:
    assert only_match(pattern) == name
    assert name is None or re.fullmatch(pattern, name)


def test_the_first_rule_counts_whatever_it_looks_like() -> None:
    four, eight = IntScheme("gptq", 4), IntScheme("gptq", 8)
    rules = (
        Rule("x.*", four),
        Rule(r"xa\Z", eight),
        Rule(r"ya\Z", eight),
        Rule("y.*", None),
        Rule(r"yb\Z", four),
    )
    schemes = IntSchemes(four, rules)
    assert [schemes.of(name) for name in ("xa", "ya", "yb", "yc", "z")] == [four, eight, None, None, four]


def test_a_rule_for_each_of_many_modules_takes_no_square_of_time() -> None:
    """As with 128 experts in 48 layers: 18,432 rules and names. One after the other they would take minutes."""
    names = [
        f"model.layers.{i}.mlp.experts.{j}.{one}_proj"
        for i in range(48)
        for j in range(128)
        for one in ("up", "gate", "down")
    ]
    dynamic = {f"+:^{re.escape(name)}$": {"bits": 4 + 4 * (i % 2)} for i, name in enumerate(names)}
    started = time.process_time()
    result = parse_quantization({**BASES["gptq"], "dynamic": dynamic}, "x")
    assert result is not None and result.integers is not None
    assert [result.integers.of(name) for name in names[:2]] == [
        IntScheme("gptq", 4, "plus_one"),
        IntScheme("gptq", 8, "plus_one"),
    ]
    assert all(result.integers.of(name) is not None for name in names)
    assert time.process_time() - started < 5
