"""`LoraAdapters`: which LoRA adapters exist, and which of them the executor holds.

An adapter goes by the digest of its content, which is also what the executor knows it by. The executor holds at most `most`
that sequences use, and room for one more, in which `add` tries a new one. A sequence whose adapter is not held waits; others
pass it. Loading and unloading happen beside the steps, one at a time:

    add  -> tried in the executor -> known --- wanted by a waiting sequence ---> loaded, in place of the one unused for longest
    drop -> no new request may name it -> its last sequence ends -> unloaded, forgotten

An executor that begins a new epoch may have lost them all, so then all count as lost, and are loaded again from their files
when they are wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import cast

from engine.errors import EngineError, InvalidRequest, ModelNotFound, Unavailable
from engine.observer import Observer
from engine.sequence import Sequence
from executors.contract import (
    ConfigError,
    ExecutorError,
    InvalidInput,
    LoraExecutor,
    ModelExecutor,
    OutOfMemory,
    Unsupported,
)

logger = logging.getLogger("cohort.engine")

PATIENCE = 2.0
"""Seconds that a sequence waits for its adapter while all that are held are in use. Then no new sequence of the one that the
fewest use is started until it can give way: without that, a busy server would never load another one."""
LINGER = 10.0
"""Seconds for which a dropped adapter still serves requests: those whose name was looked up before it was dropped."""


@dataclass(frozen=True, slots=True)
class LoraUse:
    """An adapter as of now: `is_loaded` by the executor, `running` and `waiting` sequences."""

    digest: str
    is_loaded: bool
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    forgotten: Callable[[], None]


class LoraAdapters:
    """Used by the loop task, and by callers of `add` and `drop` on the same event loop."""

    def __init__(
        self,
        executor: ModelExecutor,
        most: int,
        clock: Callable[[], float],
        wake: Callable[[], None],
        failed: Callable[[str, EngineError], None],
        observer: Observer | None = None,
    ) -> None:
        """`most`: adapters that a step may have; 0: there are none. `wake` is called when something has changed for waiting
        sequences, `failed` with an adapter that cannot be loaded, whose sequences have to end."""
        self.most = most
        self._observer = observer or Observer()
        self._model_executor, self._executor = executor, cast(LoraExecutor, executor)
        self._clock = clock
        self._wake = wake
        self._failed = failed
        self._sources: dict[str, _Source] = {}
        self._dropped: dict[str, float] = {}
        """When each was dropped."""
        self._loaded: dict[str, None] = {}
        """By the executor, the one unused for longest first."""
        self._stale: set[str] = set()
        """Perhaps held without use, and taking room: those of the epoch before, and loads whose answer has not come or came in a
        later epoch."""
        self._missing: dict[str, Sequence] = {}
        """Not held, and the first sequence that waits for it; of the last `schedule`."""
        self._leaving: str | None = None
        """Held, and to give way: no new sequence of it is started."""
        self._lives = 0
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    # -- for callers -------------------------------------------------------------------------------------------------

    async def add(self, digest: str, path: str, forgotten: Callable[[], None] = lambda: None) -> bool:
        """Make an adapter known: the executor loads it once, so that a bad one is refused here. `forgotten` is called when it
        was dropped and nothing uses it any more: its file may go. Returns False if it was known already: then the file of that
        time stays in use, and `path` is not needed.

        Raises InvalidRequest if it cannot be loaded, Unavailable while the executor is away.
        """
        if not self.most:
            message = "this server has no LoRA adapters: start it with --enable-lora"
            raise InvalidRequest(message, "lora_name", "unsupported_parameter")
        async with self._turn:
            self._dropped.pop(digest, None)
            if digest in self._sources:
                return False
            lives = self._lives
            try:
                await self._unload_lost()
                await self._load_into(digest, path)
            except (ConfigError, InvalidInput, OutOfMemory, Unsupported) as error:
                raise InvalidRequest(f"the adapter cannot be loaded: {error}", "lora_path") from None
            except ExecutorError as error:
                raise Unavailable(f"the adapter was not loaded: {error}") from None
            self._observer.adapter_loaded()
            self._sources[digest] = _Source(path, forgotten)
            if lives != self._lives:
                return True
            if len(self._loaded) < self.most:
                self._hold(digest)
                self._wake()
            else:
                await self._quietly(self._unload_lost())
            return True

    def drop(self, digest: str) -> None:
        """Refuse new requests with an adapter, after `LINGER`, and forget it when its last sequence has ended."""
        if digest in self._sources and digest not in self._dropped:
            self._dropped[digest] = self._clock()
            self._wake()
            asyncio.get_running_loop().call_later(LINGER + 0.01, self._wake)

    def check(self, digest: str | None) -> None:
        """Raises ModelNotFound for an adapter that is not known."""
        if digest is not None and digest not in self._sources:
            raise ModelNotFound("The adapter was unloaded before the request was started.", "model")

    def uses(self, running: Iterable[Sequence], live: Iterable[Sequence]) -> list[LoraUse]:
        """All that are known, in order of their addition."""
        run = Counter(seq.request.adapter for seq in running)
        all_ = Counter(seq.request.adapter for seq in live)
        return [LoraUse(one, one in self._loaded, run[one], all_[one] - run[one]) for one in self._sources]

    # -- for the scheduler -------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is put together: what waiting sequences want is noted anew."""
        if self._missing:
            self._missing = {}

    def ready(self, seq: Sequence) -> bool:
        """Whether the executor holds what a waiting sequence needs. If not, it is noted as wanted."""
        adapter = seq.request.adapter
        if adapter is None:
            return True
        if adapter in self._loaded:
            # One that was started keeps its adapter from leaving, so it has to get to its end.
            if adapter == self._leaving and seq.slot is None:
                return False
            self._loaded[adapter] = self._loaded.pop(adapter)
            return True
        self._missing.setdefault(adapter, seq)
        return False

    # -- for the loop ------------------------------------------------------------------------------------------------

    def look(self, users: Callable[[], Iterable[Sequence]], live: Iterable[Sequence]) -> None:
        """Start what is to be done in the executor, if anything is. `users`: sequences that the executor has started; `live`:
        all that are unfinished."""
        if (
            not (self._missing or self._dropped or self._stale)
            or self._turn.locked()
            or self._task is not None
        ):
            return
        if self._dropped:
            self._forget(live)
        digest = self._next(users)
        if digest is not None or self._stale:
            self._task = asyncio.create_task(self._do(digest), name="LoRA adapters")

    def lose_all(self) -> None:
        """The executor begins a new epoch."""
        self._lives += 1
        self._stale |= self._loaded.keys()
        self._loaded, self._missing, self._leaving = {}, {}, None

    async def stop(self) -> None:
        """Cancel what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _forget(self, live: Iterable[Sequence]) -> None:
        """Forget what was dropped and no sequence uses; the executor unloads it later, as what it lost."""
        used, now = {seq.request.adapter for seq in live}, self._clock()
        for digest, since in list(self._dropped.items()):
            if digest in used or now - since < LINGER:
                continue
            del self._dropped[digest]
            source = self._sources.pop(digest)
            if digest in self._loaded:
                del self._loaded[digest]
                self._stale.add(digest)
            if self._leaving == digest:
                self._leaving = None
            source.forgotten()

    def _next(self, users: Callable[[], Iterable[Sequence]]) -> str | None:
        """The adapter to load, once there is room for it: another one is given up if need be."""
        if not self._missing:
            return None
        missing, first = next(iter(self._missing.items()))
        if len(self._loaded) < self.most:
            return missing
        used = Counter(seq.request.adapter for seq in users())
        if self._leaving is None or self._leaving not in self._loaded:
            self._leaving = None
            free = next((one for one in self._loaded if one not in used), None)
            if free is None and self._clock() - first.context.arrival_time > PATIENCE:
                self._leaving = min(self._loaded, key=lambda one: used[one])
        else:
            free = self._leaving if self._leaving not in used else None
        if free is None:
            return None
        # Out of `_held` at once, so that no sequence of it is started meanwhile.
        del self._loaded[free]
        self._stale.add(free)
        self._leaving = None
        self._observer.adapter_evicted()
        return missing

    async def _do(self, digest: str | None) -> None:
        """Unload what is lost, then load one."""
        try:
            async with self._turn:
                lives = self._lives
                await self._unload_lost()
                if digest is None or digest not in self._sources or lives != self._lives:
                    return
                # An `add` that had its turn first may have taken the room; then the next `look` makes room again.
                if len(self._loaded) < self.most:
                    await self._load(digest, lives)
        except ExecutorError as error:
            # Dead or away: the loop recovers, and what is wanted then is loaded again.
            logger.info("an adapter was not loaded: %s", error)
        finally:
            self._task = None
            self._wake()

    async def _load(self, digest: str, lives: int) -> None:
        try:
            await self._load_into(digest, self._sources[digest].path)
        except (ConfigError, InvalidInput, OutOfMemory, Unsupported) as error:
            logger.error("adapter %s cannot be loaded: %s", digest[:12], error)
            self._failed(digest, InvalidRequest(f"the adapter cannot be loaded: {error}", "model"))
            return
        self._observer.adapter_loaded()
        if lives == self._lives:
            self._hold(digest)

    def _hold(self, digest: str) -> None:
        """An adapter was loaded in the present epoch, and sequences may use it."""
        self._stale.discard(digest)
        self._loaded[digest] = None

    async def _load_into(self, digest: str, path: str) -> None:
        """Load an adapter; steps run on while its file is read. It is stale until `_hold`, whatever becomes of the call."""
        self._stale.add(digest)
        await self._model_executor.prepare_adapter(digest, path, digest)
        await self._executor.load_adapter(digest, path, digest)

    async def _unload_lost(self) -> None:
        for digest in list(self._stale):
            await self._executor.unload_adapter(digest)
            self._stale.discard(digest)

    async def _quietly(self, doing: Awaitable[None]) -> None:
        try:
            await doing
        except ExecutorError as error:
            logger.info("an adapter was not unloaded: %s", error)
