"""`Delivery`: sends the deltas of unfinished sequences to their readers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from engine.core.gains import StepGains
from engine.errors import EngineError
from engine.observer import Observer
from engine.request import FinishReason, TokenDelta
from engine.sequence import Sequence

logger = logging.getLogger("cohort.engine")


class Delivery:
    """Puts deltas into mailboxes and reports tokens, errors and ends to the observer. `live`: unfinished sequences by id."""

    def __init__(self, observer: Observer, clock: Callable[[], float]) -> None:
        self.live: dict[int, Sequence] = {}
        self._observer = observer
        self._clock = clock
        self._idle = asyncio.Event()
        self._unsent: list[StepGains] = []
        """Tokens and deltas that are counted but not yet in their mailboxes."""
        self._calls = 0
        """Calls that will submit more requests."""

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """See `EngineCore.call`."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._idle.set()

    def expect(self, seq: Sequence) -> None:
        """Register a sequence, which now has to get an answer."""
        self.live[seq.seq_id] = seq

    async def all_answered(self) -> None:
        """Wait until every sequence has its answer."""
        while self.live or self._calls:
            self._idle.clear()
            await self._idle.wait()

    def publish(self, seq: Sequence, delta: TokenDelta) -> None:
        """Put a delta into its mailbox at once."""
        self.hold(StepGains(self._clock(), deltas=[(seq, delta)]))
        self.release()

    def hold(self, gains: StepGains) -> None:
        """Count what a step gave and hold it until `release`, which must follow before the next await: a filled mailbox wakes its
        reader, hundreds of readers take milliseconds, and the next step must not wait for them."""
        now = gains.at
        gaps: Counter[tuple[int, float]] = Counter()
        for time, count in gains.previous.items():
            gaps[1, now - time] += count
        for seq, delta in gains.deltas:
            if count := len(delta.tokens):
                previous = seq.stamp_tokens(now)
                if previous is None:
                    self._observer.output_started(seq, count, now)
                else:
                    gaps[count, now - previous] += 1
                if seq.paused:
                    seq.go_on()
                    self._observer.output_resumed(seq, now)
            if delta.finish_reason is not None:
                if delta.error is not None:
                    self._observer.failed(seq, delta.error)
                self.gone(seq)
        self._unsent.append(gains)
        if gaps:
            self._observer.tokens_committed(gaps)

    def release(self) -> None:
        """Put what is held into the mailboxes."""
        unsent, self._unsent = self._unsent, []
        for gains in unsent:
            for outlet, key, token_id, num_cached_tokens in gains.tokens:
                outlet.put_token(key, token_id, num_cached_tokens)
            for seq, delta in gains.deltas:
                seq.mailbox.put(seq.mailbox_key, delta)

    def fail(self, seq: Sequence, error: EngineError) -> None:
        """End a sequence with a typed error, after the tokens that were computed before."""
        self.release()
        self._observer.failed(seq, error)
        self.gone(seq)
        logger.warning("request %s failed: %s", seq.context.request_id, error.message)
        seq.mailbox.put(seq.mailbox_key, TokenDelta(finish_reason=FinishReason.ERROR, error=error))

    def gone(self, seq: Sequence) -> None:
        """Forget a finished sequence, once."""
        if self.live.pop(seq.seq_id, None) is None:
            return
        self._observer.finished(seq, self._clock())
        if not self.live:
            self._idle.set()
