"""y = x W^T + b, plain or with the weight packed for oneDNN.

Packed bf16 reads memory about twice as fast as `F.linear` when there are few rows, which is what decoding is: measured on
2 cores, 151936 x 1024 at one row 8 ms instead of 19, 6144 x 1024 at 16 rows 0.44 ms instead of 0.64; equal bit for bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def padded_rows(rows: int) -> int:
    """How many rows a packed linear really computes for `rows` of them: at most a third more, an eighth from 33 on.

    oneDNN compiles a kernel for every number of rows it meets and keeps a thousand of them. Steps have any number of
    tokens; with few sizes the kernels are soon all there, and they take little memory.
    """
    if rows <= 8:
        return rows
    step = 1 << max(2, rows.bit_length() - 4)
    return -(-rows // step) * step


class Linear:
    """`weight` [out, in], None once it is packed; `bias` [out] or None. Allocated here, filled by the loader."""

    __slots__ = ("_least_rows", "_packed", "bias", "weight")

    def __init__(self, rows: int, columns: int, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        self.weight: torch.Tensor | None = torch.empty(rows, columns, dtype=dtype, device=device)
        self.bias = torch.empty(rows, dtype=dtype, device=device) if bias else None
        self._packed: torch.Tensor | None = None
        self._least_rows = 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            rows = len(x)
            if (wanted := max(self._least_rows, padded_rows(rows))) != rows:
                return self._compute(F.pad(x, (0, 0, 0, wanted - rows)))[:rows]
            return self._compute(x)
        return F.linear(x, self.weight, self.bias)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def pack(self, least_rows: int = 1) -> None:
        """Replace the weight by its packed form, see `can_pack`, and never compute fewer than `least_rows` rows.

        With 2 of them a row's result is the same bit for bit in a batch of any size (measured for 2 to 2,048 rows): a
        product with one row sums up in another order.
        """
        self._least_rows = least_rows
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        self.weight = None


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """True if packed linears work here and are worth it: bf16 on a CPU whose oneDNN has bf16 kernels."""
    if dtype is not torch.bfloat16 or device.type != "cpu":
        return False
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        # oneDNN may have been told to use less than the CPU offers, and then refuses: ask it.
        trial = Linear(32, 32, False, dtype, device)
        trial.weight = torch.zeros(32, 32, dtype=dtype)
        trial.pack()
        trial(torch.zeros(1, 32, dtype=dtype))
    except (RuntimeError, AttributeError):
        return False
    return True
