"""The fair queue: whoever has been served least comes first, so that one tenant's thousand requests starve nobody.

Virtual token counters, after "Fairness in Serving Large Language Models" (Sheng et al., 2023, arXiv:2401.00588): each tenant
has a counter of the tokens computed for it, and the one with the least is next. What a request will cost is not known before it
ends, which a deficit round robin would have to guess; counters are charged with what was really computed. Who comes after a
pause begins at the least counter of those who are there: time not used is not saved up.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from engine.core.sequence import Sequence

MOST_TENANTS = 4096
"""Counters that are kept of tenants who have nothing here at the moment."""


class Fair:
    """Waiting sequences by tenant (`Request.tenant`); within a tenant first come, first served."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[tuple[int, Sequence]]] = {}
        self._num_waiting = 0
        self._served: dict[str, int] = {}
        """Tokens computed for each tenant, and what it was lifted by."""
        self._live: dict[str, set[int]] = {}
        """Ids of sequences that wait or run."""
        self._holding: dict[str, set[int]] = {}
        """Ids of those with a slot."""
        self._several = False
        """There has been more than one tenant."""

    def add(self, seq: Sequence) -> None:
        """A new sequence, or a preempted one, which finds its place again."""
        tenant = seq.request.tenant
        if tenant not in self._live:
            self._arrive(tenant)
        self._live[tenant].add(seq.seq_id)
        insort(self._waiting.setdefault(tenant, []), (seq.seq_id, seq), key=_first)
        self._num_waiting += 1

    def _arrive(self, tenant: str) -> None:
        least = min((self._served[other] for other in self._live), default=0)
        self._several = self._several or any(other != tenant for other in self._served)
        self._served[tenant] = max(self._served.get(tenant, 0), least)
        self._live[tenant] = set()
        if len(self._served) > MOST_TENANTS + len(self._live):
            self._served = {name: count for name, count in self._served.items() if name in self._live}

    def remove(self, seq: Sequence) -> None:
        """Raises ValueError if it is not there."""
        entries = self._waiting.get(seq.request.tenant, [])
        at = bisect_left(entries, seq.seq_id, key=_first)
        if at == len(entries) or entries[at][1] is not seq:
            raise ValueError(f"{seq} is not waiting")
        del entries[at]
        if not entries:
            del self._waiting[seq.request.tenant]
        self._num_waiting -= 1

    def __iter__(self) -> Iterator[Sequence]:
        """As if each were admitted and charged with its tokens when it is its turn."""
        turns = [
            (self._served[tenant], entries[0][0], 0, entries) for tenant, entries in self._waiting.items()
        ]
        heapq.heapify(turns)
        while turns:
            served, _, at, entries = turns[0]
            seq = entries[at][1]
            yield seq
            if at + 1 < len(entries):
                after = served + seq.num_uncomputed_tokens
                heapq.heapreplace(turns, (after, entries[at + 1][0], at + 1, entries))
            else:
                heapq.heappop(turns)

    def __len__(self) -> int:
        return self._num_waiting

    def ordered(self, running: Iterable[Sequence]) -> Iterable[Sequence]:
        """Those of the tenant served least first; of one tenant as admitted."""
        return sorted(running, key=lambda seq: self._served[seq.request.tenant])

    def may_take_slot(self, seq: Sequence, num_slots: int) -> bool:
        """Where there are several tenants, none may hold the last eighth of the slots as well: somebody who comes with
        one request would wait until one of the many has ended."""
        if not self._several:
            return True
        kept_free = min(num_slots - 1, max(1, num_slots // 8))
        return len(self._holding.get(seq.request.tenant, ())) < num_slots - kept_free

    def took_slot(self, seq: Sequence) -> None:
        """Preempted ones keep theirs."""
        self._holding.setdefault(seq.request.tenant, set()).add(seq.seq_id)

    def charge(self, seq: Sequence, num_tokens: int) -> None:
        """Its tenant has had so much more."""
        self._served[seq.request.tenant] += num_tokens

    def gone(self, seq: Sequence) -> None:
        """A tenant without sequences keeps its counter as long as anybody is here to be compared with."""
        tenant = seq.request.tenant
        for sets in (self._live, self._holding):
            if tenant in sets:
                sets[tenant].discard(seq.seq_id)
                if not sets[tenant]:
                    del sets[tenant]
        if not self._live:
            self._served = dict.fromkeys(list(self._served)[-MOST_TENANTS:], 0)


def most_present(candidates: Iterable[Sequence]) -> Sequence:
    """The victim that goes with it: of the tenant with the most sequences, the one admitted last."""
    listed = list(candidates)
    counts: dict[str, int] = {}
    for seq in listed:
        counts[seq.request.tenant] = counts.get(seq.request.tenant, 0) + 1
    most = max(counts.values())
    return next(seq for seq in reversed(listed) if counts[seq.request.tenant] == most)


def _first(entry: tuple[int, Sequence]) -> int:
    return entry[0]
