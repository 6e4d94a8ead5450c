"""`Progress`: how far the loading of a model is, as /ready, the console, a log and a terminal tell it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_LABELS = {
    "starting": "starting the executor's process",
    "importing": "importing the executor",
    "loading": "loading the executor",
    "weights": "loading weights",
    "dummy weights": "loading dummy weights",
    "KV cache": "allocating the KV cache",
    "warmup": "warming up",
}
"""Texts by the executor's names of its stages; other stages are their own text."""
_SIZES = 10_000_000
"""Totals from here on are bytes: no stage counts so many things of another kind."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`stage`: its name, or a text for people. `done` and `total` are in the stage's own unit, mostly bytes; `total` is 0 if it
    is unknown. `since`: when the stage began, by `time.monotonic`."""

    stage: str
    done: int = 0
    total: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def phase(self) -> str:
        """One word for programs, or a name of the executor's: downloading, weights, compiling, ..."""
        return self.stage if self.stage in _LABELS else self.stage.partition(" ")[0].rstrip(":")

    @property
    def label(self) -> str:
        """What is done, for people."""
        return _LABELS.get(self.stage, self.stage)

    def text(self, now: float | None = None) -> str:
        """The label, how much is done, and for how many seconds: loading weights 45% of 2.5 GB, 6 s."""
        text = self.label
        if self.total:
            text += f" {round(100 * self.done / self.total)}%"
        if self.total >= _SIZES:
            text += (
                f" of {self.total / 1e9:.1f} GB" if self.total >= 1e9 else f" of {self.total / 1e6:.0f} MB"
            )
        seconds = (time.monotonic() if now is None else now) - self.since
        return f"{text}, {seconds:.0f} s so far" if seconds >= 1 else text


def after(before: Progress | None, stage: str, done: int, total: int, now: float | None = None) -> Progress:
    """The progress that a report at `now` makes of the one before it: a stage that goes on keeps its beginning."""
    now = time.monotonic() if now is None else now
    same = before is not None and before.stage == stage
    return Progress(stage, done, total, before.since if before is not None and same else now)
