"""What metadata of GGUF files say of models whose layers are not all attention. No torch here.

    attention.head_count_kv     LFM2: one number for each layer, 0 for a short convolution
    shortconv.l_cache           LFM2: the convolution's kernel
    leading_dense_block_count   LFM2-MoE: the first layers, which have an MLP
    ssm.conv_kernel             Qwen3-Next and Qwen3.5: kernel of the convolution of linear attention
    ssm.group_count, ssm.state_size        its key heads and their size
    ssm.time_step_rank, ssm.inner_size     its value heads and the size of all of them together
    full_attention_interval, or attention.recurrent_layers    which layers have attention

llama.cpp's converter puts the value heads of `qwen35` and `qwen35moe` into another order (its class
`_LinearAttentionVReorderBase`): head v of key head k comes as head v * (key heads) + k. Rows, channels, decays and the columns
of the output projection are all in this order, so it is kept, and `TensorNames.delta_tiled` says it: blocks of a quantized
projection have no order of columns that could be changed. `qwen3next` has the usual order.
"""

from __future__ import annotations

from typing import Any

from executors.contract.errors import ConfigError
from executors.llm.model.gguf_keys import GgufKeys, shown

_KV_HEADS = "attention.head_count_kv"


def complete_lfm2(keys: GgufKeys) -> None:
    """Replace the numbers of KV heads of all layers by that of the layers with attention, which `lfm2` tells."""
    heads = sorted(set(_kv_heads(keys)) - {0})
    if len(heads) != 1:
        keys.refuse(_KV_HEADS, "one number for the layers with attention, and 0 for the others")
    keys.replace(_KV_HEADS, heads[0])


def lfm2(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Read the keys that only these architectures have. The file has the size of the MLP as it is."""
    tensors = keys.gguf.tensors
    values |= {
        "layer_types": ["full_attention" if heads else "conv" for heads in _kv_heads(keys)],
        "conv_L_cache": keys.natural("shortconv.l_cache"),
        "conv_bias": any(name.endswith(".shortconv.conv.bias") for name in tensors),
    }


def lfm2_moe(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Do as `lfm2`, and read which layers have experts."""
    lfm2(keys, values)
    values |= {
        "num_dense_layers": keys.count("leading_dense_block_count"),
        "use_expert_bias": any(".exp_probs_b." in name for name in keys.gguf.tensors),
    }


def linear_attention(keys: GgufKeys, values: dict[str, Any]) -> None:
    """Read the keys on layers with linear attention."""
    heads, inner = keys.natural("ssm.time_step_rank"), keys.natural("ssm.inner_size")
    if inner % heads:
        keys.refuse("ssm.inner_size", f"a multiple of {keys.name('ssm.time_step_rank')}, which is {heads}")
    values |= {
        "linear_conv_kernel_dim": keys.natural("ssm.conv_kernel"),
        "linear_num_key_heads": keys.natural("ssm.group_count"),
        "linear_key_head_dim": keys.natural("ssm.state_size"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": inner // heads,
    }
    count = values["num_hidden_layers"]
    flags = keys.items("attention.recurrent_layers", bool, count)
    interval = keys.natural("full_attention_interval", 4)
    values["layer_types"] = [
        "linear_attention" if (flags[i] if flags is not None else (i + 1) % interval) else "full_attention"
        for i in range(count)
    ]


def _kv_heads(keys: GgufKeys) -> list[int]:
    """Return the number of KV heads of each layer, as the file has it."""
    count, value = keys.natural("block_count"), keys.written(_KV_HEADS)
    if (
        not isinstance(value, list)
        or len(value) < count
        or any(type(one) is not int or one < 0 for one in value)
    ):
        raise ConfigError(
            f"{keys.where}: {keys.name(_KV_HEADS)} is {shown(value)}; a number for each of {count} layers is needed"
        )
    return value[:count]
