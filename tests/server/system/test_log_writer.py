"""A log that is not read, or cannot be written: no caller waits, what is missing is counted and told once."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.system.log_writer import LogWriter

F_SETPIPE_SZ = 1031


def notice(count: int) -> bytes:
    return b"missing %d\n" % count


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading and writing end of a pipe of 4 KiB."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass


def read_until(descriptor: int, end: bytes) -> list[bytes]:
    data = b""
    while not data.endswith(end):
        data += os.read(descriptor, 65536)
    return data.splitlines()


def test_what_finds_no_room_is_counted_and_told_in_its_place(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, notice, max_bytes=100_000)
    began = time.perf_counter()
    for number in range(5000):
        writer.put(b"%099d\n" % number)
    assert time.perf_counter() - began < 2, "a caller waited"
    assert writer.dropped > 3000
    assert not writer.flush(0.05)
    dropped = writer.dropped
    # A thread that starts late leaves room once in the middle: then there are two notices, each in its place, or lines behind the
    # only one.
    told, following = 0, 0
    while told < dropped or following < 5000:
        for line in read_until(reading, b"\n"):
            if line.startswith(b"missing "):
                told += (count := int(line.split()[1]))
                following += count
            else:
                assert int(line) == following
                following += 1
    assert told == dropped and following == 5000
    writer.put(b"after\n")
    assert read_until(reading, b"after\n") == [b"after"] and writer.flush(2) and writer.dropped == dropped


def test_a_line_longer_than_the_queue_is_written_if_the_queue_is_empty(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, notice, max_bytes=1000)
    writer.put(b"x" * 20_000 + b"\n")
    assert len(read_until(reading, b"\n")[0]) == 20_000


def test_a_reader_that_is_gone_costs_lines_and_nothing_else(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    writer = LogWriter(writing, notice)
    cpu = time.process_time()
    for _ in range(3):
        writer.put(b"a\nb\n")
        assert writer.flush(2)
    time.sleep(0.1)
    assert writer.dropped == 6 and time.process_time() - cpu < 0.05, "it tries again without end"


def test_a_full_disk_is_told_when_there_is_room_again(tmp_path: Path) -> None:
    target = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(target, notice)
    writer.put(b"lost\n")
    assert writer.flush(2) and writer.dropped == 1
    file = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    os.dup2(file, target)
    writer.put(b"written\n")
    assert writer.flush(2)
    assert (tmp_path / "log").read_bytes() == b"missing 1\nwritten\n" and writer.dropped == 1


def test_a_file_has_a_line_when_put_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    writer = LogWriter(os.open(file, os.O_CREAT | os.O_WRONLY), notice)
    for number in range(100):
        writer.put(b"%d\n" % number)
        assert file.read_bytes().endswith(b"%d\n" % number)
    write, waiting = os.write, threading.Event()

    def slow(descriptor: int, data: bytes) -> int:
        waiting.wait(0.2)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", slow)
    writer.put(b"slow\n")
    began = time.monotonic()
    for _ in range(100):
        writer.put(b"later\n")
    assert time.monotonic() - began < 0.1, "callers wait for a file system that stalls"
    waiting.set()
    assert writer.flush(5) and file.read_bytes().endswith(b"slow\n" + b"later\n" * 100)


def test_a_descriptor_that_others_made_non_blocking(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    writer = LogWriter(writing, notice)
    for number in range(200):
        writer.put(b"%099d\n" % number)
    assert [int(line) for line in read_until(reading, b"199\n")] == list(range(200)) and writer.dropped == 0


def test_threads_keep_their_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, notice)

    def write(name: str) -> None:
        for number in range(300):
            writer.put(f"{name} {number}\n".encode())

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    data = b""
    while data.count(b"\n") < 900:
        data += os.read(reading, 65536)
    for name in "abc":
        mine = [int(line.split()[1]) for line in data.decode().splitlines() if line.startswith(name)]
        assert mine == list(range(300))


def test_a_forked_child_writes_too(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, notice)
    writer.put(b"parent\n")
    assert writer.flush(2)
    child = os.fork()
    if child == 0:
        writer.put(b"child\n")
        os._exit(0 if writer.flush(2) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert read_until(reading, b"child\n") == [b"parent", b"child"]
