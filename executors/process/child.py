"""The executor process: `python -m executors.process.child FD`, started by `life.py` with its end of a socketpair, or forked.

    I/O thread    socket -> inbox, a heartbeat every second, and the end of the process when the socket closes
    main thread   an event loop: inbox -> executor, one call after the other, answers to the socket

The I/O thread runs before the executor is imported (which takes seconds), so that an abandoned process does not continue to
load. Code that holds the GIL blocks this thread; then PDEATHSIG ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import setproctitle

from executors import registry
from executors.contract import ExecutorConfig, ModelExecutor
from executors.process import child_logs
from executors.process import messages as m
from executors.process.memory_watch import MemoryWatch
from executors.process.wire import FrameDecoder, WireError, encode
from executors.process.worker import Worker

TITLE, STANDBY_TITLE = "cohort: executor rank {}", "cohort: standby executor"
EXIT_PARENT_GONE, EXIT_FAILED, EXIT_GARBAGE = 0, 1, 3
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_READ_BYTES = 1 << 18
_OOM_SCORE, _STANDBY_OOM_SCORE = 500, 800
"""What is added to the kernel's measure of which process to kill for memory: that of the server is as it was."""
_STANDBY_RESERVES = 2.0
"""How many times the memory that an executor leaves free must be free for a process that stands by."""


class Channel:
    """The child's end of the socket, for both threads. If the parent is gone, either thread ends the process."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._lock = threading.Lock()
        # One buffer for all reads: as new objects, cut down to what has come, they leave the heap full of holes.
        self._buffer = memoryview(bytearray(_READ_BYTES))

    def send(self, message: m.ToServer) -> None:
        """Send a message. Raises WireError, with nothing sent, if it cannot be encoded."""
        frame = encode(message)
        with self._lock:
            self._send(frame)

    def send_if_free(self, message: m.ToServer) -> None:
        """Send unless another message is being sent, which also shows the server that this process is alive."""
        if self._lock.acquire(blocking=False):
            try:
                if self._writable.poll(0):
                    self._send(encode(message))
            finally:
                self._lock.release()

    def receive(self, timeout_s: float) -> memoryview:
        """The bytes received within that time, empty if none; valid until the next call. For one thread."""
        if not self._poll.poll(max(0.0, 1000 * timeout_s)):
            return self._buffer[:0]
        try:
            size = self._sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self._buffer[:0]
        except OSError:
            size = 0
        return self._buffer[:size] if size else _gone()

    def _send(self, frame: bytearray) -> None:
        try:
            self._sock.sendall(frame)
        except OSError:
            _gone()


def _gone() -> NoReturn:
    # No clean-up: it could take long, and there is nothing that the kernel does not free.
    os._exit(EXIT_PARENT_GONE)


class IoThread(threading.Thread):
    """Reads messages and sends heartbeats until the process ends."""

    def __init__(
        self,
        channel: Channel,
        deliver: Callable[[m.ToExecutor | m.Unreadable], None],
        beat: Callable[[], None],
    ) -> None:
        super().__init__(name="io", daemon=True)
        self._channel = channel
        self._deliver = deliver
        self._beat = beat

    def run(self) -> None:
        try:
            self._run()
        except WireError as error:
            print(f"executor: {error}", file=sys.stderr, flush=True)
            os._exit(EXIT_GARBAGE)
        except BaseException as error:  # without this thread the parent's death would go unnoticed
            print(f"executor: I/O thread: {error!r}", file=sys.stderr, flush=True)
            os._exit(EXIT_FAILED)

    def _run(self) -> None:
        decoder: FrameDecoder[m.ToExecutor | m.Unreadable] = FrameDecoder(m.ToExecutor, rescue=m.unreadable)
        interval_s = 1.0
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= due:
                due = now + interval_s
                self._beat()
            data = self._channel.receive(due - now)
            if not data:
                continue
            for message in decoder.feed(data):
                if isinstance(message, m.Load):
                    interval_s = message.heartbeat_s
                    due = min(due, now + interval_s)
                self._deliver(message)


async def serve(
    channel: Channel, memory: int | None, create: Callable[[ExecutorConfig], ModelExecutor]
) -> int:
    """Run until Shutdown; returns the exit code. `memory`: the descriptor of the memory file in a process that was forked.
    `create` makes the executor."""
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[m.ToExecutor | m.Unreadable] = asyncio.Queue()
    worker = Worker(channel.send, channel.send_if_free, _lost_device, create)
    IoThread(channel, lambda message: _put(loop, inbox, message), worker.beat).start()
    watch = MemoryWatch(out_of_memory)
    watch.start()
    if isinstance(first := await inbox.get(), m.StandBy):
        watch.stop()
        watch = MemoryWatch(out_of_memory, reserves=_STANDBY_RESERVES)
        watch.start()
        set_title(STANDBY_TITLE)
        _add_to_oom_score(_STANDBY_OOM_SCORE)
        while isinstance(first, m.StandBy):
            channel.send(m.StandingBy(stand_by(first)))
            first = await inbox.get()
        watch.stop()
        MemoryWatch(out_of_memory).start()
        _add_to_oom_score(_OOM_SCORE)
    if not isinstance(first, m.Load):
        raise WireError(f"the first message is {type(first).__name__}, not Load")
    set_title(TITLE.format(first.config.parallel.rank))
    memory = first.memory if memory is None else memory
    if memory is not None:
        os.set_inheritable(memory, False)  # a compiler that hangs must not keep it
    if not await worker.load(first.config, memory, first.turns):
        return EXIT_FAILED
    gc.collect()
    gc.freeze()  # modules and weights stay: no collection need look at them again
    while not isinstance(message := await inbox.get(), m.Shutdown):
        if not await worker.handle(message):
            return EXIT_FAILED
    await worker.shutdown()
    return 0


def stand_by(message: m.StandBy) -> str:
    """Do what the message asks for; returns the device that is open, "" for none. Raises what the executor's factory raises."""
    return registry.factory(message.config.executor).stand_by(message.config, message.opens_device)


def out_of_memory(reason: str) -> NoReturn:
    """End the process at its container's limit."""
    print(f"executor: {reason}", file=sys.stderr, flush=True)
    os._exit(m.EXIT_MEMORY)


def _lost_device(reason: str) -> NoReturn:
    print(f"executor: the device is lost: {reason}", file=sys.stderr, flush=True)
    os._exit(m.EXIT_DEVICE)


def _put(
    loop: asyncio.AbstractEventLoop,
    inbox: asyncio.Queue[m.ToExecutor | m.Unreadable],
    message: m.ToExecutor | m.Unreadable,
) -> None:
    loop.call_soon_threadsafe(inbox.put_nowait, message)


def creator_of(sock: socket.socket) -> int:
    """Return the id of the process that made the socketpair."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


def bind_to_parent(parent: int) -> None:
    """Die with the parent (more exactly: with the thread of it that started this process)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"executor: no PDEATHSIG: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
    if os.getppid() != parent:  # it died before the prctl
        _gone()


def _wake_in_time() -> None:
    """Reduce the timer slack: by default Linux ends a thread's sleep up to 50 us late, and the poll of a device's step sleeps
    20 us."""
    nanoseconds = 1
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0)


def ignore_signals() -> None:
    """Leave Ctrl-C and `systemctl stop`, which signal every process of the server, to the server: streams that are still open
    need this process while it drains."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def set_title(title: str) -> None:
    """Set what `ps` shows of this process."""
    setproctitle.setproctitle(title)


def _prepare_process() -> None:
    ignore_signals()
    set_title(TITLE.format(0))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # `kill -USR1 PID`: where does it hang?
    # If memory runs out, this process is the one that can be lost: it is started again and every stream goes on.
    _add_to_oom_score(_OOM_SCORE)
    child_logs.configure()


def _add_to_oom_score(score: int) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score))


def run(
    sock: socket.socket,
    parent: int,
    memory: int | None = None,
    create: Callable[[ExecutorConfig], ModelExecutor] = registry.create,
) -> NoReturn:
    """Be the executor process at that socket, a child of `parent`. `memory`, `create`: as for `serve`. Ends by `os._exit`, so
    that threads of libraries cannot delay the end."""
    sock.setblocking(True)
    os.set_inheritable(sock.fileno(), False)
    bind_to_parent(parent)
    _wake_in_time()
    _prepare_process()
    code = EXIT_FAILED
    try:
        code = asyncio.run(serve(Channel(sock), memory, create))
    except BaseException as error:
        print(f"executor: {error!r}", file=sys.stderr, flush=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> NoReturn:
    """Run the process that a command line has started."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    run(sock, creator_of(sock))


if __name__ == "__main__":
    main()
