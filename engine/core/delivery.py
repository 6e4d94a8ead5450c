"""`Delivery`: sends the deltas of unfinished sequences to their readers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator

from engine.core.step_watch import StepWatch
from engine.errors import EngineError
from engine.request import FinishReason, Observer, TokenDelta
from engine.sequence import Sequence

logger = logging.getLogger("cohort.engine")


class Delivery:
    """Puts deltas into mailboxes and reports the ends of sequences to the observer. `live`: unfinished sequences by id."""

    def __init__(
        self, observer: Observer, clock: Callable[[], float], watch: StepWatch | None = None
    ) -> None:
        """`watch` hears of ends, too."""
        self.live: dict[int, Sequence] = {}
        self._observer = observer
        self._clock = clock
        self._watch = watch or StepWatch()
        self._idle = asyncio.Event()
        self._held: list[tuple[Sequence, TokenDelta]] = []
        """Deltas that are counted but not yet in their mailboxes."""
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
        prompt_tokens = seq.prompt_len if seq.is_first else 0
        seq.context.story.queue(self._clock(), seq.mailbox_key, seq, prompt_tokens)

    async def nobody_waits(self) -> None:
        """Wait until every sequence has its answer."""
        while self.live or self._calls:
            self._idle.clear()
            await self._idle.wait()

    def publish(self, deltas: Iterable[tuple[Sequence, TokenDelta]]) -> None:
        """Put the output of a step into the mailboxes at once."""
        self.hold(deltas)
        self.release()

    def hold(self, deltas: Iterable[tuple[Sequence, TokenDelta]]) -> None:
        """Count the output of a step and hold it until `release`, which must follow before the next await: a filled mailbox
        wakes its reader, hundreds of readers take milliseconds, and the next step must not wait for them."""
        now = self._clock()
        for seq, delta in deltas:
            if delta.tokens:
                self._observe_tokens(seq, len(delta.tokens), now)
            if delta.error is not None:
                self._count_error(seq, delta.error)
            if delta.finish_reason is not None:
                self.gone(seq)
            self._held.append((seq, delta))

    def release(self) -> None:
        """Put the held deltas into their mailboxes."""
        held, self._held = self._held, []
        for seq, delta in held:
            seq.mailbox.put(seq.mailbox_key, delta)

    def fail(self, seq: Sequence, error: EngineError) -> None:
        """End a sequence with a typed error, after the tokens that were computed before."""
        self.release()
        self._count_error(seq, error)
        self.gone(seq)
        logger.warning("request %s failed: %s", seq.context.request_id, error.message)
        seq.mailbox.put(seq.mailbox_key, TokenDelta(finish_reason=FinishReason.ERROR, error=error))

    def _count_error(self, seq: Sequence, error: EngineError) -> None:
        seq.context.story.fail(str(error.code))
        if error.status >= 500:
            self._observer.failed(str(error.code))

    def gone(self, seq: Sequence) -> None:
        """Forget a finished sequence, once."""
        if self.live.pop(seq.seq_id, None) is None:
            return
        now = self._clock()
        outcome = str(seq.finish_reason or FinishReason.ERROR)
        # A prompt is computed once for all its choices, and not at all for a sequence that leaves while it waits.
        prompt_tokens = seq.prompt_len if seq.is_first and seq.was_started else 0
        output_tokens = len(seq.output_token_ids)
        self._observer.finished(outcome, prompt_tokens, output_tokens, now - seq.context.arrival_time)
        seq.context.story.finish(now, seq.mailbox_key, outcome, output_tokens)
        if seq.context.key_name:
            self._observer.used(seq.context.key_name, prompt_tokens, output_tokens)
        self._watch.ended(seq, now)
        if not self.live:
            self._idle.set()

    def _observe_tokens(self, seq: Sequence, count: int, now: float) -> None:
        previous = seq.stamp_tokens(now)
        if previous is None:
            self._observer.first_token(now - seq.context.arrival_time)
            seq.context.story.start_output(now, seq.mailbox_key)
            if count > 1:
                self._observer.tokens(count - 1, 0.0)
        else:
            self._observer.tokens(count, now - previous)
        if seq.paused:
            seq.go_on()
            seq.context.story.resume(now, seq.mailbox_key)
