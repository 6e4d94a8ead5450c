"""`RotaryEncoder`: encoders whose queries and keys are rotated by their positions, and whose MLP is gated.

    x = norm(scale * words + types)
    each layer: x = sum_norm(x + out_norm(attention(in_norm(x)))); the MLP likewise
    x = final_norm(x)

A family has some of these norms. Some layers see a window of each token's neighbours alone, on both sides. Texts lie one after
the other as in `Encoder`; the stream is float32, and products take the dtype of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

from executors.llm.encoder.heads import Dense
from executors.llm.encoder.layouts import Layout, layout_of
from executors.llm.encoder.model import ACTIVATIONS, Encoder, StepTexts, head_of
from executors.llm.encoder.rotary_config import EncoderLayer, RotaryConfig
from executors.llm.encoder.slots import Slot, linear_slots
from executors.llm.model.linear import Linear
from executors.llm.model.rope import inverse_frequencies, rotate
from executors.llm.model.rope_config import RopeConfig

_CHUNK = 128
"""Fewest queries that attend in one call where a window hides most of a text."""


class StreamNorm:
    """LayerNorm, with a bias or without, or RMS norm over the last dimension, in float32."""

    def __init__(self, size: int, config: RotaryConfig, device: torch.device) -> None:
        self.rms, self.eps = config.norm == "rms1", config.norm_eps
        self.weight = torch.empty(size, device=device)
        self.bias = torch.empty(size, device=device) if config.norm_bias and not self.rms else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [..., size] -> the same."""
        if self.rms:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def slots(self, name: str) -> Iterator[Slot]:
        """Yield what fills the norm."""
        shape = tuple(self.weight.shape)
        if self.rms:
            yield Slot(f"{name}.weight", shape, lambda stored: self.weight.copy_(stored.float() + 1.0), 0.0)
        else:
            yield Slot(f"{name}.weight", shape, self.weight.copy_, 1.0)
        if self.bias is not None:
            yield Slot(f"{name}.bias", shape, self.bias.copy_, 0.0)


class RotaryLayer:
    """One layer. Queries, keys and values are one product, and so are gate and up."""

    def __init__(
        self, config: RotaryConfig, shape: EncoderLayer, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_size
        self.heads, self._kv_heads, self._head, self._inner = (
            config.num_heads,
            config.num_kv_heads,
            head,
            inner,
        )
        self._scale, self._act = config.score_scale, ACTIVATIONS[config.activation]
        columns, kv = head * config.num_heads, head * config.num_kv_heads
        self.heights = {"q": columns, "k": kv, "v": kv}
        self.qkv = Linear(columns + 2 * kv, hidden, config.attention_bias, dtype, device)
        self.out = Linear(hidden, columns, config.attention_bias, dtype, device)
        self.up = Linear(2 * inner, hidden, config.mlp_bias, dtype, device)
        self.down = Linear(hidden, inner, config.mlp_bias, dtype, device)
        self.norms = {place: StreamNorm(hidden, config, device) for place in shape.norms}
        self.head_norms = (
            {one: StreamNorm(head, config, device) for one in ("q", "k")} if config.head_norms else {}
        )

    def __call__(
        self, x: torch.Tensor, dtype: torch.dtype, step: StepTexts, rotation: torch.Tensor
    ) -> torch.Tensor:
        """float32 [n, hidden] -> the same; `rotation`: cosines and sines of each token, float32 [n, 2, head / 2]."""

        def attention(x: torch.Tensor) -> torch.Tensor:
            mixed = self._mixed(self.qkv.wide(x.to(dtype)).float(), step, rotation)
            return self.out.wide(mixed.to(dtype)).float()

        def mlp(x: torch.Tensor) -> torch.Tensor:
            gate, up = self.up.wide(x.to(dtype)).float().split(self._inner, -1)
            return self.down.wide((self._act(gate) * up).to(dtype)).float()

        return self._added("mlp", self._added("attention", x, attention), mlp)

    def _added(
        self, name: str, x: torch.Tensor, branch: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return x plus the branch's result, with the norms that the layer has around it."""
        branched = self._normed(f"{name}_out", branch(self._normed(f"{name}_in", x)))
        return self._normed(f"{name}_sum", x + branched)

    def _normed(self, place: str, x: torch.Tensor) -> torch.Tensor:
        norm = self.norms.get(place)
        return x if norm is None else norm(x)

    def _mixed(self, qkv: torch.Tensor, step: StepTexts, rotation: torch.Tensor) -> torch.Tensor:
        """float32 [n, rows of q, k and v] -> [n, heads * head] of the step's dtype: attention of each text with itself."""
        q, k, v = (one.unflatten(-1, (-1, self._head)) for one in qkv.split([*self.heights.values()], -1))
        if self.head_norms:
            q, k = self.head_norms["q"](q), self.head_norms["k"](k)
        q, k, v = (one.to(step.dtype) for one in (rotate(q, rotation), rotate(k, rotation), v))
        if self.heads != self._kv_heads:
            k, v = (one.repeat_interleave(self.heads // self._kv_heads, 1) for one in (k, v))
        mixed = torch.empty(len(q), self.heads * self._head, dtype=step.dtype, device=q.device)
        for group in step.groups:
            own_q, own_k, own_v = (
                one[group.at].unflatten(0, group.shape).transpose(1, 2) for one in (q, k, v)
            )
            own = attend(own_q, own_k, own_v, self.shape.reach, self._scale, group.mask)
            group.put(mixed, own.transpose(1, 2).reshape(len(group.at), -1))
        return mixed

    def slots(self, names: Layout, number: int) -> Iterator[Slot]:
        """Yield what fills the layer, the `number`-th of the model."""
        before = names.layer.replace("{i}", str(number))
        parts = [(names.qkv, 0, sum(self.heights.values()))]
        if not names.qkv:
            first, parts = 0, []
            for name, height in zip((names.q, names.k, names.v), self.heights.values(), strict=True):
                parts.append((name, first, height))
                first += height
        yield from (slot for part in parts for slot in linear_slots(self.qkv, before, *part))
        yield from linear_slots(self.out, before, names.out, 0, self.out.outputs)
        halves = [(names.gate, 0, self._inner), (names.up, self._inner, self._inner)]
        for part in [(names.gate_up, 0, 2 * self._inner)] if names.gate_up else halves:
            yield from linear_slots(self.up, before, *part)
        yield from linear_slots(self.down, before, names.down, 0, self.down.outputs)
        for place, norm in self.norms.items():
            yield from norm.slots(before + names.norms[place])
        for role, norm in self.head_norms.items():
            yield from norm.slots(before + names.heads[role])


def rotations(rope: RopeConfig, length: int) -> torch.Tensor:
    """Return cosines and sines of every position, float32 [length, 2, rope.dim / 2].

    Angles are float32 as in transformers: an exact table moves the vectors of random models by 5e-5 at 300 tokens, because an
    angle of 300 has a rounding error of 1.5e-5. `executors/llm/model/rope.py` has an exact one, for contexts of a million tokens.
    """
    if rope.kind in ("default", "linear"):
        exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
        frequencies, scale = 1.0 / rope.theta**exponents / rope.factor, 1.0
    else:
        exact, scale = inverse_frequencies(rope, rope.dim, length)
        frequencies = exact.float()
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), 1) * scale


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    reach: int | None,
    scale: float,
    tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """[texts, heads, length, head] -> the same: softmax(scale q k^T) v, over the tokens up to `reach` positions away on both
    sides; None: over all. `tokens` bool [texts, 1, 1, length]: which keys are tokens, None for all.

    Queries go in chunks, each with the keys that it sees, so that a long text costs its length times its window.
    """
    length = q.shape[2]
    if reach is None or reach >= length - 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=tokens, scale=scale)
    chunk = max(_CHUNK, 2 * reach)
    mixed = []
    for first in range(0, length, chunk):
        last = min(first + chunk, length)
        begin, end = max(0, first - reach), min(length, last + reach)
        queries, keys = (torch.arange(*span, device=q.device) for span in ((first, last), (begin, end)))
        mask = (queries[:, None] - keys[None]).abs() <= reach
        if tokens is not None:
            mask = mask & tokens[..., begin:end]
        mixed.append(
            F.scaled_dot_product_attention(
                q[:, :, first:last], k[:, :, begin:end], v[:, :, begin:end], attn_mask=mask, scale=scale
            )
        )
    return torch.cat(mixed, 2)


class RotaryEncoder(Encoder):
    """The model on a device, or without memory (device "meta"). Its tensors are allocated here and filled by the loader."""

    config: RotaryConfig

    def __init__(
        self, config: RotaryConfig, dtype: torch.dtype, device: torch.device, launched: bool = False
    ) -> None:
        """As `Encoder`."""
        self.config, self.dtype, self.launched = config, dtype, launched
        hidden = config.hidden_size
        self.words = torch.empty(config.vocab_size, hidden, dtype=dtype, device=device)
        self.types = torch.empty(config.num_types, hidden, device=device)
        self.embed_norm = StreamNorm(hidden, config, device) if config.embed_norm else None
        self.final_norm = StreamNorm(hidden, config, device) if config.final_norm else None
        self.rotary_layers = [RotaryLayer(config, one, dtype, device) for one in config.layers]
        self._tables: list[torch.Tensor] = []
        self.head = head_of(config, device)
        self.dense = [Dense.of(one, device) for one in config.dense]

    def linears(self) -> Iterator[Linear]:
        """All of the layers' linears, each once."""
        for layer in self.rotary_layers:
            yield from (layer.qkv, layer.out, layer.up, layer.down)

    def gated_linears(self) -> Iterator[Linear]:
        """Those that are a gate and an up projection."""
        yield from (layer.up for layer in self.rotary_layers)

    def slots(self, layout: Layout) -> Iterator[Slot]:
        """Yield what fills the model, with the names that files of this layout have."""
        yield Slot(f"{layout.words}.weight", tuple(self.words.shape), self.words.copy_, table=self.words)
        if len(self.types):
            yield Slot(f"{layout.types}.weight", tuple(self.types.shape), self.types.copy_)
        for norm, name in ((self.embed_norm, layout.embed_norm), (self.final_norm, layout.final_norm)):
            if norm is not None:
                yield from norm.slots(name)
        for number, layer in enumerate(self.rotary_layers):
            yield from layer.slots(layout, number)

    def num_bytes(self) -> int:
        """Bytes of all weights."""
        tables = (self.words, self.types, *self.on_top())
        return sum(one.numel() * one.element_size() for one in tables) + sum(
            one.num_bytes for one in self.linears()
        )

    def num_parameters(self) -> int:
        """Number of weights."""
        layout = layout_of(self.config.family.model_type)
        own = sum(math.prod(slot.shape) for slot in self.slots(layout))
        return own + sum(one.numel() for one in self.on_top())

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, types: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Compute hidden states as `Encoder.forward`. Families without token types take those for nothing."""
        step = self.step_of(lengths)
        x = self.words[ids.to(self.place)].float() * self.config.embed_scale
        if len(self.types):
            x = x + self.types[types.to(self.place)]
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        rotations = [table[step.places] for table in self.tables(max(lengths))]
        for layer in self.rotary_layers:
            x = layer(x, self.dtype, step, rotations[layer.shape.rope])
        return x if self.final_norm is None else self.final_norm(x)

    def tables(self, longest: int) -> list[torch.Tensor]:
        """Return each rope's cosines and sines, float32 [at least `longest`, 2, head / 2]. They grow with the longest text."""
        if not self._tables or len(self._tables[0]) < longest:
            size = min(self.config.num_positions, max(512, 1 << (longest - 1).bit_length()))
            size = max(size, longest)
            self._tables = [rotations(rope, size).to(self.place) for rope in self.config.ropes]
        return self._tables
