"""`PendingTokens`: committed tokens that their reader has not taken yet, in little memory."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

from executors.contract import SampledToken

_RUN = 256
"""Tokens in one run at most: a run is let go as a whole, once its last token is taken."""


def num_entries(token: SampledToken) -> int:
    """How much there is to tell of a token: itself and its alternatives."""
    return 1 + len(token.top_logprobs)


class PendingTokens:
    """A queue of one sequence's tokens. One writer: the mailbox that holds it.

    As objects, a token with 20 alternatives takes 2.4 kB: three objects for each alternative. Here it takes 252 bytes, and one
    without logprobs 4. Packing loses nothing: logprobs stay float64, and tokens described otherwise begin a run of their own.
    """

    __slots__ = ("_begin", "_runs", "num_bytes", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_bytes = 0
        """Of the tokens that are left."""
        self._runs: deque[_Run] = deque()
        self._begin = 0
        """Tokens of the first run that are taken already."""

    def append(self, tokens: Iterable[SampledToken]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            if not self._runs or not self._runs[-1].takes(token):
                self._runs.append(_Run(token))
            run = self._runs[-1]
            run.append(token)
            self.num_tokens += 1
            self.num_bytes += run.token_bytes

    def take(self, most_entries: int) -> list[SampledToken]:
        """Remove the first tokens and return them: as many as have `most_entries` in all, but one at least, if there is one."""
        pieces: list[SampledToken] = []
        while self._runs:
            run = self._runs[0]
            room = most_entries // (1 + run.width)
            if room <= 0 and pieces:
                break
            end = min(len(run), self._begin + max(room, 1))
            pieces += run.tokens(self._begin, end)
            count, self._begin = end - self._begin, end
            most_entries -= count * (1 + run.width)
            self.num_tokens -= count
            self.num_bytes -= count * run.token_bytes
            if end == len(run):
                self._runs.popleft()
                self._begin = 0
            if most_entries <= 0:
                break
        return pieces


class _Run:
    """Tokens in a row that are described alike, as columns.

    ids            i0        i1        ...      int32
    logprobs       l0        l1        ...      float64, None where they have none; `ranks` likewise, int64
    top_ids        a00 a01   a10 a11   ...      int32, `width` for each token; `top_logprobs` likewise, float64
    """

    __slots__ = ("ids", "logprobs", "ranks", "token_bytes", "top_ids", "top_logprobs", "width")

    def __init__(self, like: SampledToken) -> None:
        self.width = len(like.top_logprobs)
        self.ids, self.top_ids, self.top_logprobs = array("i"), array("i"), array("d")
        self.logprobs = None if like.logprob is None else array("d")
        self.ranks = None if like.rank is None else array("q")
        self.token_bytes = (
            4 + 8 * (self.logprobs is not None) + 8 * (self.ranks is not None) + 12 * self.width
        )

    def __len__(self) -> int:
        return len(self.ids)

    def takes(self, token: SampledToken) -> bool:
        """True if this token can come next."""
        return (
            len(self.ids) < _RUN
            and len(token.top_logprobs) == self.width
            and (token.logprob is None) == (self.logprobs is None)
            and (token.rank is None) == (self.ranks is None)
        )

    def append(self, token: SampledToken) -> None:
        self.ids.append(token.token_id)
        if self.logprobs is not None and token.logprob is not None:
            self.logprobs.append(token.logprob)
        if self.ranks is not None and token.rank is not None:
            self.ranks.append(token.rank)
        if self.width:
            ids, logprobs = zip(*token.top_logprobs, strict=True)
            self.top_ids.extend(ids)
            self.top_logprobs.extend(logprobs)

    def tokens(self, begin: int, end: int) -> list[SampledToken]:
        """Tokens begin .. end - 1 as they were."""
        entries = []
        for i in range(begin, end):
            top = slice(i * self.width, (i + 1) * self.width)
            entries.append(
                SampledToken(
                    self.ids[i],
                    None if self.logprobs is None else self.logprobs[i],
                    tuple(zip(self.top_ids[top], self.top_logprobs[top], strict=True)),
                    None if self.ranks is None else self.ranks[i],
                )
            )
        return entries
