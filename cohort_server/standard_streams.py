"""Standard streams that were closed when the process started. Standard library only; called first in every entry point.

Where one is closed, the next file or socket that is opened takes its place: the port's, say, which children would inherit as
their stdout, and to which a library's print would write. Python has None for such a stream, which has no `isatty`.
"""

from __future__ import annotations

import os
import sys

_NUMBERS = (0, 1, 2)


def reserve_descriptors() -> None:
    """Open /dev/null on those of the descriptors 0, 1 and 2 that are closed; children inherit them."""
    for number in _NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            _open_null(number)


def open_standard_streams() -> None:
    """Reserve the descriptors, and give `sys` streams for those that were closed."""
    reserve_descriptors()
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # for the life of the process
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            stream = open(  # noqa: SIM115  # as above
                number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _open_null(number: int) -> None:
    descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.set_inheritable(number, True)
