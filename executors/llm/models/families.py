"""The decoder families as data: one row each, read by `config.py`, `decoder.py` and `weights.py`.

A family says how its checkpoint names its tensors and which of the decoder's switches it sets. A switch is either a
constant or the name of the `config.json` field that holds it. To add a family, add a row; where it needs something the
decoder cannot do yet, add a switch with a neutral default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Switch = bool | str
"""True, False, or the name of a boolean field of config.json (missing there: False)."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Checkpoint names, without `.weight` or `.bias`; `{i}` is the layer's index."""

    embed: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    lm_head: str = "lm_head"
    attn_norm: str = "model.layers.{i}.input_layernorm"
    q: str = "model.layers.{i}.self_attn.q_proj"
    k: str = "model.layers.{i}.self_attn.k_proj"
    v: str = "model.layers.{i}.self_attn.v_proj"
    o: str = "model.layers.{i}.self_attn.o_proj"
    q_norm: str = "model.layers.{i}.self_attn.q_norm"
    k_norm: str = "model.layers.{i}.self_attn.k_norm"
    mlp_norm: str = "model.layers.{i}.post_attention_layernorm"
    gate: str = "model.layers.{i}.mlp.gate_proj"
    up: str = "model.layers.{i}.mlp.up_proj"
    down: str = "model.layers.{i}.mlp.down_proj"


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one family of decoder-only models apart from the next."""

    name: str
    architectures: tuple[str, ...]
    """Values of `architectures` in config.json."""
    names: TensorNames = field(default_factory=TensorNames)
    qk_norm: bool = False
    """RMS norm over head_dim of each query and key head, before rotation."""
    qkv_bias: Switch = False
    o_bias: Switch = False
    mlp_bias: Switch = False
    norm_eps: str = "rms_norm_eps"
    """Field that holds the norms' epsilon."""
    activations: tuple[str, ...] = ("silu",)
    """Supported values of `hidden_act`."""
    rope_kinds: tuple[str, ...] = ("default", "linear", "dynamic", "llama3", "yarn")
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of fields that older checkpoints of the family leave out."""
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Fields that must be missing or have one of these values, because nothing else is implemented."""
    harmless: tuple[str, ...] = ("*.rotary_emb.inv_freq", "*.attention.masked_bias", "*.attn.bias")
    """Patterns of surplus tensors that older savers wrote and nobody needs."""


_QWEN3: Final = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    qk_norm=True,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    only={"use_sliding_window": (False,)},
)

_LLAMA: Final = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias="mlp_bias",
    defaults={"rope_theta": 10000.0},
)

FAMILIES: Final = (_QWEN3, _LLAMA)


def family_of(architecture: str) -> Family | None:
    """The family of an `architectures` entry, None if there is no row for it."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)


def supported_architectures() -> str:
    """All of them, for messages."""
    return ", ".join(name for family in FAMILIES for name in family.architectures)
