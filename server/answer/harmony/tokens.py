"""Number of reasoning tokens of an answer in Harmony: those of messages with reasoning, with their headers and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from server.answer.harmony.header import Kind
from server.answer.harmony.marks import Spelled
from server.answer.harmony.reader import Reader


class ThoughtTokens:
    """Counts the reasoning tokens of one choice. `opened`: as for `Reader`. `marks`: by token ids, empty if the literals are no
    tokens of the model. `raw` gives the bytes of a token, and none for tokens that are not shown."""

    def __init__(self, opened: Kind | None, raw: Callable[[int], bytes], marks: Mapping[int, str]) -> None:
        self.count = 0
        self._reader = Reader((), opened)
        self._raw, self._marks = raw, marks
        self._spelled = None if marks else Spelled()
        self._num_of_header = 0
        """Number of tokens since the last message."""

    def push(self, token_ids: Sequence[int]) -> None:
        """Take more tokens of the choice."""
        for token_id in token_ids:
            if self._marks and self._reader.kind is not None and token_id not in self._marks:
                self.count += self._reader.kind is Kind.REASONING
                continue
            # The words of headers are ASCII, and a message may be of any characters.
            text = self._marks.get(token_id) or self._raw(token_id).decode("latin-1")
            kind = self._reader.kind
            self._reader.push(text if self._spelled is None else self._spelled.push(text))
            self._num_of_header += 1
            if kind is None and self._reader.kind is None:
                continue
            if Kind.REASONING in (kind, self._reader.kind):
                self.count += self._num_of_header
            self._num_of_header = 0
