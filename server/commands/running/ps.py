"""`cohort ps`: the servers that run on this machine."""

from __future__ import annotations

import os
from typing import Any

from server.commands.common import print_json, size, take_interrupts
from server.commands.options import AsJson


def ps(as_json: AsJson = False) -> None:
    """List the servers that run on this machine.

    Shows process id, address, model, time since the start and main memory, that of the executor included. Addresses of other
    users' servers are not known."""
    take_interrupts()
    rows = running_rows()
    if as_json:
        return print_json(rows)
    if not rows:
        print("No server runs. To start one: cohort serve [MODEL]")
        return None
    from server.commands.list.table import table

    lines = [
        (
            str(row["pid"]),
            row["url"] or "?",
            ", ".join(row["models"]) or "?",
            duration(row["seconds"]),
            size(row["memory"]),
        )
        for row in rows
    ]
    for line in table(("PID", "ADDRESS", "MODEL", "UP", "MEMORY"), lines, right=(3, 4), least=5):
        print(line)
    return None


def running_rows() -> list[dict[str, Any]]:
    """Return a row per server as plain data: `pid`, `url`, `models`, `seconds` since its start, `memory` in bytes."""
    from server.commands.common import CONTROL
    from server.running import processes
    from server.running.registry import running

    return [
        {
            "pid": one.pid,
            "url": None if one.url is None else CONTROL.sub("?", one.url),
            "models": [CONTROL.sub("?", name) for name in one.models],
            "seconds": round(processes.seconds_running(one.pid) or 0.0, 1),
            "memory": processes.memory_bytes(processes.family(one.pid)),
        }
        for one in running(os.environ)
    ]


def duration(seconds: float) -> str:
    """Return a time for a person: 12 s, 3 min, 5.2 h, 8.1 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
