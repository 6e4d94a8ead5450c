"""`Encoder`: BERT's layers (Devlin et al., 2018) over texts of any lengths, one after the other, without padding.

    x = norm(words + positions + types)
    each layer: x = norm(x + attention(x)); x = norm(x + down(act(up(x))))

A classification head or linear layers of vectors stand on it (`heads.py`).

The stream is float32; products take the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
    """Texts that attend in one call, each in as many places. `shape`: the numbers of texts and of places. `at` int64 [count *
    length]: where the places' tokens are in the step. `mask` bool [count, 1, 1, length]: which places are tokens; None: all."""

    def __init__(
        self,
        shape: tuple[int, int],
        at: torch.Tensor,
        mask: torch.Tensor | None = None,
        real: torch.Tensor | None = None,
    ) -> None:
        """`real` int64 [tokens]: the numbers of the places that are tokens, None for all. Other places repeat a token."""
        self.shape, self.at, self.mask, self._real = shape, at, mask, real
        self._places = at if real is None else at[real]

    @staticmethod
    def of(members: Sequence[tuple[int, int]], length: int) -> Group:
        """Return the group of texts that begin at a row and have so many tokens each, at most `length`."""
        begins, sizes = torch.tensor(members).unbind(1)
        places = torch.arange(length)[None]
        tokens = places < sizes[:, None]
        at = (begins[:, None] + torch.minimum(places, sizes[:, None] - 1)).reshape(-1)
        shape = (len(members), length)
        if bool(tokens.all()):
            return Group(shape, at)
        return Group(shape, at, tokens[:, None, None], tokens.reshape(-1).nonzero()[:, 0])

    def to(self, place: torch.device) -> Group:
        """Return the same on a device."""
        mask, real = (None if one is None else one.to(place) for one in (self.mask, self._real))
        return Group(self.shape, self.at.to(place), mask, real)

    def put(self, mixed: torch.Tensor, own: torch.Tensor) -> None:
        """Put what attention gave for the places, [count * length, n], into the rows of the step."""
        mixed[self._places] = own if self._real is None else own[self._real]


@dataclass(frozen=True, slots=True)
class StepTexts:
    """The texts of a step, which lie one after the other. `places` int64 [n]: the position of each token in its text. `dtype`: of
    queries, keys and values in attention."""

    groups: Sequence[Group]
    places: torch.Tensor
    dtype: torch.dtype


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

    def __call__(self, x: torch.Tensor, dtype: torch.dtype, step: StepTexts) -> torch.Tensor:
        """float32 [n, hidden] -> the same."""
        mixed = _attend(self.qkv.wide(x.to(dtype)), self._heads, step)
        x = self.attention_norm(x + self.out.wide(mixed.to(dtype)).float())
        inner = self._act(self.up.wide(x.to(dtype)).float())
        return self.output_norm(x + self.down.wide(inner.to(dtype)).float())


def padded_length(length: int) -> int:
    """Return the number of places for a text, less than half more than its tokens from 32 on: ten numbers up to 512 tokens."""
    step = max(16, 1 << max(0, length.bit_length() - 2))
    return -(-length // step) * step


def groups_of(lengths: Sequence[int], padded: bool = False) -> list[Group]:
    """Group texts that lie one after the other by their lengths: those of one length attend in one call. `padded`: those of one
    `padded_length`, for devices where a call costs more than the places that it computes for nothing."""
    texts: dict[int, list[tuple[int, int]]] = {}
    begin = 0
    for length in lengths:
        texts.setdefault(padded_length(length) if padded else length, []).append((begin, length))
        begin += length
    return [Group.of(members, width) for width, members in sorted(texts.items())]


def _attend(qkv: torch.Tensor, heads: int, step: StepTexts) -> torch.Tensor:
    """[n, 3 * hidden] -> [n, hidden] of the step's dtype: softmax attention of each text with itself, in both directions."""
    hidden = qkv.shape[1] // 3
    mixed = torch.empty(len(qkv), hidden, dtype=step.dtype, device=qkv.device)
    for group in step.groups:
        count, length = group.shape
        apart = qkv[group.at].view(count, length, 3, heads, hidden // heads)
        q, k, v = apart.permute(2, 0, 3, 1, 4).to(step.dtype)
        own = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        group.put(mixed, own.transpose(1, 2).reshape(count * length, hidden))
    return mixed


def head_of(config: EncoderConfig, device: torch.device) -> ClassificationHead | None:
    """Return the classification head of a model, its weights not yet filled; None if it has none."""
    if config.head is None:
        return None
    return ClassificationHead(config.hidden_size, len(config.labels), config.head, device)


class Encoder:
    """The model on a device, or without memory (device "meta"). Its tensors are allocated here and filled by the loader."""

    def __init__(
        self, config: EncoderConfig, dtype: torch.dtype, device: torch.device, launched: bool = False
    ) -> None:
        """`launched`: each operation is a launch, whose number counts: texts of similar lengths attend in one call, and in
        `dtype`."""
        self.config, self.dtype, self.launched = config, dtype, launched
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
        """Compute hidden states float32 [n, hidden], on the model's device, of texts that lie one after the other: `ids` and
        `types` int64 [n], on any device."""
        step = self.step_of(lengths)
        ids, types = ids.to(self.place), types.to(self.place)
        places = step.places + self.config.position_offset
        x = self.words[ids].float() + self.positions[places] + self.types[types]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, self.dtype, step)
        return x

    @property
    def place(self) -> torch.device:
        """Where the model's tensors are."""
        return self.words.device

    def step_of(self, lengths: Sequence[int]) -> StepTexts:
        """Return texts of these lengths, on the model's device."""
        places = torch.cat([torch.arange(length) for length in lengths])
        groups = [group.to(self.place) for group in groups_of(lengths, self.launched)]
        return StepTexts(groups, places.to(self.place), self.dtype if self.launched else torch.float32)
