"""`Attention`: softmax attention over paged KV, with grouped heads, norms of queries and keys, rotation and windows.

A head may have a sink: a learned logit beside those of the keys, which takes a share of the softmax and has no value (gpt-oss).

q, k and v form one linear layer, which makes fewer and larger calls. The runner passes in the attention over the cache as
`attend`, which knows where the keys and values of sequences are stored.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executors.llm.model.caches import LayerKv, LayerMemory
from executors.llm.model.config import DecoderConfig, LayerConfig
from executors.llm.model.layers.base import LayerStep, Sublayer
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear
from executors.llm.model.places import NamedPlaces, Place, of_linear
from executors.llm.model.rope import rotate


class Attention(Sublayer):
    """The mixer of all families today. See `Sublayer`."""

    def __init__(
        self, config: DecoderConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        family, hidden, names = config.family, config.hidden_size, config.family.names
        self.config = config
        self.sizes = sizes = config.heads_of(layer)
        self.window = layer.window
        self.rope = layer.rope
        self.lends = False
        """Whether later layers read this one's keys and values; set by the decoder."""
        self._borrows = layer.kv_from is not None
        self.kv_parts = 0 if self._borrows else 1 if layer.k_is_v else 2
        """How many parts beside the queries the projection has: keys that are values as well are one."""
        self.qkv = Linear(
            sizes.q_size + self.kv_parts * sizes.kv_size, hidden, config.qkv_bias, dtype, device
        )
        self.o = Linear(hidden, sizes.q_size, config.o_bias, dtype, device)
        # Over heads, queries and keys are normed in one call: a row of weights per head, the same for all of a kind.
        heads = sizes.num_heads + (0 if self._borrows else sizes.num_kv_heads)
        per_head, full = family.attention.qk_norm == "head", family.attention.qk_norm == "full"
        self.sinks = torch.empty(sizes.num_heads, dtype=dtype, device=device) if names.sinks else None
        """Logits of the heads' sinks [num_heads]."""
        self.qk_norm = torch.empty(heads, sizes.head_dim, dtype=dtype, device=device) if per_head else None

        def norm(name: str, size: int) -> Norm | None:
            return Norm(family.stream.norm, size, config.norm_eps, dtype, device) if full and name else None

        self.q_norm = norm(names.q_norm, sizes.q_size)
        self.k_norm = norm(names.k_norm, sizes.kv_size)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.qkv, self.o

    @property
    def adapted(self) -> tuple[Linear, ...]:
        """See `Sublayer`."""
        return self.qkv, self.o

    def memory(self) -> LayerMemory | None:
        """See `Sublayer`."""
        if self._borrows:
            return None
        c, sizes = self.config, self.sizes
        return LayerKv(
            sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, c.score_scale, c.attn_softcap, self.window,
            sinks=self.sinks is not None,
        )  # fmt: skip

    def tensors(self) -> NamedPlaces:
        """See `Sublayer`."""
        sizes, names = self.sizes, self.config.family.names
        if names.qkv:
            yield from of_linear(self.qkv, (names.qkv, sizes.q_size + 2 * sizes.kv_size))
        else:
            parts = (names.q, sizes.q_size), (names.k, sizes.kv_size), (names.v, sizes.kv_size)
            yield from of_linear(self.qkv, *parts[: 1 + self.kv_parts])
        yield from of_linear(self.o, (names.o, self.config.hidden_size))
        if self.sinks is not None:
            yield names.sinks, Place(self.sinks)

    def norms(self) -> NamedPlaces:
        """See `Sublayer`. Over heads, a norm is a [heads, head_dim] block here."""
        names = self.config.family.names
        if self.q_norm is not None:
            yield from self.q_norm.places(names.q_norm)
        if self.k_norm is not None:
            yield from self.k_norm.places(names.k_norm)
        if self.qk_norm is not None:
            yield f"{names.q_norm}.weight", Place(self.qk_norm[: self.sizes.num_heads])
            if not self._borrows:
                yield f"{names.k_norm}.weight", Place(self.qk_norm[self.sizes.num_heads :])

    def head_norms(self) -> tuple[str, ...]:
        """See `Sublayer`."""
        names = self.config.family.names
        present = () if self.qk_norm is None else (names.q_norm, names.k_norm)[: 1 if self._borrows else 2]
        return tuple(f"{name}.weight" for name in present)

    def forward(self, x: torch.Tensor, step: LayerStep) -> torch.Tensor:
        """See `Sublayer`."""
        c, adapters, share = self.sizes, step.inputs.adapters, step.share
        qkv = self.qkv(x, None if adapters is None else adapters.extra(self.qkv, x))
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = qkv.split((c.q_size, c.kv_size, c.kv_size), -1)
            qkv = torch.cat((*share.normed((self.q_norm, self.k_norm), (q, k)), v), -1)
        q, k, v = self._heads(qkv.view(-1, c.num_heads + self.kv_parts * c.num_kv_heads, c.head_dim), step)
        if step.query_factors is not None:
            q = (q * step.query_factors[:, None, None]).to(q.dtype)
        out = step.inputs.attend(self.cache_index, q, k, v, self.sinks)
        return share.product(self.o, out.reshape(-1, c.q_size), adapters, "attention")

    def _heads(self, heads: torch.Tensor, step: LayerStep) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values, normed and rotated, of the projection's heads [T, heads, head_dim].

        Keys and values of a layer that it reads are those of this step, which are written to their cells again.
        """
        c, table_rows = self.sizes, None if self.rope is None else step.rotary[self.rope]
        if self._borrows:
            return self.turned(heads, self.qk_norm, table_rows), *step.shared_kv[self.cache_index]
        qk, v = heads[:, : c.num_heads + c.num_kv_heads], heads[:, -c.num_kv_heads :]
        if self.config.family.attention.value_norm:
            v = F.rms_norm(v, (c.head_dim,), None, self.config.norm_eps)
        qk = self.turned(qk, self.qk_norm, table_rows)
        k = qk[:, c.num_heads :]
        if self.lends:
            step.shared_kv[self.cache_index] = k, v
        return qk[:, : c.num_heads], k, v

    def turned(
        self, qk: torch.Tensor, norms: torch.Tensor | None, table_rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Norm and rotate queries and keys [T, heads, head_dim], in the family's order. `norms` [heads, head_dim], `table_rows`:
        see `rotate`; None: they are not normed, or not rotated."""
        last = self.config.family.attention.norm_last
        if norms is not None and not last:
            qk = self.norm_heads(qk, norms)
        if self.rope is not None and table_rows is not None:
            qk = rotate(qk, table_rows, self.config.ropes[self.rope].neighbours)
        return self.norm_heads(qk, norms) if norms is not None and last else qk

    def norm_heads(self, qk: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of [T, heads, head_dim] over head_dim; `weight` [heads, head_dim]."""
        size, eps = (self.sizes.head_dim,), self.config.norm_eps
        if self.config.family.stream.norm == "rms1":
            return (F.rms_norm(qk.float(), size, None, eps) * (weight.float() + 1.0)).to(qk.dtype)
        return F.rms_norm(qk, size, None, eps) * weight
