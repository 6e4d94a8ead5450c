"""`KnownPace`: how fast a model computes, from one load of its files to the next."""

from __future__ import annotations

from pathlib import Path

from executors.contract import Pace
from server.model_files.prepared import model_file


class KnownPace:
    """What the latest load of a model has measured: the next one need not try steps out, if the files are the same."""

    def __init__(self) -> None:
        self._pace: Pace | None = None
        self._files: list[tuple[str, int, int]] = []

    def of(self, model_dir: Path) -> Pace | None:
        """The pace of the files in that directory, None if it was not measured."""
        files = _stamps(model_dir)
        return self._pace if files and files == self._files else None

    def learn(self, model_dir: Path, pace: Pace | None) -> None:
        """A load of these files has ended."""
        self._files, self._pace = _stamps(model_dir), pace


def _stamps(model_dir: Path) -> list[tuple[str, int, int]]:
    """Name, bytes and time of the last change of each weight file."""
    file = model_file(model_dir)
    paths = sorted(model_dir.glob("*.safetensors")) if file is None else [file]
    stats = [(path.name, path.stat()) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
