"""What is kept of parts that did not pass: one file, for a machine that is gone when its logs are wanted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.gpu_check.plan import Part
from tools.gpu_check.record import Outcome, Record, State
from tools.neutral_paths import neutral

EACH_END = 100_000
"""Bytes of a log that are kept of its beginning, and as many of its end."""
_MOST_WARNINGS = 500_000
"""Bytes of different warnings of a part."""
_WARNING = re.compile(rb"warning|\b(?:ERROR|CRITICAL)\b|^\[?[WEF]\d{4}[ \]]", re.IGNORECASE)
"""Of logging, of Python's and pytest's warnings, and of torch's C++ side ("[W1125 12:00:00 ...")."""


def write(record: Record, parts: Sequence[Part], logs: Path, path: Path) -> Path | None:
    """Write the evidence of all parts that did not pass to the file at `path`, and return it; none where all passed, or none was
    begun: one that an earlier call left there is removed then. `logs`: the folder with the parts' logs. The
    machine's paths are renamed as in a result."""
    sections = []
    for part in parts:
        outcome = record.outcomes.get(part.name)
        log = logs / f"{part.name}.log"
        if outcome is None or outcome.state is State.PASS or not (log.exists() or outcome.detail):
            continue
        sections.append(_section(part, outcome, log.read_bytes() if log.exists() else None))
    if not sections:
        path.unlink(missing_ok=True)
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.part")
    told = neutral(b"\n".join(sections).decode("utf-8", "surrogateescape"))
    fresh.write_bytes(told.encode("utf-8", "surrogateescape"))
    fresh.replace(path)
    return path


def _section(part: Part, outcome: Outcome, log: bytes | None) -> bytes:
    head = f"==== {part.name}: {outcome.state}, {outcome.seconds:.1f} s\n"
    # Behind the first line of a detail stands the end of the log.
    detail = outcome.detail if log is None else outcome.detail.partition("\n")[0]
    head = f"{head}{detail}\n"
    if log is None:
        return f"{head}---- no log here: the part was not begun, or in a call on another machine\n".encode()
    return b"".join(
        (
            head.encode(),
            b"---- warnings, each once\n", warnings(log),
            f"---- log, {len(log):,} bytes\n".encode(), ends(log), b"\n",
        )
    )  # fmt: skip


def ends(log: bytes) -> bytes:
    """The beginning and the end of a log; all of it where that is no more."""
    left_out = len(log) - 2 * EACH_END
    if left_out <= 0:
        return log
    return log[:EACH_END] + f"\n.... {left_out:,} bytes are left out ....\n".encode() + log[-EACH_END:]


def warnings(log: bytes) -> bytes:
    """Lines of a log that warn, in the order in which they first came, with how often they did."""
    counts = Counter(line for line in log.splitlines() if _WARNING.search(line))
    lines: list[bytes] = []
    size = 0
    for line, count in counts.items():
        size += len(line)
        if size > _MOST_WARNINGS:
            lines.append(f".... {len(counts) - len(lines):,} more are left out ....".encode())
            break
        lines.append(line if count == 1 else f"({count} times) ".encode() + line)
    return b"".join(line + b"\n" for line in lines)
