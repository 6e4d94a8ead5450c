"""Memory that outlives the process that wrote it."""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.memory_file import MemoryFile

PAGE = mmap.PAGESIZE


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile.create("test")
    yield made
    made.close()


def test_it_grows_and_never_shrinks(file: MemoryFile) -> None:
    assert (file.size, file.resident_bytes) == (0, 0)
    file.grow(8 * PAGE)
    file.grow(4 * PAGE)
    assert file.size == 8 * PAGE
    with pytest.raises(PermissionError):
        os.ftruncate(file.descriptor, PAGE)


def test_holes_are_memory_given_back(file: MemoryFile) -> None:
    file.grow(8 * PAGE)
    with mmap.mmap(file.descriptor, 8 * PAGE) as memory:
        memory[:] = b"x" * len(memory)
        assert file.resident_bytes == 8 * PAGE
        file.punch(2 * PAGE, 4 * PAGE)
        assert file.resident_bytes == 6 * PAGE and file.size == 8 * PAGE
        assert memory[: 2 * PAGE] == b"x" * 2 * PAGE and memory[2 * PAGE : 4 * PAGE] == bytes(2 * PAGE)
        assert file.empty() and file.resident_bytes == 0 and memory[:] == bytes(8 * PAGE)


def test_an_empty_one_is_emptied_and_a_refusal_is_no_error(
    file: MemoryFile, caplog: pytest.LogCaptureFixture
) -> None:
    assert file.empty()
    with pytest.raises(OSError) as raised:
        MemoryFile(99_999).punch(0, PAGE)
    assert raised.value.errno == errno.EBADF
    with caplog.at_level(logging.WARNING):
        assert not MemoryFile(99_999).empty()
    assert "cannot be given back" in caplog.text


def test_a_closed_one_reaches_no_other_file_of_its_number(tmp_path: Path) -> None:
    file = MemoryFile.create("test")
    number = file.descriptor
    file.close()
    file.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    assert other == number
    os.write(other, b"x" * PAGE)
    assert not file.empty() and file.resident_bytes == 0
    assert os.pread(other, PAGE, 0) == b"x" * PAGE
    os.close(other)


def test_another_process_finds_what_was_written(file: MemoryFile) -> None:
    file.grow(PAGE)
    if not (child := os.fork()):
        with mmap.mmap(file.descriptor, PAGE) as memory:
            memory[:4] = b"kept"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(file.descriptor, 4, 0) == b"kept"
