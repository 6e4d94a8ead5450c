"""What tests read from the Dockerfile without building it: its instructions, and what an image says of itself.

It knows no more of the language than the file uses; `make test-external ONLY=image` builds the file.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field

from tests.ops.expressions import ROOT

TEXT = (ROOT / "Dockerfile").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Instruction:
    """`word`, its options (`--from=wheel`) and the rest of its line, with continuations joined."""

    word: str
    options: tuple[str, ...]
    text: str


@dataclass(slots=True)
class Stage:
    """`parent` is another stage's name or an image's."""

    parent: str
    instructions: list[Instruction] = field(default_factory=list)

    def texts(self, word: str) -> list[str]:
        """The texts of all instructions of this word."""
        return [one.text for one in self.instructions if one.word == word]


def instructions(text: str = TEXT) -> list[Instruction]:
    """All of a Dockerfile, in order."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, *options_and_rest = line.split(None, 1)
        rest = options_and_rest[0] if options_and_rest else ""
        options = []
        while match := re.match(r"(--\S+)\s+", rest):
            options.append(match[1])
            rest = rest[match.end() :]
        found.append(Instruction(word, tuple(options), rest.strip()))
    return found


def stages() -> dict[str, Stage]:
    """The stages by name, in order."""
    found: dict[str, Stage] = {}
    for one in instructions():
        if one.word == "FROM":
            parent, name = one.text.split(" AS ")
            found[name] = Stage(parent)
        elif found:
            found[next(reversed(found))].instructions.append(one)
    return found


def env() -> dict[str, str]:
    """The variables of an image of target cpu."""
    return dict(word.split("=", 1) for word in shlex.split(of_image("ENV")))


def of_image(word: str) -> str:
    """The text of the one instruction of this word in stage runtime."""
    [text] = stages()["runtime"].texts(word)
    return text


def health_check() -> tuple[dict[str, str], list[str]]:
    """Options of HEALTHCHECK by name, and its command."""
    [one] = [one for one in stages()["runtime"].instructions if one.word == "HEALTHCHECK"]
    command = json.loads(one.text.removeprefix("CMD "))
    return dict(option.removeprefix("--").split("=", 1) for option in one.options), command
