"""`Ranks`: what the ranks of one model tell each other, by torch.distributed.

    gloo   CPUs, over the loopback interface
    nccl   a GPU for each rank

Ranks find each other by a file in a private directory, no port is opened for that. A collective that fails means that another
rank is gone: nothing that was computed since can be trusted, and the process ends.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executors.contract.config import ParallelConfig
from executors.contract.errors import ExecutorDied
from executors.llm.device.base import Device

_FOREVER = timedelta(days=30)
"""The server watches over ranks and ends those that hang; a second deadline here would only be in its way."""
_LAST_WORD_S = 0.5
"""Seconds for which a rank that lost another says nothing, so that the server sees first which of them is gone."""


class Ranks:
    """Use from one thread. All ranks make the same calls in the same order. Raises ExecutorDied if another rank is gone."""

    def __init__(self, config: ParallelConfig, device: Device) -> None:
        """Meet the other ranks, which takes until all of them are here."""
        self.config = config
        self.rank, self.stage, self.tensor_rank = config.rank, config.stage, config.tensor_rank
        self.size = config.tensor_parallel_size
        """Ranks of this stage."""
        self.stages = config.pipeline_parallel_size
        self.backend = device.collectives
        self._device = device.place
        device.use()
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        with self._collective():
            store = dist.FileStore(config.rendezvous, config.world_size)
            dist.init_process_group(
                self.backend, store=store, rank=self.rank, world_size=config.world_size, timeout=_FOREVER
            )
            # Every rank has to take part in making every group.
            groups = [
                dist.new_group(range(stage * self.size, (stage + 1) * self.size), timeout=_FOREVER)
                for stage in range(self.stages)
            ]
        self._stage_group = groups[self.stage]

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which samples and answers."""
        return self.rank == 0

    # -- within a stage --------------------------------------------------------------------------------------------------

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of x over the ranks of the stage, in float32 or the dtype of x. x may be overwritten."""
        if self.size == 1:
            return x
        if self.backend == "gloo" and x.dtype in (torch.bfloat16, torch.float16):
            x = x.float()  # on a CPU, rounding costs as much as sending twice the bytes
        x = x.contiguous()
        with self._collective():
            dist.all_reduce(x, group=self._stage_group)
        return x

    def join(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Put the columns of all ranks of the stage side by side: x [n, widths[own]] -> [n, sum(widths)]."""
        if self.size == 1:
            return x
        widest = max(widths)
        message = x.new_zeros(len(x), widest)
        message[:, : x.shape[1]] = x
        parts = [torch.empty_like(message) for _ in widths]
        with self._collective():
            dist.all_gather(parts, message, group=self._stage_group)
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    # -- between stages --------------------------------------------------------------------------------------------------

    def pass_on(self, x: torch.Tensor) -> None:
        """Send hidden states to the next stage; the last stage sends them to the first."""
        with self._collective():
            dist.send(x.contiguous(), (self.rank + self.size) % self.config.world_size)

    def take_over(self, like: torch.Tensor) -> torch.Tensor:
        """Receive hidden states from the stage before, for the first stage from the last, of the shape and dtype of `like`."""
        received = torch.empty_like(like)
        with self._collective():
            dist.recv(received, (self.rank - self.size) % self.config.world_size)
        return received

    # -- all ranks -------------------------------------------------------------------------------------------------------

    def least(self, values: Sequence[int]) -> list[int]:
        """Return the least of each number over all ranks."""
        least = torch.tensor(values, dtype=torch.int64, device=self._device)
        with self._collective():
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return least.tolist()

    def exclusive_or(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the exclusive or of each number uint64 [n] over all ranks."""
        own = torch.from_numpy(values.view(np.int64)).to(self._device)
        parts = [torch.empty_like(own) for _ in range(self.config.world_size)]
        with self._collective():
            dist.all_gather(parts, own)
        return np.bitwise_xor.reduce([part.cpu().numpy().view(np.uint64) for part in parts])

    def from_first(self, values: Sequence[float], dtype: torch.dtype = torch.int64) -> list[float]:
        """Return rank 0's numbers; all ranks pass as many."""
        message = torch.tensor(values, dtype=dtype, device=self._device)
        with self._collective():
            dist.broadcast(message, 0)
        return message.tolist()

    def clock(self) -> float:
        """Return rank 0's time in seconds, so that all ranks decide alike by it."""
        return self.from_first([time.perf_counter()], torch.float64)[0]

    def close(self) -> None:
        """Leave. Does not wait for others."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextlib.contextmanager
    def _collective(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            time.sleep(_LAST_WORD_S)
            raise ExecutorDied(f"rank {self.config.rank} lost another rank: {_line(error)}") from error


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
