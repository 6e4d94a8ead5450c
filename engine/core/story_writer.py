"""`StoryWriter`: continues the stories of calls with what happens to their sequences, the one place in the engine that does."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import EngineError, Overloaded
from engine.interruptions import Outage
from engine.observer import Observer, PrefixLookup, Waits
from engine.request import FinishReason, RequestContext
from engine.sequence import Sequence


class StoryWriter(Observer):
    """Writes to `RequestContext.story`. What a story does not tell of (steps, the executor) it ignores."""

    def refused(self, context: RequestContext, error: Overloaded) -> None:
        context.story.refuse(error.refusal)

    def queued(self, seq: Sequence, now: float, waits: Callable[[], Waits] | None) -> None:
        story = seq.context.story
        story.queue(now, seq.mailbox_key, seq, seq.prompt_len if seq.is_first else 0)
        if waits is not None:
            story.watch_wait(waits)

    def admitted(self, seq: Sequence, now: float, waits: Waits, lookup: PrefixLookup | None) -> None:
        story = seq.context.story
        # Choices share the prompt of the first one, which is not what a cache found.
        own = lookup if seq.is_first else None
        story.admit(now, seq.mailbox_key, waits, None if own is None else seq.num_cached_tokens)
        if own is not None and story.prefix is None:
            story.match(own.explain())

    def left_queue(self, seq: Sequence, waits: Waits) -> None:
        seq.context.story.give_up(waits)

    def preempted(self, seq: Sequence, now: float) -> None:
        seq.context.story.preempt(now, seq.mailbox_key, len(seq.output_token_ids))

    def interrupted(self, seq: Sequence, now: float, cause: str, outage: Outage | None) -> None:
        seq.context.story.interrupt(now, seq.mailbox_key, cause, len(seq.output_token_ids), outage)

    def kv_adopted(self, seq: Sequence, num_tokens: int, now: float, num_stateless: int = 0) -> None:
        seq.context.story.adopt(now, seq.mailbox_key, num_tokens, num_stateless)

    def kv_fetched(self, seq: Sequence, num_tokens: int, num_bytes: int, seconds: float, now: float) -> None:
        seq.context.story.fetch(now, seq.mailbox_key, num_tokens, num_bytes, seconds)

    def output_started(self, seq: Sequence, count: int, now: float) -> None:
        seq.context.story.start_output(now, seq.mailbox_key)

    def output_resumed(self, seq: Sequence, now: float) -> None:
        seq.context.story.resume(now, seq.mailbox_key)

    def failed(self, seq: Sequence, error: EngineError) -> None:
        seq.context.story.fail(str(error.code))

    def finished(self, seq: Sequence, now: float) -> None:
        reason = str(seq.finish_reason or FinishReason.ERROR)
        seq.context.story.finish(now, seq.mailbox_key, reason, len(seq.output_token_ids))
