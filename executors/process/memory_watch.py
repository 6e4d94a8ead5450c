"""Ends the executor process before the kernel does, by watching the container's memory limit from inside.

A kill by the kernel gives no reason, and may hit the server instead. If the process ends itself, its exit code names the
reason, it is restarted with all its memory freed, and the streams continue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from executors.cgroup import Pressure, PressureGauge

_SHARE, _LEAST = 0.03, 32 << 20
"""Memory that must stay free: this share of the limit, and at least this many bytes. A limit below 16 times the latter, which
leaves no room for a process, is left to the kernel."""
_BYTES_PER_S = 8e9
"""Rate at which memory can fill, in bytes per second: the next check comes before it could use up the remaining memory."""
_SHORTEST_S, _LONGEST_S = 0.005, 0.25


class MemoryWatch(threading.Thread):
    """Checks the container's memory until the process ends; calls `give_up` once, with a line that gives the reason.

    Does nothing if no cgroup has a limit. `look` is for tests. `reserves`: so many times what must stay free, for a process that
    gives way to others.
    """

    def __init__(
        self,
        give_up: Callable[[str], None],
        look: Callable[[], Pressure | None] | None = None,
        reserves: float = 1.0,
    ) -> None:
        super().__init__(name="memory watch", daemon=True)
        self._give_up = give_up
        self._look = look or PressureGauge()
        self._reserves = reserves
        self._ended = threading.Event()

    def run(self) -> None:
        """Run the thread."""
        pressure = self._look()
        while pressure is not None and pressure.limit >= 16 * _LEAST:
            if pressure.left < self._reserves * max(_LEAST, _SHARE * pressure.limit):
                self._give_up(
                    f"{pressure.used >> 20:,} MiB of the container's {pressure.limit >> 20:,} MiB are in use: "
                    f"ended before the kernel kills at random; give more memory, or less to KV (--kv-cache-memory-bytes)"
                )
                return
            if self._ended.wait(min(_LONGEST_S, max(_SHORTEST_S, pressure.left / _BYTES_PER_S))):
                return
            pressure = self._look()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
