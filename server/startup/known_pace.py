"""`KnownPace`: how fast a model computes, from one load of its files to the next, also of another process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from executors.contract import ExecutorConfig, Pace
from server.model_files.prepared import model_file
from server.models.needs import OF_MODELS, has_gpu
from server.startup import pace_file
from server.startup.pace_file import Stamp

_WRONG = 2.0
"""A pace is measured anew at the next load if steps took more than this many times what it says, or less than its inverse."""


class KnownPace:
    """What the latest load of a model has measured: the next one need not try steps out, if nothing that counts has changed.

    It is kept on disk where a CPU computes. A device's steps are tried out in any case, and nothing here tells its kind.
    """

    def __init__(self) -> None:
        self._key = ""
        """Of the latest load, "" before it, or if the model has no files."""
        self._pace: Pace | None = None
        self._is_kept = False
        """Whether the entry on disk is of this key."""

    def of(self, config: ExecutorConfig) -> Pace | None:
        """The pace of the executor that `config` describes, None if it is to be measured. Reads files."""
        key = ""
        with contextlib.suppress(OSError):  # a file that has just gone
            if files := [*_stamps(config.model), *_stamps(config.optimization.draft_model)]:
                key = pace_file.key_of(config, files)
        if key != self._key or self._pace is None:
            on_cpu = config.device == "cpu" or not has_gpu()
            self._is_kept = bool(key) and on_cpu and config.executor in OF_MODELS
            self._key, self._pace = key, pace_file.read(key) if self._is_kept else None
        return self._pace

    def learn(self, pace: Pace | None) -> None:
        """The load that asked for the pace has ended; its executor has this one, which it was told or has measured."""
        if not self._key or pace is None or pace == self._pace:
            return
        self._pace = pace
        if self._is_kept:
            pace_file.write(self._key, pace)

    def judge(self, ratio: float | None) -> None:
        """The model is unloaded; its last steps took `ratio` times what the pace says, None if that is not known. A pace that is
        kept and far from that is forgotten: it was measured while the machine was busy, or the machine has changed."""
        if self._is_kept and ratio is not None and not 1 / _WRONG <= ratio <= _WRONG:
            self._pace = None
            pace_file.remove(self._key)


def _stamps(directory: str) -> list[Stamp]:
    """The weight files in a model's directory; none for ""."""
    if not directory:
        return []
    folder = Path(directory)
    file = model_file(folder)
    paths = sorted(folder.glob("*.safetensors")) if file is None else [file]
    stats = [(path.name, path.stat()) for path in paths]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
