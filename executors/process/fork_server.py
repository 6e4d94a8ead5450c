"""The fork server: `python -m executors.process.fork_server FD MODULE ...`, started by `forks.py` with its end of a socketpair.

It imports the modules, and forks a child for each request, which then runs `child.py`. A child that begins this way reads no
library from the disk and imports nothing, and shares the memory of all that was imported with the others.

    server       a request, one datagram: the descriptors of the child's socket, its stderr and, where it has one, its memory file
    fork server  "imported", "forked PID", "ended PID STATUS", "failed TEXT"

One thread and no executor: what a thread holds at a fork stays locked in the child, and a device's context cannot be shared.
If the fork server ends, so do its children (PDEATHSIG).
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from executors.process import child
from executors.process.children import kill_group

TITLE = "cohort: fork server"
MOST_BYTES = 1 << 10
"""Longest datagram in either direction."""
_DESCRIPTORS = 3


def main() -> NoReturn:
    """Run the process until the server closes the socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    child.bind_to_parent(child.creator_of(control))
    child.ignore_signals()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # children tell by it where they hang
    child.set_title(TITLE)
    # numpy's library starts its threads when it is loaded, and a fork takes none of them along.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        for name in sys.argv[2:]:
            importlib.import_module(name)
    except BaseException as error:  # an executor that imports it by itself tells more
        print(f"executor fork server: {error!r}", file=sys.stderr, flush=True)
        os._exit(child.EXIT_FAILED)
    gc.collect()
    gc.freeze()  # a collection would write to each object, and so copy its page
    control.send(b"imported")
    Forks(control).serve()


class Forks:
    """Children and the socket of their requests."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, int] = {}
        """Process ids of the children by their pidfds."""

    def serve(self) -> NoReturn:
        """Fork for each request; tell of each end."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._children:
                    self._ended(descriptor)
                else:
                    self._requested()

    def _requested(self) -> None:
        room = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self._control.recvmsg(MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(child.EXIT_PARENT_GONE)
        descriptors = array.array("i")
        for _, _, received in ancillary:
            descriptors.frombytes(received)
        try:
            self._fork(list(descriptors))
        except OSError as error:
            self._control.send(f"failed {error}".encode())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, descriptors: list[int]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(server, *descriptors)
        os.setpgid(pid, pid)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._control.send(f"forked {pid}".encode())

    def _become_child(self, server: int, connection: int, stderr: int, memory: int | None = None) -> NoReturn:
        try:
            os.setpgid(0, 0)
            for pidfd in self._children:
                os.close(pidfd)
            self._control.close()
            for standard in (1, 2):
                os.dup2(stderr, standard)
            os.close(stderr)
            child.run(socket.socket(fileno=connection), server, memory)
        finally:
            os._exit(child.EXIT_FAILED)

    def _ended(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        kill_group(pid)  # before it is reaped: its number cannot belong to another yet
        _, status = os.waitpid(pid, 0)
        self._control.send(f"ended {pid} {os.waitstatus_to_exitcode(status)}".encode())


if __name__ == "__main__":
    main()
