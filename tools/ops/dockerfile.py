"""Reads a Dockerfile: as much of the language as ours uses, and a clear error for the rest.

The syntax is that of the Dockerfile reference. Left out: heredocs, ONBUILD, ADD, SHELL, mounts, escape directives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_METADATA = frozenset({"LABEL", "EXPOSE"})
_KNOWN = frozenset(
    {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)  # fmt: skip
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-+])([^}]*))?\}|\$(\w+)")
_PAIR = re.compile(r"""([\w.]+)=("(?:[^"\\]|\\.)*"|\S+)\s*""")


class DockerfileError(ValueError):
    """A line that is malformed or that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`word` in upper case, and the rest of its line with continuations joined."""

    word: str
    text: str


@dataclass(slots=True)
class Stage:
    """`parent` is another stage's name or an image."""

    name: str
    parent: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass(slots=True)
class Image:
    """What a container of a stage starts with; a stage inherits its parent's."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"

    def apply(self, instruction: Instruction, arguments: Mapping[str, str] | None = None) -> None:
        """Take over an instruction that changes no file. Raises DockerfileError for any other, and for shell forms."""
        word, text = instruction.word, instruction.text
        if word == "ENV":
            self.env |= {
                name: expand(value, self.env | dict(arguments or {})) for name, value in _pairs(text)
            }
        elif word == "WORKDIR":
            self.workdir = text
        elif word == "USER":
            self.user = text
        elif word == "VOLUME":
            self.volumes += exec_form(text)
        elif word == "ENTRYPOINT":
            self.entrypoint, self.cmd = exec_form(text), []
        elif word == "CMD":
            self.cmd = exec_form(text)
        elif word == "STOPSIGNAL":
            self.stop_signal = text
        elif word == "HEALTHCHECK":
            options, _, command = text.partition("CMD ")
            if not all(option.startswith("--") for option in options.split()):
                raise DockerfileError(f"HEALTHCHECK {text}: only options may stand before CMD")
            self.healthcheck = exec_form(command)
        elif word not in _METADATA:
            raise DockerfileError(f"{word} changes files")


def parse(text: str) -> tuple[dict[str, str], dict[str, Stage]]:
    """Defaults of the ARGs before the first FROM, and the stages by name, in order. Raises DockerfileError."""
    globals_: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for instruction in _instructions(text):
        if instruction.word == "FROM":
            match = re.fullmatch(r"(\S+)\s+AS\s+(\S+)", instruction.text, re.I)
            if match is None:
                raise DockerfileError(f"FROM {instruction.text}: 'FROM image AS name' is expected")
            stages[match[2]] = Stage(match[2], expand(match[1], globals_))
        elif stages:
            stages[next(reversed(stages))].instructions.append(instruction)
        elif instruction.word == "ARG":
            name, default = argument(instruction.text)
            globals_[name] = default
        else:
            raise DockerfileError(f"{instruction.word} before the first FROM")
    return globals_, stages


def image_of(stages: Mapping[str, Stage], target: str) -> Image:
    """The image's settings for `target`, its ancestors' included."""
    stage = stages[target]
    image = image_of(stages, stage.parent) if stage.parent in stages else Image()
    for instruction in stage.instructions:
        if instruction.word not in ("RUN", "COPY", "ARG"):
            image.apply(instruction)
    return image


def argument(text: str) -> tuple[str, str]:
    """Name and default of an ARG; "" where it has none."""
    name, _, default = text.partition("=")
    return name, default.strip('"')


def copy_of(text: str) -> tuple[str | None, list[str], str]:
    """The stage that a COPY takes from (None: the build context), its sources and its destination."""
    words = text.split()
    source = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
    if len(words) < 2 or any(word.startswith("--") for word in words):
        raise DockerfileError(f"COPY {text}: '[--from=stage] source... destination' is expected")
    return source, words[:-1], words[-1]


def exec_form(text: str) -> list[str]:
    """A JSON list of strings. Raises DockerfileError for the shell form, whose shell would swallow signals."""
    try:
        words = json.loads(text)
    except json.JSONDecodeError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DockerfileError(f"{text}: the exec form is expected, a JSON list of strings")
    return words


def expand(text: str, values: Mapping[str, str]) -> str:
    """`$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+alternative}` replaced; an unknown name is empty."""

    def value(match: re.Match[str]) -> str:
        known = values.get(match[1] or match[4], "")
        if match[2] == "-":
            return known or str(match[3])
        return str(match[3]) if match[2] == "+" and known else "" if match[2] == "+" else known

    return _VARIABLE.sub(value, text)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() not in _KNOWN | _METADATA:
            raise DockerfileError(f"{word}: an instruction that is not read here")
        yield Instruction(word.upper(), rest.strip())


def _pairs(text: str) -> list[tuple[str, str]]:
    if _PAIR.sub("", text):
        raise DockerfileError(f"ENV {text}: NAME=VALUE pairs are expected")
    found: list[Any] = _PAIR.findall(text)
    return [(name, value.strip('"')) for name, value in found]
