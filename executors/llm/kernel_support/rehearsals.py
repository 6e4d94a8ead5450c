"""`Rehearsals`: kernels that a start needs are compiled together in threads, before the first of them is launched.

Triton compiles a kernel at its first launch: 0.1 to 2 seconds of LLVM and ptxas, then gcc for what launches it, all in the thread
that waits for it, while other cores idle. A start with an empty cache launches some thirty kernels for the first time: in its
checks, its largest steps and the steps of padded sizes. A rehearsal goes ahead of each of the two stages:

    rehearsal    checks, or padding steps, run with every launch left out, which tells what they launch
    compilation  in as many threads as there are cores: Triton keeps kernels in memory, and what launches them on disk
    stage        the same runs for real, as it would have without a rehearsal, and finds kernels compiled

In a rehearsal torch computes with what kernels have not written. Results mean nothing and are not kept, and where torch takes an
index from a kernel there must be no rehearsal: a bad one ends a process's use of its device. All launches are left out, those of
compiled kernels too: one would read places that another, left out, has not listed.

A start never depends on a rehearsal: what goes wrong in one is logged, and kernels are compiled one by one as before.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from typing import Any

from executors.cgroup import cpu_threads
from executors.contract import ProgressCallback
from executors.llm.kernel_support.passed_checks import PassedChecks

_log = logging.getLogger(__name__)

MOST_THREADS = 16
"""A start needs hardly more kernels at once, and each takes some 100 MB of the machine's memory while it is compiled."""
LOADED_S = 0.25
"""Seconds that no kernel takes from disk, and some of every stage take to be compiled."""
_REPORT_S = 1.0
_one_at_a_time = threading.Lock()
"""Held by a rehearsal: what leaves its launches out is in the place of Triton's own for all threads."""
_rehearsing: contextvars.ContextVar[bool] = contextvars.ContextVar("rehearsing", default=False)


def rehearsing() -> bool:
    """Return whether this thread rehearses: no kernel is launched, and results mean nothing."""
    return _rehearsing.get()


class Rehearsed(PassedChecks):
    """The checks of a rehearsal. Each runs, for what it launches, and passes whatever it finds; none counts as passed afterwards.
    Raises RuntimeError outside a rehearsal."""

    def fault(self, name: str, check: Callable[[], str | None]) -> str | None:
        """See `PassedChecks`."""
        if not rehearsing():
            raise RuntimeError(f"{name}: passed in a rehearsal, in which no kernel ran")
        check()
        return None

    def add(self, name: str) -> None:
        """Nothing has passed."""


class Rehearsals:
    """Used by the thread that loads. `report` receives the progress of compilation, each second at least. On a single core
    nothing is done."""

    def __init__(self, report: ProgressCallback, threads: int | None = None) -> None:
        """`threads`: most that compile at once; None: one for each core."""
        self._report = report
        self._threads = min(MOST_THREADS, cpu_threads() if threads is None else threads)
        self._useful = self._threads > 1
        """Whether the next rehearsal can be of use."""
        self._rehearsed: set[str] = set()

    def compile(self, stage: str, rehearse: Callable[[], object]) -> None:
        """Call `rehearse`, which runs what the `stage` launches, with all launches left out, and compile these kernels. Later
        calls for that stage do nothing, nor does any call behind one that failed or found all kernels on disk. Raises nothing."""
        if not self._useful or stage in self._rehearsed or not _possible():
            return
        self._rehearsed.add(stage)
        try:
            # In a context of its own, which takes Triton's mode and ours with it however it ends.
            compiled = contextvars.copy_context().run(self._together, rehearse)
        except Exception as error:
            self._useful = False
            _log.debug("kernels of %s are compiled one by one: %s", stage, error, exc_info=True)
        else:
            self._useful = compiled > 0

    def _together(self, rehearse: Callable[[], object]) -> int:
        """Return how many kernels were compiled, and not found on disk."""
        import triton

        _rehearsing.set(True)
        self._report("rehearsing kernels", 0, 0)
        with _one_at_a_time, ThreadPoolExecutor(self._threads, "kernels") as threads:
            compilers = _Compilers(threads)
            with triton.AsyncCompileMode(compilers):
                try:
                    with _no_launches():
                        rehearse()
                finally:
                    compilers.may_begin.set()
                    self._wait(compilers.futures)
        return sum(seconds > LOADED_S for seconds in compilers.seconds)

    def _wait(self, futures: list[Future[Any]]) -> None:
        pending = set(futures)
        while pending:
            self._report("compiling kernels", len(futures) - len(pending), len(futures))
            pending = wait(pending, _REPORT_S, FIRST_COMPLETED).not_done
        if futures:
            self._report("compiling kernels", len(futures), len(futures))


class _Compilers(Executor):
    """What Triton submits compilations to. `futures` of all; `seconds` that each has taken.

    They begin when they `may_begin`, behind the rehearsal: in a tenth of their time they hold the interpreter's lock, and a
    rehearsal, which takes it for each call of torch, would take three times as long beside them."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self.futures: list[Future[Any]] = []
        self.seconds: list[float] = []
        self.may_begin = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        future = self._threads.submit(self._compile, fn, *args, **kwargs)
        self.futures.append(future)
        return future

    def _compile(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.may_begin.wait()
        begin = time.perf_counter()
        kernel = fn(*args, **kwargs)
        self.seconds.append(time.perf_counter() - begin)
        # What launches the kernel is compiled as well, and left on disk, where the first launch finds it. The kernel itself is
        # not loaded here: an error in the middle of that would stay in it. An error of gcc's is for the first launch to raise.
        with contextlib.suppress(Exception):
            from triton.runtime import driver

            driver.active.launcher_cls(kernel.src, kernel.metadata)
        return kernel


def _possible() -> bool:
    """Return whether Triton is there, compiles, can do so in threads (3.5 and later), and is not watched by others: their hook
    would see kernels that are not launched."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    try:
        import triton

        return hasattr(triton, "AsyncCompileMode") and triton.knobs.runtime.jit_cache_hook is None
    except (ImportError, AttributeError):
        return False


@contextlib.contextmanager
def _no_launches() -> Iterator[None]:
    """Within, this thread's launches end where they would begin, behind compilation: as `JITFunction.warmup`."""
    from triton.runtime import JITFunction

    launch, owner = JITFunction.run, threading.get_ident()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        skipped = warmup or threading.get_ident() == owner
        return launch(self, *args, grid=grid, warmup=skipped, **kwargs)

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = launch
