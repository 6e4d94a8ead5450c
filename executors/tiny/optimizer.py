"""Muon for matrices: momentum whose update is orthogonalized by a Newton-Schulz iteration.

Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonalized(updates: Tensor, steps: int = 5, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return `updates` (count, rows, columns) with singular values brought close to one.

    The iteration does not need more than bf16, which `dtype` says and which is three times as fast on a CPU that has it.
    """
    x = (updates / (updates.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).to(updates.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates; parameters of one shape are updated together."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0,
        each: Callable[..., Iterable[Any]] = map,
    ) -> None:  # fmt: skip
        """`each` is called like `map` with the updates of a step: a pool of threads may make them side by side."""
        super().__init__(list(params), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._each = each

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; `closure` is not supported and ignored."""
        parts: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
                    # Made here: threads must not add to the optimizer's state at the same time.
                    self.state[parameter].setdefault("buffer", torch.zeros_like(parameter))
            parts += [(group, parameters) for parameters in by_shape.values()]
        # What takes longest comes first.
        parts.sort(key=lambda part: -sum(parameter.numel() for parameter in part[1]))
        list(self._each(lambda part: self._update(*part), parts))

    @torch.no_grad()
    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update `parameters`, all of one shape."""
        rows, columns = parameters[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        directions = orthogonalized(
            torch.stack([self._direction(parameter, group["momentum"]) for parameter in parameters])
        )
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(direction, alpha=-group["lr"] * scale)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """Return the Nesterov momentum of `parameter`'s gradient; modifies the optimizer's state."""
        assert parameter.grad is not None
        buffer = self.state[parameter]["buffer"].lerp_(parameter.grad, 1 - momentum)
        nesterov: Tensor = parameter.grad.lerp(buffer, momentum)
        return nesterov
