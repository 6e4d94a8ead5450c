"""`Endings`: sequences that end before their output is complete: aborted, stopped by the text layer, too late, or failed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from engine.core.delivery import Delivery
from engine.core.inbox import Inbox
from engine.core.sequences import Sequences
from engine.errors import EngineError, Overloaded
from engine.mailbox import Outlet
from engine.observer import Observer
from engine.request import FinishReason
from engine.sequence import Sequence, SequenceStatus

logger = logging.getLogger("cohort.engine")


@dataclass(eq=False)
class Endings:
    """Ends sequences and gives their readers an answer. Used by the loop task, and by `EngineCore.stop` after it."""

    sequences: Sequences
    delivery: Delivery
    inbox: Inbox
    observer: Observer

    def add(self, seqs: Iterable[Sequence]) -> None:
        """Queue new sequences, unless one has ended meanwhile."""
        for seq in seqs:
            # A sequence may have failed or been aborted before this command is applied.
            if seq.seq_id in self.delivery.live:
                self.sequences.add(seq)

    def end(self, seq_id: int, reason: FinishReason, num_tokens: int | None = None) -> None:
        """End a sequence, after `num_tokens` tokens of its output if given. Unknown or finished ids are harmless."""
        seq = self.delivery.live.get(seq_id)
        if seq is None:
            return
        if num_tokens is not None:
            self.sequences.journal.cut(seq, num_tokens)
        self.sequences.finish(seq, reason)
        self.delivery.gone(seq)

    def drop(self, seq: Sequence, late: Overloaded, calls: set[Outlet]) -> None:
        """Refuse a waiting sequence. Each call is reported once: `calls` are the mailboxes of calls reported before."""
        if seq.mailbox not in calls:
            calls.add(seq.mailbox)
            self.observer.refused(seq.context, late)
        # ABORT: a refusal is no failure of the server.
        self.fail([seq], late, FinishReason.ABORT)

    def fail_waiting_for(self, adapter: str, error: EngineError) -> None:
        """End the sequences that wait for an adapter which cannot be loaded."""
        live = list(self.delivery.live.values())
        self.fail(
            [
                seq
                for seq in live
                if seq.request.adapter == adapter and seq.status is not SequenceStatus.RUNNING
            ],
            error,
        )

    def fail(
        self, seqs: Iterable[Sequence], error: EngineError, reason: FinishReason = FinishReason.ERROR
    ) -> None:
        """End sequences with an error."""
        for seq in seqs:
            if seq.status is not SequenceStatus.FINISHED:
                self.sequences.finish(seq, reason)
            self.delivery.fail(seq, error)

    def fail_all(self, error: EngineError) -> None:
        """End every sequence with an error, even if a bug has left the state such that ending one fails."""
        try:
            self.inbox.apply()
        except Exception:
            logger.exception("a command failed")
        for seq in list(self.delivery.live.values()):
            try:
                self.fail([seq], error)
            except Exception:
                logger.exception("sequence %d did not end as it should", seq.seq_id)
                self.delivery.fail(seq, error)
