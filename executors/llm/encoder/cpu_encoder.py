"""`CpuEncoder`: an encoder's forward in one call of the CPU kernels, see `executors/kernels/encoder.h`.

It computes what `Encoder.forward` and `RotaryEncoder.forward` define in torch. With weights of float32 and float16 everything is
float32; with others queries, keys, values and the weights of attention are bf16 on CPUs that multiply bf16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from executors.contract.errors import OutOfMemory
from executors.kernels.cpu import I64, KINDS, OUT_OF_MEMORY, POINTER, CpuKernels, PackedWeight
from executors.llm.encoder.model import Encoder, Layer, Norm
from executors.llm.encoder.rotary_model import RotaryEncoder, RotaryLayer, StreamNorm
from executors.llm.model.linear import KIND_NAMES, Linear

POOLINGS = {"cls": 0, "last": 1, "mean": 2}
"""`Pooling` of encoder.h: which hidden states a text's result is made of."""
_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "relu": 2, "gelu": 3}
"""`EncoderActivation` of encoder.h, by names of `EncoderConfig`."""
_FLOAT = ctypes.c_float
_PLACES = ("attention_in", "attention_out", "attention_sum", "mlp_in", "mlp_out", "mlp_sum")


class _Norm(ctypes.Structure):
    """`EncoderNorm` of encoder.h."""

    _fields_ = [("weight", POINTER), ("bias", POINTER), ("rms", I64), ("eps", _FLOAT)]


class _Layer(ctypes.Structure):
    """`EncoderLayer` of encoder.h."""

    _fields_ = [
        *((name, POINTER) for name in ("qkv", "out", "up", "down")),
        *((name, _Norm) for name in (*_PLACES, "q_norm", "k_norm")),
        ("rotary", POINTER), ("rotary_dim", I64), ("reach", I64),
    ]  # fmt: skip


class _Model(ctypes.Structure):
    """`EncoderModel` of encoder.h."""

    _fields_ = [
        *((name, I64) for name in (
            "kind", "hidden", "inner", "heads", "kv_heads", "head_dim", "activation", "num_layers",
        )),
        *((name, POINTER) for name in ("layers", "words", "positions", "types")),
        ("word_kind", I64), ("first_position", I64), ("embed_norm", _Norm), ("final_norm", _Norm),
        ("score_scale", _FLOAT), ("embed_scale", _FLOAT),
    ]  # fmt: skip


class _Call(ctypes.Structure):
    """`EncoderCall` of encoder.h."""

    _fields_ = [
        ("texts", I64), ("threads", I64),
        *((name, POINTER) for name in ("starts", "ids", "types", "poolings", "out")),
    ]  # fmt: skip


class CpuEncoder:
    """Computes a step's texts. Keeps the encoder and its tables alive."""

    def __init__(self, kernels: CpuKernels, encoder: Encoder) -> None:
        """All linear layers of the encoder must be packed and finished, and its tables filled."""
        self._encode, self._encoder = kernels.encode, encoder
        config = encoder.config
        self._rotations: list[torch.Tensor] | None = None
        positions: torch.Tensor | None = None
        embed_norm: Norm | StreamNorm | None
        final_norm: StreamNorm | None
        if isinstance(encoder, RotaryEncoder):
            layers = [_rotary_layer(layer) for layer in encoder.rotary_layers]
            embed_norm, final_norm = encoder.embed_norm, encoder.final_norm
            first = encoder.rotary_layers[0].qkv
            scale, embed_scale = encoder.config.score_scale, encoder.config.embed_scale
        else:
            layers = [_layer(layer) for layer in encoder.layers]
            embed_norm, final_norm, positions = encoder.norm, None, encoder.positions
            first = encoder.layers[0].qkv
            scale, embed_scale = config.head_dim**-0.5, 1.0
        self._layers = (_Layer * len(layers))(*layers)
        self._model = _Model(
            _packed(first).struct.kind, config.hidden_size, config.intermediate_size, config.num_heads, config.kv_heads,
            config.head_dim, _ACTIVATIONS[config.activation], len(layers), ctypes.addressof(self._layers),
            encoder.words.data_ptr(), None if positions is None else positions.data_ptr(),
            encoder.types.data_ptr() if len(encoder.types) else None, KINDS[KIND_NAMES[encoder.words.dtype]],
            0 if positions is None else config.position_offset, _norm(embed_norm), _norm(final_norm), scale, embed_scale,
        )  # fmt: skip

    def __call__(
        self,
        ids: NDArray[np.int32],
        types: NDArray[np.int32],
        starts: NDArray[np.int64],
        poolings: Sequence[str] | None,
    ) -> NDArray[np.float32]:
        """Return float32 [texts, hidden], one of POOLINGS of each text, or without `poolings` hidden states [n, hidden].

        `ids` and `types` int32 [n]: texts that lie one after the other, text i in rows starts[i] to starts[i + 1] - 1. Raises
        OutOfMemory.
        """
        if isinstance(self._encoder, RotaryEncoder):
            self._set_tables(int(np.diff(starts).max()), self._encoder)
        texts = len(starts) - 1
        rows = len(ids) if poolings is None else texts
        out = np.empty((rows, self._model.hidden), np.float32)
        kinds = None if poolings is None else np.array([POOLINGS[one] for one in poolings], np.int64)
        ids, types = np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(types, np.int32)
        call = _Call(
            texts, torch.get_num_threads(), starts.ctypes.data, ids.ctypes.data, types.ctypes.data,
            None if kinds is None else kinds.ctypes.data, out.ctypes.data,
        )  # fmt: skip
        if self._encode(ctypes.addressof(self._model), ctypes.addressof(call)):
            raise OutOfMemory(OUT_OF_MEMORY)
        return out

    def _set_tables(self, longest: int, encoder: RotaryEncoder) -> None:
        """Let each layer have its table of cosines and sines, which grows with the longest text."""
        tables = encoder.tables(longest)
        if tables is self._rotations:
            return
        self._rotations = tables
        for struct, layer in zip(self._layers, encoder.rotary_layers, strict=True):
            table = tables[layer.shape.rope]
            struct.rotary, struct.rotary_dim = table.data_ptr(), 2 * table.shape[-1]


def _layer(layer: Layer) -> _Layer:
    norms = {"attention_sum": layer.attention_norm, "mlp_sum": layer.output_norm}
    return _struct((layer.qkv, layer.out, layer.up, layer.down), norms, {}, None)


def _rotary_layer(layer: RotaryLayer) -> _Layer:
    linears = (layer.qkv, layer.out, layer.up, layer.down)
    return _struct(linears, layer.norms, layer.head_norms, layer.shape.reach)


def _struct(
    linears: Sequence[Linear],
    norms: dict[str, Norm] | dict[str, StreamNorm],
    heads: dict[str, StreamNorm],
    reach: int | None,
) -> _Layer:
    return _Layer(
        *(_packed(linear).address for linear in linears),
        *(_norm(norms.get(place)) for place in _PLACES),
        *(_norm(heads.get(role)) for role in ("q", "k")),
        None,
        0,
        -1 if reach is None else reach,
    )


def _norm(norm: Norm | StreamNorm | None) -> _Norm:
    if norm is None:
        return _Norm(None, None, 0, 0.0)
    bias = norm.bias
    return _Norm(norm.weight.data_ptr(), None if bias is None else bias.data_ptr(), int(norm.rms), norm.eps)


def _packed(linear: Linear) -> PackedWeight:
    assert isinstance(linear.packed, PackedWeight)
    return linear.packed
