"""`CpuForward`: all layers of a decoder in one call of the library, see `forward.h`.

It computes what `Decoder.unified_forward` defines in torch, for one kind of decoder (see `why_not`). The residual stream is
fp32, and results are rounded once where torch rounds after every operation. In a model of float16 they are not rounded but for
embeddings, keys, values and what is returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from executors.contract.errors import OutOfMemory
from executors.kernels.cpu import (
    ACTIVATIONS,
    I64,
    KINDS,
    MODEL_DTYPES,
    OUT_OF_MEMORY,
    POINTER,
    CpuKernels,
    MergedWeight,
    PackedWeight,
    StoredRows,
    value_dtype,
)
from executors.llm.attention.cpu_attention import MAX_HEAD_DIM, CpuAttend
from executors.llm.fused import cpu_experts
from executors.llm.model.layers.attention import Attention
from executors.llm.model.layers.gated_attention import GatedAttention
from executors.llm.model.layers.gated_delta import GatedDelta
from executors.llm.model.layers.short_convolution import ShortConvolution
from executors.llm.model.linear import KIND_NAMES

if TYPE_CHECKING:
    from executors.llm.model.api import Attend, ForwardInput
    from executors.llm.model.decoder import Decoder
    from executors.llm.model.layers.base import Sublayer
    from executors.llm.model.layers.dense_and_experts import DenseAndExperts
    from executors.llm.model.layers.layer import Layer
    from executors.llm.model.layers.norms import Norm
    from executors.llm.model.linear import Linear
    from executors.llm.row_loras import KernelLoras

_FLOAT = ctypes.c_float
STATEFUL = GatedDelta, ShortConvolution
"""Mixers with a state."""
TABLE_KINDS = {dtype: KINDS[name] for dtype, name in KIND_NAMES.items()}
"""Formats of rows of the layers' inputs that are read where they lie."""


class _Layer(ctypes.Structure):
    """`Layer` of forward.h."""

    _fields_ = [
        *((name, POINTER) for name in (
            "qkv", "o", "gate_up", "down", "attn_norm", "mlp_norm", "q_norm", "k_norm", "attn_post_norm", "mlp_post_norm",
            "sinks", "rotary", "experts", "gate", "router_norm", "experts_norm", "experts_post_norm", "dense_post_norm",
            "input_gate", "input_projection", "input_norm",
        )),
        *((name, I64) for name in ("rotary_dim", "neighbours", "cache", "kv_parts")), ("scalar", _FLOAT), ("gated", I64),
        *((name, POINTER) for name in ("convolution", "delta", "rates")),
    ]  # fmt: skip


class _Model(ctypes.Structure):
    """`Model` of forward.h."""

    _fields_ = [
        *((name, I64) for name in (
            "dtype", "kind", "hidden", "inner", "activation", "num_layers", "post_norms", "norm_last", "norm_all", "value_norm",
            "input_size",
        )),
        *((name, POINTER) for name in ("layers", "final_norm", "query_factors", "layer_projection", "layer_norm")),
        *((name, _FLOAT) for name in ("eps", "embed_scale", "projected_scale", "table_scale")),
    ]  # fmt: skip


class _Call(ctypes.Structure):
    """`Call` of forward.h."""

    _fields_ = [
        ("tokens", I64), ("threads", I64),
        *((name, POINTER) for name in ("token_ids", "positions", "attention", "kv", "embed", "out", "wanted")),
        ("num_wanted", I64), ("embed_kind", I64), ("adapters", POINTER), ("loras", POINTER),
        ("num_loras", I64), ("table", POINTER), ("table_kind", I64), ("table_ids", POINTER),
        ("states", POINTER), ("slots", POINTER),
    ]  # fmt: skip


def why_not(decoder: Decoder) -> str | None:
    """Return why torch computes a decoder around the kernels, None if `CpuForward` computes it."""
    config = decoder.config
    family, widest = config.family, max(config.heads_of(layer).head_dim for layer in config.layers)
    reasons = {
        "several ranks": not decoder.alone,
        "mixers of another kind, or with wider keys or kernels": not all(
            layer.mixer.fits_kernels
            if isinstance(layer.mixer, STATEFUL)
            else isinstance(layer.mixer, Attention)
            for layer in decoder.layers
        ),
        "LayerNorm": family.stream.norm == "layer",
        "scaled sublayers": config.residual_scale != 1.0,
        "an ungated MLP": not family.names.gate and not family.names.gate_up,
        f"the activation {config.activation}": config.activation not in ACTIVATIONS,
        "learned positions": decoder.position_embed is not None,
        f"heads of {widest}": widest > MAX_HEAD_DIM,
        "inputs or scalars of layers without a norm behind their MLPs": not family.names.mlp_post_norm
        and (config.layer_input_size > 0 or bool(family.names.layer_scalar)),
        "KV in fp8": decoder.kv_dtype not in (None, torch.int8),
        "layers of which some are in 4 bits or as their file has them and some are not": _mixed(decoder),
        "gate and up projections in different formats": any(
            isinstance(linear.packed, MergedWeight)
            for layer in decoder.layers
            for linear in layer.feed_forward.linears
        ),
        "Hadamard transforms": any(linear.rotation is not None for linear in _linears(decoder)),
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or cpu_experts.why_not(decoder)


def _mixed(decoder: Decoder) -> bool:
    """Return whether the linear layers but rates, and those of experts, their routers and gates, are multiplied in several
    ways."""
    dense = [
        linear
        for layer in decoder.layers
        for parts in (cpu_experts.parts_of(layer) or cpu_experts.Parts(),)
        for linear in (
            *around(layer.mixer), *(() if parts.mlp is None else parts.mlp.linears),
            *(() if layer.layer_input is None else layer.layer_input.linears),
        )
    ]  # fmt: skip
    return len({linear.blocks for linear in dense}) > 1


def around(mixer: Sublayer) -> tuple[Linear, Linear]:
    """Return the projections into a mixer and out of it."""
    return mixer.linears[0], mixer.linears[-1]


@dataclass(frozen=True, slots=True)
class MixerColumns:
    """Columns of a mixer in the one call: of what it takes, float32; of what it makes; and of its rates, float32."""

    inputs: int
    outputs: int
    rates: int = 0


def mixer_columns(layer: Layer) -> MixerColumns:
    """Return the columns of a layer's mixer, as forward.h keeps them; of another kind, those of its widest projection."""
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        sizes = mixer.sizes
        queries = 2 * sizes.q_size if isinstance(mixer, GatedAttention) else sizes.q_size
        return MixerColumns(queries + 2 * sizes.kv_size, sizes.q_size)
    if not isinstance(mixer, STATEFUL):
        widest = max(linear.outputs for linear in mixer.linears)
        return MixerColumns(widest, widest)
    rates = mixer.rates.outputs if isinstance(mixer, GatedDelta) else 0
    return MixerColumns(mixer.inward.outputs, mixer.out_columns, rates)


def _linears(decoder: Decoder) -> list[Linear]:
    beside = [] if decoder.layer_inputs is None else [decoder.layer_inputs.projection]
    return [*(linear for layer in decoder.layers for linear in layer.linears), *beside]


class CpuForward:
    """Computes a step's tokens. Keeps the decoder's packed weights and tables alive."""

    def __init__(self, kernels: CpuKernels, decoder: Decoder) -> None:
        """The decoder must pass `why_not`, its linear layers must be packed and its tables must exist."""
        self._forward = kernels.forward
        stored = decoder.stored_embed
        self._embed = stored if isinstance(stored, StoredRows) else decoder.embed
        config = decoder.config
        self._pointees: list[object] = []
        layers = [self._layer(decoder, layer) for layer in decoder.layers]
        self._layers = (_Layer * len(layers))(*layers)
        kind = _packed(decoder.layers[0].mixer.linears[0]).struct.kind
        factors, inputs = decoder.query_factors, decoder.layer_inputs
        self._pointees.append(factors)
        self._table = None if inputs is None else inputs.table
        self._model = _Model(
            MODEL_DTYPES[decoder.dtype], kind, config.hidden_size, cpu_experts.mlp_size(decoder),
            ACTIVATIONS[config.activation], len(layers),
            int(bool(config.family.names.attn_post_norm or config.family.names.mlp_post_norm)),
            int(config.family.attention.norm_last), int(config.family.attention.qk_norm == "full"),
            int(config.family.attention.value_norm), config.layer_input_size,
            ctypes.addressof(self._layers), self._floats(decoder, decoder.final_norm.weight),
            None if factors is None else factors.data_ptr(),
            None if inputs is None else self._address(inputs.projection),
            None if inputs is None else self._floats(decoder, inputs.norm.weight),
            config.norm_eps, decoder.embed_scale, 0.0 if inputs is None else inputs.projected,
            0.0 if inputs is None else inputs.root,
        )  # fmt: skip
        self._dtype = decoder.dtype
        self._hidden = config.hidden_size

    def _layer(self, decoder: Decoder, layer: Layer) -> _Layer:
        parts, inputs = cpu_experts.parts_of(layer), layer.layer_input
        assert parts is not None
        attention = layer.mixer if isinstance(layer.mixer, Attention) else None
        q_norm, k_norm = (None, None) if attention is None else _head_norms(attention)
        rope = None if attention is None else attention.rope
        self._pointees.append(decoder.rotary)
        turned = None if rope is None else decoder.config.ropes[rope]
        mlp_norm = layer.mlp_norm if parts.beside is None else parts.beside.mlp_norm
        mlp = (None, None) if parts.mlp is None else map(self._address, parts.mlp.linears)
        return _Layer(
            *map(self._address, around(layer.mixer)), *mlp,
            self._floats(decoder, _weight(layer.attn_norm)), self._floats(decoder, _weight(mlp_norm)),
            self._floats(decoder, q_norm), self._floats(decoder, k_norm),
            *(self._floats(decoder, _weight(norm)) for norm in (layer.attn_post_norm, layer.mlp_post_norm)),
            None if attention is None else self._wide(attention.sinks),
            None if rope is None else decoder.rotary[rope].data_ptr(),
            None if parts.experts is None else cpu_experts.mixture(parts.experts, self._address, self._pointees),
            None if parts.gate is None else self._address(parts.gate),
            *self._norms_beside(decoder, parts.beside),
            *((None, None) if inputs is None else map(self._address, inputs.linears)),
            None if inputs is None else self._floats(decoder, inputs.norm.weight),
            0 if turned is None else turned.dim, int(turned is not None and turned.neighbours),
            layer.mixer.cache_index, 0 if attention is None else attention.kv_parts,
            1.0 if layer.scalar is None else float(layer.scalar), int(isinstance(attention, GatedAttention)),
            *self._with_state(layer.mixer),
        )  # fmt: skip

    def _with_state(self, mixer: Sublayer) -> tuple[int | None, int | None, int | None]:
        """Return the addresses of `convolution`, `delta` and `rates` of `Layer`."""
        if not isinstance(mixer, STATEFUL):
            return None, None, None
        kernel = mixer.by_kernels
        assert kernel is not None
        self._pointees.append(kernel)
        if isinstance(mixer, ShortConvolution):
            return ctypes.addressof(kernel.struct), None, None
        return None, ctypes.addressof(kernel.struct), self._address(mixer.rates)

    def _norms_beside(self, decoder: Decoder, both: DenseAndExperts | None) -> Iterator[int | None]:
        """Yield the addresses of `router_norm` to `dense_post_norm` of `Layer`."""
        if both is None:
            yield from (None,) * 4
            return
        yield self._wide(both.experts.scale.float() * both.experts.root)
        for norm in (both.experts_norm, both.experts_post_norm, both.mlp_post_norm):
            yield self._floats(decoder, norm.weight)

    def _address(self, linear: Linear) -> int:
        weight = _packed(linear)
        self._pointees.append(weight)
        return weight.address

    def _floats(self, decoder: Decoder, weight: torch.Tensor | None) -> int | None:
        """Return the address of a norm's factor in fp32; for an "rms1" norm the factor is the stored weight plus one."""
        if weight is None:
            return None
        return self._wide(weight.float() + (1.0 if decoder.config.family.stream.norm == "rms1" else 0.0))

    def _wide(self, numbers: torch.Tensor | None) -> int | None:
        """Return the address of numbers in fp32."""
        if numbers is None:
            return None
        self._pointees.append(wide := numbers.float())
        return wide.data_ptr()

    def takes(self, attend: Attend) -> bool:
        """Return whether the forward supports this attention: only its own."""
        return isinstance(attend, CpuAttend)

    def __call__(self, inputs: ForwardInput) -> torch.Tensor:
        """Compute hidden states [T, hidden] after the final norm; only the wanted rows are valid."""
        token_ids, positions, attend, used_rows = (
            inputs.token_ids,
            inputs.positions,
            inputs.attend,
            inputs.used_rows,
        )
        assert isinstance(attend, CpuAttend)
        tokens = len(token_ids)
        embed, embed_kind, embed_ids = self._embed, 0, token_ids
        if isinstance(embed, StoredRows):
            embed, embed_kind = embed.raw, embed.kind
        elif embed.dtype is not self._dtype:  # as the file has it
            embed = embed.index_select(0, token_ids).to(value_dtype(self._dtype))
            embed_ids = torch.arange(tokens)
        if embed.dtype is torch.float16:
            embed_kind = KINDS["float16"]
        table, table_kind, table_ids = self._rows_of_table(token_ids)
        states = None if inputs.states is None else inputs.states.slots
        out = torch.empty((tokens, self._hidden), dtype=self._dtype)
        adapters, loras = cast("KernelLoras | None", inputs.adapters), None
        if adapters is not None:
            loras = (POINTER * len(adapters.addresses))(*adapters.addresses)
        call = _Call(
            tokens, torch.get_num_threads(), embed_ids.data_ptr(), positions.data_ptr(),
            ctypes.addressof(attend.steps), ctypes.addressof(attend.kv), embed.data_ptr(), out.data_ptr(),
            # An empty tensor has no address, and none means all.
            None if used_rows is None else used_rows.data_ptr() or out.data_ptr(), 0 if used_rows is None else len(used_rows),
            embed_kind, None if adapters is None else adapters.of_row.data_ptr(),
            None if loras is None else ctypes.addressof(loras), 0 if loras is None else len(loras),
            None if table is None else table.data_ptr(), table_kind, table_ids.data_ptr(),
            *((None, None) if states is None else (states.address, states.layers.address)),
        )  # fmt: skip
        if self._forward(ctypes.addressof(self._model), ctypes.addressof(call)):
            raise OutOfMemory(OUT_OF_MEMORY)
        return out

    def _rows_of_table(self, token_ids: torch.Tensor) -> tuple[torch.Tensor | None, int, torch.Tensor]:
        """Return rows of the layers' inputs, their format, and which of them the tokens read; None if the model has none."""
        if self._table is None:
            return None, 0, token_ids
        rows = self._table.rows
        if isinstance(rows, StoredRows):
            return rows.raw, rows.kind, token_ids
        if rows.dtype not in TABLE_KINDS or not rows.is_contiguous():  # as the file has it
            return self._table.look_up(token_ids).float(), KINDS["float32"], torch.arange(len(token_ids))
        return rows, TABLE_KINDS[rows.dtype], token_ids


def _head_norms(attention: Attention) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the norms of queries and of keys."""
    if attention.qk_norm is not None:
        # One row of weights per head, all queries' the same, and there may be no keys.
        return attention.qk_norm[0], attention.qk_norm[-1]
    return _weight(attention.q_norm), _weight(attention.k_norm)


def _weight(norm: Norm | None) -> torch.Tensor | None:
    return None if norm is None else norm.weight


def _packed(linear: Linear) -> PackedWeight | MergedWeight:
    assert linear.packed is not None
    return linear.packed
