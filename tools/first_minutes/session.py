"""Runs the first screen's commands one after another, as a person types them, and judges each.

A command that shows the output which README has of it, and goes on, is a server: it keeps its terminal, and what follows is typed
into another one. The servers get Ctrl-C at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tools.first_minutes.screen import Command
from tools.first_minutes.terminal import Recording, Run, Shell, rendered

_COMMAND_S = 900.0
"""Seconds after which a command that does not end is given up."""
_GOES_ON_S = 1.0
"""Seconds after its last line that tell a server from a command that is about to end."""
_ENDS_S = 60.0
_INTERRUPTED = (0, 2, 130)
"""Exit codes after Ctrl-C; make has one of its own."""


@dataclass(slots=True)
class Done:
    """A command that was run. Seconds; the longest silence in them; the exit code, None if it goes on as a server does."""

    command: Command
    seconds: float
    longest_silence: float
    code: int | None
    output: str


@dataclass(slots=True)
class Session:
    """What was run, when the first answer was there (seconds from the first command), and what it said."""

    recording: Recording
    done: list[Done] = field(default_factory=list)
    first_answer_s: float | None = None
    answer: str = ""
    as_shown: bool = False
    faults: list[str] = field(default_factory=list)
    """One line for each thing that is not as it should be."""


def play(
    commands: Sequence[Command], folder: Path, env: Mapping[str, str], mirror: TextIO | None = None
) -> Session:
    """Run `commands` in `folder`; the first that fails ends it. `mirror`: a terminal that shows what is recorded."""
    session = Session(Recording(mirror))
    shells = [Shell(session.recording, folder, env)]
    try:
        for command in commands:
            done = _run(command, shells)
            session.done.append(done)
            if fault := _fault(done):
                session.faults.append(f"{_short(command)}: {fault}")
                break
            if command.is_question and session.first_answer_s is None:
                session.first_answer_s = time.monotonic() - session.recording.began
                session.answer = command.answer(done.output)
                session.as_shown = session.answer == command.answer("\n".join(command.output))
            if done.code is None:
                shells.append(Shell(session.recording, shells[-1].folder, env))
        for shell in shells[:-1]:
            session.faults += _interrupted(shell)
    finally:
        for shell in shells:
            shell.close()
    return session


def judge(session: Session, silence_s: float, within_s: float) -> list[str]:
    """What is wrong: the session's own faults, a silence of more than `silence_s`, a first answer later than `within_s`."""
    silences = [
        f"{_short(done.command)}: silent for {done.longest_silence:.1f} s"
        for done in session.done
        if done.longest_silence > silence_s
    ]
    late = []
    if session.first_answer_s is None:
        late.append("no question was answered")
    elif session.first_answer_s > within_s:
        late.append(f"the first answer came after {session.first_answer_s:.0f} s")
    return [*session.faults, *silences, *late]


def _run(command: Command, shells: Sequence[Shell]) -> Done:
    shell, run = shells[-1], shells[-1].type(command.text)
    while run.code is None and time.monotonic() - run.typed < _COMMAND_S and not _serves(command, run):
        for other in shells[:-1]:
            other.attend(0)
        shell.attend()
    if run.code is None and not _serves(command, run):
        run.hear(time.monotonic())
    return Done(
        command, run.seconds, run.longest_silence, run.code, _without_echo(command, rendered(run.output))
    )


def _serves(command: Command, run: Run) -> bool:
    """Whether it has shown all that README has of it, and goes on."""
    return (
        bool(command.lines)
        and not command.is_question
        and time.monotonic() - run.last > _GOES_ON_S
        and not command.complaint(_without_echo(command, rendered(run.output)))
    )


def _without_echo(command: Command, text: str) -> str:
    """The output behind the echo of the command; continuation lines have a prompt of their own."""
    return text.split("\n", command.text.count("\n") + 1)[-1]


def _fault(done: Done) -> str:
    if done.code is None and not done.command.lines:
        return f"it has not ended after {done.seconds:.0f} s"
    if done.code:
        return f"exit code {done.code}: {' / '.join(done.output.strip().splitlines()[-3:])}"
    return done.command.complaint(done.output)


def _interrupted(shell: Shell) -> list[str]:
    """End a server with Ctrl-C."""
    run, began = shell.current, time.monotonic()
    shell.interrupt()
    while run.code is None and time.monotonic() - began < _ENDS_S:
        shell.attend()
    return [] if run.code in _INTERRUPTED else [f"after Ctrl-C the server ended with {run.code}"]


def _short(command: Command) -> str:
    return command.text.splitlines()[0][:60]
