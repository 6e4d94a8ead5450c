"""What `cohort chat` shows: its own lines, and answers as they come."""

from __future__ import annotations

import os
import sys

from clients.chat.wrapping import WordWrap
from server.commands.common import CONTROL


class Screen:
    """The terminal of a conversation. `wraps`: whether answers break at words; /set wordwrap and nowordwrap change it."""

    def __init__(self) -> None:
        self.colours = sys.stdout.isatty()
        self.wraps = True

    def columns(self) -> int:
        """Columns of the terminal now, since windows change; 0: lines are not wrapped."""
        if not self.wraps or not sys.stdout.isatty():
            return 0
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns
        except (OSError, ValueError):
            return 0

    def say(self, text: str) -> None:
        """A line of the program's own."""
        print(self._dim(text), flush=True)

    def complain(self, text: str) -> None:
        """What went wrong."""
        print(f"\x1b[31m{text}\x1b[0m" if self.colours else text, flush=True)

    def prompt(self, text: str) -> str:
        """A prompt for readline, to which \\x01 and \\x02 tell what takes no room on the screen."""
        return f"\x01\x1b[1;36m\x02{text}\x01\x1b[0m\x02" if self.colours else text

    def show(self, text: str) -> None:
        """A whole text of a model or a person."""
        writer = AnswerWriter(self)
        writer.write("text", text)
        writer.end()

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.colours else text


class AnswerWriter:
    """One answer, piece by piece. Reasoning is dim and stands on lines of its own."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._kind = ""
        self._wrap = WordWrap(self._write, screen.columns)

    def write(self, kind: str, piece: str) -> None:
        """`kind`: "text" or "reasoning". What would steer the terminal is left out."""
        if kind != self._kind:
            self._wrap.end()
            self._kind = kind
        self._wrap.feed(CONTROL.sub("", piece))
        sys.stdout.flush()

    def end(self) -> None:
        """Write what is left, and end the line."""
        self._wrap.end()
        sys.stdout.flush()

    def _write(self, text: str) -> None:
        dim = self._kind == "reasoning" and self._screen.colours and not text.isspace()
        sys.stdout.write(f"\x1b[2m{text}\x1b[0m" if dim else text)
