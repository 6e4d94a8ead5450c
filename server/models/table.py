"""`ModelTable`: which of several models are loaded. It alone starts and ends them.

    call -> acquire -> loaded? -> lease ................ release
                          no -> waiter -> [ task: make room, load ] -> lease

One task makes all transitions, one at a time: so a model is loaded once however many calls wait for it, and never two at once.
Calls change nothing but leases and waiters, and wake the task.

Room is made in this order: KV that idle models do not use, if that is enough; idle models, the least recently used first; KV that
models with running streams do not use; then, once a call has waited `swap_after` seconds, these models, which are parked. Pinned
models keep their room.

Models come in the order of their oldest calls. While the first one waits for running streams, a model passes it that fits without
parking anything. A model that has passed is parked for the first one without regard to its residency: so the first one waits as
long as it would have, and for one more parking.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass

import structlog

from engine.errors import DeadlinePassed, EngineError, ModelUnavailable, Overloaded, Unavailable
from server.models.entry import RESIDENT, Lease, ModelEntry, ModelStatus, Waiter

log = structlog.get_logger("server")

_BUSY_LOOK = 0.05
"""Seconds between looks at an engine whose calls have ended and whose sequences are still being freed."""
_MOST_RETRY_PAUSE = 300.0
_LOAD_SHARE = 5
"""A model that was loaded stays for this many times the seconds of its load, or `min_residency`, before it is parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRules:
    """When a model has to give way. Times in seconds."""

    swap_after: float = 30.0
    """How long a call waits before models with running streams are parked for it."""
    min_residency: float = 30.0
    """How long a model stays at least before it is parked: that bounds how often models change."""
    load_timeout: float = 600.0
    """How long a load may take, downloads aside. After that it is ended and counts as failed."""
    retry_pause: float = 5.0
    """Pause after a failed load; it doubles with each further failure."""
    max_waiting: int = 4096
    """Calls that may wait for models, all together."""


class ModelTable:
    """All of it belongs to the event loop that calls `start`."""

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        budget: float,
        rules: SwapRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`budget`: bytes that all loaded models may need together; infinity: no limit."""
        self.entries: dict[str, ModelEntry] = {entry.name: entry for entry in entries}
        self.budget = budget
        self.rules = rules or SwapRules()
        self._clock = clock
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers: set[asyncio.Task[None]] = set()
        self._look_at = math.inf
        """When the task looks again without news."""
        self._closed = self._draining = False

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve calls that wait."""
        self._task = asyncio.create_task(self._run(), name="models")

    async def stop(self) -> None:
        """End all models. Calls that wait get `Unavailable`. Idempotent."""
        self._closed = True
        tasks = [*self._watchers, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self.entries.values():
            entry.fail_waiters(Unavailable("the server is shutting down"))
        running = [entry for entry in self.entries.values() if entry.runtime is not None]
        await asyncio.gather(*(self._end(entry) for entry in running))

    async def drain(self, timeout: float) -> bool:
        """Admit no more calls, and wait at most `timeout` seconds until no call waits for a model or uses one. True if that came
        to pass."""
        self._draining = True
        end = self._clock() + timeout
        while any(one.waiters or one.users or self._is_busy(one) for one in self.entries.values()):
            if self._clock() >= end:
                return False
            await asyncio.sleep(min(_BUSY_LOOK, max(0.0, end - self._clock())))
        return True

    # -- for calls -----------------------------------------------------------------------------------------------------

    async def acquire(
        self, entry: ModelEntry, *, keep: float | None = None, deadline: float | None = None
    ) -> Lease:
        """A hold on the model, which is loaded first. `keep`: seconds without a call after which it is unloaded, in place of what
        is declared. `deadline`: when the call ends unanswered, by the table's clock.

        Raises ModelUnavailable, Overloaded, DeadlinePassed or Unavailable.
        """
        if self._closed or self._draining:  # in the words of an engine
            raise Unavailable("the server is shutting down" if self._closed else "the engine is draining")
        entry.keep = entry.spec.idle_unload if keep is None else keep
        while not entry.is_ready:
            # Again where the model has ended between its load and this call's turn.
            lease = await self._wait(entry, deadline)
            if entry.is_ready:
                return lease
            lease.release()
        return self._lease(entry)

    async def _wait(self, entry: ModelEntry, deadline: float | None) -> Lease:
        """Wait until the model is loaded."""
        now = self._clock()
        if entry.status is ModelStatus.FAILED and now < entry.retry_at:
            raise entry.failure(now)
        if entry.fetch is None and (error := self._impossible(entry)) is not None:
            raise error
        if sum(len(one.waiters) for one in self.entries.values()) >= self.rules.max_waiting:
            raise Overloaded(f"{self.rules.max_waiting} calls wait for models to be loaded already", 5)
        waiter = Waiter(now, asyncio.get_running_loop().create_future())
        entry.waiters.append(waiter)
        self._news.set()
        if entry.fetch is not None and not entry.fetching:
            entry.fetching = True
            self._beside(self._fetch(entry, entry.fetch))
        try:
            async with asyncio.timeout(None if deadline is None else max(0.0, deadline - now)):
                return await waiter.lease
        except TimeoutError:
            self._forget(entry, waiter)
            raise DeadlinePassed(
                f"The model '{entry.name}' was not loaded before the request's deadline."
            ) from None
        except BaseException:
            self._forget(entry, waiter)
            raise

    async def load(self, entry: ModelEntry) -> None:
        """Load the model. Raises what `acquire` raises."""
        (await self.acquire(entry)).release()

    def unload(self, entry: ModelEntry) -> None:
        """Unload the model as soon as no call uses it; a call that comes before that keeps it."""
        entry.keep = 0.0
        self._news.set()

    def _lease(self, entry: ModelEntry) -> Lease:
        entry.users += 1
        return Lease(entry, self._released)

    def _released(self, entry: ModelEntry) -> None:
        entry.users -= 1
        entry.last_used = self._clock()
        self._news.set()

    def _forget(self, entry: ModelEntry, waiter: Waiter) -> None:
        """A call has left. A lease that was given to it in the same moment is released."""
        if waiter in entry.waiters:
            entry.waiters.remove(waiter)
        future = waiter.lease
        if future.done() and not future.cancelled() and future.exception() is None:
            future.result().release()
        future.cancel()

    async def _fetch(self, entry: ModelEntry, fetch: Callable[[], Awaitable[int]]) -> None:
        """Download the model's files, while other models are loaded and answer."""
        try:
            entry.fetched(await fetch())
        except Exception as error:
            log.warning(f"the model '{entry.name}' could not be fetched: {error}")
            self._fail(entry, " ".join(str(error).split()) or type(error).__name__)
        finally:
            entry.fetching = False
            self._news.set()

    def _beside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)
        return task

    # -- the task ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._news.clear()
            self._look_at = math.inf
            try:
                changed = await self._transition()
            except Exception:  # without this task every later call would wait for ever
                log.exception("the table of models failed")
                await asyncio.sleep(1.0)
                continue
            if changed:
                await asyncio.sleep(0)  # what waits for this change comes before the next one
                continue
            pause = self._look_at - self._clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(pause) else max(0.001, pause)):
                    await self._news.wait()

    async def _transition(self) -> bool:
        """Change at most one model. False if there is nothing to change before the next news or `_look_at`."""
        for entry in self.entries.values():
            if (
                entry.status is ModelStatus.READY
                and entry.runtime is not None
                and entry.runtime.failed.is_set()
            ):
                entry.status = ModelStatus.UNLOADING
                await self._end(entry)
                self._fail(entry, "its executor cannot be brought back")
                return True
        queue = sorted(
            (one for one in self.entries.values() if one.wanted_since is not None),
            key=lambda one: one.wanted_since or 0.0,
        )
        for entry in queue:
            if entry is queue[0]:
                if await self._bring(entry):
                    return True
            elif self._clock() >= self._swap_time(queue[0]):
                break
            elif await self._bring_past(entry, queue[0]):
                return True
        if not queue and await self._return_lent():
            return True
        return await self._unload_expired()

    async def _bring(self, entry: ModelEntry) -> bool:
        """Load the model, or make room for it. False if it has to wait for others."""
        if (error := self._impossible(entry)) is not None:
            # A pinned model turned out to be larger: these streams can never go on.
            if entry.status is ModelStatus.PARKED:
                log.warning(f"ending the parked streams of {entry.name}: {error.message}")
                await self._unload(entry)
            entry.fail_waiters(error)
            return True
        entry.passed = None
        if await self._place(entry):
            return True
        victim = self._to_park(entry)
        if victim is None:
            return False
        await self._park(victim)
        return True

    async def _bring_past(self, entry: ModelEntry, first: ModelEntry) -> bool:
        """Load the model before `first`, for which its room is not enough, if no stream has to be parked for it."""
        entry.passed = first.wanted_since
        return self._impossible(entry) is None and await self._place(entry)

    async def _place(self, entry: ModelEntry) -> bool:
        """Load the model if it fits, or unload an idle one if it fits beside the rest. False if neither is so."""
        if self._room(entry) >= entry.need or await self._lend(entry, self._idle(entry)):
            await self._load(entry)
            return True
        idle = self._idle(entry)  # not those of before: calls may have come while KV was given
        if self._room(entry) + sum(one.need for one in idle) >= entry.need:
            await self._unload(min(idle, key=lambda one: one.last_used))
            return True
        # Running streams may have to be computed again where they grow: only in place of being parked.
        if await self._lend(entry, self._movable(entry)):
            await self._load(entry)
            return True
        return False

    async def _lend(self, entry: ModelEntry, lenders: list[ModelEntry]) -> bool:
        """Have loaded models give KV that they do not use to `entry`. False if that is not enough."""
        lack = entry.need - self._room(entry)
        spare = {one.name: one.runtime.spare_kv_bytes for one in lenders if one.runtime is not None}
        if sum(spare.values()) < lack:
            return False
        for one in sorted(lenders, key=lambda one: spare.get(one.name, 0), reverse=True):
            if self._room(entry) >= entry.need or not spare.get(one.name):
                break
            await self._give(one, math.ceil(entry.need - self._room(entry)))
        return self._room(entry) >= entry.need

    async def _give(self, entry: ModelEntry, num_bytes: int) -> None:
        """Have a loaded model do without KV."""
        assert entry.runtime is not None
        before = entry.lent
        try:
            await entry.runtime.give_kv(num_bytes)
        except Exception as error:
            log.warning(f"{entry.name} gives no KV back: {error or type(error).__name__}")
        if share := entry.lent - before:
            log.info(f"{entry.name} does without {share / 2**20:,.0f} MiB of KV: another model is loaded")

    async def _return_lent(self) -> bool:
        """Let a model that does without KV use it again, if there is room. False if there is none, or no such model."""
        for entry in self.entries.values():
            before = entry.lent
            room = min(before, self._room())
            if room <= 0 or not entry.is_ready or entry.runtime is None:
                continue
            try:
                await entry.runtime.take_kv(int(room))
            except Exception as error:
                log.warning(f"{entry.name} does not take KV again: {error or type(error).__name__}")
            if entry.lent != before:
                return True
        return False

    def _to_park(self, entry: ModelEntry) -> ModelEntry | None:
        """The model with running streams that gives way now: the one that has been there longest. None: not yet."""
        now, due = self._clock(), self._swap_time(entry)
        busy = [one for one in self._movable(entry) if not self._is_idle(one)]
        times = {
            one.name: due if one.has_passed(entry) else max(due, one.loaded_at + self._residency(one))
            for one in busy
        }
        ready = [one for one in busy if times[one.name] <= now]
        if not ready:
            self._look_at = min((self._look_at, *times.values()))
        return min(ready, key=lambda one: one.loaded_at, default=None)

    def _swap_time(self, entry: ModelEntry) -> float:
        """When running streams may be parked for the model."""
        since = entry.wanted_since
        return (self._clock() if since is None else since) + self.rules.swap_after

    def _residency(self, entry: ModelEntry) -> float:
        return max(self.rules.min_residency, _LOAD_SHARE * entry.load_seconds)

    async def _unload_expired(self) -> bool:
        now = self._clock()
        for entry in self.entries.values():
            if not self._is_idle(entry):
                continue
            if entry.expires_at <= now or (entry.status is ModelStatus.PARKED and not entry.waiters):
                await self._unload(entry)
                return True
            self._look_at = min(self._look_at, entry.expires_at)
        return False

    # -- transitions ---------------------------------------------------------------------------------------------------

    async def _load(self, entry: ModelEntry) -> None:
        """Load the model or resume its streams, and give leases to the calls that wait."""
        parked, began = entry.runtime, self._clock()
        before, entry.status = entry.status, ModelStatus.LOADING
        entry.num_loads += 1
        limit = asyncio.timeout(None if math.isinf(self.rules.load_timeout) else self.rules.load_timeout)
        try:
            async with limit:
                if parked is None:
                    entry.runtime = await entry.load()
                else:
                    await parked.resume()
        except asyncio.CancelledError:
            entry.status = before
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            if limit.expired():
                reason = f"it took longer than {self.rules.load_timeout:g} seconds"
            if limit.expired() or not isinstance(error, EngineError):
                log.warning(f"the model '{entry.name}' could not be loaded: {reason}")
            await self._end(entry)
            self._fail(entry, reason)
            return
        runtime = entry.runtime
        assert runtime is not None
        entry.status, entry.reason, entry.num_failures = ModelStatus.READY, "", 0
        entry.last_used = entry.loaded_at = self._clock()
        entry.load_seconds = entry.loaded_at - began
        if parked is None:
            entry.watcher = self._beside(self._watch(runtime.failed))
        waiting, entry.waiters = entry.waiters, []
        for waiter in waiting:
            if not waiter.lease.done():
                waiter.lease.set_result(self._lease(entry))

    async def _unload(self, entry: ModelEntry) -> None:
        entry.status = ModelStatus.UNLOADING
        entry.keep = entry.spec.idle_unload  # a call that comes meanwhile says anew how long it is kept
        await self._end(entry)
        entry.status = ModelStatus.UNLOADED
        log.info(f"unloaded {entry.name}")

    async def _park(self, entry: ModelEntry) -> None:
        assert entry.runtime is not None
        entry.status = ModelStatus.PARKING
        log.info(f"parking the streams of {entry.name}: calls of another model wait")
        try:
            await entry.runtime.park()
        except Exception as error:
            await self._end(entry)
            self._fail(entry, f"its streams could not be parked: {error}")
            return
        entry.status, entry.parked_at = ModelStatus.PARKED, self._clock()

    async def _end(self, entry: ModelEntry) -> None:
        runtime, entry.runtime = entry.runtime, None
        if entry.watcher is not None:  # its event is never set once the engine has ended
            entry.watcher.cancel()
            entry.watcher = None
        if runtime is None:
            return
        try:
            await runtime.stop()
        except Exception:
            log.exception(f"the model '{entry.name}' ended badly")

    def _fail(self, entry: ModelEntry, reason: str) -> None:
        """The model is not there, and its calls are answered with the reason."""
        now = self._clock()
        entry.status, entry.reason = ModelStatus.FAILED, reason
        pause = min(_MOST_RETRY_PAUSE, self.rules.retry_pause * 2**entry.num_failures)
        entry.num_failures += 1
        entry.retry_at = now + pause
        entry.fail_waiters(entry.failure(now))

    async def _watch(self, failed: asyncio.Event) -> None:
        await failed.wait()
        self._news.set()

    # -- facts ---------------------------------------------------------------------------------------------------------

    def _room(self, beside: ModelEntry | None = None) -> float:
        """Bytes that no loaded model needs; `beside` counts as not loaded."""
        loaded = (one.need for one in self.entries.values() if one is not beside and one.status in RESIDENT)
        return self.budget - sum(loaded)

    def _idle(self, entry: ModelEntry) -> list[ModelEntry]:
        """Idle models that may give way to `entry`."""
        return [one for one in self._movable(entry) if self._is_idle(one)]

    def _others(self, entry: ModelEntry) -> list[ModelEntry]:
        return [one for one in self.entries.values() if one is not entry]

    def _movable(self, entry: ModelEntry) -> list[ModelEntry]:
        """Models that may make room for `entry`."""
        return [one for one in self._others(entry) if one.status is ModelStatus.READY and not one.spec.pin]

    def _impossible(self, entry: ModelEntry) -> EngineError | None:
        """Why the model never fits while the pinned ones are there; None if it may."""
        pinned = [one for one in self._others(entry) if one.spec.pin]
        free = self.budget - sum(one.spec.need for one in pinned)
        if entry.spec.need <= free:
            return None
        beside = f" beside {', '.join(one.name for one in pinned)}, which stay loaded" if pinned else ""
        need, rest = entry.spec.need / 2**20, max(0.0, free) / 2**20
        return ModelUnavailable(
            f"The model '{entry.name}' needs {need:,.0f} MiB and {rest:,.0f} MiB are left{beside}.", 60
        )

    def _is_busy(self, entry: ModelEntry) -> bool:
        return entry.runtime is not None and entry.runtime.busy

    def _is_idle(self, entry: ModelEntry) -> bool:
        """As `entry.is_idle`; one whose calls have ended and whose sequences are being freed is looked at again."""
        there = entry.status in (ModelStatus.READY, ModelStatus.PARKED)
        if there and not entry.users and self._is_busy(entry):
            self._look_at = min(self._look_at, self._clock() + _BUSY_LOOK)
        return entry.is_idle
