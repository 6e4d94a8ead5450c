"""The recording and its summary, as files that name neither a machine's paths nor its hosts."""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.first_minutes.session import Session
from tools.first_minutes.terminal import COLUMNS, ROWS
from tools.neutral_paths import neutral

_HOST = re.compile(r"(https?://)(?!127\.0\.0\.1|localhost|\.\.\.)[\w.-]+(?::\d+)?")

_COLOUR = re.compile(r"(\x1b\[[0-?]*[ -/]*[@-~])")
_KEY = re.compile(r"(admin_key=|Admin key of this start: )[\w-]+")


def write_cast(session: Session, path: Path) -> None:
    """The recording in asciinema's format, version 2: a header, and a line for each event (seconds, "o", text)."""
    header = {
        "version": 2, "width": COLUMNS, "height": ROWS, "title": "README's first screen on an empty machine",
        "env": {"TERM": "xterm-256color"},
    }  # fmt: skip
    lines = [json.dumps(header)]
    lines += [
        json.dumps([round(at, 3), "o", _without_secrets(text)]) for at, text in session.recording.events
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def summary(session: Session, faults: list[str], limits: dict[str, float], commit: str) -> dict[str, Any]:
    """What README's figures are read from. Seconds everywhere."""
    worst = max(session.done, key=lambda done: done.longest_silence)
    result = {
        "measured": {
            "date": datetime.now(UTC).date().isoformat(), "commit": commit, "cpu": _cpu(), "cores": os.cpu_count(),
            "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
            "python": platform.python_version(), "load_average": [round(load, 1) for load in os.getloadavg()],
        },
        "limits_s": limits,
        "first_answer_s": session.first_answer_s and round(session.first_answer_s, 1),
        "longest_silence_s": round(worst.longest_silence, 2),
        "longest_silence_in": worst.command.text,
        "answer": session.answer,
        "answer_is_readmes": session.as_shown,
        "commands": [
            {
                "command": done.command.text, "seconds": round(done.seconds, 1),
                "longest_silence_s": round(done.longest_silence, 2), "exit_code": done.code,
            }
            for done in session.done
        ],
        "faults": faults,
    }  # fmt: skip
    return json.loads(_without_secrets(json.dumps(result)))  # type: ignore[no-any-return]


def _without_secrets(text: str) -> str:
    """Without hosts, paths and the key of a start. A colour's escape sequence ends in a letter, which would hide a path."""
    pieces = _COLOUR.split(_KEY.sub(r"\1...", _HOST.sub(r"\1...", text)))
    return "".join(str(neutral(piece)) for piece in pieces)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
