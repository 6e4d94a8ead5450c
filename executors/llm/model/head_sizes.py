"""`HeadSizes`: how many heads a layer's attention has, and of which size. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """`head_dim`: elements of a head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def q_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim
