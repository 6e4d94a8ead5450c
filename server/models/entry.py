"""One model of a server of several: what is declared of it, what state it is in, and the calls that wait for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from engine.errors import EngineError, ModelUnavailable

_RETRY_NEVER = 3600
"""Seconds of `Retry-After` for a model whose files are damaged: only an operator can change that."""


class ModelStatus(StrEnum):
    """What a model is doing. `ModelTable`'s task alone changes it."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    PARKING = "parking"
    """Its streams are being preempted, and its executor ends."""
    PARKED = "parked"
    """Its executor has ended; its streams wait for the next one."""
    UNLOADING = "unloading"
    FAILED = "failed"
    """The last load or the last recovery failed. A call after `retry_at` tries again."""


RESIDENT = (ModelStatus.LOADING, ModelStatus.READY, ModelStatus.PARKING, ModelStatus.UNLOADING)
"""States in which a model may hold memory."""


class Runtime(Protocol):
    """A loaded model: its engine, its text side, its executor."""

    @property
    def busy(self) -> bool:
        """Whether a sequence is unfinished."""

    @property
    def failed(self) -> asyncio.Event:
        """Set once the engine has given up for good."""

    async def park(self) -> None:
        """End the executor and keep the streams: they go on after `resume`. Returns when the executor's memory is free."""

    async def resume(self) -> None:
        """Bring the executor back. Raises EngineError or ExecutorError."""

    @property
    def spare_kv_bytes(self) -> int:
        """Bytes of its KV share that it could do without now, at most."""

    @property
    def given_kv_bytes(self) -> int:
        """Bytes of its KV share that it does without, until it ends or takes them again."""

    async def give_kv(self, num_bytes: int) -> None:
        """Do without so many bytes of KV that nothing uses, or what is spare. Returns when their memory is being freed. Raises
        EngineError or ExecutorError."""

    async def take_kv(self, num_bytes: int) -> None:
        """Use at most so many bytes of KV again that were given. Raises as `give_kv`."""

    async def stop(self) -> None:
        """End everything; what still runs gets `Unavailable`. Raises nothing for an executor that is gone already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What is declared of a model. `need`: bytes that it needs while it is loaded: weights, the largest step, its KV share."""

    name: str
    need: int
    aliases: tuple[str, ...] = ()
    pin: bool = False
    """Whether it stays loaded: no other model takes its memory, and idle time does not unload it."""
    idle_unload: float = math.inf
    """Seconds without a call after which it is unloaded."""
    problem: str | None = None
    """Why it can never be loaded, by its files; None if nothing is known against it."""


@dataclass(eq=False)
class Waiter:
    """A call that waits for the model. `since`: when it came, by the table's clock."""

    since: float
    lease: asyncio.Future[Lease]


@dataclass(eq=False)
class Lease:
    """A call's hold on a loaded model, which is neither unloaded nor evicted meanwhile; it may be parked."""

    entry: ModelEntry
    _released: Callable[[ModelEntry], None]
    _active: bool = True

    def release(self) -> None:
        """The call is answered. Idempotent."""
        if self._active:
            self._active = False
            self._released(self.entry)


@dataclass(eq=False)
class ModelEntry:
    """A model's row in the table. One writer: `ModelTable`."""

    spec: ModelSpec
    load: Callable[[], Awaitable[Runtime]]
    """Starts the model. Raises ConfigError, EngineError, ExecutorError or HubError; nothing is left running then."""
    fetch: Callable[[], Awaitable[int]] | None = None
    """Downloads its files and returns the bytes that it needs; None: they are here. Downloads run beside loads."""
    fetching: bool = False
    status: ModelStatus = ModelStatus.UNLOADED
    reason: str = ""
    """Why it is `FAILED`."""
    runtime: Runtime | None = None
    watcher: asyncio.Task[None] | None = None
    """Waits until the runtime has failed for good."""
    users: int = 0
    """Leases that are held."""
    waiters: list[Waiter] = field(default_factory=list)
    """Calls that wait for it, the oldest first."""
    keep: float = math.inf
    """Seconds without a call after which it is unloaded, as the last call asked for."""
    last_used: float = 0.0
    """When the last lease was released, or the model was loaded."""
    loaded_at: float = 0.0
    load_seconds: float = 0.0
    parked_at: float = 0.0
    passed: float | None = None
    """When the call came whose model this one was loaded before, although that call is older; None if it has passed none."""
    num_loads: int = 0
    """Loads that were begun, ever; a resumption of parked streams is one."""
    num_failures: int = 0
    """Loads that failed since the last one that did not."""
    retry_at: float = 0.0
    """When a failed model may be tried again."""

    def __post_init__(self) -> None:
        self.keep = self.spec.idle_unload
        if self.spec.problem is not None:
            self.status, self.reason, self.retry_at = ModelStatus.FAILED, self.spec.problem, math.inf

    @property
    def name(self) -> str:
        """Its name for clients."""
        return self.spec.name

    @property
    def lent(self) -> int:
        """Bytes of its KV share that it does without for other models: what its engine says, so that a count cannot differ."""
        return 0 if self.runtime is None else self.runtime.given_kv_bytes

    @property
    def need(self) -> int:
        """Bytes that it needs while it is loaded, less those that it does without."""
        return self.spec.need - self.lent

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered at once."""
        return self.status is ModelStatus.READY

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded or parked and no call uses it."""
        there = self.status in (ModelStatus.READY, ModelStatus.PARKED)
        return there and not self.users and (self.runtime is None or not self.runtime.busy)

    @property
    def wanted_since(self) -> float | None:
        """When the oldest call came that waits for it to be loaded; None if none does, or it is there, or its files are not."""
        if self.fetch is not None:
            return None
        if self.status is ModelStatus.PARKED and not self.is_idle:
            return min((self.parked_at, *(one.since for one in self.waiters)))
        if self.waiters and self.status in (ModelStatus.UNLOADED, ModelStatus.PARKED, ModelStatus.FAILED):
            return self.waiters[0].since
        return None

    def has_passed(self, other: ModelEntry) -> bool:
        """Whether it was loaded before `other`, whose calls that wait are older than its own were."""
        since = other.wanted_since
        return self.passed is not None and since is not None and since <= self.passed

    @property
    def expires_at(self) -> float:
        """When idle time unloads it, by the table's clock; infinity: never."""
        return math.inf if self.spec.pin and self.keep else self.last_used + self.keep

    def fetched(self, need: int) -> None:
        """Its files are here now, and tell what it needs."""
        self.fetch, self.spec = None, replace(self.spec, need=need)

    def failure(self, now: float) -> EngineError:
        """The error for calls of a model that cannot be loaded now."""
        if math.isinf(self.retry_at):
            return ModelUnavailable(f"The model '{self.name}' cannot be loaded: {self.reason}", _RETRY_NEVER)
        seconds = max(1, math.ceil(self.retry_at - now))
        return ModelUnavailable(f"The model '{self.name}' could not be loaded: {self.reason}", seconds)

    def fail_waiters(self, error: EngineError) -> None:
        """Answer all calls that wait."""
        waiting, self.waiters = self.waiters, []
        for waiter in waiting:
            if not waiter.lease.done():
                waiter.lease.set_exception(error)
