"""Files of the disk tier: what is written is read, and what is not as it was written is refused."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engine.kv.disk.directory import CacheDirectory, buffer
from engine.kv.disk.format import ALIGNMENT, BadFile, Chain, Entry, check_chain, encode_header

SIZE, BLOCK = 5000, 4
ROOT = bytes(range(32))


def chain(tokens: list[int], root: bytes = ROOT, fingerprint: str = "a") -> Chain:
    entries = tuple(Entry(0, number, 100 + number) for number in range(len(tokens) // BLOCK))
    return Chain(fingerprint, root, BLOCK, (SIZE,), np.array(tokens, np.int32), entries, "m")


def data_of(one: Chain) -> memoryview:
    data = buffer(one.data_bytes)
    for number in range(len(one.entries)):
        begin = number * 2 * ALIGNMENT
        data[begin : begin + SIZE] = bytes([number + 1]) * SIZE
    return data


def opened(path: Path, limit: int = 1 << 30) -> CacheDirectory:
    directory = CacheDirectory(path, limit)
    directory.open()
    return directory


def stored(directory: CacheDirectory, one: Chain, age: float = 0.0) -> str:
    file, _ = directory.write(one, data_of(one), time.time() - age)
    assert file is not None
    return file.path


def test_what_is_written_is_read_by_the_next_server(tmp_path: Path) -> None:
    one = chain(list(range(12)))
    first = opened(tmp_path)
    path = stored(first, one)
    first.close()
    second = opened(tmp_path)
    [file] = second.files.values()
    assert (file.path, file.own) == (path, True)
    assert file.chain.keys() == one.keys() and file.chain.entries == one.entries
    into = buffer(4 * ALIGNMENT)
    second.read(path, [0, 2], into)
    assert into[0] == 1 and into[SIZE - 1] == 1 and into[2 * ALIGNMENT] == 3


def test_files_under_the_lock_of_another_are_read_and_never_deleted(tmp_path: Path) -> None:
    first = opened(tmp_path)
    path = stored(first, chain(list(range(8))))
    second = opened(tmp_path, limit=40 * ALIGNMENT)
    assert [file.own for file in second.files.values()] == [False]
    for begin in range(8):  # more than the limit
        stored(second, chain(list(range(begin, begin + 16))))
    second.refuse(path, "damaged")
    second.delete(path)
    assert Path(path).exists() and second.num_bytes <= 40 * ALIGNMENT


def test_the_least_recently_used_file_leaves(tmp_path: Path) -> None:
    directory = opened(tmp_path, limit=14 * ALIGNMENT)
    old = stored(directory, chain(list(range(8))), age=20)
    older = stored(directory, chain(list(range(50, 58))), age=40)
    directory.stamp(directory.use([older]))
    file, gone = directory.write(chain(list(range(90, 98))), data_of(chain(list(range(90, 98)))), time.time())
    assert file is not None and gone == [old]
    assert {one.path for one in directory.files.values()} == {older, file.path}
    assert not Path(old).exists()


def test_a_chain_that_is_larger_than_the_limit_is_not_written(tmp_path: Path) -> None:
    directory = opened(tmp_path, limit=3 * ALIGNMENT)
    one = chain(list(range(16)))
    assert directory.write(one, data_of(one), time.time()) == (None, [])
    assert not list(tmp_path.glob("*/*.kv"))


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        directory.write(chain(list(range(8))), data_of(chain(list(range(8)))), time.time())
    assert [path.name for path in next(tmp_path.glob("server-*")).iterdir()] == ["lock"]


def test_a_look_for_files_leaves_those_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server looks for files of others while it writes."""
    directory, sync = opened(tmp_path), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (directory.scan(), sync(descriptor)))
    path = stored(directory, chain(list(range(8))))
    assert Path(path).exists() and list(directory.files) == [path]


def test_a_file_that_is_complete_while_others_are_looked_for_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, listed = opened(tmp_path), Path.iterdir
    paths: list[str] = []

    def list_and_write(folder: Path) -> list[Path]:
        found = list(listed(folder))
        paths.append(stored(directory, chain(list(range(8)))))
        return found

    monkeypatch.setattr(Path, "iterdir", list_and_write)
    directory.scan()
    assert list(directory.files) == paths


def test_a_directory_that_is_deleted_is_made_anew(tmp_path: Path) -> None:
    first = opened(tmp_path / "cache")
    stored(first, chain(list(range(8))))
    shutil.rmtree(tmp_path / "cache")
    path = stored(first, chain(list(range(8))))
    assert Path(path).exists()
    second = opened(tmp_path / "cache")
    assert [file.own for file in second.files.values()] == [False], "the new folder is locked, too"
    first.scan()
    assert list(first.files) == [path]


_WRITER = """
import pathlib, sys, time
from tests.engine.kv.disk.test_directory import chain, data_of, opened
directory = opened(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    one = chain([number] * 4 * 200)
    directory.write(one, data_of(one), time.time())
    number += 1
"""


def test_a_server_that_is_killed_while_it_writes_leaves_complete_files_only(tmp_path: Path) -> None:
    for delay in (0.02, 0.05, 0.11):
        command = [sys.executable, "-c", _WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        directory = opened(tmp_path)
        assert directory.refused == {}
        into = buffer(2 * ALIGNMENT)
        for file in list(directory.files.values()):
            directory.read(file.path, [199], into)
            assert into[0] == 200
        assert not list(tmp_path.glob("*/.*.tmp"))
        directory.close()


def test_damaged_headers_and_cut_files_are_refused(tmp_path: Path) -> None:
    rng = random.Random(1)
    whole = chain(list(range(32)))
    for number in range(300):
        sub = tmp_path / str(number)
        directory = opened(sub)
        path = Path(stored(directory, whole))
        directory.close()
        content = bytearray(path.read_bytes())
        header = len(encode_header(whole))
        if number % 2:
            at = rng.randrange(header)
            content[at] ^= 1 << rng.randrange(8)
        else:
            del content[rng.randrange(len(content)) :]
        path.write_bytes(content)
        again = opened(sub)
        assert not again.files and sum(again.refused.values()) == 1
        assert not path.exists()
        again.close()


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 5000, b"COHORTKV" + b"\xff" * 9000])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path).close()
    next(tmp_path.glob("server-*")).joinpath("foreign.kv").write_bytes(content)
    directory = opened(tmp_path)
    assert not directory.files and sum(directory.refused.values()) == 1


def test_a_chain_is_compared_by_its_tokens_and_not_by_a_key() -> None:
    tokens = np.arange(12, dtype=np.int32)
    one = chain(tokens.tolist())
    check_chain(one, "a", ROOT, (SIZE,), tokens[:8], BLOCK)
    other = tokens.copy()
    other[3] += 1
    with pytest.raises(BadFile) as refused:
        check_chain(one, "a", ROOT, (SIZE,), other, BLOCK)
    assert refused.value.reason == "other_tokens"
    for arguments in (("b", ROOT, (SIZE,)), ("a", bytes(32), (SIZE,)), ("a", ROOT, (SIZE, 1))):
        with pytest.raises(BadFile) as refused:
            check_chain(one, *arguments, tokens, BLOCK)
        assert refused.value.reason == "stale"
