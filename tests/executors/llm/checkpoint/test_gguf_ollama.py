"""Files as Ollama's converters write and wrote them: other names of keys, and keys left out. The logits are those of
transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.model.config import read_config
from tests.executors.gguf_files import (
    OLLAMAS,
    Metadata,
    converted_checkpoint,
    merge_gate_up,
    merge_qkv,
    prepared,
    sizes,
    write_gguf,
)
from tests.executors.llm.checkpoint.test_gguf_models import IDS, MODELS, _checkpoint, _logits

GEMMA3 = {
    **MODELS["gemma3"][1], "model_type": "gemma3_text", "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0,
    "rope_scaling": None, "rms_norm_eps": 1e-6, "num_hidden_layers": 6, "sliding_window": 16, "query_pre_attn_scalar": 20,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
SIZES = {**sizes(GEMMA3), "attention.sliding_window": 16}


def _served(
    tmp_path: Path, metadata: Metadata, fields: dict[str, Any] = GEMMA3, arch: str = "gemma3"
) -> tuple[Path, Path]:
    """A checkpoint and what serves its file; `metadata`: `...` leaves a key out."""
    hf = _checkpoint(tmp_path / "hf", fields)
    base = SIZES if arch == "gemma3" else sizes(fields)
    values = {key: value for key, value in {**base, **metadata}.items() if value is not ...}
    file = write_gguf(tmp_path / "m.gguf", arch, values, converted_checkpoint(hf, arch))
    return hf, prepared(tmp_path / "p", file)


def _of_transformers(hf: Path) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32).eval()
    with torch.no_grad():
        return np.asarray(model(torch.tensor([IDS])).logits[0, -1])


@pytest.mark.long
@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({}, {}),
        ({"rope.freq_base": ...}, {}),
        ({"rope.freq_base": ..., "attention.layer_norm_rms_epsilon": ..., "attention.key_length": ...,
          "attention.value_length": ..., "mm.tokens_per_image": 256, "vision.block_count": 27}, {}),
        ({"rope.freq_base": ..., "rope.global.freq_base": 5e5, "rope.local.freq_base": 2e4},
         {"rope_theta": 5e5, "rope_local_base_freq": 2e4}),
        ({"rope.freq_base": 5e5, "rope.local.freq_base": 2e4}, {"rope_theta": 5e5, "rope_local_base_freq": 2e4}),
        ({"attention.sliding_window_pattern": [True, False, True, True, False, True]},
         {"layer_types": [f"{kind}_attention" for kind in "sliding full sliding sliding full sliding".split()]}),
    ],
)  # fmt: skip
async def test_gemma3_has_its_own_constants(tmp_path: Path, metadata: Metadata, fields: dict[str, Any]):
    hf, gguf = _served(tmp_path, metadata, {**GEMMA3, **fields})

    theirs = _of_transformers(hf)
    assert np.abs(await _logits(gguf) - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max())


LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"rope.freq_base": ..., "attention.layer_norm_rms_epsilon": ..., "context_length": 131_072}, LINEAR),
        ({"rope.local.freq_base": 1e4, "context_length": 131_072}, LINEAR),
        ({"mm.tokens_per_image": 256, "context_length": 131_072, "rope.scaling.type": "none"}, {}),
        ({"rope.local.freq_base": 1e4, "context_length": 32_768}, {}),
        ({"context_length": 131_072}, {}),  # of llama.cpp's converter, which would say so
    ],
)  # fmt: skip
def test_gemma3_of_a_long_context_is_stretched_in_full_layers(
    tmp_path: Path, metadata: Metadata, fields: dict[str, Any]
):
    context = {"max_position_embeddings": metadata["context_length"]}
    hf, gguf = _served(tmp_path, metadata, {**GEMMA3, **context, **fields})

    assert read_config(gguf) == read_config(hf)


YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0,
    "mscale": 1.0, "mscale_all_dim": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "fields", "metadata"),
    [
        ("mistral3", {"sliding_window": None, "rope_scaling": YARN},
         {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
          "rope.scaling.beta_fast": 16.0, "rope.scaling.beta_slow": 2.0, "rope.scaling.mscale": 1.0,
          "rope.scaling.mscale_all_dim": 0.5, "rope.scaling.extrapolation_factor": 1.0, "rope.scaling_beta": 0.0,
          "image_token_index": 10, "spatial_merge_size": 2, "mm.projector_bias": False, "vision.block_count": 24}),
        ("mistral3", {"sliding_window": None}, {"rope.scaling.type": "", "rope.scaling.factor": 0.0}),
        ("mistral3", {"sliding_window": None}, {"rope.scaling.type": "default", "rope.scaling.yarn_beta_fast": 0.0}),
        ("llama", {"head_dim": 16}, {"attention.key_length": ..., "attention.head_dim": 16}),
        ("llama", {"head_dim": 16}, {"attention.key_length": ..., "attention.value_length": ...}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, {"rope.freq_scale": 0.25}),
        ("qwen2", {}, {"rope.mrope_section": [2, 2, 2]}),
        ("qwen2", {"rope_theta": 10_000.0},
         {"rope.freq_base": 0.0, "attention.key_length": 0, "attention.value_length": 0, "rope.dimension_count": 0,
          "rope.scaling.original_context_length": 0}),
        ("olmo2", {"sliding_window": 256, "rope_parameters": {"sliding_attention": {"rope_theta": 10_000.0}},
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
         {"attention.sliding_window": 256, "attention.sliding_window_pattern": [True, False, True]}),
    ],
)  # fmt: skip
def test_other_names_of_keys(tmp_path: Path, arch: str, fields: dict[str, Any], metadata: Metadata):
    served = {"mistral3": "Mistral", "llama": "Llama", "qwen2": "Qwen2", "olmo2": "Olmo3"}[arch]
    base = {**MODELS["llama"][1], "architectures": [f"{served}ForCausalLM"], "head_dim": 12, **fields}
    hf, gguf = _served(tmp_path, metadata, base, arch)

    assert read_config(gguf) == read_config(hf)


@pytest.mark.parametrize(
    ("arch", "metadata", "message"),
    [
        ("llama", {"rope.scaling_beta": 0.1}, "llama.rope.scaling_beta 0.1 is not supported"),
        ("llama", {"attention.layer_norm_rms_epsilon": ...}, "field llama.attention.layer_norm_rms_epsilon is missing"),
    ],
)  # fmt: skip
def test_what_they_say_and_is_not_served_is_refused_by_its_name(
    tmp_path: Path, arch: str, metadata: Metadata, message: str
):
    _, gguf = _served(tmp_path, metadata, MODELS["llama"][1], arch)

    with pytest.raises(ConfigError, match=message):
        read_config(gguf)


@pytest.mark.parametrize("together", [False, True])
async def test_gpt_oss_under_its_older_name(tmp_path: Path, together: bool) -> None:
    """Keys with another prefix and without the kind of scaling, other names of tensors, and q, k and v in one."""
    _, fields, metadata, _ = MODELS["gpt-oss"]
    fields = {**fields, "rope_scaling": {**fields["rope_scaling"], "beta_fast": 32.0, "beta_slow": 1.0}}
    hf = _checkpoint(tmp_path / "hf", fields)
    tensors = converted_checkpoint(hf, "gpt-oss")
    if together:
        merge_qkv(tensors)
    for theirs, own in OLLAMAS.items():
        tensors = {name.replace(theirs, own): tensor for name, tensor in tensors.items()}
    assert {"blk.0.attn_sinks", "blk.0.attn_out.bias", "blk.0.ffn_norm.weight"} <= tensors.keys()
    unwritten = (
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "expert_feed_forward_length",
    )
    values = {key: value for key, value in {**sizes(fields), **metadata}.items() if key not in unwritten}
    file = write_gguf(tmp_path / "m.gguf", "gptoss", values, tensors)
    gguf = prepared(tmp_path / "p", file)

    assert read_config(gguf) == read_config(hf)
    assert np.array_equal(await _logits(gguf), await _logits(hf))


def test_gpt_oss_is_refused_under_the_name_that_its_file_has(tmp_path: Path) -> None:
    _, fields, metadata, _ = MODELS["gpt-oss"]
    values = {**sizes(fields), **metadata, "attention.novelty": 1}
    tensors = converted_checkpoint(_checkpoint(tmp_path / "hf", fields), "gpt-oss")
    gguf = prepared(tmp_path / "p", write_gguf(tmp_path / "m.gguf", "gptoss", values, tensors))

    with pytest.raises(ConfigError, match=r"gptoss\.attention\.novelty 1 is an unknown key"):
        read_config(gguf)


def test_gate_and_up_of_gpt_oss_in_one_are_refused(tmp_path: Path) -> None:
    """Ollama's first converter wrote their rows in alternation; elsewhere the gate's are first."""
    _, fields, metadata, _ = MODELS["gpt-oss"]
    tensors = converted_checkpoint(_checkpoint(tmp_path / "hf", fields), "gpt-oss")
    merge_gate_up(tensors)
    file = write_gguf(tmp_path / "m.gguf", "gptoss", {**sizes(fields), **metadata}, tensors)

    with pytest.raises(
        ConfigError, match=r"tensor blk\.0\.ffn_gate_up_exps\.\w+ is not supported for architecture gptoss"
    ):
        Checkpoint(prepared(tmp_path / "p", file))
