"""Sizes the KV of a device with its own memory: KV takes what is really free after the largest step has run, and is tested
before it is kept.

    profile    everything with a KV of a few blocks runs the largest steps          -> what a step takes
    allocate   free memory is read again, KV takes it, the largest steps run        -> kept
               another process took memory, or it was not enough after all          -> less, a few times

Between two readings other processes may free memory, which may then be used within the share, or take some.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from executors.contract import ProgressCallback
from executors.contract.batch import UnifiedBatch
from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError, Unavailable
from executors.contract.faults import no_memory
from executors.contract.status import KvGroup, KvLayout
from executors.llm.assembly.full_steps import full_steps
from executors.llm.device.base import DeviceMemory
from executors.llm.kernel_support.passed_checks import PassedChecks, name_of
from executors.llm.memory.device_memory import Room, give_back, look
from executors.llm.memory.kv_groups import group_specs, group_windows
from executors.llm.memory.kv_plan import KvPlan, plan_kv
from executors.llm.memory.sizing import kv_bytes_beside
from executors.llm.model.api import LoadedModel
from executors.llm.model.caches import kv_group
from executors.llm.spec.device_forwards import draft_tokens
from executors.llm.step.launched.graphs import adapted_shapes, decode_shapes, mixed_shapes

_log = logging.getLogger(__name__)

PROFILE_TOKENS = 1024
"""Size of the KV of the profile run, in tokens. Sequences share its blocks, so what they read and write is meaningless."""
ATTEMPTS = 5
GRAPH_BYTES = 16 << 20
"""Memory of a shape's two captured graphs in bytes: their nodes and the driver's data for some hundreds of kernels. An estimate,
not yet compared with a device's figures."""
SHARE_OF_EARLIER_SIZE = 0.9
"""Largest share of a pool that did not fit that the next attempt may use."""
PAUSE = 0.5
"""Pause before the next look or attempt in seconds, if the pool's size is given: a process that is ending frees its memory
meanwhile."""
WAIT_S = 20.0
"""Longest time to wait for as much free memory as a pool of given size takes. After a kill the driver may need seconds to take
back a hundred gigabytes; a start that fails would load the weights again."""

T = TypeVar("T")


class DeviceSizing(Generic[T]):
    """Makes a `T`, which is everything that computes: the runners with a KV cache of a given plan."""

    def __init__(
        self,
        source: LoadedModel,
        config: ExecutorConfig,
        memory: DeviceMemory,
        assemble: Callable[[KvPlan], T],
        run: Callable[[T, UnifiedBatch], None],
        close: Callable[[T], None],
        sleep: Callable[[float], None] = time.sleep,
        report: ProgressCallback = lambda stage, done, total: None,
        checks: PassedChecks | None = None,
        draft: LoadedModel | None = None,
    ) -> None:
        """`assemble` and `run` raise OutOfMemory, or torch's errors. `run` leaves no sequence behind. `close` ends a `T` that
        is discarded. `report` receives the progress of what takes long. `checks`: those that have passed before; the largest
        steps beside a pool of a size are one. `draft`: the draft model, whose KV lies in the same blocks."""
        self._source = source
        self._config = config
        self._memory = memory
        self._assemble = assemble
        self._run = run
        self._close = close
        self._sleep = sleep
        self._report = report
        self._checks = checks or PassedChecks()
        self._spec = kv_group(source.model)
        self._beside = kv_bytes_beside(draft)
        windows = self._windows(source.info.max_model_len)
        parts = group_specs(self._spec, [KvGroup(0, 0, window) for window in windows])
        keeping = sum(
            part.bytes_per_token() for part, window in zip(parts, windows, strict=True) if window is None
        )
        self._most_tokens = max(1, look(memory, config).usable // max(1, keeping + sum(self._beside)))

    def make(self) -> T:
        """Make it with KV of `kv_cache_memory_bytes` if given, else with the memory available. Raises ConfigError with all
        figures."""
        if self._config.memory.kv_cache_memory_bytes is not None:
            return self._of_given_size()
        step = self._profile()
        most: int | None = None
        for attempt in range(1, ATTEMPTS + 1):
            room = self._look(step)
            allowed = room.for_kv if most is None else min(most, room.for_kv)
            plan = self._plan(allowed, room)
            size = plan.layout.num_bytes
            executor, why = self._attempt(plan)
            if executor is not None:
                _log.info("KV pool of %s bytes; %s", f"{size:,}", room)
                self._checks.add(self._trial(plan))
                return executor
            most = int(SHARE_OF_EARLIER_SIZE * size)
            _log.warning(
                "attempt %d: no memory for a KV pool of %s bytes (%s); %s", attempt, f"{size:,}", why, room
            )
        raise _short(room)(
            f"no memory for KV in {ATTEMPTS} attempts, the last of {size:,} bytes: {why}; {room}; set a smaller "
            f"gpu_memory_utilization, or kv_cache_memory_bytes"
        )

    # -- the parts -------------------------------------------------------------------------------------------------------

    def _of_given_size(self) -> T:
        """Make it with exactly the configured size. The operator chose the size, and a restarted executor must get the same
        as the first."""
        config = self._config
        plan = plan_kv(self._spec, config, self._source.info.max_model_len, beside=self._beside)
        self._wait_for(plan.layout.num_bytes)
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(PAUSE)
                give_back(self._memory)
            executor, why = self._attempt(plan, try_out=False)
            if executor is None:
                continue
            if self._trial(plan) in self._checks:
                return executor
            if (short := self._tried(executor, plan)) is None:
                self._checks.add(self._trial(plan))
            else:
                _log.warning(
                    "no memory for the largest step beside kv_cache_memory_bytes %s: steps will be smaller than "
                    "max_num_batched_tokens %d and max_num_seqs %d (%s)",
                    f"{config.memory.kv_cache_memory_bytes:,}", config.max_num_batched_tokens, config.max_num_seqs, short,
                )  # fmt: skip
                give_back(self._memory)
            return executor
        room = look(self._memory, config)
        raise _short(room)(
            f"kv_cache_memory_bytes {config.memory.kv_cache_memory_bytes:,}: no memory for it on {self._spec.device}: {why}; "
            f"{room.free:,} bytes are free"
        )

    def _trial(self, plan: KvPlan) -> str:
        """Return the name of the trial of the largest steps beside KV of that plan."""
        limits = self._config.max_num_seqs, self._config.max_num_batched_tokens
        return name_of("largest steps", limits, plan.max_model_len, plan.layout.num_bytes)

    def _wait_for(self, num_bytes: int) -> None:
        """Wait until so much of the device is free, or `WAIT_S` are over: then an attempt tells whether it is too little."""
        give_back(self._memory)
        for waited in range(round(WAIT_S / PAUSE)):
            free = look(self._memory, self._config).free
            if free >= num_bytes:
                break
            if not waited:
                _log.warning(
                    "waiting for memory: %s bytes for KV, %s are free", f"{num_bytes:,}", f"{free:,}"
                )
            self._report("waiting for the device's memory", 0, 0)
            self._sleep(PAUSE)

    def _profile(self) -> int:
        """Measure the bytes that everything but weights and KV takes while the largest steps run. Raises ConfigError."""
        info, config = self._source.info, self._config
        layout = self._profile_layout(info.max_model_len)
        give_back(self._memory)
        before = self._memory.reserved()
        self._memory.reset_peak()
        executor, why = self._attempt(KvPlan(layout, info.max_model_len))
        if executor is None:
            room = look(self._memory, config)
            raise _short(room)(
                f"no memory for a step of max_num_batched_tokens {config.max_num_batched_tokens} and max_num_seqs "
                f"{config.max_num_seqs} beside the weights: {why}; {room.free:,} of {room.total:,} bytes are free; set "
                f"smaller ones"
            )
        self._close(executor)
        return max(0, self._memory.peak() - before - layout.num_bytes)

    def _profile_layout(self, max_model_len: int) -> KvLayout:
        """Return the layout of the profile run: the groups that KV will have, of a few blocks each."""
        size = self._config.attention.block_size
        windows = self._windows(max_model_len)
        empty = [KvGroup(max(1, PROFILE_TOKENS // size), 0, window) for window in windows]
        parts = group_specs(self._spec, empty)
        groups = (
            replace(group, bytes_per_block=size * (part.bytes_per_token() + self._beside_in(group)))
            for group, part in zip(empty, parts, strict=True)
        )
        return KvLayout(size, tuple(groups))

    def _windows(self, max_model_len: int) -> tuple[int | None, ...]:
        """Return the windows of the groups that KV will have."""
        return group_windows(self._spec, self._config.max_model_len or max_model_len, bool(self._beside))

    def _beside_in(self, group: KvGroup) -> int:
        """Return the bytes per token of a draft model's KV in the blocks of a group."""
        return sum(self._beside) if group.window is None else 0

    def _look(self, step: int) -> Room:
        give_back(self._memory)
        return replace(look(self._memory, self._config), step=step, graphs=graph_bytes(self._config))

    def _plan(self, allowed: int, room: Room) -> KvPlan:
        try:
            length = self._source.info.max_model_len
            return plan_kv(self._spec, self._config, length, measured=allowed, beside=self._beside)
        except ConfigError as error:
            raise _short(room)(f"{error}; {room}") from None

    def _attempt(self, plan: KvPlan, try_out: bool = True) -> tuple[T | None, str]:
        """Return the `T` for that plan, or None and the reason why memory is insufficient."""
        try:
            executor = self._assemble(plan)
        except Exception as error:
            why = no_memory(error)
            if why is None:
                raise
            return None, why
        short = self._tried(executor, plan) if try_out else None
        if short is not None:
            self._close(executor)
            return None, short
        return executor, ""

    def _tried(self, executor: T, plan: KvPlan) -> str | None:
        """Return why memory is insufficient for the largest steps, None if it is sufficient."""
        blocks = [group.num_blocks for group in plan.layout.groups]
        for batch in full_steps(self._config, plan.max_model_len, blocks, self._most_tokens):
            try:
                self._run(executor, batch)
            except Exception as error:
                why = no_memory(error)
                if why is None:
                    raise
                return why
        return None


def graph_bytes(config: ExecutorConfig) -> int:
    """Estimate the memory of captured graphs outside torch's allocator, in bytes. Captured work computes in memory that was
    reserved with everything else, which the profile measures."""
    if config.optimization.enforce_eager:
        return 0
    rows, tokens = config.max_num_seqs, config.max_num_batched_tokens
    draft = []
    if config.optimization.draft_model:
        few = draft_tokens(rows, tokens)
        draft = [*decode_shapes(rows), *mixed_shapes(rows, few, queries_per_tile=1)]
    shapes = [*decode_shapes(rows), *mixed_shapes(rows, tokens, queries_per_tile=1)]
    adapted = adapted_shapes(shapes, config.optimization.max_loras)
    return GRAPH_BYTES * (len(shapes) + len(adapted) + len(draft))


def _short(room: Room) -> type[ConfigError]:
    """The error of memory that is not enough: other processes may end and free theirs."""
    return Unavailable if room.others_limit else ConfigError
