"""`InlineExecutor`: any executor on a thread of this process, behind the semantics of `RemoteExecutor`.

For tests and debugging: breakpoints work and torch is imported here. Without a process of its own a hang is not detected,
and a crash ends the server.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import enum
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from executors import registry
from executors.contract import (
    BatchModelExecutor,
    BlockMemory,
    DecodeInput,
    DecodeOutput,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    Int32Array,
    KvCacheHandle,
    KvLayout,
    LoraExecutor,
    ModelExecutor,
    ModelInfo,
    NotReady,
    Pace,
    PrefillInput,
    PrefillOutput,
    ProgressCallback,
    SealedBlocks,
    SnapshotValue,
    SpeculativeDecodeOutput,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
)
from executors.process.guard import StepGuard, being_cancelled, typed

T = TypeVar("T")
_LEAVE_S = 1.0
"""Seconds that the end of the interpreter waits for a thread that computes."""


class _Kind(enum.Enum):
    """The time when a job runs."""

    ALONE = "when those before it are done"
    BESIDE = "when those before it are begun: a step of an executor that takes several"
    NOTE = "between two others, and it awaits nothing"


@dataclass(slots=True)
class _Job(Generic[T]):
    make: Callable[[], Coroutine[Any, Any, T]]
    future: concurrent.futures.Future[T]
    kind: _Kind


class _ExecutorThread(threading.Thread):
    """An event loop on a thread that begins jobs in the order of `submit`, most of them one after the other."""

    def __init__(self) -> None:
        # A daemon: one that hangs must not hold up the interpreter's end for longer than `_leave` does.
        super().__init__(name="executor", daemon=True)
        self._loop = asyncio.new_event_loop()
        self._jobs: asyncio.Queue[_Job[Any] | None] = asyncio.Queue()
        self._out: deque[asyncio.Task[None]] = deque()
        """Jobs that run concurrently with others."""
        self._worker = self._loop.create_task(self._work())
        atexit.register(self._leave)
        self.start()

    def run(self) -> None:
        """Run the thread."""
        try:
            self._loop.run_until_complete(self._worker)
        except asyncio.CancelledError:
            pass
        finally:
            if self._out:
                for task in self._out:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tuple(self._out)))
            while not self._jobs.empty():
                if (job := self._jobs.get_nowait()) is not None:
                    job.future.set_exception(NotReady("the executor was shut down"))
            self._loop.close()
            atexit.unregister(self._leave)

    async def _work(self) -> None:
        while (job := await self._jobs.get()) is not None:
            if job.kind is _Kind.BESIDE:
                task = self._loop.create_task(self._carry_out(job))
                self._out.append(task)
                task.add_done_callback(self._out.remove)
                # Tasks run in the order of their creation: the new one has begun when this one goes on.
                await asyncio.sleep(0)
                continue
            if job.kind is _Kind.ALONE and self._out:
                await asyncio.wait(tuple(self._out))
            await self._carry_out(job)

    @staticmethod
    async def _carry_out(job: _Job[Any]) -> None:
        try:
            job.future.set_result(await job.make())
        except asyncio.CancelledError:
            job.future.set_exception(NotReady("the executor was shut down"))
            raise
        except BaseException as error:
            job.future.set_exception(error)

    def submit(
        self, make: Callable[[], Coroutine[Any, Any, T]], kind: _Kind = _Kind.ALONE
    ) -> concurrent.futures.Future[T]:
        """Run the coroutine that `make` returns on the thread, begun after all jobs before it."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # from now on a cancelled caller cannot take it back: the job runs
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, _Job(make, future, kind))
        return future

    def stop(self) -> None:
        """End after the jobs so far."""
        self._loop.call_soon_threadsafe(self._jobs.put_nowait, None)

    def abandon(self) -> None:
        """End at once: the running job and those after it fail with NotReady. Blocking code continues on the thread."""
        self._loop.call_soon_threadsafe(self._worker.cancel)

    def _leave(self) -> None:
        """End a thread that was not shut down before the interpreter ends: that would unwind it through C++ code, which aborts
        the process."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self.abandon()
        self.join(_LEAVE_S)


class InlineExecutor(BatchModelExecutor):
    """See the module. Its coroutines belong to one event loop; the executor's run on its own thread.

    - `executor` None: created from `config` by the registry at warmup, on the thread, as imports may take long.
    - `inner`: the executor itself, once created; tests may read it.
    - `on_death`, `wait_dead`, `snapshot_age` and the like as `RemoteExecutor`'s. A death is an executor that
      raised ExecutorDied; `begin_epoch` of the same executor is its restart.
    """

    mode = "inline"

    def __init__(
        self,
        config: ExecutorConfig,
        executor: ModelExecutor | None = None,
        *,
        on_death: Callable[[ExecutorDied], None] | None = None,
        shutdown_s: float = 2.0,
    ) -> None:
        self.config = config
        self.inner = executor
        self.on_death = on_death
        self._shutdown_s = shutdown_s
        self._guard: StepGuard | None = None  # set when the executor is warm
        self._overlaps = False  # it takes a step while it computes another
        self._thread: _ExecutorThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._report: ProgressCallback | None = None
        self._stage = ""
        self._death: ExecutorDied | None = None
        self._over = asyncio.Event()  # dead, or shut down
        self._closed = False

    # -- facts ---------------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        return self._warm().info()

    def capabilities(self) -> ExecutorCapabilities:
        # Where an executor takes one at a time, a second one can wait here.
        limits = self._warm().capabilities()
        return replace(limits, max_in_flight=max(2, limits.max_in_flight))

    def kv_layout(self) -> KvLayout:
        return self._warm().kv_layout()

    def kv_capacity(self) -> int | None:
        return self._warm().kv_capacity()

    def pace(self) -> Pace | None:
        return self._warm().pace()

    def supports_native_unified_decode(self) -> bool:
        return self._warm().supports_native_unified_decode()

    def supports_adapters(self) -> bool:
        """True if `load_adapter` works."""
        return isinstance(self._warm(), LoraExecutor)

    def optimal_batch_size(self) -> int:
        inner = self._warm()
        return (
            inner.optimal_batch_size()
            if isinstance(inner, BatchModelExecutor)
            else super().optimal_batch_size()
        )

    def status(self) -> ExecutorStatus:
        if self._closed:
            return ExecutorStatus(ExecutorState.SHUTDOWN, False)
        if self._death is not None:
            return ExecutorStatus(ExecutorState.ERROR, False, last_operation=str(self._death))
        if self._guard is None:
            return ExecutorStatus(ExecutorState.INITIALIZING, False, last_operation=self._stage)
        return self._guard.executor.status()

    def metrics(self) -> ExecutorMetrics:
        return self._guard.executor.metrics() if self._guard else ExecutorMetrics()

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return self._guard.executor.cache_metrics_snapshot() if self._guard else None

    def lora_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return self._guard.executor.lora_metrics_snapshot() if self._guard else None

    def snapshot_age(self) -> float:
        """0: the answers of the synchronous members are always current."""
        return 0.0

    def stage(self) -> str:
        """The stage of loading or compilation, "" if none."""
        return self._stage

    def running_seconds(self) -> float | None:
        """None: not measured here."""
        return None

    @property
    def pid(self) -> int | None:
        """None: it has no process of its own."""
        return None

    def _warm(self) -> ModelExecutor:
        if self._guard is None:
            raise NotReady("the executor is not loaded")
        return self._guard.executor

    # -- life ----------------------------------------------------------------------------------------------------------

    def set_progress(self, report: ProgressCallback) -> None:
        """As the contract's; `report` is called on the executor's thread."""
        self._report = report

    def set_death_listener(self, report: Callable[[ExecutorDied], None]) -> None:
        """As the contract's; replaces `on_death`."""
        self.on_death = report

    def _progressed(self, stage: str, done: int, total: int) -> None:
        self._stage = "" if 0 < total <= done else stage
        if self._report is not None:
            self._report(stage, done, total)

    async def warmup(self) -> None:
        """As the contract's. A cancelled caller leaves it loading."""
        if self._closed:
            raise NotReady("the executor was shut down")
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = _ExecutorThread()
        await asyncio.wrap_future(self._thread.submit(self._load))

    async def _load(self) -> None:
        if self._guard is not None:
            return
        try:
            if self.inner is None:
                self._stage = "importing"
                self.inner = registry.create(self.config)
            self.inner.set_progress(self._progressed)
            self.inner.set_death_listener(self._inner_died)
            await self.inner.warmup()
        except Exception as error:
            failure = typed(error)
            if failure is error:
                raise
            raise ExecutorDied(str(failure), "load") from error
        self._stage = ""
        self._overlaps = self.inner.capabilities().max_in_flight > 1
        self._guard = StepGuard(self.inner)

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        await self.warmup()
        adopted = await self._run(lambda guard: guard.begin_epoch(epoch, adopt), revive=True)
        if self._death is not None:
            self._death = None
            self._over.clear()
        return adopted

    def block_memory(self) -> BlockMemory | None:
        return None if self.inner is None else self.inner.block_memory()

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        return await self._run(lambda guard: guard.executor.adopt_blocks(sealed))

    async def shutdown(self) -> None:
        """Wait at most `shutdown_s` for running jobs, then abandon the thread."""
        closed_before, self._closed = self._closed, True
        self._over.set()
        if self._thread is None or closed_before:
            return
        ended = self._thread.submit(self._end)
        self._thread.stop()
        await asyncio.wait((asyncio.wrap_future(ended),), timeout=self._shutdown_s)
        if ended.done():
            self._thread.join()  # what is left to do there takes no time
            ended.result()
        else:
            self._thread.abandon()

    async def _end(self) -> None:
        if self._guard is not None:
            await self._guard.executor.shutdown()

    async def wait_dead(self) -> ExecutorDied | None:
        """Wait until the executor has raised ExecutorDied, and return it; None once shut down."""
        await self._over.wait()
        return None if self._closed else self._death

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        kind = _Kind.BESIDE if self._overlaps else _Kind.ALONE
        return await self._run(lambda guard: guard.unified_decode(batch), kind=kind)

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        return await self._run(lambda guard: guard.executor.prefill(request))

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        return await self._run(lambda guard: guard.executor.batch_prefill(inputs))

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        return await self._run(lambda guard: guard.executor.decode(request))

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        return await self._run(lambda guard: guard.executor.batch_decode(inputs))

    async def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        return await self._run(lambda guard: guard.executor.forward_verify(inputs))

    async def speculative_decode(
        self, request: DecodeInput, draft_tokens: Sequence[int], acceptance_threshold: float = 1.0
    ) -> SpeculativeDecodeOutput:
        return await self._run(
            lambda guard: guard.executor.speculative_decode(request, draft_tokens, acceptance_threshold)
        )

    async def forward(self, tensor: Tensor) -> Tensor:
        return await self._run(lambda guard: guard.executor.forward(tensor))

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """As `LoraExecutor`'s. Raises Unsupported if the executor loads no adapters."""
        await self._run(lambda guard: _adapters(guard).load_adapter(name, path, digest))

    async def prepare_adapter(self, name: str, path: str, digest: str) -> None:
        """As load_adapter."""
        await self._warm().prepare_adapter(name, path, digest)

    async def unload_adapter(self, name: str) -> None:
        """As load_adapter."""
        await self._run(lambda guard: _adapters(guard).unload_adapter(name))

    async def prepare_grammar(self, grammar: str) -> None:
        """As the contract's: concurrent with the thread's work."""
        await self._warm().prepare_grammar(grammar)

    async def _run(
        self,
        call: Callable[[StepGuard], Coroutine[Any, Any, T]],
        *,
        revive: bool = False,
        kind: _Kind = _Kind.ALONE,
    ) -> T:
        if self._closed:
            raise NotReady("the executor was shut down")
        if self._death is not None and not revive:
            raise ExecutorDied(str(self._death), self._death.cause)
        guard, thread = self._guard, self._thread
        if guard is None or thread is None:
            raise NotReady("the executor is not loaded")
        try:
            return await asyncio.wrap_future(thread.submit(lambda: _typed(call, guard), kind))
        except ExecutorDied as death:
            self._died(death)
            raise

    def _inner_died(self, death: ExecutorDied) -> None:
        """Between calls, reported on the executor's thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._died, death)

    def _died(self, death: ExecutorDied) -> None:
        if self._death is None:
            self._death = death
            self._over.set()
            if self.on_death is not None:
                self.on_death(death)

    # -- sequence state: no answer ---------------------------------------------------------------------------------------

    def release_cache(self, cache_id: int) -> None:
        """As the contract's; runs after the calls made so far, on the thread."""
        self._tell(lambda guard: guard.release_cache(cache_id))

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        """As release_cache; returns what the layout says. If the executor cannot, the steps after it are answered Skipped."""
        self._tell(lambda guard: guard.truncate_kv(handle, new_len))
        return self.kv_layout().kept(handle.num_tokens, new_len) if new_len else 0

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        """As release_cache."""
        self._tell(lambda guard: guard.release_memory(group, block_ids))

    def _tell(self, what: Callable[[StepGuard], None]) -> None:
        guard, thread = self._guard, self._thread
        if guard is None or thread is None or self._closed:
            return

        async def tell() -> None:
            what(guard)

        thread.submit(tell, _Kind.NOTE)


async def _typed(call: Callable[[StepGuard], Coroutine[Any, Any, T]], guard: StepGuard) -> T:
    try:
        return await call(guard)
    except (Exception, asyncio.CancelledError) as error:
        if being_cancelled():
            raise
        failure = typed(error)
        if failure is error:
            raise
        raise failure from error


def _adapters(guard: StepGuard) -> LoraExecutor:
    if not isinstance(guard.executor, LoraExecutor):
        raise Unsupported(f"{type(guard.executor).__name__} loads no adapters")
    return guard.executor
