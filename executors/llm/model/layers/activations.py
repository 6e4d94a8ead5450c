"""Activations by their names in config.json."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Activation = Callable[[torch.Tensor], torch.Tensor]
CLAMPED = "clamped_swiglu"
"""Name of an activation of gate and up together, `clamped_swiglu`, which is in no table of those of one input."""


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_new": _gelu_tanh,
}
"""Activations by their names in config.json; `gelu_new` is an older name of the tanh form of Hendrycks and Gimpel 2016."""


def _steady(wide: Activation) -> Activation:
    """Make an activation that computes in fp32 and rounds once."""
    return lambda x: wide(x.float()).to(x.dtype)


def _steady_silu(x: torch.Tensor) -> torch.Tensor:
    below = torch.neg(x).exp_().add_(1.0)
    return torch.div(x, below, out=below)


def _steady_gelu(x: torch.Tensor) -> torch.Tensor:
    return (x * math.sqrt(0.5)).erf_().add_(1.0).mul_(x).mul_(0.5)


def _steady_gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = (x * x).mul_(x).mul_(0.044715).add_(x).mul_(math.sqrt(2.0 / math.pi))
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)


STEADY_ACTIVATIONS: dict[str, Activation] = {
    "silu": _steady(_steady_silu),
    "relu": F.relu,
    "gelu": _steady(_steady_gelu),
    "gelu_pytorch_tanh": _steady(_steady_gelu_tanh),
    "gelu_new": _steady(_steady_gelu_tanh),
}
"""The same functions with results that do not depend on an element's position, bit for bit. Torch's own activations compute
the last elements of each thread's share, which do not fill a vector, with other instructions: 82 of 126 cuts of a tensor gave
other bits. Arithmetic, tanh, exp and erf on their own do not (0 of 126, AVX2 and AVX512)."""


def steady_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute the sigmoid in fp32, rounded once, see `STEADY_ACTIVATIONS`."""
    return torch.neg(x.float()).exp_().add_(1.0).reciprocal_().to(x.dtype)


def steady_softplus(x: torch.Tensor) -> torch.Tensor:
    """Compute log(1 + exp(x)) in fp32, see `STEADY_ACTIVATIONS`."""
    x = x.float()
    return torch.neg(x.abs()).exp_().log1p_().add_(x.clamp(min=0.0))


def clamped_swiglu(
    gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float, steady: bool = False
) -> torch.Tensor:
    """Compute (u + 1) g sigmoid(alpha g) of g = min(gate, limit) and u = up within -limit and limit: the activation of gpt-oss,
    after transformers' `GptOssExperts`. Rounded once at the end, to the dtype of `gate`; `steady`: see `STEADY_ACTIVATIONS`."""
    g, u = gate.float().clamp(max=limit), up.float().clamp(-limit, limit)
    share = steady_sigmoid(alpha * g) if steady else torch.sigmoid(alpha * g)
    return (u.add_(1.0) * g * share).to(gate.dtype)
