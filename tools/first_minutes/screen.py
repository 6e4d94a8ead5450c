"""What README's first screen asks a newcomer to type, and what it says will be seen."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

END = "\n## Your own model\n"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PACKAGES = re.compile(r"`apt install ([^`]+)`")
_KEY = re.compile(r'"(\w+)":')
_WORD = re.compile(r"[^\W\d_]{4,}")
_CONTENT = re.compile(r'"content":\s*"((?:[^"\\]|\\.)*)"')


@dataclass(slots=True)
class Command:
    """A command with its continuation lines, and the lines of output shown under it; "..." stands for lines left out."""

    text: str
    output: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """The lines of output that are shown whole, as far as each goes."""
        return [line.partition(" ...")[0] for line in self.output if line.strip() not in ("", "...")]

    @property
    def is_question(self) -> bool:
        """Whether it puts a question to a model, and README shows the answer."""
        return bool(self.output) and "?" in self.text

    def complaint(self, output: str) -> str:
        """What is wrong with the output of the command, or "".

        An answer has to be of README's kind: with its keys if it is JSON, else with one of its words. Any other output has to
        have its lines, whatever their numbers."""
        if not self.is_question:
            missing = [line for line in self.lines if _plain(line) not in _plain(output)]
            return f"its output has no line like {missing[0]!r}" if missing else ""
        shown = "\n".join(self.output)
        if shown.startswith("{"):
            absent = sorted(set(_KEY.findall(shown)) - set(_KEY.findall(output)))
            return f"the answer has no {', '.join(absent)}" if absent else ""
        common = set(_WORD.findall(shown)) & set(_WORD.findall(output))
        return "" if common else f"the answer is of another kind than {shown!r}: {output.strip()[:200]!r}"

    def answer(self, output: str) -> str:
        """The model's words in the output of a question."""
        content = _CONTENT.search(output)
        return content[1] if content else output.strip()


def first_screen(readme: str) -> str:
    """README as far as a newcomer reads. Raises ValueError where it has no such part."""
    if END not in readme:
        raise ValueError(f"README has no heading {END.strip()!r}")
    return readme.partition(END)[0]


def commands(screen: str) -> list[Command]:
    """The commands of its console blocks, in order."""
    listed: list[Command] = []
    for block in _BLOCK.findall(screen):
        continues = False
        for line in block.splitlines():
            if continues:
                listed[-1].text += f"\n{line}"
            elif line.startswith("$ "):
                listed.append(Command(line.removeprefix("$ ")))
            elif listed:
                listed[-1].output.append(line)
            continues = line.endswith("\\") and (continues or line.startswith("$ "))
    return listed


def packages(screen: str) -> list[str]:
    """The Debian packages that it asks for."""
    return [name for names in _PACKAGES.findall(screen) for name in names.split()]


def _plain(text: str) -> str:
    """With every number the same: versions, ports, times."""
    return re.sub(r"\d+", "0", text)
