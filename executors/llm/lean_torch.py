"""`import_torch`: torch without the shapes of results on tensors without memory; `random_numbers` for such a torch.

`torch._meta_registrations` holds them for the operators that C++ does not describe itself. Only compilers and computations on the
device "meta" ask for them; executors compute on no such tensor. It is a fifth of torch's import, on a start that consists of it.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_NAME = "torch._meta_registrations"


class _Absent(ModuleType):
    """Stands for the module while torch is imported. A torch that needs it then gets it."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.__spec__ = ModuleSpec(_NAME, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import itself asks for
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)


def import_torch() -> None:
    """Import torch, if it is not there yet. A later import of the module that was left out carries it out."""
    if "torch" in sys.modules:
        return
    absent = sys.modules[_NAME] = _Absent()
    try:
        import torch
    finally:
        if sys.modules.get(_NAME) is absent:
            del sys.modules[_NAME]
    if vars(torch).get("_meta_registrations") is absent:
        del torch._meta_registrations


def random_numbers(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Random numbers of a device, from a seed. torch makes no generator before a module was imported that is left out above."""
    import torch
    import torch._prims.rng_prims

    return torch.Generator(device=device).manual_seed(seed)
