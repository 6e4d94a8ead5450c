"""`RankShare`: what the layers of a rank get from the other ranks of its stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from executors.llm.model.layers.base import Share
from executors.llm.model.layers.norms import Norm
from executors.llm.model.linear import Linear
from executors.llm.parallel.ranks import Ranks
from executors.llm.parallel.shard import Shard
from executors.llm.row_loras import RowLoras


class RankShare(Share):
    """See `Share`. `ranks` returns the ranks; it is called in a forward only, because a decoder that is made for its sizes has
    none."""

    def __init__(self, shard: Shard, ranks: Callable[[], Ranks]) -> None:
        self._shard = shard
        self._ranks = ranks

    def normed(self, norms: Sequence[Norm], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Norms over all heads of queries and of keys: the ranks add up their squares."""
        if self._shard.attention == "whole":
            return super().normed(norms, parts)
        whole = self._shard.whole
        squares = torch.stack([part.float().square().sum(-1) for part in parts], -1)
        squares = self._ranks().sum(squares)
        sizes = squares.new_tensor([whole.q_size, whole.kv_size * self._shard.kv_copies])
        factors = torch.rsqrt(squares / sizes + self._shard.config.norm_eps)
        return [
            (part.float() * factors[:, i : i + 1]).to(part.dtype) * norm.weight
            for i, (part, norm) in enumerate(zip(parts, norms, strict=True))
        ]

    def product(
        self,
        linear: Linear,
        x: torch.Tensor,
        adapters: RowLoras | None,
        of: Literal["attention", "states", "mlp"],
    ) -> torch.Tensor:
        """A sublayer's second matrix: of this rank alone, from the columns of all ranks, or as a sum over ranks."""
        shard = self._shard
        joining, widths = {
            "attention": (shard.attention, shard.head_widths),
            "states": (shard.states.joining, ()),
            "mlp": (shard.mlp, shard.inner_widths),
        }[of]
        if joining == "whole":
            return super().product(linear, x, adapters, of)
        if joining == "join":
            x = self._ranks().join(x, widths)
        extra = None if adapters is None else adapters.extra(linear, x)
        if joining == "join":
            return linear(x, extra)
        # Rounded once, after the sum.
        return self._ranks().sum(linear.wide(x, extra)).to(x.dtype)

    def added(self, out: torch.Tensor, of: Literal["experts", "shared"] = "experts") -> torch.Tensor:
        """See `Share`."""
        joining = self._shard.experts if of == "experts" else self._shard.shared
        return out if joining == "whole" else self._ranks().sum(out).to(out.dtype)
