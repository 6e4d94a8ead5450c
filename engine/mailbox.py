"""`Outlet`: what the engine gives deltas to. `Mailbox`: the outlet where a reader in this process picks them up."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from engine.errors import ReaderTooSlow
from engine.request import PLAIN_TOKENS, TokenDelta
from engine.unread_tokens import PendingTokens, num_entries

MAX_BYTES = 64 * 2**20
"""Bytes of tokens one reader may be behind by, as they are packed: 16 million tokens, or 266,000 with 20 alternatives each. One
choice of a model with a context of 128k never gets there, however slowly its client reads."""
_AT_ONCE = 1024
"""Entries (tokens and their alternatives) that one `take` gives: what is made of them, text and JSON, is 50 times as large and
exists outside of any bound but this one."""


Flush = Callable[[float], None]
"""Type of a function that sends on what was made of deltas; it is given `time.monotonic()`."""


class Direct(Protocol):
    """Handles deltas while their reader waits. Raises nothing."""

    takers: dict[int, Callable[[int], None]]
    """By key: functions that take a delta which is a token, without logprobs, and nothing else. Keys without one have it given to
    `take`."""

    def take(self, key: int, delta: TokenDelta) -> bool:
        """Take a delta of a key; returns whether it did."""


class Outlet(Protocol):
    """Where the loop task puts the deltas of one call: a mailbox, or what sends them on to another process."""

    def put(self, key: int, delta: TokenDelta) -> None:
        """Take a delta; never blocks."""

    def put_token(self, key: int, token_id: int, num_cached_tokens: int) -> None:
        """`put` of a delta that is a token, without logprobs, behind which the sequence goes on: nearly all are that."""


class _Turn:
    """The mailboxes of one event loop that hand deltas over in its next turn. One callback for all: a step fills hundreds.

    First all deltas are handed over, then all is flushed: text by text and write by write, which is faster than each text
    between two calls of the system.
    """

    __slots__ = ("mailboxes",)

    def __init__(self) -> None:
        self.mailboxes: list[Mailbox] = []
        """Each once. The one that adds the first has `run` called in the next turn."""

    def run(self) -> None:
        """Hand over what they hold."""
        mailboxes, self.mailboxes = self.mailboxes, []
        flushes = []
        for mailbox in mailboxes:
            try:
                if (flush := mailbox.hand_over()) is not None:
                    flushes.append(flush)
            except Exception as error:
                _report(error)
        now = time.monotonic()
        for flush in flushes:
            try:
                flush(now)
            except Exception as error:
                _report(error)


def _report(error: Exception) -> None:
    """Report a bug to the event loop. The readers of other mailboxes go on."""
    context = {"message": "deltas were not handed over", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = weakref.WeakKeyDictionary()


class Mailbox:
    """Deltas for one reader, by the reader's own keys (a choice index, say).

    Written by the loop task (`put`), read by one task (`take`). A delta goes through as it is where the reader keeps up. Where
    it does not, tokens are merged and packed, and taken out a piece at a time, each key in its turn. A reader that is more than
    `max_bytes` behind is given up: `on_full` is called, once, and should end its sequences; what is held is still given, then
    `take` raises. Nothing is ever left out in between.

    A reader that waits may have deltas handled in the event loop's next turn, without waking its task: see `take`.
    """

    __slots__ = (
        "__weakref__", "_deltas", "_direct", "_filled", "_flush", "_full", "_handing_over", "_max_bytes", "_on_full", "_packed",
        "_tokens", "_turn", "num_bytes",
    )  # fmt: skip

    def __init__(self, max_bytes: int = MAX_BYTES, on_full: Callable[[], None] | None = None) -> None:
        self.num_bytes = 0
        """Of the tokens that wait, packed."""
        self._max_bytes = max_bytes
        self._on_full = on_full
        self._full = False
        self._deltas: dict[int, TokenDelta] = {}
        """What each key is to be given next; its end, if there is one, belongs behind the packed tokens."""
        self._packed: dict[int, PendingTokens] = {}
        """Tokens that come after those of `_deltas`, where there are any."""
        self._tokens: list[tuple[int, int, int]] = []
        """Key, id and `num_cached_tokens` of tokens that are about to be handed over, while `_deltas` is empty."""
        self._filled = asyncio.Event()
        self._direct: Direct | None = None
        """What the waiting reader has deltas handled by; None unless it waits and is not woken."""
        self._flush: Flush | None = None
        """Called behind the deltas that were handed over in a turn."""
        self._turn: _Turn | None = None
        """Of the loop that the reader waits in; None before it waits."""
        self._handing_over = False
        """Whether `hand_over` is about to be called."""

    def put(self, key: int, delta: TokenDelta) -> None:
        """Add a delta; never blocks."""
        if self._full:
            return
        if self._tokens:
            self._keep_tokens()
        self._keep(key, delta)
        if self._direct is None or self._turn is None or self._full:
            self._filled.set()
        elif not self._handing_over:
            self._enlist(self._turn)

    def put_token(self, key: int, token_id: int, num_cached_tokens: int) -> None:
        """See `Outlet`."""
        turn = self._turn
        if self._direct is None or turn is None or self._deltas:
            self.put(key, TokenDelta([PLAIN_TOKENS[token_id]], None, None, num_cached_tokens))
            return
        self._tokens.append((key, token_id, num_cached_tokens))
        if not self._handing_over:
            self._enlist(turn)

    def _enlist(self, turn: _Turn) -> None:
        """Have `hand_over` called in the next turn. Not here: the step that is about to be sent must not wait for what is made of
        hundreds of deltas."""
        self._handing_over = True
        if not (mailboxes := turn.mailboxes):
            asyncio.get_running_loop().call_soon(turn.run)
        mailboxes.append(self)

    def _keep_tokens(self) -> None:
        """Keep tokens as deltas."""
        tokens, self._tokens = self._tokens, []
        for key, token_id, num_cached_tokens in tokens:
            self._keep(key, TokenDelta([PLAIN_TOKENS[token_id]], None, None, num_cached_tokens))

    def _keep(self, key: int, delta: TokenDelta) -> None:
        first = self._deltas.get(key)
        if first is None:
            self._deltas[key] = delta
        else:
            self._append(key, first, delta)

    def hand_over(self) -> Flush | None:
        """Give what is held to the waiting reader's `direct`, and wake the reader for the rest. Called in the turn after `put`.
        Returns what is to be called before the turn ends, if the reader has given something."""
        self._handing_over = False
        direct, flush, tokens = self._direct, self._flush, self._tokens
        if tokens:
            key, token_id, _ = tokens[0]
            if direct is not None and len(tokens) == 1 and (take := direct.takers.get(key)) is not None:
                tokens.clear()
                take(token_id)
                return flush  # nearly always
            self._hand_over_tokens()
        self._hand_over_each()
        if self._deltas:
            self.wake()
        return flush

    def _hand_over_tokens(self) -> None:
        """Hand over tokens, until the reader takes no more; the others are kept as deltas."""
        tokens = self._tokens
        count = 0
        for key, token_id, _ in tokens:
            if self._direct is None or (take := self._direct.takers.get(key)) is None:
                break
            take(token_id)
            count += 1
        del tokens[:count]
        self._keep_tokens()

    def _hand_over_each(self) -> None:
        """`hand_over` of any number of deltas, until the reader takes no more."""
        deltas = self._deltas
        while deltas and self._direct is not None and not self._packed:
            key = next(iter(deltas))
            delta = deltas.pop(key)
            if not self._direct.take(key, delta):
                self._deltas = {key: delta, **deltas}
                break

    def _append(self, key: int, first: TokenDelta, delta: TokenDelta) -> None:
        if delta.tokens:
            packed = self._packed.setdefault(key, PendingTokens())
            before = packed.num_bytes
            packed.append(delta.tokens)
            self.num_bytes += packed.num_bytes - before
        first.merge(replace(delta, tokens=[]))
        if self.num_bytes > self._max_bytes:
            self._full = True
            if self._on_full is not None:
                self._on_full()

    def wake(self) -> None:
        """Let the waiting reader go on; later deltas are held for it."""
        self._direct = None
        self._filled.set()

    async def take(self, direct: Direct | None = None, flush: Flush | None = None) -> dict[int, TokenDelta]:
        """Wait for deltas and take what there is, up to a bound; empty only after `wake`. Cancelling it loses none.

        While it waits, deltas go to `direct` first, in their order. The first one that `direct` does not take, and all behind it,
        are taken here. `flush` is called once, in the same turn, behind the deltas of all mailboxes.

        Raises ReaderTooSlow once all that was held is taken, if there would have been more.
        """
        if not self._filled.is_set():
            self._direct, self._flush = direct, flush
            if direct is not None and self._turn is None:
                self._turn = _turns.setdefault(asyncio.get_running_loop(), _Turn())
            try:
                await self._filled.wait()
            finally:
                self._direct = self._flush = None
        if self._tokens:
            self._keep_tokens()
        if not self._deltas:
            if not self._full:
                self._filled.clear()
                return {}
            raise ReaderTooSlow(f"more than {self._max_bytes} bytes of the answer waited to be read")
        room, deltas = _AT_ONCE, {}
        for key in list(self._deltas):
            if room <= 0:
                break
            deltas[key] = delta = self._next(key, room)
            room -= _entries(delta)
        if not self._deltas and not self._full:
            self._filled.clear()
        return deltas

    def _next(self, key: int, room: int) -> TokenDelta:
        delta, packed = self._deltas.pop(key), self._packed.get(key)
        if packed is None:
            return delta
        if (room := room - _entries(delta)) > 0:
            before = packed.num_bytes
            delta.tokens += packed.take(room)
            self.num_bytes += packed.num_bytes - before
        if not packed.num_tokens:
            del self._packed[key]
            return delta
        # The others' turn comes first. How it ended is told with its last token.
        self._deltas[key] = replace(delta, tokens=[], prompt_logprobs=None, pooled=None)
        return replace(delta, finish_reason=None, stop_token_id=None, error=None)


def _entries(delta: TokenDelta) -> int:
    return len(delta.tokens) * num_entries(delta.tokens[0]) if delta.tokens else 0
