"""`KvToucher`: the threads that make KV memory resident before requests need it."""

from __future__ import annotations

import threading
import weakref

from executors.kernels.cpu import CpuKernels
from executors.llm.memory.paged_kv import PagedKv


class KvToucher:
    """Touches the memory of the first blocks in background threads until that is done, `stop` is called, this object is dropped
    or the main thread ends.

    A thread holds the memory that it writes to, and frees its tensors if it is the last to hold them. Freeing one waits for the
    interpreter's lock, and an interpreter that ends unwinds the threads that wait for it: through C++ destructors, where that
    aborts the process. So the threads are no daemons: the interpreter waits for them before it ends, for the time of one slice.
    """

    def __init__(self, cache: PagedKv, kernels: CpuKernels, num_bytes: int, num_threads: int) -> None:
        """Start `num_threads` threads, which touch about `num_bytes` of `cache` in turns."""
        stopped, main = threading.Event(), threading.main_thread()
        weakref.finalize(self, stopped.set)

        def is_over() -> bool:
            return stopped.is_set() or not main.is_alive()

        self._stopped = stopped
        self._threads = [
            threading.Thread(
                target=cache.touch, args=(kernels, num_bytes, (i, num_threads), is_over), name="kv-memory"
            )
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads and wait for that: they hold no memory afterwards. Idempotent."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
