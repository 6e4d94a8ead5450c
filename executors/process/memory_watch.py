"""Ends the executor process before the kernel does: a container's limit is watched from inside.

A kill by the kernel has no name, and may hit the server instead. Ended here, the death says what it was, the process is
started anew with all its memory given back, and the streams go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from executors.llm.memory.cgroup import Pressure, PressureGauge

_SHARE, _LEAST = 0.03, 32 << 20
"""What has to stay free: that part of the limit, and at least so many bytes. A limit that leaves no room for a process
at all, below 16 times the least, is left to the kernel."""
_BYTES_PER_S = 8e9
"""As fast as memory can fill: the next look comes before that could have used up what is left."""
_SHORTEST_S, _LONGEST_S = 0.005, 0.25


class MemoryWatch(threading.Thread):
    """Looks at the container's memory until the process ends; calls `give_up` with a line that says why, once.

    Does nothing where no cgroup has a limit. `look` is for tests.
    """

    def __init__(
        self, give_up: Callable[[str], None], look: Callable[[], Pressure | None] | None = None
    ) -> None:
        super().__init__(name="memory watch", daemon=True)
        self._give_up = give_up
        self._look = look or PressureGauge()
        self._ended = threading.Event()

    def run(self) -> None:
        """The thread's whole life."""
        found = self._look()
        while found is not None and found.limit >= 16 * _LEAST:
            if found.left < max(_LEAST, _SHARE * found.limit):
                self._give_up(
                    f"{found.used >> 20:,} MiB of the container's {found.limit >> 20:,} MiB are in use: "
                    f"ended before the kernel kills at random; give more memory, or less to KV (--kv-cache-memory-bytes)"
                )
                return
            if self._ended.wait(min(_LONGEST_S, max(_SHORTEST_S, found.left / _BYTES_PER_S))):
                return
            found = self._look()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
