"""GGUF files with merged tensors, with some biases and not others, and with tensors of other parts: the logits are exactly
those of the checkpoint that has the same weights apart, in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, ExecutorAttentionConfig
from executors.llm.checkpoint.cut_tensors import CutTensors
from executors.llm.checkpoint.files import Checkpoint
from executors.llm.model.config import read_config
from executors.llm.model.cuts import Cut
from executors.llm.tools.wide_copy import write_wide_copy
from tests.executors.gguf_files import (
    Tensors,
    converted,
    converted_checkpoint,
    merge_all,
    merge_gate_up,
    merge_qkv,
    prepared,
    sizes,
    write_gguf,
)
from tests.executors.llm.checkpoint.test_gguf_models import (
    GPT2,
    GPT2_METADATA,
    MODELS,
    WIDE,
    _checkpoint,
    _logits,
)  # fmt: skip
from tests.tiers import sweep


def merge_like_phi3(tensors: Tensors) -> None:
    merge_gate_up(tensors, "ffn_up")


def merge_in_one_layer(tensors: Tensors) -> None:
    """Each layer for itself."""
    one = {name: tensors.pop(name) for name in list(tensors) if name.startswith("blk.1.")}
    merge_all(one)
    tensors.update(one)


def take_phi3_apart(tensors: Tensors) -> None:
    """Queries of 4 heads of 12, keys and values of 2, an MLP of 56."""
    for name in [name for name in tensors if ".attn_qkv." in name]:
        q, k, v = tensors.pop(name).split([48, 24, 24])
        tensors |= {name.replace("qkv", "q"): q, name.replace("qkv", "k"): k, name.replace("qkv", "v"): v}
    for name in [name for name in tensors if ".ffn_up." in name]:
        gate, up = tensors.pop(name).chunk(2)
        tensors |= {name.replace("ffn_up", "ffn_gate"): gate.contiguous(), name: up.contiguous()}


def take_gpt2_apart(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".attn_qkv." in name]:
        q, k, v = tensors.pop(name).chunk(3)
        tensors |= {name.replace("qkv", "q"): q.contiguous(), name.replace("qkv", "k"): k.contiguous(),
                    name.replace("qkv", "v"): v.contiguous()}  # fmt: skip


def _pair(tmp_path: Path, name: str, change: Any, **kinds: Any) -> tuple[Path, Path]:
    """A checkpoint, and what serves the changed file."""
    arch, fields, more, extra = ("gpt2", GPT2, {}, {}) if name == "gpt2" else MODELS[name]
    hf = _checkpoint(tmp_path / "hf", fields)
    tensors = converted_checkpoint(hf, arch) | {key: torch.tensor(value) for key, value in extra.items()}
    change(tensors)
    metadata = GPT2_METADATA if name == "gpt2" else {**sizes(fields), **more}
    return hf, prepared(tmp_path / "p", write_gguf(tmp_path / "m.gguf", arch, metadata, tensors, **kinds))


MERGED: dict[str, tuple[str, Any]] = {
    "llama": ("llama", merge_all),
    "llama with biases": ("llama-tied-biases", merge_all),
    "one layer": ("llama-tied-biases", merge_in_one_layer),
    "gate and up as Phi-3": ("llama-tied-biases", merge_like_phi3),
    "qwen2": ("qwen2-yarn", merge_qkv),
    "qwen3": ("qwen3", merge_all),
    "gemma2": ("gemma2", merge_all),
    "gemma3": ("gemma3", merge_all),
    "granite": ("granite", merge_all),
    "mixtral": ("mixtral", merge_all),
    "qwen3moe": ("qwen3moe", merge_all),
    "olmoe": ("olmoe", merge_all),
    "phi3": ("phi3-window", take_phi3_apart),
    "gpt2": ("gpt2", take_gpt2_apart),
}


@pytest.mark.parametrize("name", MERGED)
async def test_merged_tensors_are_their_parts(tmp_path: Path, name: str):
    hf, gguf = _pair(tmp_path, *MERGED[name])

    assert np.array_equal(await _logits(gguf), await _logits(hf))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
async def test_parts_of_quantized_tensors_stay_quantized(tmp_path: Path, kind: str):
    """Rows are quantized alone, so parts of a merged tensor have the bytes of tensors apart. Q4_K has random blocks."""
    hf = _checkpoint(tmp_path / "hf", WIDE)
    apart = converted_checkpoint(hf, "llama")
    metadata = sizes(WIDE)
    merged = prepared(
        tmp_path / "p", write_gguf(tmp_path / "m.gguf", "llama", metadata, _merged(apart), lambda _: kind)
    )
    one = Checkpoint(merged)
    stored = {name: one.file_of(name) for name in one.names() if name.endswith("proj.weight")}
    assert {file.stored_kind(name) for name, file in stored.items()} == {kind}
    v = "model.layers.1.self_attn.v_proj.weight"
    raw = torch.cat([piece.clone() for _, piece in stored[v].raw_rows(v)])
    mapped, wide = stored[v].mapped_rows(v), torch.empty(stored[v].shape(v))
    assert mapped is not None and torch.equal(mapped, raw) and len(raw) == 64
    # A rank's part of a part.
    cut = CutTensors(stored[v], {v: Cut((64, 256), rows=((32, 64),), columns=(0, 256))})
    assert torch.equal(torch.cat([piece.clone() for _, piece in cut.raw_rows(v)]), raw[32:])
    if kind != "Q4_K":
        number = GGMLQuantizationType[kind]
        exact = load_file(hf / "model.safetensors")
        for name, file in stored.items():
            wide = torch.empty(file.shape(name))
            file.copy_into(name, wide)
            there = quants.dequantize(quants.quantize(exact[name].numpy(), number), number)
            assert np.array_equal(wide.numpy(), there), name
    del mapped
    one.close()
    config = read_config(merged)
    assert config.qkv_bias is False and config.o_bias is False and config.mlp_bias is False
    kept = await _logits(merged, dtype="float32")
    widened = await _logits(merged, dtype="float32", attention=ExecutorAttentionConfig(backend="torch"))
    assert np.abs(kept - widened).max() < 0.05 * np.abs(widened).max()


def _merged(tensors: Tensors) -> Tensors:
    merge_all(tensors)
    return tensors


BIASES = {
    "q, k, v": ("attn_q", "attn_k", "attn_v"),
    "q": ("attn_q",),
    "k, o": ("attn_k", "attn_output"),
    "o": ("attn_output",),
    "up": ("ffn_up",),
    "gate, down": ("ffn_gate", "ffn_down"),
    "all": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    "none": (),
}


@sweep(every=3)
@pytest.mark.parametrize("layers", [(0, 1, 2), (1,)])
@pytest.mark.parametrize("subset", BIASES)
async def test_any_subset_of_biases(tmp_path: Path, subset: str, layers: tuple[int, ...]):
    """The checkpoint has zeros in the place of those that the file lacks."""
    there = {f"blk.{i}.{stem}.bias" for i in layers for stem in BIASES[subset]}
    arch, fields, _, _ = MODELS["llama-tied-biases"]
    hf = _checkpoint(tmp_path / "hf", fields)
    own = load_file(hf / "model.safetensors")
    stems = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
             "up_proj": "ffn_up", "down_proj": "ffn_down"}  # fmt: skip
    for name in own:
        parts = name.split(".")
        if parts[-1] == "bias" and f"blk.{parts[2]}.{stems[parts[-2]]}.bias" not in there:
            own[name] = torch.zeros_like(own[name])
    save_file(own, hf / "model.safetensors")
    tensors = {
        name: tensor
        for name, tensor in converted_checkpoint(hf, arch).items()
        if not name.endswith(".bias") or name in there
    }
    gguf = prepared(tmp_path / "p", write_gguf(tmp_path / "m.gguf", arch, sizes(fields), tensors))

    assert np.array_equal(await _logits(gguf), await _logits(hf))
    config = read_config(gguf)
    assert config.o_bias is ("attn_output" in BIASES[subset])  # what no layer has is not computed
    assert config.mlp_bias is any(stem.startswith("ffn") for stem in BIASES[subset])


async def test_biases_that_the_family_does_not_have_in_transformers(tmp_path: Path):
    """A Qwen2 with a bias of attention's output is a Llama with all four and others of zeros."""
    llama = {**MODELS["llama-tied-biases"][1], "mlp_bias": False}
    hf = _checkpoint(tmp_path / "hf", llama)
    tensors = load_file(hf / "model.safetensors")
    renamed = converted(tensors, "qwen2", 4, 2)
    gguf = prepared(tmp_path / "p", write_gguf(tmp_path / "m.gguf", "qwen2", sizes(llama), renamed))

    assert np.array_equal(await _logits(gguf), await _logits(hf))
    with pytest.raises(
        ConfigError, match="biases of o, which transformers does not have for Qwen2ForCausalLM"
    ):
        write_wide_copy(gguf, tmp_path / "copy")


@pytest.mark.parametrize("name", ["phi3", "gpt2", "one layer", "llama with biases"])
async def test_a_wide_copy_has_the_tensors_of_transformers(tmp_path: Path, name: str):
    hf, gguf = _pair(tmp_path, *MERGED[name])
    (gguf / "tokenizer.json").write_text("{}")
    write_wide_copy(gguf, tmp_path / "copy")

    mine, theirs = (load_file(path / "model.safetensors") for path in (tmp_path / "copy", hf))
    theirs.pop("lm_head.weight", None) if "lm_head.weight" not in mine else None
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


async def test_tensors_of_images_are_left_out_with_a_note(tmp_path: Path):
    def add(tensors: Tensors) -> None:
        tensors["v.blk.0.attn_q.weight"] = torch.ones(500, 64)
        tensors["v.patch_embedding.weight"] = torch.ones(8, 3, 14, 14)
        tensors["mm.mm_input_projection.weight"] = torch.ones(64, 96)

    hf, gguf = _pair(tmp_path, "gemma3", add)

    assert np.array_equal(await _logits(gguf), await _logits(hf))
    assert read_config(gguf).notes == ("text only: 3 tensors of other parts (v.*, mm.*) are left out",)
    checkpoint = Checkpoint(gguf)
    assert sum(file.num_bytes(name) for file in checkpoint.files.values() for name in file.names()) == sum(
        tensor.nbytes for tensor in load_file(hf / "model.safetensors").values()
    )
    checkpoint.close()


def _of_wrong_height(tensors: Tensors) -> None:
    tensors["blk.1.attn_qkv.weight"] = torch.ones(97, 48)
    for stem in ("attn_q", "attn_k", "attn_v"):
        del tensors[f"blk.1.{stem}.weight"]


def _twice(tensors: Tensors) -> None:
    tensors["blk.1.attn_qkv.weight"] = torch.ones(128, 48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_of_wrong_height, r"blk.1.attn_qkv.weight has shape \[97, 48\]; 128 rows, of q, k, v, are needed"),
        (_twice, r"tensor blk.1.attn_(q|k|v|qkv).weight stands for what another one is"),
    ],
)
def test_merged_tensors_that_do_not_fit_are_refused(tmp_path: Path, change: Any, message: str):
    _, gguf = _pair(tmp_path, "llama", change)

    with pytest.raises(ConfigError, match=message):
        Checkpoint(gguf)


def test_the_size_of_experts_may_stand_in_the_tensors_alone(tmp_path: Path):
    """As Ollama's converter writes Qwen3's experts."""
    arch, fields, more, _ = MODELS["qwen3moe"]
    hf = _checkpoint(tmp_path / "hf", fields)
    metadata = {**sizes(fields), **more, "norm_top_k_prob": True}
    del metadata["expert_feed_forward_length"]
    file = write_gguf(tmp_path / "m.gguf", arch, metadata, converted_checkpoint(hf, arch))

    assert read_config(prepared(tmp_path / "p", file)) == read_config(hf)
    (hf / "config.json").write_text(json.dumps({**fields, "norm_topk_prob": False}))
    file = write_gguf(
        tmp_path / "n.gguf", arch, {**metadata, "norm_top_k_prob": False}, converted_checkpoint(hf, arch)
    )
    assert read_config(prepared(tmp_path / "q", file)) == read_config(hf)
