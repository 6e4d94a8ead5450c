"""`cohort serve` as the child of another command: the kernel ends it when its parent is gone, however that ended.

`python -P -m cohort_server.run clients.own_child PARENT_PID serve ...`
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from cohort_server import run

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process's life to the parent's, then be `cohort`."""
    parent = int(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    # SIGTERM, not SIGKILL: the server takes its own children along.
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        print(f"no PDEATHSIG: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
    if os.getppid() != parent:  # it died in between
        return
    # The wish outlives exec, and the server is not this module's to import.
    os.execv(sys.executable, run.command("server.cli", *sys.argv[2:]))


if __name__ == "__main__":
    main()
