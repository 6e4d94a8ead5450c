"""`cohort stop`: end a server as a supervisor would, by SIGTERM, and wait until it has."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from server.commands.common import INTERRUPTED, fail, take_interrupts
from server.commands.options import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server.running.registry import RunningServer

_LOOK_EVERY = 0.05
_BEYOND_DRAIN = 15.0
"""Seconds that a server gets beside its drain."""
_DRAIN = 30.0
"""Seconds of one that has not said how long it drains."""
_SILENT = 1.0
"""Seconds after which a person is told what is waited for."""

Target = Annotated[
    Text,
    typer.Argument(
        metavar="[MODEL|PID|ADDRESS]",
        help="Which server: the name of its model, its process id, its address or its port [the only one that runs].",
        show_default=False,
    ),
]


def stop(target: Target = None) -> None:
    """Stop a running server.

    Sends SIGTERM: the server takes no new requests, running ones may finish for its --drain-timeout, and then it ends. Waits for
    that. Where several servers run, MODEL, PID or ADDRESS says which."""
    from server.running import processes
    from server.running.registry import running

    take_interrupts()
    one = chosen(running(os.environ), target)
    started = processes.start_ticks(one.pid)
    try:
        os.kill(one.pid, signal.SIGTERM)
    except ProcessLookupError:
        print(f"{described(one)} has ended.")
        return
    except PermissionError:
        fail(f"{described(one)} is another user's: it cannot be stopped from here", 1)
    wait = _BEYOND_DRAIN + (_DRAIN if one.drain_timeout is None else one.drain_timeout)
    began, announced = time.monotonic(), False
    try:
        while started is not None and processes.start_ticks(one.pid) == started:
            waited = time.monotonic() - began
            if waited > wait:
                fail(
                    f"{described(one)} still runs after {waited:.0f} s; kill -9 {one.pid} ends it at once", 1
                )
            if waited > _SILENT and not announced:
                announced = True
                print(
                    f"Stopping {described(one)}: running requests may finish, for {wait:.0f} s at most",
                    flush=True,
                )
            time.sleep(_LOOK_EVERY)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    print(f"Stopped {described(one)}.")


def chosen(servers: Sequence[RunningServer], target: str | None) -> RunningServer:
    """Return the server that is meant. Ends the process with one line where that is none or not clear."""
    if not servers:
        fail("no server runs on this machine", 1)
    matching = [one for one in servers if target is None or is_meant(one, target)]
    listed = "; ".join(described(one) for one in servers)
    if not matching:
        fail(f"{target}: no running server has this model, process id or address; running: {listed}", 1)
    if len(matching) > 1:
        listed = "; ".join(described(one) for one in matching)
        fail(
            f"{len(matching)} servers {'run' if target is None else f'fit {target}'}: name one by its process id: {listed}"
        )
    return matching[0]


def is_meant(server: RunningServer, target: str) -> bool:
    """Whether `target` is the process id, port, address or a model of a server. A number is a process id or a port."""
    if target in server.models or target.removesuffix(":latest") in server.models:
        return True
    url = urlsplit(server.url or "")
    if target.isdigit():
        return int(target) in (server.pid, url.port)
    other = urlsplit(target if "//" in target else f"//{target}")
    try:
        same_port = other.port is not None and other.port == url.port
    except ValueError:
        return False
    return same_port and _host(other.hostname) == _host(url.hostname)


def _host(name: str | None) -> str | None:
    return "127.0.0.1" if name in ("localhost", "0.0.0.0", "::", "::1") else name


def described(server: RunningServer) -> str:
    """Return how a server is called in a message."""
    models = f" ({', '.join(server.models)})" if server.models else ""
    where = f" at {server.url}" if server.url else ""
    return f"the server {server.pid}{where}{models}"
