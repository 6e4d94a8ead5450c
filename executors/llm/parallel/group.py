"""What an executor shares with the other ranks of its model: `Together`, or `Alone` for a model in one process.

All ranks get the same calls in the same order. They meet before anything is loaded, agree on the sizes of steps and KV, and end
together. See `stages.py` for a step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from executors.cgroup import cpu_threads
from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError, ExecutorError
from executors.devices import DEVICES
from executors.llm.device.base import Device, DeviceMemory
from executors.llm.device.table import find_device
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.parallel.ranks import Ranks
from executors.llm.parallel.stages import AgreedIntake, RankSampling, agree, ending, ending_direct
from executors.llm.step.direct import RunDirect
from executors.llm.step.forward import HostForward
from executors.llm.step.intake import HostIntake
from executors.llm.step.packing import HostPacking
from executors.llm.step.pipeline import Stages
from executors.llm.step.runner import ModelRunner
from executors.llm.step.sampling import HostSampling
from executors.llm.step.states import SequenceStates


class RankGroup(Protocol):
    """The ranks of one model, seen from one of them. Raises ExecutorDied if another one is gone."""

    ranks: Ranks | None
    """Their collectives; None before they have met, and for a model in one process."""
    retries: bool
    """Whether a step that finds no memory may be computed again on this rank alone."""
    launches: bool
    """Whether steps may be launched and answered later."""
    leads: bool
    """Whether this rank samples and answers."""

    @property
    def note(self) -> str | None:
        """Note for `status()`."""

    def own_share(self, config: ExecutorConfig) -> ExecutorConfig:
        """Return the configuration with this rank's device, or its share of the CPUs. Raises ConfigError."""

    def meet(self, config: ExecutorConfig, device: Device) -> None:
        """Meet the other ranks, which takes until all of them are here."""

    def clock(self) -> float:
        """Return seconds, the same on all ranks, by which the pace is measured."""

    def wait(self) -> None:
        """Wait until all ranks have come here."""

    def limits(self, own: ExecutorConfig) -> ExecutorConfig:
        """Return the configuration with the least batch limits of all ranks."""

    def plan(self, own: KvPlan, shorter: Callable[[int], KvPlan]) -> KvPlan:
        """Return the plan that all ranks have memory for. `shorter` plans this rank's KV for a smaller `max_model_len`."""

    def stages(
        self, states: SequenceStates, runner: ModelRunner, intake: HostIntake, memory: DeviceMemory | None
    ) -> Stages:
        """Make the stages of a step."""

    @property
    def direct_guard(self) -> Callable[[RunDirect], RunDirect] | None:
        """What ranks need around calls on single sequences; None for nothing."""

    def agree(self, fault: ExecutorError | None) -> None:
        """Raise `fault`, or an error of the same kind if another rank has one."""

    def combine(self, sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the exclusive or of each number uint64 [n] over all ranks."""

    def all_have(self, own: bool) -> bool:
        """Return whether all ranks say yes."""

    def close(self) -> None:
        """Leave. Does not wait for others."""


class Alone:
    """The `RankGroup` of a model in one process: there is no other rank to agree with."""

    ranks: Ranks | None = None
    retries = launches = leads = True
    note: str | None = None
    direct_guard: Callable[[RunDirect], RunDirect] | None = None

    def own_share(self, config: ExecutorConfig) -> ExecutorConfig:
        """See `RankGroup`."""
        return config

    def meet(self, config: ExecutorConfig, device: Device) -> None:
        """See `RankGroup`."""

    def clock(self) -> float:
        """See `RankGroup`."""
        return time.perf_counter()

    def wait(self) -> None:
        """See `RankGroup`."""

    def limits(self, own: ExecutorConfig) -> ExecutorConfig:
        """See `RankGroup`."""
        return own

    def plan(self, own: KvPlan, shorter: Callable[[int], KvPlan]) -> KvPlan:
        """See `RankGroup`."""
        return own

    def stages(
        self, states: SequenceStates, runner: ModelRunner, intake: HostIntake, memory: DeviceMemory | None
    ) -> Stages:
        """See `RankGroup`."""
        return Stages(
            intake,
            HostForward(states, runner, memory),
            HostSampling(states, runner, memory),
            HostPacking(states, runner, memory),
        )

    def agree(self, fault: ExecutorError | None) -> None:
        """See `RankGroup`."""
        if fault is not None:
            raise fault

    def combine(self, sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """See `RankGroup`."""
        return sums

    def all_have(self, own: bool) -> bool:
        """See `RankGroup`."""
        return own

    def close(self) -> None:
        """See `RankGroup`."""


class Together:
    """The `RankGroup` of a tensor-parallel or pipeline-parallel model."""

    retries = launches = False
    """A step that is computed again on one rank would leave the others waiting."""

    def __init__(self, config: ExecutorConfig) -> None:
        self.ranks: Ranks | None = None
        self._parallel = config.parallel
        self.leads = config.parallel.rank == 0

    def _met(self) -> Ranks:
        assert self.ranks is not None, "warmup comes first, and ranks meet at its start"
        return self.ranks

    @property
    def note(self) -> str | None:
        """See `RankGroup`."""
        if self.ranks is None:
            return None
        parallel = self._parallel
        return (
            f"{parallel.world_size} ranks over {self.ranks.backend}: tensor parallel "
            f"{parallel.tensor_parallel_size}, {parallel.pipeline_parallel_size} stages"
        )

    def own_share(self, config: ExecutorConfig) -> ExecutorConfig:
        """See `RankGroup`."""
        parallel, device = config.parallel, find_device(config.device)
        if not DEVICES[device.name].numbered:
            threads = config.optimization.num_threads or max(1, cpu_threads() // parallel.world_size)
            return replace(config, optimization=replace(config.optimization, num_threads=threads))
        if device.place.index is not None:
            raise ConfigError(
                f"device {config.device}: {parallel.world_size} ranks need as many GPUs; take --device {device.name}"
            )
        if (count := device.count()) < parallel.world_size:
            raise ConfigError(
                f"tensor_parallel_size x pipeline_parallel_size: {parallel.world_size} ranks need as many GPUs; there "
                f"are {count}"
            )
        return replace(config, device=f"{device.name}:{parallel.rank}")

    def meet(self, config: ExecutorConfig, device: Device) -> None:
        """See `RankGroup`."""
        self.ranks = Ranks(config.parallel, device)

    def clock(self) -> float:
        """See `RankGroup`."""
        return self._met().clock()

    def wait(self) -> None:
        """See `RankGroup`."""
        self._met().least([0])

    def limits(self, own: ExecutorConfig) -> ExecutorConfig:
        """See `RankGroup`."""
        seqs, tokens = self._met().least([own.max_num_seqs, own.max_num_batched_tokens])
        return replace(own, max_num_seqs=seqs, max_num_batched_tokens=tokens)

    def plan(self, own: KvPlan, shorter: Callable[[int], KvPlan]) -> KvPlan:
        """See `RankGroup`."""
        ranks = self._met()
        [length] = ranks.least([own.max_model_len])
        if length < own.max_model_len:
            # Planned again: the length decides which windows have a group of their own.
            note = f"max_model_len reduced to {length}: another rank has memory for no more"
            own = replace(shorter(length), note=note)
        layout = own.layout
        sizes = [(group.num_blocks, group.blocks_per_span) for group in layout.groups]
        tokens, *least = ranks.least([layout.max_tokens, *itertools.chain(*sizes)])
        groups = []
        for group, blocks, span in zip(layout.groups, least[::2], least[1::2], strict=True):
            # A span that is too short for a page of the system is given back in part; 0 on one rank: memory is taken at once.
            span = max(span, group.blocks_per_span) if span else 0
            groups.append(replace(group, num_blocks=blocks, blocks_per_span=span))
        state = layout.state
        if state is not None:
            state = replace(state, num_slots=ranks.least([state.num_slots])[0])
        return replace(own, layout=replace(layout, groups=tuple(groups), max_tokens=tokens, state=state))

    def stages(
        self, states: SequenceStates, runner: ModelRunner, intake: HostIntake, memory: DeviceMemory | None
    ) -> Stages:
        """See `RankGroup`."""
        ranks = self._met()
        sampling = RankSampling(ranks, HostSampling(states, runner, memory), states, runner)
        return Stages(
            AgreedIntake(ranks, intake),
            HostForward(states, runner, memory, sampling.observe),
            sampling,
            HostPacking(states, runner, memory),
            partial(ending, ranks),
        )

    @property
    def direct_guard(self) -> Callable[[RunDirect], RunDirect]:
        """See `RankGroup`."""
        return ending_direct

    def agree(self, fault: ExecutorError | None) -> None:
        """See `RankGroup`."""
        agree(self._met(), fault)

    def combine(self, sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """See `RankGroup`."""
        return self._met().exclusive_or(sums)

    def all_have(self, own: bool) -> bool:
        """See `RankGroup`."""
        return bool(self._met().least([int(own)])[0])

    def close(self) -> None:
        """See `RankGroup`."""
        if self.ranks is not None:
            self.ranks.close()
