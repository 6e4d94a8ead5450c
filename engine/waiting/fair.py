"""The fair queue: the tenant that was served least comes first, so that a thousand requests of one tenant starve no other.

Virtual token counters, after "Fairness in Serving Large Language Models" (Sheng et al., 2023, arXiv:2401.00588): each tenant
has a counter of the tokens computed for it, and the one with the least is next. What a request will cost is not known before it
ends, which a deficit round robin would have to guess; counters are charged with what was really computed, each position once:
no tenant pays for what a failure or a preemption undoes, nor for rejected drafts. A tenant that comes after a pause begins just
below the least counter of the tenants present: unused time is not saved up.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from engine.request import Request
from engine.sequence import Sequence

CREDIT = 128
"""Tokens by which a tenant who comes after a pause is ahead of all who are here: a short question is started in the very next
step and computed whole, although the tenant is owed nothing yet."""
MOST_TENANTS = 4096
"""Counters that are kept of tenants who have nothing here at the moment."""
RESERVED_FOR = 60.0
"""Seconds for which slots are kept for a tenant that has nothing here any more: as long as a person takes for the next
question. A key that was used once is not to cost all others an eighth of the server for good."""

_Place = tuple[bool, int]
"""Of a waiting sequence among those of its tenant: without a slot or with one, and its number."""
_Entry = tuple[_Place, Sequence]
_FIRST_WITHOUT_SLOT: _Place = (True, -1)


def _most(num_slots: int) -> int:
    """Return how many slots one of several tenants may hold: all but an eighth, and but one of few."""
    return num_slots - min(num_slots - 1, max(1, num_slots // 8))


class Fair:
    """Waiting sequences by tenant; within a tenant first come, first served, but preempted ones first."""

    charges = True
    ranked = False
    keeps_slots = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` in seconds."""
        self._clock = clock
        self._waiting: dict[str, list[_Entry]] = {}
        self._places: dict[Sequence, _Place] = {}
        self._num_waiting = 0
        self._served: dict[str, int] = {}
        """Tokens computed for each tenant, plus the lifts of its counter."""
        self._live: dict[str, set[int]] = {}
        """Ids of sequences that wait or run."""
        self._holding: dict[str, set[int]] = {}
        """Ids of sequences with a slot."""
        self._absent: OrderedDict[str, float] = OrderedDict()
        """When the tenants left that were here last and are not now; the one that left first comes first."""

    def group(self, request: Request) -> str:
        """By tenant."""
        return request.context.tenant

    def add(self, seq: Sequence) -> None:
        """Insert a new sequence, or a preempted one at its old place."""
        tenant = seq.context.tenant
        if tenant not in self._live:
            self._arrive(tenant)
        self._live[tenant].add(seq.seq_id)
        self._places[seq] = place = (seq.slot is None, seq.seq_id)
        insort(self._waiting.setdefault(tenant, []), (place, seq), key=_place)
        self._num_waiting += 1

    def _arrive(self, tenant: str) -> None:
        least = min((self._served[other] for other in self._live), default=0)
        self._absent.pop(tenant, None)
        self._served[tenant] = max(self._served.get(tenant, 0), least - CREDIT)
        self._live[tenant] = set()
        if len(self._served) > MOST_TENANTS + len(self._live):
            self._served = {name: count for name, count in self._served.items() if name in self._live}

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence. Raises ValueError if it is not there."""
        place = self._places.pop(seq, None)
        if place is None:
            raise ValueError(f"{seq} is not waiting")
        entries = self._waiting[seq.context.tenant]
        del entries[bisect_left(entries, place, key=_place)]
        if not entries:
            del self._waiting[seq.context.tenant]
        self._num_waiting -= 1

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate as if each sequence were admitted and charged for its tokens in turn."""
        return self._in_turn({}, self._num_waiting)

    def candidates(self, num_slots: int) -> Iterator[Sequence]:
        """If there are several tenants, or were a minute ago, none may also hold the last eighth of the slots: otherwise a tenant
        that comes with one request would wait until a sequence of another ends. Preempted sequences that still hold a slot may
        run in it."""
        if not self._several():
            return iter(self)
        most = _most(num_slots)
        limits = {
            tenant: bisect_left(self._waiting[tenant], _FIRST_WITHOUT_SLOT, key=_place)
            + max(0, most - len(holding))
            for tenant, holding in self._holding.items()
            if tenant in self._waiting
        }
        return self._in_turn(limits, most)

    def room(self, tenant: str | int, num_slots: int) -> int:
        """Return how many slots the tenant may take beside those it has, free or not, with a request that comes now."""
        is_active = tenant in self._live or tenant in self._absent
        most = _most(num_slots) if self._several(0 if is_active else 1) else num_slots
        return max(0, most - len(self._holding.get(str(tenant), ())))

    def _several(self, coming: int = 0) -> bool:
        """Whether more than one tenant is here, or was `RESERVED_FOR` seconds ago, with those `coming` now."""
        long_ago = self._clock() - RESERVED_FOR
        while self._absent and next(iter(self._absent.values())) < long_ago:
            self._absent.popitem(last=False)
        return len(self._live) + len(self._absent) + coming > 1

    def _in_turn(self, limits: dict[str, int], most: int) -> Iterator[Sequence]:
        """Return the first sequences of each tenant: as many as `limits` says, or `most` for other tenants."""
        served = self._served
        turns = [
            (served[tenant], entries[0][0], tenant, 0)
            for tenant, entries in self._waiting.items()
            if limits.get(tenant, most)
        ]
        heapq.heapify(turns)
        while turns:
            before, _, tenant, at = turns[0]
            entries = self._waiting[tenant]
            seq = entries[at][1]
            yield seq
            if at + 1 < min(len(entries), limits.get(tenant, most)):
                after = before + seq.num_uncharged_tokens
                heapq.heapreplace(turns, (after, entries[at + 1][0], tenant, at + 1))
            else:
                heapq.heappop(turns)

    def __len__(self) -> int:
        return self._num_waiting

    def ordered(self, running: Iterable[Sequence]) -> Iterable[Sequence]:
        """Return the sequences of the tenant served least first, and those of one tenant in order of admission."""
        return sorted(running, key=lambda seq: self._served[seq.context.tenant])

    def precedes(self, seq: Sequence, running: Sequence) -> bool:
        """Return True if its tenant has been served less: others need not wait for the end of a prompt of thousands of tokens."""
        return self._served[seq.context.tenant] < self._served[running.context.tenant]

    def owed(self, seq: Sequence) -> int:
        """Return the tokens by which its tenant is behind every other running one. Their streams were served that much more, so
        they can wait while a short prompt is computed in a step or two and not in chunks."""
        tenant = seq.context.tenant
        others = [self._served[other] for other in self._holding if other != tenant]
        return max(0, min(others) - self._served[tenant]) if others else 0

    def took_slot(self, seq: Sequence) -> None:
        """Record that a sequence has a slot; a preempted one keeps its slot."""
        self._holding.setdefault(seq.context.tenant, set()).add(seq.seq_id)

    def charge(self, seq: Sequence, num_tokens: int) -> None:
        """Add these tokens to the counter of its tenant."""
        self._served[seq.context.tenant] += num_tokens

    def gone(self, seq: Sequence) -> None:
        """Forget a sequence. A tenant without sequences keeps its counter while another tenant has sequences."""
        tenant = seq.context.tenant
        for sets in (self._live, self._holding):
            if tenant in sets:
                sets[tenant].discard(seq.seq_id)
                if not sets[tenant]:
                    del sets[tenant]
                    if sets is self._live:
                        self._leave(tenant)
        if not self._live:
            self._served = dict.fromkeys(list(self._served)[-MOST_TENANTS:], 0)

    def _leave(self, tenant: str) -> None:
        self._absent.pop(tenant, None)
        self._absent[tenant] = self._clock()
        if len(self._absent) > MOST_TENANTS:
            self._absent.popitem(last=False)


def _place(entry: _Entry) -> _Place:
    return entry[0]
