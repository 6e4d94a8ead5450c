"""Stands in for the judge's process: a question says what is to happen to it. Everything it is asked is noted in a file."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from server.grammar.messages import HEADER, Check, Hello, Setup, Validation, frame


def read(kind: type[msgspec.Struct]) -> msgspec.Struct:
    header = sys.stdin.buffer.read(HEADER.size)
    if len(header) < HEADER.size:
        sys.exit(0)
    return msgspec.msgpack.decode(sys.stdin.buffer.read(HEADER.unpack(header)[0]), type=kind)


def say(message: msgspec.Struct) -> None:
    os.write(1, frame(message))


def answer(question: str, notes: Path) -> None:
    match question.split()[0]:
        case "sleep":
            time.sleep(float(question.split()[1]))
        case "for-ever":
            time.sleep(3600)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed-always":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed-once" if notes.read_text().count(question) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.exit(3)
        case "garbage":
            os.write(1, HEADER.pack(4) + b"\xff\xff\xff\xff")
            time.sleep(3600)
        case "huge":
            os.write(1, HEADER.pack(2**31))
            time.sleep(3600)
        case "bad":
            say(Validation(refused="no good"))
            return
    say(Validation(grammar=question))


def main() -> None:
    notes, mood = Path(sys.argv[1]), sys.argv[2]
    with notes.open("a") as file:
        file.write("born\n")
    if mood == "dies":
        sys.exit(7)
    if mood == "slow to start":
        time.sleep(3600)
    read(Setup)
    say(Hello("not with this one" if mood == "unusable" else ""))
    while isinstance(check := read(Check), Check):
        with notes.open("a") as file:
            file.write(check.grammar + "\n")
        answer(check.grammar, notes)


if __name__ == "__main__":
    main()
