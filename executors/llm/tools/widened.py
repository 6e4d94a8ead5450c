"""Computes a model of transformers in float64 throughout, with the weights as they were loaded.

`model.double()` is not sufficient: transformers computes norms, softmax and rotary angles in float32 whatever the model's
dtype is, so the logits would carry rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_CASTS = (torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half)


class Float64(TorchFunctionMode):
    """Context manager. Within it, torch functions of this thread take and return float64 wherever they would take and return
    a narrower floating-point dtype, including casts to one.

    A weight is widened for the call that reads it, so that there is no second copy of the model in memory, only 8 bytes per
    element of the largest weight. An embedding is widened after its rows are selected.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":  # an attribute: shape, dtype, device
            return func(*args, **kwargs)
        if func in _CASTS:
            return args[0].double()
        if func is functional.embedding or func is torch.embedding:
            return _wide(func(*args, **kwargs))
        if _writes(name) or "out" in kwargs:  # the tensor that is written to has to stay the same
            target = kwargs.get("out", args[0] if args else None)
            return func(
                *(one if one is target else _wide(one) for one in args),
                **{key: one if one is target else _wide(one) for key, one in kwargs.items()},
            )
        return _wide(func(*_wide(args), **_wide(kwargs)))


def _writes(name: str) -> bool:
    """Return whether the function writes into its first argument: `add_`, `__iadd__`, `__setitem__`."""
    return name.startswith("__i") or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _wide(value: Any) -> Any:
    """Return `value` with tensors and dtypes widened, including those in containers of arguments and results."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in _NARROW else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in _NARROW else value
    if isinstance(value, dict):
        return {key: _wide(one) for key, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_wide, value))
    return value
