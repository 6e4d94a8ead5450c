"""The thread that reads what children write to stderr."""

from __future__ import annotations

import os
import threading

import pytest

from server.system.log_drain import LogDrain


def test_a_descriptor_may_be_taken_again_the_moment_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child starts while another one's end is handled, as after the executor's death: the new pipe gets the number that was
    just closed."""
    arrived = threading.Event()
    lines: list[tuple[str, bytes]] = []

    def emit(process: str, text: bytes) -> None:
        lines.append((process, text))
        arrived.set()

    drain = LogDrain(emit)
    first = drain.open("first")
    [reading] = drain._pipes
    opened = threading.Event()
    writing: list[int] = []
    close = os.close

    def close_and_open(descriptor: int) -> None:
        close(descriptor)
        if descriptor == reading and not writing:
            writing.append(drain.open("second"))
            opened.set()

    monkeypatch.setattr(os, "close", close_and_open)
    close(first)
    assert opened.wait(5)
    monkeypatch.undo()
    assert reading in drain._pipes
    os.write(writing[0], b"a line\n")
    assert arrived.wait(5)
    assert lines == [("second", b"a line\n")]
    close(writing[0])
