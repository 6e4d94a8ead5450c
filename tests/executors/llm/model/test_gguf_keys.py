"""Every key that a GGUF header is known to have is read, named harmless, or refused by name, for each architecture."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import constants

from executors.contract import ConfigError
from executors.gguf.file import GgufFile, GgufTensor
from executors.llm.model import gguf_config, gguf_key_table, gguf_rows
from executors.llm.model.config import config_of_gguf

LLAMA_CPP = """
attention.compress_ratios attention.compress_rope_freq_base attention.output_group_count attention.output_lora_rank
attention.recurrent_layers attention.value_scale deepstack_mapping dense_2_feat_in dense_2_feat_out dense_3_feat_in
dense_3_feat_out hash_layer_count hidden_activation hyper_connection.count hyper_connection.epsilon
hyper_connection.sinkhorn_iterations norm_before_residual rope.scale_linear target_hidden_size target_layers
""".split()
"""Keys of llama.cpp (src/llama-arch.cpp) that the package does not have yet."""
OLLAMA = """
attention.chunk_size attention.cross_attention_layers attention.gating_type attention.head_dim attention.layer_types
attention.sink_enabled attention.use_qk_norm audio.block_count decoder_sparse_step dense_layers image_token_id image_token_index
mm.projector_bias mm.projector_hidden_act mm.tokens_per_image norm_top_k_prob normalize_embeddings rope.freq_base_local
rope.freq_scale rope.global.freq_base rope.local.freq_base rope.mrope_section rope.scaling.beta_fast rope.scaling.beta_slow
rope.scaling.extrapolation_factor rope.scaling.mscale rope.scaling.mscale_all_dim rope.scaling_beta rope.swa.freq_base
spatial_merge_size use_qk_norm video_token_id vision.attention.head_count vision.block_count vision.image_size
source_fp8_tensors source_quantization vision_start_token_id
""".split()
"""Keys that Ollama's converters write or wrote below the prefix (convert/convert_*.go)."""
ARCHITECTURES = tuple(gguf_rows.ROWS)
HIDDEN, HEADS, LAYERS = 32, 2, 2
FACTORS = tempfile.NamedTemporaryFile()  # noqa: SIM115
"""The numbers of a small tensor that is read with the metadata; it goes with the process."""
FACTORS.write(np.array([1.0] * 2 + [1e30] * 6, "<f4").tobytes())
FACTORS.flush()


def _known(inside: bool) -> Iterator[str]:
    """The package's keys below an architecture's prefix, without it, or the others."""

    def walk(group: object) -> Iterator[str]:
        for name, value in vars(group).items():
            if name.startswith("_"):
                continue
            if isinstance(value, str):
                yield value
            elif inspect.isclass(value):
                yield from walk(value)

    for key in walk(constants.Keys):
        if key.startswith("{arch}.") == inside and "{dense}" not in key:
            yield key.removeprefix("{arch}.")


def _file(arch: str, more: Mapping[str, Any]) -> GgufFile:
    """A header in memory."""
    path = Path("m.gguf")
    base: dict[str, Any] = {
        "block_count": LAYERS, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": 48,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS,
        "attention.layer_norm_epsilon" if arch == "gpt2" else "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    if arch in ("qwen2moe", "qwen3moe", "olmoe", "gpt-oss", "lfm2moe", "qwen3next", "qwen35moe"):
        base |= {"expert_count": 4, "expert_used_count": 2}
    if arch == "gpt-oss":
        base |= {"attention.sliding_window": 8}
    if arch == "gemma4":
        base |= {
            "attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False], "attention.key_length": 16,
            "attention.value_length": 16, "attention.key_length_swa": 16, "attention.value_length_swa": 16,
        }  # fmt: skip
    if arch in ("lfm2", "lfm2moe"):
        base |= {"attention.head_count_kv": [0, HEADS], "shortconv.l_cache": 3}
    if arch in ("qwen3next", "qwen35", "qwen35moe"):
        base |= {
            "ssm.conv_kernel": 4, "ssm.group_count": 2, "ssm.state_size": 8, "ssm.time_step_rank": 4, "ssm.inner_size": 32,
        }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (40, HIDDEN)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_q.weight": (HIDDEN, HIDDEN), f"blk.{i}.ffn_gate_exps.weight": (4, 48, HIDDEN),
                   f"blk.{i}.ffn_down_exps.weight": (4, HIDDEN, 48)}  # fmt: skip
    if arch in ("gpt2", "phi3"):
        shapes.pop("blk.0.attn_q.weight"), shapes.pop("blk.1.attn_q.weight")
    tensors = {name: GgufTensor(name, "F32", shape, 0, 0, path) for name, shape in shapes.items()}
    if arch == "gemma4":
        tensors["rope_freqs.weight"] = GgufTensor("rope_freqs.weight", "F32", (8,), 0, 32, Path(FACTORS.name))
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in base.items()}}
    return GgufFile(path, (path,), 0, {**metadata, **more}, tensors)


def _outcome(arch: str, more: Mapping[str, Any]) -> str:
    """The error of a header, "" if it is taken."""
    try:
        gguf = _file(arch, more)
        config_of_gguf(gguf, gguf_config.gguf_config(gguf))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_known_key_is_read_or_harmless_or_refused_by_its_name(arch: str):
    assert _outcome(arch, {}) == ""
    names = {*_known(inside=True), *LLAMA_CPP, *OLLAMA}
    assert len(names) > 150 and "attention.head_count" in names
    for name in sorted(names):
        key = f"{arch}.{name}"
        # No key means anything with this value: one that is read or changes the result is refused.
        error = _outcome(arch, {key: "odd"})
        assert "unknown key" not in error, key
        if error:
            newer = gguf_key_table.OLDER.get(name, name)
            assert name in error or newer in error, error
        else:
            harmless = name in gguf_key_table.HARMLESS or gguf_key_table.OTHER_PARTS.fullmatch(name)
            older = gguf_key_table.OLDER.get(name) in gguf_key_table.HARMLESS
            assert harmless or older or name in FREE, key


FREE = {"attention.sliding_window_pattern", "expert_used_count"}
"""Keys that change nothing as long as another one is missing, whatever they say."""


def test_an_unknown_key_is_refused_with_the_cure():
    error = _outcome("llama", {"llama.attention.novelty": 3})

    assert error == (
        "m.gguf: llama.attention.novelty 3 is an unknown key, which may change the result; if it does not, remove it: "
        "gguf-new-metadata --remove-metadata llama.attention.novelty"
    )
    assert "tokenizer.ggml.novelty is an unknown key" in _outcome("llama", {"tokenizer.ggml.novelty": 3})


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_every_known_key_outside_the_prefix_is_named(arch: str):
    for key in _known(inside=False):
        named = key in gguf_key_table.TOKENIZER or key in gguf_key_table.OF_OTHERS
        namespace = key.partition(".")[0] in gguf_key_table.OUTSIDE
        assert named or namespace or key == "tokenizer.chat_template.{name}", key
        error = _outcome(arch, {key: "odd"})
        assert not error or key in error or key == "general.architecture", error


@pytest.mark.parametrize(
    "value", [np.empty(0), np.array([1, 2]), [np.array([1, 2])], ["a"], math.nan, True, ""]
)
def test_a_value_of_any_kind_has_an_outcome(value: Any):
    """No key makes another exception than ConfigError."""
    keys = [key for key in _known(inside=False) if "{" not in key]
    for arch in ("gemma3", "gemma4"):
        for key in [*keys, *(f"{arch}.{name}" for name in (*_known(inside=True), *LLAMA_CPP, *OLLAMA))]:
            _outcome(arch, {key: value})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"general.type": "adapter"}, "general.type adapter: an adapter, not a model"),
        ({"general.type": "mmproj"}, "general.type mmproj: the image encoder of a model"),
        ({"general.type": "imatrix"}, "general.type imatrix: what a quantization measured"),
        ({"general.type": "novelty"}, "general.type novelty: not supported; supported: model"),
        ({"general.quantization_version": 3}, "general.quantization_version 3 is not supported; supported: up to 2"),
        ({"adapter.lora.alpha": 16.0}, "adapter.lora.alpha 16.0 is not supported"),
        ({"xielu.beta": [0.5]}, "xielu.beta [0.5] is not supported"),
        ({"llama.hidden_activation": "relu"}, "llama.hidden_activation relu is not supported"),
        ({"llama.hidden_activation": "gelu"}, "llama.hidden_activation gelu is not supported"),
        ({"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": [True, False]},
         "llama.attention.sliding_window_pattern [True, False] is not supported"),
        ({"llama.attention.temperature_scale": 0.1}, "llama.attention.temperature_scale 0.1 is not supported"),
        ({"llama.attention.causal": False}, "llama: it needs attention in both directions; the nearest that is served is"),
        ({"llama.rope.local.freq_base": 7.0, "llama.rope.freq_base_swa": 8.0},
         "llama.rope.local.freq_base 7.0 and llama.rope.freq_base_swa 8.0 say the same differently"),
    ],
)  # fmt: skip
def test_what_changes_the_result_is_refused(more: dict[str, Any], message: str):
    assert message in _outcome(more.get("general.architecture", "llama"), more)


@pytest.mark.parametrize(
    "more",
    [
        {
            "general.type": "model",
            "general.description": "x",
            "general.novelty": 3,
            "mradermacher.quantized_by": "m",
        },
        {"llama.hidden_activation": "silu"},
        {"gemma3.hidden_activation": "gelu_pytorch_tanh", "general.architecture": "gemma3"},
        {"tokenizer.ggml.image_token_id": 7, "llama.image_token_id": 7},
        {"llama.rope.freq_base": 500.0, "llama.rope.freq_base_swa": 500.0},
        {"llama.embedding_length_out": HIDDEN},
        {"llama.pooling_type": 3},
        {"tokenizer.chat_template.tool_use": "x", "tokenizer.ggml.add_unknown_token": False},
        {"qwen3.attention.sliding_window": 64, "general.architecture": "qwen3"},
        {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": [True, True]},
        {"qwen3.attention.sliding_window_pattern": [True, False], "general.architecture": "qwen3"},
        {"llama.source_quantization": "hf_fp8", "llama.source_fp8_tensors": ["blk.0.attn_q.weight"]},
        # Granite 4 of dense layers alone, which the converter of the hybrid ones writes.
        {
            "general.architecture": "granite", "granite.attention.head_count_kv": [HEADS, HEADS], "granite.expert_count": 0,
            "granite.expert_used_count": 0, "granite.expert_shared_feed_forward_length": 48, "granite.ssm.conv_kernel": 4,
            "granite.ssm.state_size": 128, "granite.ssm.group_count": 1, "granite.ssm.inner_size": 64,
            "granite.ssm.time_step_rank": 48, "granite.rope.scaling.finetuned": True, "granite.rope.dimension_count": 16,
        },
    ],
)  # fmt: skip
def test_what_changes_nothing_is_taken(more: dict[str, Any]):
    arch = more.get("general.architecture", "llama")
    assert _outcome(arch, more) == ""


def test_recommended_sampling_that_is_not_served_is_noted():
    gguf = _file("llama", {"general.sampling.mirostat": 2, "general.sampling.top_k": 3})

    assert gguf_config.gguf_config(gguf).notes == (
        "recommended sampling settings that are not served: general.sampling.mirostat 2",
    )


@pytest.mark.parametrize(("older", "newer"), [("deepseekocr", "deepseek2-ocr"), ("qwen25vl", "qwen2vl")])
def test_an_architecture_is_refused_in_the_same_words_under_both_names(older: str, newer: str):
    errors = [_outcome(name, {}) for name in (older, newer)]

    assert errors[0] == errors[1] and repr(newer) in errors[0]


def test_an_embedding_model_that_says_gemma3_is_refused_by_its_name():
    gguf = _file("gemma3", {})
    gguf.tensors["dense.0.weight"] = GgufTensor("dense.0.weight", "F32", (4, 4), 0, 0, gguf.path)

    with pytest.raises(ConfigError, match="'gemma-embedding' is not supported"):
        gguf_config.gguf_config(gguf)
