"""`Hadamard`: products with Sylvester's Hadamard matrix, in blocks of columns.

H(n) is a product of log2(n) sparse matrices (Fino and Algazi 1976), or of two Kronecker factors: H(ab) = H(a) x H(b). The sparse
ones take sums and differences, the same for each row whatever else a step has; on a CPU they take no longer from 32 rows on. The
factors take two dense products, which are few launches on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

_TOGETHER = 1 << 18
"""Elements transformed at a time on a CPU, so that they stay in a core's cache; on a GPU eight times as many."""


class Hadamard:
    """x -> x H / sqrt(size) of each `size` columns, a power of two. Computed in float32."""

    __slots__ = ("_factors", "size")

    def __init__(self, size: int, device: torch.device, by_factors: bool | None = None) -> None:
        """`by_factors`: by two dense products; by default on anything but a CPU. Raises ValueError for other sizes."""
        if size < 1 or size & (size - 1):
            raise ValueError(f"Sylvester's matrices have powers of two, not {size}")
        self.size = size
        self._factors: tuple[torch.Tensor, torch.Tensor] | None = None
        if by_factors is None:
            by_factors = device.type not in ("cpu", "meta")
        if by_factors:
            inner = 1 << (size.bit_length() // 2)
            self._factors = matrix(size // inner, device), matrix(inner, device)

    def be_steady(self) -> None:
        """Make a row's result the same in any batch, bit for bit."""
        self._factors = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[m, columns] -> the same, in the dtype of x; columns are a multiple of `size`."""
        return in_blocks(x, self.size, self._product)

    def _product(self, blocks: torch.Tensor) -> torch.Tensor:
        product = self._by_sums(blocks) if self._factors is None else self._by_factors(blocks)
        return product.view(blocks.shape).div_(math.sqrt(self.size))

    def _by_sums(self, x: torch.Tensor) -> torch.Tensor:
        half = 1
        while half < self.size:
            pairs = x.reshape(-1, 2, half)  # a part of wider rows has no view of this shape
            product = torch.empty_like(pairs)
            torch.add(pairs[:, 0], pairs[:, 1], out=product[:, 0])
            torch.sub(pairs[:, 0], pairs[:, 1], out=product[:, 1])
            x, half = product, 2 * half
        return x if half > 1 else x.clone()

    def _by_factors(self, x: torch.Tensor) -> torch.Tensor:
        assert self._factors is not None
        outer, inner = self._factors
        return outer @ (x.view(-1, len(outer), len(inner)) @ inner)


def in_blocks(x: torch.Tensor, size: int, product: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Apply `product`, float32 [n, size] -> [n, size], to each `size` columns of x [m, columns]; return the dtype of x."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    together = _TOGETHER * (1 if x.device.type == "cpu" else 8)
    step = max(1, together // max(1, x.shape[1]))
    for begin in range(0, len(x), step):
        part = x[begin : begin + step]
        out[begin : begin + step] = product(part.float().reshape(-1, size)).view(part.shape)
    return out


def matrix(size: int, device: torch.device) -> torch.Tensor:
    """Return Sylvester's matrix of ones and minus ones, float32 [size, size]."""
    signs = torch.ones(1, 1)
    while len(signs) < size:
        signs = torch.cat((torch.cat((signs, signs), 1), torch.cat((signs, -signs), 1)))
    return signs.to(device)
