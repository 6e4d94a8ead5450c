"""`Encoder`: BERT's layers (Devlin et al., 2018) over texts of any lengths, one after the other, without padding.

    x = norm(words + positions + types)
    each layer: x = norm(x + attention(x)); x = norm(x + down(act(up(x))))

A classification head or linear layers of vectors stand on it (`heads.py`).

The stream is float32; products take the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

from executors.kernels.cpu import CpuKernels
from executors.llm.encoder.config import EncoderConfig
from executors.llm.encoder.heads import ClassificationHead, Dense
from executors.llm.model.linear import KIND_NAMES, Linear

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
"""By their names in `EncoderConfig`."""


class Norm:
    """LayerNorm over the last dimension, float32."""

    rms = False

    def __init__(self, size: int, eps: float, device: torch.device) -> None:
        self.weight, self.bias = torch.empty(size, device=device), torch.empty(size, device=device)
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [n, size] -> the same."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Group:
    """Texts of one length: `rows` int64 [count, length], where their tokens are in the step."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows


class Layer:
    """One layer. `linears` by the names of their tensors below the layer's own; q, k and v are one product."""

    def __init__(self, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._heads, self._act = config.num_heads, ACTIVATIONS[config.activation]
        self.qkv = Linear(3 * hidden, hidden, True, dtype, device)
        self.out = Linear(hidden, hidden, True, dtype, device)
        self.up = Linear(inner, hidden, True, dtype, device)
        self.down = Linear(hidden, inner, True, dtype, device)
        self.attention_norm = Norm(hidden, config.norm_eps, device)
        self.output_norm = Norm(hidden, config.norm_eps, device)
        self.linears: dict[str, tuple[Linear, int]] = {
            "attention.self.query": (self.qkv, 0),
            "attention.self.key": (self.qkv, hidden),
            "attention.self.value": (self.qkv, 2 * hidden),
            "attention.output.dense": (self.out, 0),
            "intermediate.dense": (self.up, 0),
            "output.dense": (self.down, 0),
        }
        """Each with the row at which the tensor begins in it."""
        self.norms = {"attention.output.LayerNorm": self.attention_norm, "output.LayerNorm": self.output_norm}

    def __call__(self, x: torch.Tensor, dtype: torch.dtype, groups: Sequence[Group]) -> torch.Tensor:
        """float32 [n, hidden] -> the same."""
        mixed = _attend(self.qkv.wide(x.to(dtype)), self._heads, groups)
        x = self.attention_norm(x + self.out.wide(mixed.to(dtype)).float())
        inner = self._act(self.up.wide(x.to(dtype)).float())
        return self.output_norm(x + self.down.wide(inner.to(dtype)).float())


def groups_of(lengths: Sequence[int]) -> list[Group]:
    """Group texts that lie one after the other by their lengths: those of one length attend in one call."""
    begins: dict[int, list[int]] = {}
    begin = 0
    for length in lengths:
        begins.setdefault(length, []).append(begin)
        begin += length
    return [
        Group(torch.tensor(group)[:, None] + torch.arange(length)[None])
        for length, group in sorted(begins.items())
    ]


def _attend(qkv: torch.Tensor, heads: int, groups: Sequence[Group]) -> torch.Tensor:
    """float32 [n, 3 * hidden] -> float32 [n, hidden]: softmax attention of each text with itself, in both directions."""
    hidden = qkv.shape[1] // 3
    mixed = torch.empty(len(qkv), hidden)
    for group in groups:
        count, length = group.rows.shape
        at = group.rows.reshape(-1)
        q, k, v = qkv[at].view(count, length, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4).float()
        own = F.scaled_dot_product_attention(q, k, v)
        mixed[at] = own.transpose(1, 2).reshape(count * length, hidden)
    return mixed


def head_of(config: EncoderConfig, device: torch.device) -> ClassificationHead | None:
    """Return the classification head of a model, its weights not yet filled; None if it has none."""
    if config.head is None:
        return None
    return ClassificationHead(config.hidden_size, len(config.labels), config.head, device)


class Encoder:
    """The model on a CPU, or without memory (device "meta"). Its tensors are allocated here and filled by the loader."""

    def __init__(self, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype = config, dtype
        hidden = config.hidden_size
        self.words = torch.empty(config.vocab_size, hidden, dtype=dtype, device=device)
        self.positions = torch.empty(config.num_positions, hidden, device=device)
        self.types = torch.empty(config.num_types, hidden, device=device)
        self.norm = Norm(hidden, config.norm_eps, device)
        self.layers = [Layer(config, dtype, device) for _ in range(config.num_layers)]
        self.head = head_of(config, device)
        self.dense = [Dense.of(one, device) for one in config.dense]

    def linears(self) -> Iterator[Linear]:
        """All of the layers' linears, each once."""
        for layer in self.layers:
            yield from (layer.qkv, layer.out, layer.up, layer.down)

    def gated_linears(self) -> Iterator[Linear]:
        """Those of `linears` that are a gate and an up projection."""
        return iter(())

    def pack(self, kernels: CpuKernels, kind: str | None) -> None:
        """Pack the layers' linears for the kernels, before they are loaded; `kind`: int8 or int4, None for the dtype's own."""
        gated = set(map(id, self.gated_linears()))
        for linear in self.linears():
            linear.reserve(kernels, kind or KIND_NAMES[self.dtype], gated=id(linear) in gated)

    def num_bytes(self) -> int:
        """Bytes of all weights."""
        tables = (self.words, self.positions, self.types, *self.on_top())
        return sum(one.numel() * one.element_size() for one in tables) + sum(
            one.num_bytes for one in self.linears()
        )

    def on_top(self) -> Iterator[torch.Tensor]:
        """Yield the weights of the head and of the layers of vectors."""
        if self.head is not None:
            yield from (tensor for _, tensor in self.head.tensors())
        for layer in self.dense:
            yield from (tensor for _, tensor in layer.tensors())

    def num_parameters(self) -> int:
        """Number of weights."""
        hidden, inner, layers = self.config.hidden_size, self.config.intermediate_size, len(self.layers)
        each = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
        tables = len(self.words) + len(self.positions) + len(self.types)
        on_top = sum(one.numel() for one in self.on_top())
        return tables * hidden + 2 * hidden + layers * each + on_top

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, types: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Compute hidden states float32 [n, hidden] of texts that lie one after the other: `ids` and `types` int64 [n]."""
        places = torch.cat([torch.arange(length) for length in lengths]) + self.config.position_offset
        x = self.words[ids].float() + self.positions[places] + self.types[types]
        x = self.norm(x)
        groups = groups_of(lengths)
        for layer in self.layers:
            x = layer(x, self.dtype, groups)
        return x
