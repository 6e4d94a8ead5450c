"""Memory for the sampler's work, kept from step to step: on a processor fresh pages cost more than what is written to them."""

from __future__ import annotations

import threading

import torch

_held = threading.local()


def scratch(name: str, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """float32 [rows, columns], not initialised, good until this thread's next call with the same name.

    An accelerator's allocator keeps its memory anyway, so there it is simply allocated.
    """
    if device.type != "cpu":
        return torch.empty(rows, columns, dtype=torch.float32, device=device)
    buffers: dict[str, torch.Tensor] = _held.__dict__
    size = rows * columns
    if name not in buffers or buffers[name].numel() < size:
        buffers[name] = torch.empty(size, dtype=torch.float32)
    return buffers[name][:size].view(rows, columns)
