"""What a load has measured is taken by the next one, of the same files only."""

import os
from pathlib import Path

from executors.contract import Pace
from server.startup.known_pace import KnownPace

PACE = Pace(0.001, ((1, 0.01),))


def test_the_next_load_of_the_same_files_knows_it(tmp_path: Path) -> None:
    known = KnownPace()
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert known.of(tmp_path) is None
    known.learn(tmp_path, PACE)
    (tmp_path / "config.json").write_text("{}")
    assert known.of(tmp_path) == PACE


def test_another_file_in_its_place_is_measured(tmp_path: Path) -> None:
    known = KnownPace()
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    known.learn(tmp_path, PACE)
    os.utime(file, ns=(0, 0))
    assert known.of(tmp_path) is None
    known.learn(tmp_path, PACE)
    (tmp_path / "more.safetensors").write_bytes(b"weights")
    assert known.of(tmp_path) is None


def test_nothing_is_known_of_a_model_without_files(tmp_path: Path) -> None:
    known = KnownPace()
    known.learn(tmp_path, PACE)
    assert known.of(tmp_path) is None
