"""How `cohort demo` looks: a picture that moves in a terminal, lines anywhere else.

Second run: 1,204 of 3,410 tokens

 1 › …Every morning the fox went to the     17 ‖ 54, 55, 56, 57, 58, 59, 60
 ...
Executor 4711 killed by SIGKILL: 32 streams wait, 0.8 s
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from clients.demo.text import Marks, Row, marks_for, row_of
from server.commands.common import console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from clients.demo.session import Job, Kill, Outcome, Pass

_FRAMES = 12
"""Per second."""
_AROUND = 5
"""Lines of a frame beside the streams, and the one where the cursor stands."""
_NARROWEST = 26
"""Columns below which a stream cannot be read."""
_GAP = 2


class PlainView:
    """Lines, each when its time has come; also what both views have in common."""

    def __init__(self, screen: Console | None = None) -> None:
        self.screen = screen or console()
        self.marks = marks_for(self.screen.encoding)

    def loading(self, stage: str) -> None:
        """Nothing: whoever reads a file does not wait."""

    def ready(self, model: str, pid: int, job: Job, *, exact: bool) -> None:
        """What is about to happen, and to whom."""
        self._say(
            f"{_streams(job.streams)} of {model}, seed {job.seed}; its executor is process {pid}", "bold"
        )
        if not exact:
            self._say(
                "--deterministic cannot be had here: float32 instead, and logprobs are not compared", "yellow"
            )

    @asynccontextmanager
    async def passing(self, run: Pass) -> AsyncIterator[None]:
        """While a run lasts."""
        yield
        self._say(summary(run))

    def killed(self, kill: Kill) -> None:
        """The executor is dead."""
        self._say(f"Executor {kill.pid} killed by SIGKILL, {_streams(kill.cut)} in mid-answer")

    def returned(self, kill: Kill) -> None:
        """Another one is ready."""
        self._say(f"Executor {kill.next_pid} took over after {kill.took:.1f} s")

    def conclude(self, run: Pass, outcome: Outcome) -> None:
        """The verdict, after every stream with the places where it was cut."""
        self._say("")
        for number in range(run.count):
            line = _text(row_of(run, number, self.screen.width, self.marks))
            line.rstrip()
            self.screen.print(line, soft_wrap=True)
        self._say("")
        self._say(f"Restarting the executor took {', '.join(f'{kill.took:.1f} s' for kill in outcome.kills)}")
        self._verdict(outcome)

    def close(self) -> None:
        """Nothing moves any more, whatever has happened."""

    def _verdict(self, outcome: Outcome) -> None:
        if outcome.first is not None:
            number, difference = outcome.first
            self._say(f"Stream {number} is the first that differs: {difference}", "red")
        self._say(outcome.line, "bold green" if outcome.first is None else "bold red")

    def _say(self, text: str, style: str = "") -> None:
        self.screen.print(Text(text, style=style), soft_wrap=True)


class TerminalView(PlainView):
    """The streams as they come, redrawn several times a second."""

    def __init__(self, screen: Console | None = None) -> None:
        super().__init__(screen)
        self._status = self.screen.status("starting a server")
        self._status.start()

    def loading(self, stage: str) -> None:
        self._status.update(Text(f"starting a server: {stage}"))

    def ready(self, model: str, pid: int, job: Job, *, exact: bool) -> None:
        self._status.stop()
        super().ready(model, pid, job, exact=exact)

    @asynccontextmanager
    async def passing(self, run: Pass) -> AsyncIterator[None]:
        """The first run leaves a line behind, the second its last picture."""
        last = run.expected is not None
        with Live(console=self.screen, auto_refresh=False, transient=not last) as live:
            drawing = asyncio.create_task(self._draw(run, live))
            try:
                yield
            finally:
                drawing.cancel()
                with suppress(asyncio.CancelledError):
                    await drawing
                live.update(frame(run, self.screen, self.marks, final=last), refresh=True)
        if not last:
            self._say(summary(run))

    async def _draw(self, run: Pass, live: Live) -> None:
        while True:
            live.update(frame(run, self.screen, self.marks), refresh=True)
            await asyncio.sleep(1 / _FRAMES)

    def killed(self, kill: Kill) -> None:
        """The picture shows it."""

    def returned(self, kill: Kill) -> None:
        """The picture shows it."""

    def conclude(self, run: Pass, outcome: Outcome) -> None:
        for kill in outcome.kills:
            told = f"Executor {kill.pid} killed by SIGKILL, {_streams(kill.cut)} in mid-answer"
            self._say(f"{told}; restarted in {kill.took:.1f} s")
        self._verdict(outcome)

    def close(self) -> None:
        """Nothing moves any more, whatever has happened."""
        self._status.stop()


def summary(run: Pass) -> str:
    """One line about a run that is over."""
    name = "First run, undisturbed" if run.expected is None else "Second run"
    return f"{name}: {run.tokens:,} tokens in {run.seconds:.1f} s"


def frame(run: Pass, screen: Console, marks: Marks, *, final: bool = False) -> RenderableType:
    """The picture of a run as it is now; `final` without the banner, for lines that stay follow it."""
    size = screen.size
    rows = max(1, size.height - _AROUND)
    columns = max(1, min(-(-run.count // rows), (size.width + _GAP) // (_NARROWEST + _GAP)))
    per_column = min(rows, -(-run.count // columns))
    shown = min(run.count, per_column * columns)
    width = (size.width + _GAP) // columns - _GAP
    lines = []
    for line in range(per_column):
        text = Text(no_wrap=True, overflow="crop")
        for column in range(columns):
            if (number := column * per_column + line) < shown:
                text.append(" " * _GAP if column else "")
                text.append_text(_text(row_of(run, number, width, marks)))
        lines.append(text)
    left = Text(f"and {_streams(run.count - shown)} more" if shown < run.count else "", "dim", no_wrap=True)
    return Group(_title(run, marks), Text(""), *lines, left, *([] if final else [_banner(run)]))


def _title(run: Pass, marks: Marks) -> Text:
    if run.expected is None:
        return Text(f"First run, undisturbed: {run.tokens:,} tokens, {run.seconds:.1f} s", no_wrap=True)
    total = sum(answer.position for answer in run.expected)
    text = Text(f"Second run: {run.tokens:,} of {total:,} tokens, {run.seconds:.1f} s", no_wrap=True)
    if run.kills:
        text.append("; killed at ").append(marks.seam, style="bold red")
    return text


def _banner(run: Pass) -> Text:
    """What has happened to the executor."""
    if not run.kills:
        return Text("")
    kill = run.kills[-1]
    waiting = sum(run.is_waiting(number) for number in range(run.count))
    if kill.back is None:
        since = run.began + run.seconds - kill.at
        told = f" Executor {kill.pid} killed by SIGKILL: {_streams(waiting)} waiting, {since:.1f} s "
        return Text(told, style="bold white on red", no_wrap=True)
    told = f" Executor {kill.next_pid} took over from {kill.pid} after {kill.took:.1f} s "
    return Text(told, style="bold black on green", no_wrap=True)


def _text(row: Row) -> Text:
    return Text.assemble(*row)


def _streams(number: int) -> str:
    return f"{number} stream{'s' if number != 1 else ''}"
