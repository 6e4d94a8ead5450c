"""The entry point of the `cohort` command. It imports next to nothing: signals are answered from the first moment."""

from __future__ import annotations

import os
import signal
import sys

from cohort_server.standard_streams import open_standard_streams
from server.system import first_lines
from server.system.environment import drop_empty, tokenize_in_one_thread


def main() -> None:
    """Take signals, then import and run the rest."""
    serves = sys.argv[1:2] in (["serve"], ["ray"])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number == signal.SIGHUP and (not serves or signal.getsignal(number) is signal.SIG_IGN):
            continue  # `nohup`: it is to outlive its terminal
        # Until the event loop takes them over, there is nothing to drain. Without a handler the first process of a
        # container would not even hear of SIGTERM; an exception would surface in the middle of an import.
        signal.signal(number, lambda *_: os._exit(0))
    open_standard_streams()
    if sys.argv[1:2] == ["serve"]:
        first_lines.start(sys.argv[2:], os.environ)
    drop_empty(os.environ)
    if serves:
        tokenize_in_one_thread(os.environ)

    from cohort_server import command_line

    command_line.main()


if __name__ == "__main__":
    main()
