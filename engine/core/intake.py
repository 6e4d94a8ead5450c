"""`Intake`: checks requests, makes their sequences and queues them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import partial

from engine.core.endings import Endings
from engine.core.lora import LoraAdapters
from engine.errors import Overloaded
from engine.mailbox import Outlet
from engine.observer import Observer
from engine.request import Request
from engine.sequence import Sequence
from engine.waiting.admission import Admission
from executors.contract import SampledToken


@dataclass(eq=False)
class Intake:
    """Used by callers of `EngineCore.submit`; the loop task gives each sequence its place in the queue afterwards."""

    admission: Admission
    adapters: LoraAdapters
    endings: Endings
    observer: Observer
    clock: Callable[[], float]
    look_at: Callable[[float | None], None]
    """See `EngineLoop.look_at`."""
    _seq_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _calls: weakref.WeakSet[Outlet] = field(default_factory=weakref.WeakSet)
    """Mailboxes of calls with at least one queued sequence."""

    def submit(
        self,
        requests: SequenceOf[Request],
        mailbox: Outlet,
        key: int,
        committed: SequenceOf[SampledToken] = (),
        accepted: bool = False,
    ) -> list[int]:
        """See `EngineCore.submit`. Returns the ids of the sequences."""
        sequences, delivery = self.endings.sequences, self.endings.delivery
        queue, num_waiting = sequences.waiting, len(delivery.live) - len(sequences.running)
        now, continues = self.clock(), accepted or mailbox in self._calls
        try:
            for number, request in enumerate(requests):
                goes_on = continues or number > 0
                self.adapters.check(request.adapter)
                self.admission.check(request, num_waiting, queue, now, goes_on, len(committed))
        except Overloaded as error:
            self.observer.refused(requests[0].context, error)
            raise
        self._calls.add(mailbox)
        seqs = [Sequence(next(self._seq_ids), one, mailbox, key + i) for i, one in enumerate(requests)]
        for seq in seqs:
            if len(seqs) > 1:
                seq.link_siblings(seqs)
            delivery.expect(seq)
            end = sequences.journal.restore(seq, committed) if committed else None
            if end is None:
                queue.submit(seq)
                self.observer.queued(seq, self.clock(), partial(queue.reasons.so_far, seq))
            else:
                self.observer.queued(seq, self.clock(), None)
                delivery.publish(seq, end)
        self.endings.inbox.put(lambda: self.endings.add(seqs))
        self.look_at(queue.not_started.next_at())
        return [seq.seq_id for seq in seqs]
