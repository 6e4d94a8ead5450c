"""GGUF files of shapes whose layers are not all attention, with random weights: `lfm2` and `qwen35`, by llama.cpp's names.

Decays have half-lives from 1 to 10,000 tokens.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES

Sizes = dict[str, tuple[int, ...]]
ARCHITECTURES = {"lfm2": "lfm2", "qwen3_5_text": "qwen35"}
"""What llama.cpp calls a `model_type`."""


def is_hybrid(shape: str) -> bool:
    """Whether a shape of benchmarks/shapes.py is one of these."""
    return SHAPES[shape]["model_type"] in ARCHITECTURES


def tensor_sizes(shape: dict[str, Any]) -> Sizes:
    """Every tensor of the file; the output layer is the embedding."""
    hidden = shape["hidden_size"]
    of_layer = _lfm2_layer if shape["model_type"] == "lfm2" else _qwen35_layer
    norm = "token_embd_norm" if shape["model_type"] == "lfm2" else "output_norm"
    sizes: Sizes = {"token_embd.weight": (shape["vocab_size"], hidden), f"{norm}.weight": (hidden,)}
    for number, kind in enumerate(shape["layer_types"]):
        sizes |= {
            f"blk.{number}.{name}": size for name, size in of_layer(shape, kind == "full_attention").items()
        }
    return sizes


def inner_size(shape: dict[str, Any]) -> int:
    """Columns of an MLP. LFM2's is two thirds of what the configuration says, rounded up to a multiple."""
    size: int = shape["intermediate_size"]
    if not shape.get("block_auto_adjust_ff_dim"):
        return size
    multiple = shape["block_multiple_of"]
    adjusted = int(int(2 * size / 3) * shape["block_ffn_dim_multiplier"])
    return int(-(-adjusted // multiple) * multiple)


def _mlp(shape: dict[str, Any]) -> Sizes:
    hidden, inner = shape["hidden_size"], inner_size(shape)
    return {
        "ffn_gate.weight": (inner, hidden), "ffn_up.weight": (inner, hidden), "ffn_down.weight": (hidden, inner),
        "attn_norm.weight": (hidden,),
    }  # fmt: skip


def _attention(shape: dict[str, Any], head: int, gated: bool) -> Sizes:
    hidden, q = shape["hidden_size"], head * shape["num_attention_heads"]
    kv = head * shape["num_key_value_heads"]
    return {
        "attn_q.weight": (2 * q if gated else q, hidden), "attn_k.weight": (kv, hidden), "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q), "attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,),
    }  # fmt: skip


def _lfm2_layer(shape: dict[str, Any], attends: bool) -> Sizes:
    hidden = shape["hidden_size"]
    sizes = _mlp(shape) | {"ffn_norm.weight": (hidden,)}
    if attends:
        return sizes | _attention(shape, hidden // shape["num_attention_heads"], False)
    return sizes | {
        "shortconv.in_proj.weight": (3 * hidden, hidden), "shortconv.out_proj.weight": (hidden, hidden),
        "shortconv.conv.weight": (hidden, shape["conv_L_cache"]),
    }  # fmt: skip


def _qwen35_layer(shape: dict[str, Any], attends: bool) -> Sizes:
    hidden = shape["hidden_size"]
    sizes = _mlp(shape) | {"post_attention_norm.weight": (hidden,)}
    if attends:
        return sizes | _attention(shape, shape["head_dim"], True)
    heads, size = shape["linear_num_value_heads"], shape["linear_value_head_dim"]
    channels = 2 * shape["linear_num_key_heads"] * shape["linear_key_head_dim"] + heads * size
    return sizes | {
        "attn_qkv.weight": (channels, hidden), "attn_gate.weight": (heads * size, hidden),
        "ssm_out.weight": (hidden, heads * size), "ssm_beta.weight": (heads, hidden), "ssm_alpha.weight": (heads, hidden),
        "ssm_conv1d.weight": (channels, shape["linear_conv_kernel_dim"]), "ssm_a": (heads,), "ssm_dt.bias": (heads,),
        "ssm_norm.weight": (size,),
    }  # fmt: skip


def add_metadata(writer: Any, shape: dict[str, Any]) -> None:
    """The keys of the architecture, for a writer that knows its name."""
    kinds, heads = shape["layer_types"], shape["num_key_value_heads"]
    writer.add_feed_forward_length(inner_size(shape))
    if shape["model_type"] == "lfm2":
        writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])
        writer.add_shortconv_l_cache(shape["conv_L_cache"])
        writer.add_layer_norm_rms_eps(shape["norm_eps"])
        writer.add_rope_freq_base(shape["rope_theta"])
        return
    rope = shape["rope_parameters"]
    values, turned = shape["linear_num_value_heads"], int(shape["head_dim"] * rope["partial_rotary_factor"])
    writer.add_head_count_kv(heads)
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(turned)
    # Text has one position on all axes, so how pairs are shared among them changes nothing.
    writer.add_rope_dimension_sections([turned // 2 - 2 * (turned // 6), turned // 6, turned // 6, 0])
    writer.add_ssm_conv_kernel(shape["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(shape["linear_key_head_dim"])
    writer.add_ssm_group_count(shape["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(values * shape["linear_value_head_dim"])
    writer.add_full_attention_interval(kinds.index("full_attention") + 1)


def write(name: str, path: Path) -> None:
    """Write a shape of benchmarks/shapes.py; matrices in bfloat16, the rest in float32."""
    import gguf
    import torch

    from benchmarks.peers.gguf_files import add_tokenizer
    from benchmarks.peers.models import num_words, write_tokenizer

    shape = SHAPES[name]
    writer = gguf.GGUFWriter(path, ARCHITECTURES[shape["model_type"]])
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_vocab_size(shape["vocab_size"])
    add_metadata(writer, shape)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), num_words(shape))
        add_tokenizer(writer, Path(folder), shape)
    generator = torch.Generator().manual_seed(0)
    for tensor, size in tensor_sizes(shape).items():
        values = _values(tensor, size, generator)
        if len(size) == 1 or "conv" in tensor.rsplit(".", 2)[-2]:
            writer.add_tensor(tensor, values.numpy())
        else:
            stored = values.bfloat16().contiguous().view(torch.uint8).numpy()
            writer.add_tensor(tensor, stored, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _values(name: str, size: tuple[int, ...], generator: Any) -> Any:
    import torch

    if name.endswith("ssm_a"):
        # The file has -exp(A_log): what a token keeps is exp(ssm_a softplus(a + dt)), and softplus of 0 is ln 2.
        return -1.0 / torch.logspace(0, 4, size[0])
    if name.endswith("ssm_dt.bias"):
        return torch.zeros(size)
    if len(size) == 1:
        return torch.ones(size)
    scale = 0.5 if "embd" in name else 1 / math.sqrt(size[1])
    return torch.randn(size, generator=generator) * scale
