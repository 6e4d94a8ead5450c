"""What files call the tensors of an encoder with rotary positions, by their place in `RotaryEncoder`. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of modules, without `.weight` and `.bias`; those of a layer stand behind `layer`. Empty: the module has no such name.

    `qkv` and `gate_up` name merged modules, whose rows are those of the parts, in this order; the parts are named otherwise.
    `norms`: the norms of a layer by their places, see `EncoderLayer`.
    """

    words: str
    layer: str
    out: str
    down: str
    norms: Mapping[str, str]
    types: str = ""
    embed_norm: str = ""
    final_norm: str = ""
    qkv: str = ""
    q: str = ""
    k: str = ""
    v: str = ""
    gate_up: str = ""
    gate: str = ""
    up: str = ""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Norms of the heads of queries (`q`) and keys (`k`)."""

    def behind(self, prefix: str) -> Layout:
        """The same with `prefix` before all names."""
        outside = ("words", "layer", "types", "embed_norm", "final_norm")
        return replace(self, **{one: prefix + name for one in outside if (name := getattr(self, one))})


MODERNBERT = Layout(
    words="embeddings.tok_embeddings",
    embed_norm="embeddings.norm",
    final_norm="final_norm",
    layer="layers.{i}.",
    qkv="attn.Wqkv",
    out="attn.Wo",
    gate_up="mlp.Wi",
    down="mlp.Wo",
    norms={"attention_in": "attn_norm", "mlp_in": "mlp_norm"},
)
NOMIC = Layout(
    words="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    embed_norm="emb_ln",
    layer="encoder.layers.{i}.",
    qkv="attn.Wqkv",
    out="attn.out_proj",
    up="mlp.fc11",
    gate="mlp.fc12",
    down="mlp.fc2",
    norms={"attention_sum": "norm1", "mlp_sum": "norm2"},
)
_NOMIC_OF_TRANSFORMERS = Layout(
    words="embeddings.word_embeddings",
    types="embeddings.token_type_embeddings",
    embed_norm="embeddings.LayerNorm",
    layer="layers.{i}.",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    out="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    norms={"attention_sum": "post_attention_layernorm", "mlp_sum": "post_mlp_layernorm"},
)
GEMMA = Layout(
    words="embed_tokens",
    final_norm="norm",
    layer="layers.{i}.",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    out="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    norms={
        "attention_in": "input_layernorm",
        "attention_out": "post_attention_layernorm",
        "mlp_in": "pre_feedforward_layernorm",
        "mlp_out": "post_feedforward_layernorm",
    },
    heads={"q": "self_attn.q_norm", "k": "self_attn.k_norm"},
)
LAYOUTS: Mapping[str, tuple[tuple[Layout, ...], tuple[str, ...]]] = {
    "modernbert": ((MODERNBERT,), ("model.",)),
    "nomic_bert": ((NOMIC, _NOMIC_OF_TRANSFORMERS), ("nomic_bert.", "bert.")),
    "gemma3_text": ((GEMMA,), ("model.",)),
}
"""The layouts of a family, first the one of its published files, and the prefixes of models with a head."""


def layout_of(model_type: str, names: Collection[str] = ()) -> Layout:
    """Return the layout of a family's files that have tensors of these names; the published one if none fits."""
    layouts, prefixes = LAYOUTS[model_type]
    for layout in layouts:
        for prefix in ("", *prefixes):
            candidate = layout.behind(prefix)
            if f"{candidate.layer.replace('{i}', '0')}{candidate.out}.weight" in names:
                return candidate
    return layouts[0]
