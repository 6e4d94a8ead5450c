"""A model read from a GGUF file has exactly the logits of the checkpoint that it was converted from, in float32."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file

from executors.contract import (
    ConfigError,
    ExecutorAttentionConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
    PrefillInput,
    Tensor,
)
from executors.gguf.file import read_gguf
from executors.kernels.cpu import STORED_KINDS
from executors.llm.checkpoint import weights
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.checkpoint.gguf_blocks import DEQUANTIZED
from executors.llm.checkpoint.gguf_lookup import ROW_KINDS
from executors.llm.checkpoint.gguf_tensors import GgufTensors
from executors.llm.checkpoint.loader import load_model
from executors.llm.executor import LlmLoraExecutor
from executors.llm.finite import not_finite
from executors.llm.model.config import read_config
from executors.llm.tools.describe import describe
from executors.testing.conformance import CASES, run_case
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import Metadata, converted_checkpoint, prepared, retyped, sizes, write_gguf
from tests.executors.llm.driver import config, start
from tests.executors.llm.test_conformance import make_inject, write_adapters
from tests.tiers import sweep

IDS = [7 * i * i % 127 + 1 for i in range(45)]
BASE: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56, "max_position_embeddings": 256, "tie_word_embeddings": False, "dtype": "float32",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
LONG, SHORT = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0], [1.0, 1.125, 1.25, 1.5, 1.75, 2.0]
"""Divisors of the frequencies for heads of 12 elements; float32 has them exactly."""


def _fields(name: str, **fields: Any) -> dict[str, Any]:
    return {**BASE, "architectures": [name], **fields}


GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 5, "head_dim": 16, "global_head_dim": 24, "tie_word_embeddings": True, "sliding_window": 19,
    "layer_types": [f"{'full' if i in (2, 4) else 'sliding'}_attention" for i in range(5)],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip
GEMMA4_METADATA: Metadata = {
    "attention.key_length": 24, "attention.value_length": 24, "attention.key_length_swa": 16, "attention.value_length_swa": 16,
    "rope.dimension_count": 24, "rope.dimension_count_swa": 16, "rope.freq_base_swa": 500.0, "attention.sliding_window": 19,
    "attention.sliding_window_pattern": [True, True, False, True, False], "attention.shared_kv_layers": 0,
}  # fmt: skip
GEMMA4_FACTORS = {"rope_freqs.weight": [1.0] * 3 + [1e30] * 9}

# By name: the architecture of GGUF, config.json, metadata beside the sizes, small tensors beside the weights.
MODELS: dict[str, tuple[str, dict[str, Any], Metadata, dict[str, list[float]]]] = {
    "llama": ("llama", _fields("LlamaForCausalLM", head_dim=16), {"rope.dimension_count": 16}, {}),
    "llama-tied-biases": (
        "llama", _fields("LlamaForCausalLM", tie_word_embeddings=True, attention_bias=True, mlp_bias=True), {}, {},
    ),
    "llama-linear": (
        "llama", _fields("LlamaForCausalLM", rope_scaling={"rope_type": "linear", "factor": 4.0}),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {},
    ),
    "llama-rope-freqs": (
        "llama",
        _fields(
            "LlamaForCausalLM",
            rope_scaling={
                "rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": 256, "attention_factor": 1.0,
                "short_factor": LONG, "long_factor": LONG,
            },
        ),
        {}, {"rope_freqs.weight": LONG},
    ),
    "mistral-window": (
        "llama", _fields("MistralForCausalLM", sliding_window=9), {"attention.sliding_window": 9}, {},
    ),
    "gpt-oss": (
        "gpt-oss",
        _fields(
            "GptOssForCausalLM", head_dim=16, num_local_experts=4, num_experts_per_tok=2, intermediate_size=24,
            attention_bias=True, sliding_window=9, max_position_embeddings=256,
            rope_scaling={
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
                "beta_slow": 2.0, "truncate": False,
            },
        ),
        {
            "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24, "attention.sliding_window": 9,
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0,
        }, {},
    ),
    "mistral3-yarn": (
        "mistral3",
        _fields(
            "MistralForCausalLM", sliding_window=None,
            rope_scaling={
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
                "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5,
            },
        ),
        {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_log_multiplier": 0.5,
        }, {},
    ),
    "ministral3": (
        "mistral3",
        _fields(
            "Ministral3ForCausalLM", head_dim=12,
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 16,
                "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.25,
            },
        ),
        {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.25,
        }, {},
    ),
    "mixtral": (
        "llama", _fields("MixtralForCausalLM", num_local_experts=6, num_experts_per_tok=2, sliding_window=None),
        {"expert_count": 6, "expert_used_count": 2}, {},
    ),
    "qwen2-yarn": (
        "qwen2",
        _fields(
            "Qwen2ForCausalLM",
            rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}, {},
    ),
    "qwen3": ("qwen3", _fields("Qwen3ForCausalLM", head_dim=20, tie_word_embeddings=True), {}, {}),
    "qwen3vl": (
        "qwen3vl", _fields("Qwen3ForCausalLM", head_dim=20, rope_theta=5000000.0),
        {"rope.dimension_sections": [4, 3, 3, 0], "n_deepstack_layers": 3}, {},
    ),
    "qwen3moe": (
        "qwen3moe",
        _fields(
            "Qwen3MoeForCausalLM", head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
            norm_topk_prob=True,
        ),
        {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 20}, {},
    ),
    "qwen2moe": (
        "qwen2moe",
        _fields(
            "Qwen2MoeForCausalLM", num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=False,
            shared_expert_intermediate_size=28,
        ),
        {
            "expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 20, "expert_shared_feed_forward_length": 28,
        }, {},
    ),
    "olmoe": (
        "olmoe", _fields("OlmoeForCausalLM", num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, intermediate_size=20),
        {"expert_count": 6, "expert_used_count": 3}, {},
    ),
    "gemma": ("gemma", _fields("GemmaForCausalLM", head_dim=20, tie_word_embeddings=True), {}, {}),
    "gemma2": (
        "gemma2",
        _fields(
            "Gemma2ForCausalLM", head_dim=20, tie_word_embeddings=True, sliding_window=23, query_pre_attn_scalar=20,
            attn_logit_softcapping=3.0, final_logit_softcapping=2.0,
        ),
        {"attention.sliding_window": 23, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}, {},
    ),
    "gemma3": (
        "gemma3",
        _fields(
            "Gemma3ForCausalLM", head_dim=20, tie_word_embeddings=True, num_hidden_layers=7, sliding_window=19,
            query_pre_attn_scalar=20, rope_theta=100000.0, rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        {"attention.sliding_window": 19, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, {},
    ),
    "gemma4-inputs-of-layers": (
        "gemma4",
        _fields(
            "Gemma4ForCausalLM", **GEMMA4, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=12,
            vocab_size_per_layer_input=131, final_logit_softcapping=5.0,
        ),
        {
            **GEMMA4_METADATA, "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 12,
            "feed_forward_length": [56, 56, 56, 112, 112], "final_logit_softcapping": 5.0,
        },
        GEMMA4_FACTORS,
    ),
    "gemma4-keys-that-are-values": (
        "gemma4",
        _fields(
            "Gemma4ForCausalLM", **GEMMA4, hidden_size_per_layer_input=0, attention_k_eq_v=True, num_global_key_value_heads=1,
        ),
        {**GEMMA4_METADATA, "attention.head_count_kv": [2, 2, 1, 2, 1], "embedding_length_per_layer_input": 0}, GEMMA4_FACTORS,
    ),
    "gemma4-experts": (
        "gemma4",
        _fields(
            "Gemma4ForCausalLM", **GEMMA4, hidden_size_per_layer_input=0, enable_moe_block=True, num_experts=6, top_k_experts=3,
            moe_intermediate_size=20,
        ),
        {**GEMMA4_METADATA, "expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 20}, GEMMA4_FACTORS,
    ),
    "phi3-window": (
        "phi3", _fields("Phi3ForCausalLM", sliding_window=33),
        {"attention.sliding_window": 33, "rope.dimension_count": 12}, {},
    ),
    "phi3-longrope-partial": (
        "phi3",
        _fields(
            "Phi3ForCausalLM", head_dim=16, partial_rotary_factor=0.75, original_max_position_embeddings=64,
            rope_scaling={"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        ),
        {
            "rope.dimension_count": 12, "rope.scaling.original_context_length": 64, "attention.sliding_window": 0,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(64)),
        },
        {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT},
    ),
    "glm4": (
        "glm4", _fields("Glm4ForCausalLM", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
        {"rope.dimension_count": 8}, {},
    ),
    "glm4-whole-heads": (
        "glm4", _fields("Glm4ForCausalLM", head_dim=12, partial_rotary_factor=1.0, attention_bias=False), {}, {},
    ),
    "olmo2": ("olmo2", _fields("Olmo2ForCausalLM"), {}, {}),
    "olmo3-yarn": (
        "olmo2",
        _fields(
            "Olmo3ForCausalLM", num_hidden_layers=5, sliding_window=19, rope_theta=500000.0,
            rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
        ),
        {
            "attention.sliding_window": 19, "attention.sliding_window_pattern": [True, True, True, False, True],
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_attn_factor": 1.3,
        }, {},
    ),
    "exaone4-windows": (
        "exaone4", _fields("Exaone4ForCausalLM", head_dim=12, num_hidden_layers=5, sliding_window=19),
        {"attention.sliding_window": 19, "attention.sliding_window_pattern": [True, True, True, False, True]}, {},
    ),
    "exaone4-rope-freqs": (
        "exaone4",
        _fields(
            "Exaone4ForCausalLM", sliding_window=None, tie_word_embeddings=True, layer_types=["full_attention"] * 3,
            rope_scaling={
                "rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": 256, "attention_factor": 1.0,
                "short_factor": LONG, "long_factor": LONG,
            },
        ),
        {}, {"rope_freqs.weight": LONG},
    ),
    "hunyuan": (
        "hunyuan-dense", _fields("HunYuanDenseV1ForCausalLM", head_dim=20, tie_word_embeddings=True, rope_theta=77000.0),
        {"rope.scaling.type": "none", "rope.scaling.factor": 1.0, "rope.scaling.original_context_length": 256}, {},
    ),
    "hunyuan-alpha": (
        "hunyuan-dense",
        _fields("HunYuanDenseV1ForCausalLM", rope_scaling={"type": "dynamic", "alpha": 7.0, "factor": 1.0}, attention_bias=True),
        {"rope.scaling.alpha": 7.0, "expert_count": 1, "expert_used_count": 1}, {},
    ),
    "granite": (
        "granite",
        _fields(
            "GraniteForCausalLM", embedding_multiplier=12.0, attention_multiplier=0.11, residual_multiplier=0.22,
            logits_scaling=7.0,
        ),
        {"embedding_scale": 12.0, "attention.scale": 0.11, "residual_scale": 0.22, "logit_scale": 7.0}, {},
    ),
    "smollm3": ("smollm3", _fields("SmolLM3ForCausalLM", num_hidden_layers=5, tie_word_embeddings=True), {}, {}),
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "vocab_size": 131, "n_positions": 256, "n_embd": 48, "n_layer": 3, "n_head": 3,
    "n_inner": 77, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "dtype": "float32",
}  # fmt: skip
GPT2_METADATA: Metadata = {
    "block_count": 3, "context_length": 256, "embedding_length": 48, "feed_forward_length": 77, "attention.head_count": 3,
    "attention.layer_norm_epsilon": 1e-5,
}  # fmt: skip


def _checkpoint(directory: Path, fields: dict[str, Any]) -> Path:
    """Random weights; those of norms are multiples of 2^-10, so that one can be added and taken away exactly."""
    write_checkpoint(directory, fields)
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" in name or "ln_" in name:
            tensors[name] = (tensor * 1024).round() / 1024
    save_file(tensors, directory / "model.safetensors")
    return directory


def both(tmp_path: Path, name: str, **changes: Any) -> tuple[Path, Path]:
    """The checkpoint, and the directory that serves the file converted from it."""
    if name == "gpt2":
        arch, fields, metadata, extra = "gpt2", GPT2, GPT2_METADATA, {}
    else:
        arch, fields, more, extra = MODELS[name]
        metadata = {**sizes(fields), **more}
    hf = _checkpoint(tmp_path / "hf", fields)
    tensors = converted_checkpoint(hf, arch) | {key: torch.tensor(value) for key, value in extra.items()}
    file = write_gguf(
        tmp_path / "model.gguf", arch, {**metadata, **changes.pop("metadata", {})}, tensors, **changes
    )
    return hf, prepared(tmp_path / "gguf", file)


async def _logits(path: Path, **changes: Any) -> np.ndarray:
    executor = await start(path, **changes)
    row = (await executor.prefill(PrefillInput(Tensor.of([IDS], "int32")))).last_token_logits()
    await executor.shutdown()
    return np.asarray(row).reshape(-1)


@sweep(every=1)
@pytest.mark.parametrize("name", [*MODELS, "gpt2"])
async def test_logits_and_configuration_are_those_of_the_checkpoint(tmp_path: Path, name: str):
    hf, gguf = both(tmp_path, name)
    theirs, mine = read_config(hf), read_config(gguf)

    assert mine == replace(theirs, dtype=mine.dtype) and mine.dtype == "float32"
    assert mine.notes == ()
    assert np.array_equal(await _logits(gguf), await _logits(hf))


@pytest.mark.parametrize("name", [*MODELS, "gpt2"])
def test_messages_have_the_names_of_the_file(tmp_path: Path, name: str):
    _, gguf = both(tmp_path, name)
    checkpoint = Checkpoint(gguf)
    told = {checkpoint.own_name(usual) for usual in checkpoint.names()}
    checkpoint.close()

    extra = MODELS[name][3] if name != "gpt2" else {}
    assert told == read_gguf(tmp_path / "model.gguf").tensors.keys() - extra.keys()


async def test_llama3_rotation_is_within_rounding(tmp_path: Path):
    """The file has the divisors of llama3's rule in float32."""
    scaling = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    fields = _fields("LlamaForCausalLM", head_dim=16, rope_theta=500.0, rope_scaling=scaling)
    hf = _checkpoint(tmp_path / "hf", fields)
    divisors = []
    for j in range(8):
        frequency = 500.0 ** (-2 * j / 16)
        share = (32 * frequency / (2 * math.pi) - 1.0) / (4.0 - 1.0)
        share = min(1.0, max(0.0, share))
        divisors.append(1 / ((1 - share) / 8.0 + share))
    assert len({*divisors}) > 3  # kept, changed in part, and changed in full
    tensors = converted_checkpoint(hf, "llama") | {"rope_freqs.weight": torch.tensor(divisors)}
    gguf = prepared(tmp_path / "gguf", write_gguf(tmp_path / "m.gguf", "llama", sizes(fields), tensors))

    assert read_config(gguf).context_length == read_config(hf).context_length == 256
    assert np.abs(await _logits(gguf) - await _logits(hf)).max() < 1e-3


async def test_experts_may_have_tensors_of_their_own(tmp_path: Path):
    """As older files have them."""
    _, fields, more, _ = MODELS["mixtral"]
    hf = _checkpoint(tmp_path / "hf", fields)
    tensors = converted_checkpoint(hf, "llama")
    for name in [name for name in tensors if "_exps" in name]:
        for e, part in enumerate(tensors.pop(name)):
            tensors[name.replace("_exps.", f".{e}.")] = part.contiguous()
    gguf = prepared(
        tmp_path / "p", write_gguf(tmp_path / "m.gguf", "llama", {**sizes(fields), **more}, tensors)
    )

    assert np.array_equal(await _logits(gguf), await _logits(hf))


async def test_the_row_that_scales_an_expert_may_be_a_vector(tmp_path: Path):
    """As older files have it."""
    _, fields, more, _ = MODELS["qwen2moe"]
    hf = _checkpoint(tmp_path / "hf", fields)
    tensors = {
        name: one[0] if "gate_inp_shexp" in name else one
        for name, one in converted_checkpoint(hf, "qwen2moe").items()
    }
    file = write_gguf(tmp_path / "m.gguf", "qwen2moe", {**sizes(fields), **more}, tensors)

    assert np.array_equal(await _logits(prepared(tmp_path / "p", file)), await _logits(hf))


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"attention.scale": 24**-0.5}, {"query_pre_attn_scalar": 24}),
        ({"rope.freq_base_swa": 500.0}, {"rope_local_base_freq": 500.0}),
        ({"attention.sliding_window_pattern": 2}, {"sliding_window_pattern": 2}),
        ({"attention.sliding_window_pattern": [True, False, True, True, False, True, True]},
         {"layer_types": [f"{kind}_attention" for kind in "sliding full sliding sliding full sliding sliding".split()]}),
        ({"attention.sliding_window": 0}, {"sliding_window": None}),
        ({"final_logit_softcapping": 30.0}, {"final_logit_softcapping": 30.0}),
        ({"attention.head_count_kv": [2] * 7}, {}),
        ({"vocab_size": 7}, {}),
    ],
)  # fmt: skip
def test_what_metadata_of_gemma3_may_say(tmp_path: Path, metadata: Metadata, fields: dict[str, Any]):
    hf, gguf = both(tmp_path, "gemma3", metadata=metadata)
    (hf / "config.json").write_text(json.dumps({**MODELS["gemma3"][1], **fields}))

    assert read_config(gguf) == read_config(hf)


@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_widest_gemmas_scale_scores_by_their_width(tmp_path: Path, arch: str, layers: int):
    """As the 27B models do: hidden_size over heads, which their metadata do not say."""
    names = {f"blk.{i}.attn_norm.weight": torch.ones(96) for i in range(layers)}
    metadata = {**sizes({**BASE, "hidden_size": 96, "num_hidden_layers": layers, "head_dim": 16}),
                "attention.sliding_window": 8}  # fmt: skip
    file = write_gguf(
        tmp_path / "m.gguf", arch, metadata, {"token_embd.weight": torch.ones(131, 96), **names}
    )

    assert read_config(prepared(tmp_path / "p", file)).score_scale == (96 // 4) ** -0.5


async def test_a_bias_may_be_interleaved_and_a_file_split(tmp_path: Path):
    hf, _ = both(tmp_path, "llama-tied-biases")
    whole = tmp_path / "model.gguf"
    read = read_gguf(whole)
    tensors = {name: torch.frombuffer(bytearray(whole.read_bytes()[t.offset : t.offset + t.num_bytes]), dtype=torch.float32)
               .view(t.shape) for name, t in read.tensors.items()}  # fmt: skip
    metadata = sizes(MODELS["llama-tied-biases"][1])
    names = sorted(tensors)
    for number, part in enumerate((names[:9], names[9:])):
        _write_part(tmp_path, number, metadata if number == 0 else {}, {name: tensors[name] for name in part})
    split = prepared(tmp_path / "split", tmp_path / "m-00001-of-00002.gguf")

    assert len(json.loads((split / "gguf.json").read_text())["files"]) == 2
    assert np.array_equal(await _logits(split), await _logits(hf))


def _write_part(folder: Path, number: int, metadata: Metadata, tensors: dict[str, torch.Tensor]) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(folder / f"m-{number + 1:05}-of-00002.gguf", "llama")
    for key, value in metadata.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(f"llama.{key}", value)
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", 2)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WIDE = _fields(
    "LlamaForCausalLM", hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=2
)


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A checkpoint whose rows are whole blocks of every type."""
    return _checkpoint(tmp_path_factory.mktemp("wide"), WIDE)


def _wide_gguf(tmp_path: Path, hf: Path, kind: str) -> Path:
    tensors = converted_checkpoint(hf, "llama")
    return prepared(
        tmp_path / kind, write_gguf(tmp_path / f"{kind}.gguf", "llama", sizes(WIDE), tensors, lambda _: kind)
    )


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
async def test_weights_of_every_type_are_the_references_in_the_usual_order(
    tmp_path: Path, wide: Path, kind: str
):
    """The types that the gguf package writes; test_gguf_blocks.py has the others."""
    gguf = _wide_gguf(tmp_path, wide, kind)
    exact = load_file(wide / "model.safetensors")
    checkpoint = Checkpoint(gguf)
    rounded = {}
    for name, tensor in exact.items():
        file = checkpoint.file_of(name)
        mine = torch.empty(file.shape(name))
        file.copy_into(name, mine)
        if tensor.dim() > 1:
            # Rows are quantized alone: the order of rows changes nothing else.
            number = GGMLQuantizationType[kind]
            tensor = torch.from_numpy(
                quants.dequantize(quants.quantize(tensor.numpy(), number), number).copy()
            )
        assert torch.equal(mine, tensor), name
        rounded[name] = tensor
    checkpoint.close()

    other = tmp_path / "rounded"
    other.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in rounded.items()}, other / "model.safetensors")
    (other / "config.json").write_text(json.dumps({**WIDE, "dtype": "bfloat16"}))
    assert read_config(gguf).dtype == ("float16" if kind == "F16" else "bfloat16")
    # Without kernels for the blocks, they are widened to the model's dtype.
    widened = ExecutorAttentionConfig(backend="torch")
    wanted = await _logits(other, attention=widened)
    assert np.array_equal(await _logits(gguf, attention=widened), wanted)


async def test_float16_keeps_its_digits(tmp_path: Path, wide: Path):
    """With the CPU kernels; in bfloat16 the difference is 20 times as large, or more."""
    gguf = _wide_gguf(tmp_path, wide, "F16")
    exact, narrow = await _logits(gguf, dtype="float32"), await _logits(gguf, dtype="bfloat16")
    error = np.abs(await _logits(gguf) - exact).max()
    assert 0 < 20 * error < np.abs(narrow - exact).max() and error < 5e-3
    loaded, told = load_model(config(gguf), lambda *_: None), describe(config(gguf))
    assert loaded.info.dtype == told["dtype"] == "float16" and loaded.model.embed_mapped
    assert loaded.parameter_bytes == told["loaded_bytes"]
    assert loaded.note is not None and "float16; layers: in one call" in loaded.note
    without = config(gguf, attention=ExecutorAttentionConfig(backend="torch"))
    assert load_model(without, lambda *_: None).info.dtype == describe(without)["dtype"] == "bfloat16"
    int8 = await _logits(gguf, block_size=16, memory=ExecutorMemoryConfig(kv_cache_dtype="int8"))
    assert 0 < np.abs(int8 - exact).max() < 0.1 * np.abs(exact).max()


async def test_int8_of_a_gguf_is_int8_of_the_same_weights(tmp_path: Path, wide: Path):
    gguf, hf = _wide_gguf(tmp_path, wide, "F32"), wide
    rows = []
    for path in (gguf, hf):
        executor = await start(path, optimization=OptimizationConfig(quantization="int8"))
        rows.append((await executor.prefill(PrefillInput(Tensor.of([IDS], "int32")))).last_token_logits())
        await executor.shutdown()

    assert np.array_equal(np.asarray(rows[0]), np.asarray(rows[1]))


def test_rows_as_they_are_stored_come_in_the_usual_order(tmp_path: Path, wide: Path):
    gguf = _wide_gguf(tmp_path, wide, "Q4_0")
    exact = load_file(wide / "model.safetensors")
    checkpoint = Checkpoint(gguf)
    for name, tensor in exact.items():
        file = checkpoint.file_of(name)
        assert isinstance(file, GgufTensors)
        if tensor.dim() < 2:
            assert file.block_type(name) == "F32"
            continue
        raw = torch.cat([piece.clone() for _, piece in file.raw_rows(name)])
        assert file.block_type(name) == "Q4_0"
        assert np.array_equal(raw.numpy(), quants.quantize(tensor.numpy(), GGMLQuantizationType.Q4_0)), name
    checkpoint.close()


def test_a_large_tensor_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide: Path):
    from executors.llm.checkpoint import gguf_tensors

    monkeypatch.setattr(gguf_tensors, "PIECE", 1 << 14)
    checkpoint = Checkpoint(_wide_gguf(tmp_path, wide, "Q8_0"))
    file, name = checkpoint.file_of("lm_head.weight"), "model.layers.0.self_attn.q_proj.weight"
    firsts = [first for first, _ in file.rows("lm_head.weight", False)]
    q = torch.cat([piece.clone() for _, piece in checkpoint.file_of(name).rows(name, False)])
    checkpoint.close()

    assert firsts == [0, 64, 128]
    exact = load_file(wide / "model.safetensors")[name].numpy()
    number = GGMLQuantizationType.Q8_0
    assert np.array_equal(q.numpy(), quants.dequantize(quants.quantize(exact, number), number))


@pytest.mark.parametrize(
    ("kind", "quantization", "stays"), [("Q8_0", None, True), ("Q8_0", "int8", False), ("BF16", None, True)]
)
def test_an_embedding_that_is_not_converted_stays_in_the_file(
    tmp_path: Path, wide: Path, kind: str, quantization: str | None, stays: bool
):
    directory = _wide_gguf(tmp_path, wide, kind)
    asked = config(directory, dtype="bfloat16", optimization=OptimizationConfig(quantization=quantization))
    loaded = load_model(asked, lambda *_: None)

    assert loaded.model.embed_mapped is stays
    assert loaded.parameter_bytes == describe(asked)["loaded_bytes"]
    rows = loaded.model.look_up(torch.tensor([3, 0, 3]))
    assert rows.dtype is torch.bfloat16 and rows.abs().sum() > 0 and torch.equal(rows[0], rows[2])


MIXES = {
    "Q4_K_M": {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "output": "Q6_K", "": "Q4_K"},
    "gate and up apart": {"ffn_gate": "Q5_K", "": "Q4_K"},
    "some of it wide": {"ffn_down": "F16", "": "Q5_0"},
    # As dynamic mixes of a little over two bits have them: formats differ within q, k, v and within gate and up.
    "IQ2 dynamic": {
        "attn_q": "IQ2_XS", "attn_k": "Q4_K", "attn_v": "Q5_K", "attn_output": "IQ3_XXS", "ffn_gate": "IQ2_XXS",
        "ffn_up": "IQ3_S", "ffn_down": "IQ2_S", "token_embd": "Q4_K", "output": "Q6_K",
    },
    "IQ1 dynamic": {
        "attn_v": "Q4_K", "attn_q": "IQ1_M", "attn_k": "IQ2_XXS", "ffn_down": "IQ3_S", "token_embd": "Q2_K", "output": "Q5_K",
        "": "IQ1_S",
    },
}  # fmt: skip


@sweep(every=3)
@pytest.mark.parametrize("kind", [*DEQUANTIZED, *MIXES])
async def test_blocks_that_are_kept_compute_what_their_weights_do(tmp_path: Path, wide: Path, kind: str):
    """Beside the same weights in float32: what int8 activations cost. Batched and chunked equal bit for bit."""
    mix = MIXES.get(kind, {"": kind})
    tensors = converted_checkpoint(wide, "llama")
    path = write_gguf(
        tmp_path / "m.gguf", "llama", sizes(WIDE), tensors,
        lambda name: next(mix[part] for part in mix if part in name),
    )  # fmt: skip
    gguf = prepared(tmp_path / "p", path)
    exact = await _logits(gguf, dtype="float32", attention=ExecutorAttentionConfig(backend="torch"))
    for dtype in ("float32", "bfloat16"):
        got = await _logits(gguf, dtype=dtype)
        error = np.sqrt(np.mean((got - exact) ** 2) / np.mean(exact**2))
        assert 1e-5 < error < 0.05, dtype  # quantized, but little off

    loaded = load_model(config(gguf), lambda *_: None)
    formats = {form for linear in loaded.model.linears() for form in linear.stored}
    rows = {ROW_KINDS.get(form, form) for form in mix.values() if form in DEQUANTIZED}
    assert formats == (rows if len(mix) == 1 else rows & formats) and formats <= STORED_KINDS.keys()
    assert loaded.info.quantization in formats
    assert loaded.parameter_bytes == describe(config(gguf))["loaded_bytes"]


@pytest.mark.parametrize("experts", [False, True])
async def test_scales_beside_nvfp4_are_factors(tmp_path: Path, experts: bool):
    """As converters of NVFP4 checkpoints write them: logits of the same weights, times the scales, in float32."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    fields = {
        **WIDE,
        **({"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 32, **moe} if experts else {}),
    }
    metadata: Metadata = sizes(fields)
    if experts:
        metadata |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
    arch = "qwen3moe" if experts else "llama"
    tensors = converted_checkpoint(_checkpoint(tmp_path / "hf", fields), arch)
    for i, name in enumerate(
        [name for name in tensors if name.startswith("blk") and tensors[name].dim() > 1]
    ):
        if "gate_inp" not in name:
            count = len(tensors[name]) if tensors[name].dim() == 3 else 1
            tensors[name.replace(".weight", ".scale")] = torch.linspace(0.5, 2.0, count) + 0.1 * i
            tensors[name.replace(".weight", ".input_scale")] = torch.ones(1)
    file = write_gguf(
        tmp_path / "m.gguf", arch, metadata, tensors, lambda name: "F32" if "gate_inp" in name else "NVFP4"
    )
    raw, wide = file.read_bytes(), {}
    for name, held in read_gguf(file).tensors.items():
        if held.type == "NVFP4":
            blocks = np.frombuffer(raw, np.uint8, held.num_bytes, held.offset)
            numbers = torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType.NVFP4)).view(held.shape)
            scale = tensors.get(name.replace(".weight", ".scale"), torch.ones(1))
            wide[name] = numbers * scale.view(-1, *[1] * (numbers.dim() - 1))
        elif not name.endswith("scale"):
            wide[name] = tensors[name]
    exact = prepared(tmp_path / "w", write_gguf(tmp_path / "w.gguf", arch, metadata, wide))
    served = prepared(tmp_path / "p", file)
    wanted = await _logits(exact)

    widened = await _logits(served, dtype="float32", attention=ExecutorAttentionConfig(backend="torch"))
    assert np.abs(widened - wanted).max() < 1e-4 * np.abs(wanted).max()
    kept = await _logits(served, dtype="float32")
    assert 1e-6 < np.sqrt(np.mean((kept - wanted) ** 2) / np.mean(wanted**2)) < 0.05


def test_a_scale_beside_another_type_is_refused(tmp_path: Path):
    directory = _faulty(tmp_path, "llama", lambda t: t.update({"blk.0.attn_q.scale": torch.ones(1)}))
    with pytest.raises(ConfigError, match=r"tensor blk\.0\.attn_q\.scale is not supported"):
        _loads(directory)


@sweep(every=9)
@pytest.mark.parametrize("case", [case for case in CASES if "grammar" not in case])
async def test_conformance_of_mixed_formats(
    case: str, tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whole, in chunks, beside others, resumed: bit for bit."""
    mix = MIXES["Q4_K_M"]
    path = write_gguf(
        tmp_path / "m.gguf", "llama", sizes(WIDE), converted_checkpoint(wide, "llama"),
        lambda name: next(mix[part] for part in mix if part in name),
    )  # fmt: skip
    optimization = OptimizationConfig(deterministic=True, max_loras=2)
    settings = config(prepared(tmp_path / "p", path), optimization=optimization)
    await run_case(
        case,
        lambda: LlmLoraExecutor.from_config(settings),
        inject=make_inject(monkeypatch),
        adapters=write_adapters(wide, tmp_path),
    )


def test_facts_without_loading(tmp_path: Path, wide: Path):
    facts = describe(config(_wide_gguf(tmp_path, wide, "Q8_0")))

    assert facts["architecture"] == "LlamaForCausalLM" and facts["checkpoint"]["problem"] is None
    held = sum(t.num_bytes for t in read_gguf(tmp_path / "Q8_0.gguf").tensors.values())
    assert (
        facts["checkpoint"]["bytes"] == held
        and facts["checkpoint"]["dtype"] == "Q8_0"
        and facts["dtype"] == "bfloat16"
    )


def test_a_number_that_is_not_finite_is_found(tmp_path: Path, wide: Path):
    tensors = converted_checkpoint(wide, "llama")
    tensors["blk.1.ffn_down.weight"][3, 5] = math.inf
    gguf = prepared(tmp_path / "p", write_gguf(tmp_path / "m.gguf", "llama", sizes(WIDE), tensors))

    assert not_finite(gguf) == (tmp_path / "m.gguf", "model.layers.1.mlp.down_proj.weight")


def _loads(directory: Path) -> None:
    """All checks of a load, without the load."""
    weights.check_tensors(weights.settle_config(read_config(directory), directory), directory)


def _faulty(tmp_path: Path, name: str, change: Any = None, kinds: Any = None, **metadata: Any) -> Path:
    arch, fields, more, extra = MODELS[name]
    hf = _checkpoint(tmp_path / "hf", fields)
    tensors = converted_checkpoint(hf, arch) | {key: torch.tensor(value) for key, value in extra.items()}
    if change is not None:
        change(tensors)
    values = {key: value for key, value in {**sizes(fields), **more, **metadata}.items() if value is not ...}
    file = write_gguf(tmp_path / "m.gguf", arch, values, tensors, **({"kinds": kinds} if kinds else {}))
    return prepared(tmp_path / "p", file)


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "block_count missing": ("llama", {"block_count": ...}, "field llama.block_count is missing"),
    "block_count 9": ("llama", {"block_count": 9}, "llama.block_count is 9; no tensor of blk.8"),
    "block_count text": ("llama", {"block_count": "x"}, "llama.block_count is 'x'; a positive integer"),
    "embedding": ("llama", {"embedding_length": 47}, "llama.embedding_length is 47; token_embd.weight has 48 columns"),
    "heads 0": ("llama", {"attention.head_count": 0}, "llama.attention.head_count is 0"),
    "heads differ": ("llama", {"attention.head_count_kv": [2, 1, 2]}, "head_count_kv differs between layers"),
    "values": ("llama", {"attention.value_length": 7}, "llama.attention.value_length 7 is not supported"),
    "rotated": ("llama", {"rope.dimension_count": 8}, "llama.rope.dimension_count 8 is not supported"),
    "rope kind": ("llama", {"rope.scaling.type": "twisted"}, "llama.rope.scaling.type twisted is not supported"),
    "ext factor": (
        "qwen2-yarn", {"rope.scaling.yarn_ext_factor": 0.5}, "qwen2.rope.scaling.yarn_ext_factor 0.5 is not supported",
    ),
    "attention factor": ("llama", {"rope.scaling.attn_factor": 1.5}, "llama.rope.scaling.attn_factor 1.5 is not"),
    "window": ("qwen3", {"attention.sliding_window": 99}, "qwen3.attention.sliding_window 99 is not supported for"),
    "softcap": ("olmo2", {"final_logit_softcapping": 30.0}, "olmo2.final_logit_softcapping 30.0 is not supported"),
    "causal": ("qwen3", {"attention.causal": False}, "qwen3.attention.causal false is not supported"),
    "temperature": ("llama", {"attention.temperature_scale": 0.1}, "llama.attention.temperature_scale 0.1"),
    "scale": ("gemma2", {"attention.scale": 0.3}, "gemma2.attention.scale 0.3 is not supported"),
    "experts": ("qwen3moe", {"expert_count": 7}, "qwen3moe.expert_count is 7; blk.0.ffn_gate_exps.weight has 6"),
    "shared experts": ("qwen3moe", {"expert_shared_count": 1}, "qwen3moe.expert_shared_count 1 is not supported"),
    "sigmoid": ("qwen3moe", {"expert_gating_func": 2}, "qwen3moe.expert_gating_func 2 is not supported"),
    "without rotation": ("granite", {"rope.scaling.finetuned": False}, "granite.rope.scaling.finetuned false is not"),
    "epsilon": ("llama", {"attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon is nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_metadata_names_the_file_and_the_key(tmp_path: Path, name: str):
    model, metadata, message = FAULTS[name]
    directory = _faulty(tmp_path, model, **metadata)

    with pytest.raises(ConfigError) as caught:
        _loads(directory)

    said = str(caught.value)
    assert said.startswith(str(tmp_path / "m.gguf")) and message in said and said.isprintable(), said


TENSOR_FAULTS: dict[str, tuple[Any, str]] = {
    "missing": (lambda t: t.pop("blk.1.attn_q.weight"), "m.gguf: tensor blk.1.attn_q.weight is missing"),
    "no embedding": (lambda t: t.pop("token_embd.weight"), "tensor token_embd.weight is missing"),
    "unknown": (lambda t: t.update({"blk.1.attn_sinks.weight": torch.ones(4)}), "blk.1.attn_sinks.weight is not supported"),
    "bias of a norm": (lambda t: t.update({"blk.1.attn_norm.bias": torch.ones(48)}), "blk.1.attn_norm.bias is not supported"),
    "layer too many": (lambda t: t.update({"blk.7.attn_norm.weight": torch.ones(4)}), "blk.7.attn_norm.weight is not"),
    "shape": (lambda t: t.update({"blk.1.ffn_up.weight": torch.ones(3, 48)}), "tensor blk.1.ffn_up.weight has shape [3, 48]"),
    "heads": (lambda t: t.update({"blk.1.attn_q.weight": torch.ones(3, 48)}), "blk.1.attn_q.weight has 3 rows for 4 heads"),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSOR_FAULTS)
def test_a_fault_of_the_tensors_names_the_file_and_the_tensor(tmp_path: Path, name: str):
    change, message = TENSOR_FAULTS[name]
    directory = _faulty(tmp_path, "llama", change)

    with pytest.raises(ConfigError) as caught:
        _loads(directory)

    assert message in str(caught.value), caught.value


def test_an_unsupported_type_is_named(tmp_path: Path):
    hf = _checkpoint(tmp_path / "hf", WIDE)
    file = write_gguf(tmp_path / "m.gguf", "llama", sizes(WIDE), converted_checkpoint(hf, "llama"))
    retyped(file, "blk.0.ffn_down.weight", 2, 26)
    with pytest.raises(
        ConfigError, match=r"m.gguf: tensor blk.0.ffn_down.weight has type I32; supported: F32, F16"
    ):
        _loads(prepared(tmp_path / "p", file))


def test_an_unknown_key_is_refused_and_one_without_effect_is_not(tmp_path: Path):
    assert (
        read_config(_faulty(tmp_path / "a", "llama", **{"expert_count": 0, "logit_scale": 1.0})).notes == ()
    )
    with pytest.raises(ConfigError, match=r"llama.attention.novelty 3 is an unknown key"):
        read_config(_faulty(tmp_path / "b", "llama", **{"attention.novelty": 3}))


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        ("bert", "general.architecture 'bert' is not supported; supported: llama"),
        ("clip", "the image encoder"),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path: Path, arch: str, message: str):
    directory = prepared(tmp_path / "p", write_gguf(tmp_path / "m.gguf", arch, {"block_count": 1}, {}))

    with pytest.raises(ConfigError, match=message):
        read_config(directory)


def test_a_file_that_changed_since_is_refused(tmp_path: Path):
    _, gguf = both(tmp_path, "llama")
    source = gguf / "gguf.json"
    values = json.loads(source.read_text())
    source.write_text(json.dumps({**values, "header": "0" * 64}))
    with pytest.raises(ConfigError, match=r"field header does not fit .*model.gguf, which has changed since"):
        read_config(gguf)
    source.write_text(json.dumps({**values, "files": []}))
    with pytest.raises(ConfigError, match="field files is missing"):
        read_config(gguf)
