"""The fork server: `python -m executors.process.fork_server FD MODULE ...`, started by `forks.py` with its end of a socketpair.

It imports the modules, loads what the lives of an executor share, and forks a child for each request, which then runs `child.py`.
A child that begins this way imports nothing and reads no weights: it shares the memory of both with the others, page by page
until one is written. So no child's garbage collector looks at them.

One thread at each fork, and no executor: what another thread holds at a fork stays locked in the child, an OpenMP pool has lost
its threads there, and a device's context cannot be shared. Loading has a thread of its own, which ends before the first fork.
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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cohort_server.lasting_imports import lasting_imports
from executors import registry
from executors.contract import ExecutorConfig, ModelExecutor
from executors.process import child
from executors.process import fork_messages as m
from executors.process.children import kill_group
from executors.process.memory_watch import MemoryWatch
from executors.process.messages import Progress
from executors.process.worker import ProgressReports, load_failure, one_line

TITLE = "cohort: fork server"
_DESCRIPTORS = 3
_ALIVE_MS = 1000

Create = Callable[[ExecutorConfig], ModelExecutor]


def main() -> NoReturn:
    """Run the process until the server closes the socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    child.bind_to_parent(child.creator_of(control))
    child.ignore_signals()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # children tell by it where they hang
    child.set_title(TITLE)
    try:
        with lasting_imports():
            for name in sys.argv[2:]:
                importlib.import_module(name)
    except BaseException as error:  # an executor that imports it by itself tells more
        print(f"executor fork server: {error!r}", file=sys.stderr, flush=True)
        os._exit(child.EXIT_FAILED)
    server = ForkingProcess(control)
    server.send(m.Imported())
    server.serve()


class ForkingProcess:
    """Children, what they share, and the socket of the server's requests."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, int] = {}
        """Process ids of the children by their pidfds."""
        self._loading: threading.Thread | None = None
        self._create: Create = registry.create

    def send(self, message: m.FromForkServer) -> None:
        """Send the server a message. Any thread."""
        try:
            self._control.send(m.datagram(message))
        except OSError:  # it is gone
            os._exit(child.EXIT_PARENT_GONE)

    def serve(self) -> NoReturn:
        """Answer requests; tell of each end."""
        while True:
            if self._loading is not None and not self._loading.is_alive():
                self._loading = None
            ready = self._poll.poll(None if self._loading is None else _ALIVE_MS)
            for descriptor, _ in ready:
                if descriptor in self._children:
                    self._ended(descriptor)
                else:
                    self._requested()
            if self._loading is not None and not ready:
                self.send(m.Alive())

    def _requested(self) -> None:
        room = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self._control.recvmsg(m.MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(child.EXIT_PARENT_GONE)
        descriptors = array.array("i")
        for _, _, received in ancillary:
            descriptors.frombytes(received)
        try:
            match m.request_of(data):
                case m.LoadShared(config):
                    self._loading = threading.Thread(target=self._load, args=(config,), name="load")
                    self._loading.start()
                case m.Fork():
                    self._fork(list(descriptors))
        except OSError as error:
            self.send(m.NotForked(one_line(str(error))))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    # -- what lives share ----------------------------------------------------------------------------------------------

    def _load(self, config: ExecutorConfig) -> None:
        """Load on this thread, then let the main thread report it."""
        reports = ProgressReports(lambda stage, done, total: self.send(Progress(stage, done, total)))
        watch = MemoryWatch(child.out_of_memory)
        watch.start()
        try:
            create = registry.factory(config.executor).load_shared(config, reports.report)
        except BaseException as error:
            self.send(load_failure(error))
        else:
            self._create = create or registry.create
            gc.collect()
            gc.freeze()  # a collection in a child would write to each object, and so copy its page
            self.send(m.SharedLoaded(create is not None))
        finally:
            watch.stop()

    def _is_alone(self) -> bool:
        """Wait until this is the only thread; False if others stay."""
        if self._loading is not None:
            self._loading.join()
            self._loading = None
        deadline = time.monotonic() + m.THREADS_END_S
        while len(list(Path("/proc/self/task").iterdir())) > 1:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    # -- children --------------------------------------------------------------------------------------------------------

    def _fork(self, descriptors: list[int]) -> None:
        if not self._is_alone():
            self.send(m.NotForked("threads of a library stay"))
            return
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(server, *descriptors)
        os.setpgid(pid, pid)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self.send(m.Forked(pid))

    def _become_child(self, server: int, connection: int, stderr: int, memory: int | None = None) -> NoReturn:
        try:
            os.setpgid(0, 0)
            for pidfd in self._children:
                os.close(pidfd)
            self._control.close()
            for standard in (1, 2):
                os.dup2(stderr, standard)
            os.close(stderr)
            child.run(socket.socket(fileno=connection), server, memory, self._create)
        finally:
            os._exit(child.EXIT_FAILED)

    def _ended(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        kill_group(pid)  # before it is reaped: its number cannot belong to another yet
        _, status = os.waitpid(pid, 0)
        self.send(m.Ended(pid, os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main()
