"""`cohort cache` beside a server that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.commands.cache import clear
from tests.engine.kv.disk.test_directory import chain, opened, stored


def test_clear_leaves_the_folder_of_a_server_that_has_written_nothing_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = opened(tmp_path)
    stored(ended, chain(list(range(8))))
    running = opened(tmp_path)
    ended.close()
    clear(tmp_path)
    assert capsys.readouterr().out == "1 files deleted\n"
    assert sorted(tmp_path.iterdir()) == running.own_folders
    assert Path(stored(running, chain(list(range(8))))).parent == running.own_folders[0]
    clear(tmp_path)
    assert capsys.readouterr().out == "0 files deleted; 1 are held by running servers\n"
    running.close()
    clear(tmp_path)
    assert capsys.readouterr().out == "1 files deleted\n" and not list(tmp_path.iterdir())
