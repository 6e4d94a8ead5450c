"""Lines of a streamed answer that break at words, at the width that the terminal has at that moment.

Text comes in pieces that end anywhere. A word is written once it is complete, for only then is it known whether it fits the line;
what can break behind every character (Chinese, Japanese) is written at once. Code between fences is written as it comes: a break
of ours would be part of what a person copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import get_character_cell_size

_SPACES = " \t\u3000"
_TAB = 8
"""Columns between the tab stops of a terminal."""
_FENCE = re.compile(r"(`{3,}|~{3,})[^`]*")
_MARKER = re.compile(r"[-*+•>]|\d{1,3}[.)]")
"""What begins an item of a list or a quotation: the lines that follow begin below its text."""
_NOT_FIRST = frozenset("、。，．：；！？）」』】》〉〕ー々…‥・,.:;!?)]}")
"""Characters that begin no line: a wide character before one of them stays with it."""
_JOINER = "\u200d"
"""Makes one picture of the two beside it."""
_NOT_LAST = frozenset("（「『【《〈〔([{")


def cells(text: str) -> int:
    """Columns of the screen that a text takes: two for a wide character, none for a combining one."""
    return sum(map(get_character_cell_size, text))


def _belong_together(first: str, second: str) -> bool:
    """Whether no line ends between two characters, one of which is wide: punctuation, combining marks, parts of one picture."""
    if second in _NOT_FIRST or first in _NOT_LAST or not get_character_cell_size(second):
        return True
    flags = "\U0001f1e6" <= first <= "\U0001f1ff" and "\U0001f1e6" <= second <= "\U0001f1ff"
    return first == _JOINER or "\U0001f3fb" <= second <= "\U0001f3ff" or flags


class WordWrap:
    """`write` gets what the screen is to show, `columns` tells the terminal's width; 0: unknown, nothing is wrapped.

    Owns the column of the cursor, counted from the beginning of the answer's line."""

    def __init__(self, write: Callable[[str], None], columns: Callable[[], int]) -> None:
        self._write = write
        self._columns = columns
        self.column = 0
        self._word = ""
        self._spaces = ""
        """Those before the word: they go if the line breaks there."""
        self._indent = 0
        """Columns before the text of a line that continues one."""
        self._words = 0
        """Number of words of this line of the answer; the marker of a list does not count."""
        self._fence = ""
        """The characters that opened a block of code; empty outside of one."""
        self._code_line = ""
        """The line of code so far, by which its end is known."""

    def feed(self, text: str) -> None:
        """Write what of the answer can be written after this piece of it."""
        if not self._columns():
            self._put(text)
            self.column = cells(text.rpartition("\n")[2]) + (0 if "\n" in text else self.column)
            return
        for character in text:
            if self._fence:
                self._code(character)
            elif character == "\n":
                self._end_line()
            elif character in _SPACES:
                self._end_word()
                self._spaces += character
            else:
                self._letter(character)

    def flush(self) -> None:
        """Write the word that was not complete: the answer is at its end, or another kind of text follows."""
        self._end_word()

    def end(self) -> None:
        """Write the rest and end the line, unless the cursor is at the beginning of one."""
        self.flush()
        if self.column:
            self._write("\n")
        self._start_line()
        self._fence = self._code_line = ""

    def _letter(self, character: str) -> None:
        """A wide character may begin a line and may be followed by a break, but for punctuation that stays with its text."""
        before = self._word[-1:]
        if before and max(cells(before), cells(character)) > 1 and not _belong_together(before, character):
            self._end_word()
        self._word += character
        if cells(self._word) + self._indent >= self._columns():
            self._end_word()  # longer than any line: nothing is gained by waiting

    def _end_word(self) -> None:
        if not self._word:
            return
        columns, word, spaces = self._columns(), self._word, self._spaces
        self._word = self._spaces = ""
        if not self._words and (fence := _FENCE.fullmatch(word)):
            self._fence = fence[1]
            self._put(spaces + word)
            return
        begins = self.column == 0
        width, gap = cells(word), self._width_of(spaces)
        if not begins and self.column + gap + width > columns:
            self._break_line()
            spaces = ""
        elif gap >= columns:
            spaces, gap = "", 0  # no room for anything behind them
        self._put(spaces)
        self._put_hard(word, columns)
        marker = bool(begins and _MARKER.fullmatch(word))
        if begins:
            indent = gap + (width + 1 if marker else 0)
            self._indent = indent if indent <= columns // 3 else 0
        self._words += not marker

    def _put_hard(self, word: str, columns: int) -> None:
        """A word that is longer than a line fills it to its end."""
        if self.column + cells(word) <= columns:
            self._put(word)
            return
        for character in word:
            size = get_character_cell_size(character)
            if self.column and self.column + size > columns:
                self._break_line()
            self._put(character)

    def _break_line(self) -> None:
        self._write("\n" + " " * self._indent)
        self.column = self._indent

    def _put(self, text: str) -> None:
        if text:
            self._write(text)
            self.column += self._width_of(text)

    def _width_of(self, text: str) -> int:
        """Columns of a text that begins where the cursor is."""
        if "\t" not in text:
            return cells(text)
        column = self.column
        for character in text:
            column += _TAB - column % _TAB if character == "\t" else get_character_cell_size(character)
        return column - self.column

    def _end_line(self) -> None:
        self._end_word()
        self._write("\n")
        self._start_line()

    def _start_line(self) -> None:
        self.column = self._indent = self._words = 0
        self._word = self._spaces = ""

    def _code(self, character: str) -> None:
        """Within a fence. A line that is nothing but this fence ends the block."""
        self._write(character)
        if character != "\n":
            self.column += _TAB if character == "\t" else get_character_cell_size(character)
            self._code_line += character
            return
        line, self._code_line = self._code_line.strip(), ""
        if line and set(line) == {self._fence[0]} and len(line) >= len(self._fence):
            self._fence = ""
        self._start_line()
