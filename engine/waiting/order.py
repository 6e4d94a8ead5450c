"""Queue policies: the order in which waiting sequences are admitted, and running ones served when a step lacks room."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from engine.request import Request
from engine.sequence import Sequence
from engine.waiting.fair import Fair


class QueuePolicy(Protocol):
    """The waiting sequences. A preempted sequence comes back to its place; adding and removing while iterating is not
    allowed."""

    charges: bool
    """False if `charge` has no effect, so that the scheduler need not call it for each token."""
    ranked: bool
    """True if groups are ranks: all sequences of a lower group come first. Otherwise groups take turns."""
    keeps_slots: bool
    """True if `candidates` may leave out sequences because free slots are kept for other groups."""

    def group(self, request: Request) -> str | int:
        """The group of sequences among which this request waits: a rank, or a tenant."""

    def add(self, seq: Sequence) -> None: ...

    def remove(self, seq: Sequence) -> None: ...

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate in order of admission."""

    def __len__(self) -> int: ...

    def owed(self, seq: Sequence) -> int:
        """Return how many tokens of its prompt a step may compute regardless of the delay of running streams."""

    def ordered(self, running: Iterable[Sequence]) -> Iterable[Sequence]:
        """Return running sequences, given in order of admission, with the most important first."""

    def candidates(self, num_slots: int) -> Iterator[Sequence]:
        """Iterate in order of admission over the sequences that may run now, given the total number of slots."""

    def room(self, group: str | int, num_slots: int) -> int:
        """Return how many slots a group may take beside those it has, free or not."""

    def precedes(self, seq: Sequence, running: Sequence) -> bool:
        """Whether a waiting sequence is admitted before the prompt of a running one continues."""

    def took_slot(self, seq: Sequence) -> None:
        """It has one, until it is gone."""

    def charge(self, seq: Sequence, num_tokens: int) -> None:
        """Record that this many tokens of the sequence are computed for the first time."""

    def gone(self, seq: Sequence) -> None:
        """Record that the sequence is finished and neither waits nor runs."""


class _Indifferent:
    """A policy that does not count how much each tenant has been served."""

    charges = False
    ranked = False
    keeps_slots = False

    def owed(self, seq: Sequence) -> int:
        """None."""
        return 0

    def room(self, group: str | int, num_slots: int) -> int:
        """All."""
        return num_slots

    def took_slot(self, seq: Sequence) -> None:
        """Nothing."""

    def charge(self, seq: Sequence, num_tokens: int) -> None:
        """Nothing."""

    def gone(self, seq: Sequence) -> None:
        """Nothing."""


class _Sorted(ABC):
    """Sequences in ascending order of a key that never changes and is different for each."""

    def __init__(self) -> None:
        self._entries: list[tuple[Any, Sequence]] = []

    @abstractmethod
    def key(self, seq: Sequence) -> Any:
        """Return the key that decides the sequence's place."""

    def add(self, seq: Sequence) -> None:
        """Insert a sequence; most go to the end, which costs as little as an append."""
        insort(self._entries, (self.key(seq), seq), key=_first)

    def remove(self, seq: Sequence) -> None:
        """Remove a sequence. Raises ValueError if it is not there."""
        at = bisect_left(self._entries, self.key(seq), key=_first)
        if at == len(self._entries) or self._entries[at][1] is not seq:
            raise ValueError(f"{seq} is not waiting")
        del self._entries[at]

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._entries)

    def candidates(self, num_slots: int) -> Iterator[Sequence]:
        """All."""
        return iter(self)

    def __len__(self) -> int:
        return len(self._entries)


def _first(entry: tuple[Any, Sequence]) -> Any:
    return entry[0]


class Fcfs(_Indifferent, _Sorted):
    """First come, first served."""

    def group(self, request: Request) -> str:
        """One group for all."""
        return ""

    def key(self, seq: Sequence) -> int:
        return seq.seq_id

    def precedes(self, seq: Sequence, running: Sequence) -> bool:
        """Return False: the sequence that came first continues."""
        return False

    def ordered(self, running: Iterable[Sequence]) -> Iterable[Sequence]:
        """As admitted."""
        return running


class Priority(_Indifferent, _Sorted):
    """By `RequestContext.priority`, lower values first; first come, first served among equal ones."""

    ranked = True

    def group(self, request: Request) -> int:
        """By priority."""
        return request.context.priority

    def key(self, seq: Sequence) -> tuple[int, int]:
        return seq.context.priority, seq.seq_id

    def precedes(self, seq: Sequence, running: Sequence) -> bool:
        """Return True if the waiting sequence is more important."""
        return seq.context.priority < running.context.priority

    def ordered(self, running: Iterable[Sequence]) -> Iterable[Sequence]:
        """Return the more important sequences first, and equal ones in the given order."""
        return sorted(running, key=lambda seq: seq.context.priority)


QUEUE_POLICIES: dict[str, type[Fcfs] | type[Priority] | type[Fair]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "fair": Fair,
}


def make_policy(name: str, clock: Callable[[], float]) -> QueuePolicy:
    """Return the queue policy of that name, on the engine's clock."""
    return Fair(clock) if name == "fair" else QUEUE_POLICIES[name]()
