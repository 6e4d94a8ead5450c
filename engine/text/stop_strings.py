"""Stop strings, including those that begin in one token and end in another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopStrings:
    """Watches the text of one choice. Text that may be the beginning of a stop string is held back.

    Each stop string is matched by its Knuth-Morris-Pratt automaton, so that the cost per character is constant for any
    repetitions in the strings and the text: hostile stop strings must not slow down other requests.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple((stop, _borders(stop)) for stop in dict.fromkeys(stops) if stop)
        self._matched_chars = [0] * len(self._stops)
        """Number of characters of each stop string with which the text so far ends."""
        self._include = include
        self._pending = ""
        self.matched: str | None = None

    def push(self, text: str, ignored: bool = False) -> str:
        """Add text; returns the text that may be shown. Once `matched` is set the choice is over, and nothing more is shown.

        A stop string that `ignored` text completes has no effect; one that only begins in it may still match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        for i, char in enumerate(text):
            complete = self._advance(char)
            if complete is not None and not ignored:
                # The match that is complete first wins; of several, the one that began earliest: the longest.
                self.matched = complete
                visible = self._pending + text[: i + 1]
                self._pending = ""
                return visible if self._include else visible[: len(visible) - len(complete)]
        text = self._pending + text
        keep = max(self._matched_chars)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def skip(self, text: str) -> str:
        """Add text in which no stop string counts, and over which none extends; returns the text that may be shown."""
        if self.matched is not None or not text:
            return ""
        self._matched_chars = [0] * len(self._stops)
        return self.flush() + text

    def _advance(self, char: str) -> str | None:
        """Match one more character; returns the longest stop string that it completes, if any."""
        complete: str | None = None
        for k, (stop, borders) in enumerate(self._stops):
            at = self._matched_chars[k]
            while at and stop[at] != char:
                at = borders[at - 1]
            if stop[at] == char:
                at += 1
            if at == len(stop):
                complete = stop if complete is None or len(stop) > len(complete) else complete
                at = borders[at - 1]
            self._matched_chars[k] = at
        return complete

    def flush(self) -> str:
        """End the choice without a match; returns the held-back text."""
        pending, self._pending = self._pending, ""
        return pending


@lru_cache(maxsize=256)
def _borders(stop: str) -> tuple[int, ...]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its end (Knuth, Morris, Pratt 1977)."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return tuple(borders)
