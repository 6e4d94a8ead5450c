"""What `cohort demo` prints: lines, each when its time has come."""

from __future__ import annotations

import itertools
import re

from rich.console import Console
from rich.text import Text

from clients.demo.answer import Answer
from server.commands.common import console

SEAM = "┃"
"""Where the executor was killed."""
_PLAIN = str.maketrans({SEAM: "|", "≠": "#", "…": "~"})
"""Marks for a stream that has only a few characters, such as a pipe of Latin-1."""
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Line ends, and what a terminal would take for orders."""


class View:
    """Writes to stdout, or to another console."""

    def __init__(self, screen: Console | None = None) -> None:
        self.screen = screen or console()

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        self.screen.print(Text(self._shown(text), style=style), soft_wrap=True)

    def _shown(self, text: str) -> str:
        """The text in characters that the stream can encode."""
        encoding = self.screen.encoding
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        return text

    def show_rows(self, answers: list[Answer], cuts: list[list[int]], differences: list[str | None]) -> None:
        """A line per stream: = or ≠, and its text around the last cut. `cuts`: for each kill the characters that each stream had
        shown."""
        self.say("")
        width = max(self.screen.width, 20)
        for i, answer in enumerate(answers):
            start = f"{i + 1:>{len(str(len(answers)))}} {'=' if differences[i] is None else '≠'} "
            seams = [lengths[i] for lengths in cuts if lengths[i] < len(answer.text)]
            line = Text(self._shown(start + around_last(answer.text, seams, width - len(start))))
            line.truncate(width)
            self.screen.print(line, soft_wrap=True)
        self.say("")


def around_last(text: str, cuts: list[int], room: int) -> str:
    """At most `room` characters of the text with a seam at each cut, the last of them in the middle."""
    places = [0, *cuts, len(text)]
    pieces = [_UNSEEN.sub(" ", text[a:b]) for a, b in itertools.pairwise(places)]
    begin = len(SEAM.join(pieces[:-1])) - room // 2 if cuts else 0
    return (" " * -begin + SEAM.join(pieces)[max(0, begin) : begin + room]).rstrip()


def streams(number: int) -> str:
    """1 stream, 2 streams."""
    return f"{number} stream{'s' if number != 1 else ''}"
