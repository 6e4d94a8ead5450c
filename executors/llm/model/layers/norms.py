"""`Norm`: RMS norm and LayerNorm over the last dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from executors.llm.model.family import NormKind
from executors.llm.model.places import NamedPlaces, Place


class Norm:
    """A norm over the last dimension, of `size` elements. `weight` and `bias` (LayerNorm only) are [size].

    The checkpoint stores w for an "rms1" norm, whose factor is 1 + w, and so does `weight`. The factor is applied in fp32
    before rounding, as in Gemma, because 1 + w in bf16 would lose most of w.
    """

    __slots__ = ("bias", "eps", "kind", "size", "weight")

    def __init__(
        self, kind: NormKind, size: int, eps: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.kind: NormKind = kind
        self.size = (size,)
        self.eps = eps
        self.weight = torch.empty(size, dtype=dtype, device=device)
        self.bias = torch.empty(size, dtype=dtype, device=device) if kind == "layer" else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "rms":
            return F.rms_norm(x, self.size, self.weight, self.eps)
        if self.kind == "layer":
            return F.layer_norm(x, self.size, self.weight, self.bias, self.eps)
        return F.rms_norm(x.float(), self.size, self.weight.float() + 1.0, self.eps).to(x.dtype)

    def places(self, name: str) -> NamedPlaces:
        """Yield the places of the checkpoint's tensors."""
        yield f"{name}.weight", Place(self.weight)
        if self.bias is not None:
            yield f"{name}.bias", Place(self.bias)
