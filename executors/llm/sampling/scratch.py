"""Memory for the sampler's work, kept from step to step: on a CPU fresh pages cost more than writing to them."""

from __future__ import annotations

import threading

import torch

_of_thread = threading.local()


def scratch(name: str, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return float32 [rows, columns], not initialised, valid until this thread's next call with the same name.

    An accelerator's allocator caches its memory itself, so the tensor is simply allocated there.
    """
    if device.type != "cpu":
        return torch.empty(rows, columns, dtype=torch.float32, device=device)
    buffers: dict[str, torch.Tensor] = _of_thread.__dict__
    size = rows * columns
    if name not in buffers or buffers[name].numel() < size:
        buffers[name] = torch.empty(size, dtype=torch.float32)
    return buffers[name][:size].view(rows, columns)
