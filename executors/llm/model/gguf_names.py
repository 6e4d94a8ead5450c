"""Which tensors of a GGUF file are which of a family's, by the usual names, and what differs in their rows. No torch here."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufTensor
from executors.llm.model.config import DecoderConfig
from executors.llm.model.cuts import Range
from executors.llm.model.family import Family
from executors.llm.model.gguf_config import CLASSIFIER_TENSOR
from executors.llm.model.gguf_rows import Row

_LAYER_ROLES = {
    "attn_norm": "attn_norm", "post_attention_norm": "attn_post_norm", "attn_qkv": "qkv", "attn_q": "q", "attn_k": "k",
    "attn_v": "v", "attn_output": "o", "attn_q_norm": "q_norm", "attn_k_norm": "k_norm", "ffn_norm": "mlp_norm",
    "post_ffw_norm": "mlp_post_norm", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down", "ffn_gate_inp": "router",
    "ffn_gate_up": "gate_up", "ffn_gate_shexp": "shared_gate", "ffn_up_shexp": "shared_up", "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "shared_router", "inp_gate": "layer_input_gate", "proj": "layer_input_projection",
    "post_norm": "layer_input_norm", "layer_output_scale": "layer_scalar", "post_ffw_norm_1": "dense_post_norm",
    "pre_ffw_norm_2": "experts_norm", "post_ffw_norm_2": "experts_post_norm", "exp_probs_b": "choice_bias",
    "shortconv.in_proj": "conv_in", "shortconv.conv": "conv", "shortconv.out_proj": "conv_out",
}  # fmt: skip
"""Role in `TensorNames` by the middle of a name, `blk.0.attn_norm.weight`."""
_ROLES_OF_MIXER = {
    "gated_delta": {
        "attn_qkv": "delta_qkv", "attn_gate": "delta_z", "ssm_in": "delta_qkvz", "ssm_ba": "delta_ba", "ssm_beta": "delta_b",
        "ssm_alpha": "delta_a", "ssm_conv1d": "delta_conv", "ssm_dt": "delta_dt_bias", "ssm_norm": "delta_norm",
        "ssm_out": "delta_out",
    },
}  # fmt: skip
"""The same, of layers with mixers of these kinds, before those of all layers."""
_EXPERT_ROLES = {"ffn_gate": "expert_gate", "ffn_up": "expert_up", "ffn_down": "expert_down"}
_MERGED = "ffn_gate_up"
"""Stem of a tensor whose first half of rows is the gate's and whose second half is up's, of an MLP or of all experts."""
_ROLES = {
    "token_embd": "embed",
    "position_embd": "positions",
    "output_norm": "final_norm",
    "output": "lm_head",
    "per_layer_token_embd": "layer_embed",
    "per_layer_model_proj": "layer_projection",
    "per_layer_proj_norm": "layer_projection_norm",
}
_SCALES = {"ffn_gate_inp": "router_scale", "ffn_down_exps": "expert_scale"}
"""Roles of tensors whose names end in `.scale`."""
_WITHOUT_ENDING = ("layer_scalar", "router_scale", "expert_scale", "choice_bias", "delta_dt_bias")
"""Roles whose usual names have no `.weight`."""
_CHANNELS = ("conv", "delta_conv")
"""Roles of convolutions, whose shape is [channels, 1, kernel] under the usual name and [channels, kernel] in the file."""
_OF_LAYER = re.compile(
    r"blk\.(?P<layer>\d{1,5})\.(?P<stem>\w+?(?:\.[a-z]\w*?)?)(?P<all>_exps)?(\.(?P<expert>\d{1,5}))?\.(?P<part>weight|bias|scale)"
)
_OTHER = re.compile(r"(?P<stem>\w+)\.(?P<part>weight|bias)")
_SINKS = re.compile(r"blk\.(\d{1,5})\.attn_sinks(?:\.weight)?")
"""Logits of the heads' sinks; in files of Ollama's converters without an ending."""
_DECAYS = re.compile(r"blk\.(\d{1,5})\.ssm_a")
"""-exp(A_log) of the value heads of linear attention."""
_NORMS = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "q_norm", "k_norm", "final_norm")


@dataclass(frozen=True, slots=True)
class Stored:
    """A family's tensor in a GGUF file.

    `shape`: the shape under the usual name. `expert`: which part of a tensor of all experts, [experts, rows, columns], it is.
    `rows`: which of the rows it is, of a tensor or of an expert, where the file has several tensors merged into one.
    `heads`: of so many heads the rows are in the order for a rotation of neighbours: row h * n + 2 j + p in the file is row
    h * n + p * n / 2 + j under the usual name (n rows a head); 0 if the order is the usual one. `plus_one`: the numbers are
    stored plus one. `decays`: the file has -exp of the numbers. `turned`: the file has the transpose. `scale`: a factor of the
    numbers, which lies beside them.
    """

    tensor: GgufTensor
    shape: tuple[int, ...]
    expert: int | None = None
    rows: Range | None = None
    heads: int = 0
    plus_one: bool = False
    turned: bool = False
    scale: float = 1.0
    decays: bool = False


def file_name(usual: str, family: Family, row: Row | None = None) -> str:
    """Return the name in a GGUF file of the tensor with this usual name, for messages. `row`: of the file's architecture."""
    names = family.names
    for template, own in (
        (names.sinks, "attn_sinks.weight"), (names.router_scale, "ffn_gate_inp.scale"),
        (names.expert_scale, "ffn_down_exps.scale"), (names.layer_scalar, "layer_output_scale.weight"),
        (names.choice_bias, "exp_probs_b.bias"), (names.delta_a_log, "ssm_a"), (names.delta_dt_bias, "ssm_dt.bias"),
    ):  # fmt: skip
        if template and (match := _template(template).fullmatch(usual)):
            return f"blk.{match[1]}.{own}"
    stem, _, part = usual.rpartition(".")
    if stem == family.names.classifier:
        return CLASSIFIER_TENSOR
    for own, role in {**({} if row is None else row.roles), **_ROLES}.items():
        if getattr(family.names, role) == stem:
            return f"{own}.{part}"
    experts = (
        {f"{own}_exps": role for own, role in _EXPERT_ROLES.items()} if family.feed_forward.experts else {}
    )
    roles = _LAYER_ROLES | {"ffn_up": "gate_up"} if family.names.gate_up else _LAYER_ROLES | experts
    roles = {**{own: role for one in _ROLES_OF_MIXER.values() for own, role in one.items()}, **roles}
    if row is not None:
        roles = {**row.roles, **roles, **row.roles}  # those of the row first, in their order
    for own, role in roles.items():
        template = getattr(family.names, role)
        match = _template(template).fullmatch(stem) if template else None
        if match is not None:
            return f"blk.{match[1]}.{own}.{part}"
    return usual


def _template(name: str) -> re.Pattern[str]:
    """Return an expression for the names of all layers and experts; its group is the layer's number."""
    return re.compile(re.escape(name).replace(r"\{i\}", r"(\d+)").replace(r"\{e\}", r"\d+"))


def names_of_weight(
    tensor: GgufTensor, config: DecoderConfig, row: Row, beside: Collection[str] = ()
) -> dict[str, Stored]:
    """Return what a tensor of a file is by the usual names, {} if nothing. One of all experts is as many tensors, and a merged
    one its parts. `beside`: the names of all tensors of the file; none where a file holds changes of weights, as of adapters."""
    family = config.family
    if tensor.name == CLASSIFIER_TENSOR and config.num_labels:
        return {f"{family.names.classifier}.weight": Stored(tensor, tensor.shape)}
    if family.names.sinks and (sinks := _SINKS.fullmatch(tensor.name)):
        name = family.names.sinks.replace("{i}", sinks[1])
        return {name: Stored(tensor, tensor.shape)} if int(sinks[1]) < config.num_layers else {}
    if family.names.delta_a_log and (decays := _DECAYS.fullmatch(tensor.name)):
        name = family.names.delta_a_log.replace("{i}", decays[1])
        return {name: Stored(tensor, tensor.shape, decays=True)} if int(decays[1]) < config.num_layers else {}
    match = _OF_LAYER.fullmatch(tensor.name)
    if match is None:
        match = _OTHER.fullmatch(tensor.name)
        role = {**_ROLES, **row.roles}.get(match["stem"], "") if match else ""
        name = getattr(family.names, role) if role else ""
        return {f"{name}.{match['part']}": _one(tensor, role, row)} if match and name else {}
    layer, stem, part = int(match["layer"]), match["stem"], match["part"]
    if layer >= config.num_layers:
        return {}
    if part == "scale":
        role = _SCALES.get(stem + (match["all"] or ""), "")
        name = getattr(family.names, role) if role and config.moe else ""
        return {name.replace("{i}", str(layer)): Stored(tensor, tensor.shape)} if name else {}
    if match["all"] or match["expert"]:
        biased = config.moe is not None and config.moe.biased
        return _experts(tensor, config, match) if part == "weight" or biased else {}
    own = _ROLES_OF_MIXER.get(config.layers[layer].mixer, {})
    role = own.get(stem) or row.roles.get(stem) or _LAYER_ROLES.get(stem, "")
    if role == "up" and (family.names.gate_up or _holds_gate(tensor, config, beside, layer)):
        role = "gate_up"
    roles = [role] if role in own.values() or role in _used_roles(family) else _parts_of(role, config)
    turned = family.names.transposed and len(tensor.shape) == 2
    tensors: dict[str, Stored] = {}
    first = 0
    for one in roles:
        name = getattr(family.names, one).replace("{i}", str(layer))
        if not name:
            return {}
        rows = None
        if one != role:
            rows = (first, first + _rows(one, config, layer))
            first = rows[1]
        heads = {"q": config.num_heads, "k": config.num_kv_heads}.get(one, 0) if row.interleaved else 0
        whole = name if one in _WITHOUT_ENDING else f"{name}.{part}"
        tensors[whole] = _one(tensor, one, row, rows, heads, turned)
    if first and first != tensor.shape[0]:
        raise ConfigError(
            f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)}; {first} rows, of {', '.join(roles)}, are needed"
        )
    return tensors


def _holds_gate(tensor: GgufTensor, config: DecoderConfig, beside: Collection[str], layer: int) -> bool:
    """Return whether a tensor named for the up projection is gate and up, as Phi-3's is: without a gate beside it, and twice as
    high."""
    gate = f"blk.{layer}.ffn_gate.{tensor.name.rpartition('.')[2]}"
    alone = bool(beside) and gate not in beside
    return bool(config.family.names.gate) and alone and tensor.shape[0] == 2 * config.intermediate_size


def _parts_of(role: str, config: DecoderConfig) -> list[str]:
    """Return the roles of the parts of a merged tensor, in their order, where the family has them apart."""
    names = config.family.names
    if role == "qkv" and not names.qkv:
        return ["q", "k", "v"]
    if role == "gate_up" and not names.gate_up and names.gate:
        return ["gate", "up"]
    return []


def _rows(role: str, config: DecoderConfig, layer: int) -> int:
    own = config.layers[layer]
    if role in ("q", "k", "v"):
        sizes = config.heads_of(own)
        gates = sizes.q_size if own.mixer == "gated_attention" else 0
        return sizes.q_size + gates if role == "q" else sizes.kv_size
    return own.inner or config.intermediate_size


def _used_roles(family: Family) -> set[str]:
    """Return the roles of a layer's tensors in this family."""
    names = family.names
    roles = set(_LAYER_ROLES.values()) | {"gate_up"}
    roles -= {"q", "k", "v"} if names.qkv else {"qkv"}
    roles -= {"gate", "up"} if names.gate_up else {"gate_up"}
    if not family.attention.qk_norm:
        roles -= {"q_norm", "k_norm"}
    if not family.feed_forward.experts:
        roles -= {"router"}
    return roles


def _one(
    tensor: GgufTensor, role: str, row: Row, rows: Range | None = None, heads: int = 0, turned: bool = False
) -> Stored:
    height = tensor.shape[0] if rows is None else rows[1] - rows[0]
    if heads and (height % heads or height // heads % 2):
        raise ConfigError(f"{tensor.path}: tensor {tensor.name} has {height} rows for {heads} heads")
    # The row of weights is a vector in older files.
    shape = (1, tensor.shape[-1]) if role == "shared_router" else (height, *tensor.shape[1:])
    if role in _CHANNELS and len(tensor.shape) == 2:
        shape = (height, 1, tensor.shape[1])
    return Stored(
        tensor,
        shape[::-1] if turned else shape,
        rows=rows,
        heads=heads,
        plus_one=row.plus_one and role in _NORMS,
        turned=turned,
    )


def _experts(tensor: GgufTensor, config: DecoderConfig, match: re.Match[str]) -> dict[str, Stored]:
    roles = [_EXPERT_ROLES[match["stem"]]] if match["stem"] in _EXPERT_ROLES else []
    if (
        match["stem"] == _MERGED and not config.family.names.alternating
    ):  # whose rows may alternate, too: no key says it
        roles = ["expert_gate", "expert_up"]
    experts = config.moe.num_experts if config.moe else 0
    if not roles or not experts:
        return {}
    if match["expert"]:
        numbers = [int(match["expert"])]
        if numbers[0] >= experts:
            return {}
    else:
        numbers = list(range(experts))
        if len(tensor.shape) != (3 if match["part"] == "weight" else 2) or tensor.shape[0] != experts:
            raise ConfigError(
                f"{tensor.path}: tensor {tensor.name} has shape {list(tensor.shape)}; those of {experts} experts are needed"
            )
    own = tensor.shape if match["expert"] else tensor.shape[1:]
    height = own[0]
    if height % len(roles):
        raise ConfigError(
            f"{tensor.path}: tensor {tensor.name} has {height} rows, of which no half is the gate's"
        )
    height //= len(roles)
    tensors = {}
    for place, role in enumerate(roles):
        rows = (place * height, (place + 1) * height) if len(roles) > 1 else None
        name = f"{getattr(config.family.names, role).replace('{i}', match['layer'])}.{match['part']}"
        for e in numbers:
            expert = None if match["expert"] else e
            shape = (height, *own[1:])
            tensors[name.replace("{e}", str(e))] = Stored(tensor, shape, expert=expert, rows=rows)
    return tensors
