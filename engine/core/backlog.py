"""`Backlog`: how much waits to be begun, and how long that will take by what was measured."""

from __future__ import annotations

import heapq
import math
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from engine.core.mailbox import Mailbox
from engine.core.sequence import Sequence
from engine.request import Request

_MEMORY = 10.0
"""Seconds of computing prompts after which a measurement of their pace counts 1/e."""
_ENOUGH = 1.0
"""Seconds of computing prompts before their pace says anything: the first steps of a cold executor are many times as slow."""
_KEPT = math.exp(-1 / 32)
"""What counts of how long sequences took, with each one more that ends."""
MAX_RETRY_AFTER = 300
"""Seconds. Longer estimates are guesses about requests that have not come yet."""
_SPARE = 64
"""Entries of sequences that wait no more, which are not worth a look at how many there are."""


@dataclass(slots=True)
class Waiting:
    """So many sequences, with so many tokens of prompts."""

    count: int = 0
    tokens: int = 0


class Backlog:
    """Sequences that were submitted and never admitted. Written by callers (`enter`) and by the loop task, on one event
    loop.

    - `count` of them, and `tokens` of their prompts: as they were submitted, cached or not, for nobody knows before what will be
      found. The pace of prompts is measured in the same unit. Choices that share a prompt have it once.

    How long they wait is the longer of two times: until the prompts before them are computed, and until as many sequences have
    ended as are missing slots or blocks for them. Those are taken to end in the order in which they began, each as long after
    that as others took; the time in which there was no executor is left out. What comes before whom is the queue policy's
    order, simplified.
    """

    def __init__(self, policy: str = "fcfs", clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.tokens = 0
        self._policy = policy
        self._clock = clock
        self._groups: dict[str | int, Waiting] = {}
        """By tenant or by priority, where the policy tells them apart."""
        self._prompt_seconds = 0.0
        self._prompt_tokens = 0.0
        self._begun: dict[Sequence, float] = {}
        """When those were admitted that have not ended, the oldest first, by `_worked`."""
        self._took = 0.0
        self._ended = 0.0
        self._num_slots = self._capacity = 1
        self._shares_prompts = False
        self._moved = clock()
        """When the last step was done, or who runs was begun after nobody ran."""
        self._stopped: float | None = None
        """Since when there is no executor; None if there is one."""
        self._away = 0.0
        """Seconds without an executor, all of them."""
        self._deadlines: list[tuple[float, int, Sequence]] = []
        """A heap, in which some wait no more."""
        self._with_deadline: set[Sequence] = set()
        """Those of the heap that still wait."""
        self._calls_begun: weakref.WeakSet[Mailbox] = weakref.WeakSet()
        """Of calls with a deadline, of which a sequence was admitted."""

    # -- who waits -----------------------------------------------------------------------------------------------------

    def enter(self, seq: Sequence) -> None:
        """It waits from now on."""
        self._count(seq, 1)
        if seq.request.deadline is not None:
            heapq.heappush(self._deadlines, (seq.request.deadline, seq.seq_id, seq))
            self._with_deadline.add(seq)

    def begin(self, seq: Sequence) -> None:
        """It was admitted for the first time."""
        self._leave(seq)
        if not self._begun:
            self._moved = self._clock()
        self._begun[seq] = self._worked()
        if seq.request.deadline is not None:
            self._calls_begun.add(seq.mailbox)

    def end(self, seq: Sequence) -> None:
        """It ended, in whatever way."""
        began = self._begun.pop(seq, None)
        if began is None:
            self._leave(seq)
        else:
            self._took = self._took * _KEPT + max(0.0, self._worked() - began)
            self._ended = self._ended * _KEPT + 1

    def _leave(self, seq: Sequence) -> None:
        self._count(seq, -1)
        self._with_deadline.discard(seq)
        if len(self._deadlines) > 2 * len(self._with_deadline) + _SPARE:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._with_deadline]
            heapq.heapify(self._deadlines)
        if not self.count:
            self._deadlines.clear()
            self._with_deadline.clear()
            self._capacity = self._num_slots  # what the next ones need of the pool is not known

    def tokens_of(self, seq: Sequence) -> int:
        """Tokens of its prompt; 0 if it is another choice's, who computes it for both."""
        shared = self._shares_prompts and not seq.is_first
        return 0 if shared and not seq.request.needs_whole_prompt else seq.prompt_len

    def _count(self, seq: Sequence, change: int) -> None:
        tokens = change * self.tokens_of(seq)
        self.count += change
        self.tokens += tokens
        key = self._group(seq.request)
        group = self._groups.setdefault(key, Waiting())
        group.count += change
        group.tokens += tokens
        if not group.count:
            del self._groups[key]

    def _group(self, request: Request) -> str | int:
        if self._policy == "priority":
            return request.priority
        return request.tenant if self._policy == "fair" else ""

    def expired(self, now: float) -> Iterator[Sequence]:
        """Sequences still waiting whose deadline has passed, each once. Not those of a call that was begun: it would lose what
        it has, and the work on it."""
        while self._deadlines and self._deadlines[0][0] <= now:
            seq = heapq.heappop(self._deadlines)[2]
            waits = seq in self._with_deadline
            self._with_deadline.discard(seq)
            if waits and seq.mailbox not in self._calls_begun:
                yield seq

    def within_share(self, request: Request, max_seqs: int, max_tokens: int) -> bool:
        """Where tenants are told apart: whether this one has less of a full queue than its equal share. So one with a thousand
        requests shuts nobody out, and the queue is at most twice as long as it may be."""
        if self._policy != "fair":
            return False
        own, tenants = self._groups.get(request.tenant), len(self._groups)
        if own is None:
            return tenants > 0
        return own.count * tenants < max_seqs and own.tokens * tenants < max_tokens and tenants > 1

    # -- how long ------------------------------------------------------------------------------------------------------

    def opens(self, num_slots: int, shares_prompts: bool = False) -> None:
        """So many sequences can be computed at once, if the pool has room for them. `shares_prompts`: choices of one prompt
        share its KV."""
        self._num_slots = self._capacity = num_slots
        self._shares_prompts = shares_prompts

    def stuck(self, running: int) -> None:
        """Beside so many running sequences there is no room for another one."""
        self._capacity = max(1, running)

    def stopped(self) -> None:
        """The executor is lost. What it did since the last step that was done is lost too; it is back with the next one."""
        if self._stopped is None:
            self._stopped = self._moved

    def _worked(self) -> float:
        """Seconds of the clock, without those in which there was no executor: a restart tells nothing of how long sequences
        take."""
        return (self._clock() if self._stopped is None else self._stopped) - self._away

    def observe(self, seconds: float, prompt_tokens: int) -> None:
        """A step took so long, with so many tokens of prompts in it: computed, or found where others had computed them."""
        self._moved = self._clock()
        if self._stopped is not None:
            self._away += max(0.0, self._moved - seconds - self._stopped)
            self._stopped = None
        if prompt_tokens:
            kept = math.exp(-seconds / _MEMORY)
            self._prompt_seconds = self._prompt_seconds * kept + seconds
            self._prompt_tokens = self._prompt_tokens * kept + prompt_tokens

    def ahead(self, request: Request) -> Waiting:
        """What is begun before a request that comes now."""
        own = self._group(request)
        if self._policy == "priority":
            before = [group for key, group in self._groups.items() if key <= own]  # type: ignore[operator]  # all int
            return Waiting(sum(one.count for one in before), sum(one.tokens for one in before))
        mine = self._groups.get(own, Waiting())
        # Of others no more than of its own, and one of each that may come before it.
        others = [group for key, group in self._groups.items() if key != own]
        count = sum(min(group.count, mine.count + 1) for group in others)
        tokens = sum(min(group.tokens, mine.tokens + group.tokens // group.count) for group in others)
        return Waiting(mine.count + count, mine.tokens + tokens)

    def wait(self, request: Request) -> float:
        """Seconds, about, until a request that comes now is begun. 0 if nothing is before it, or nothing was measured yet."""
        ahead = self.ahead(request)
        if not ahead.count:
            return 0.0
        by_tokens = 0.0
        if self._prompt_seconds >= _ENOUGH and self._prompt_tokens:
            by_tokens = ahead.tokens * self._prompt_seconds / self._prompt_tokens
        return max(by_tokens, self._until_ended(ahead.count + 1 - (self._capacity - len(self._begun))))

    def _until_ended(self, count: int) -> float:
        """Seconds until so many sequences have ended, those that will be admitted meanwhile included."""
        if count <= 0 or not self._ended:
            return 0.0
        each = self._took / self._ended
        rounds, number = divmod(count - 1, self._capacity)
        began = next(islice(self._begun.values(), number, None), None)
        left = each if began is None else min(each, max(0.0, began + each - self._worked()))
        return rounds * each + left

    def retry_after(self, request: Request) -> int:
        """Whole seconds, at least 1, after which half of what is before this request now will have been begun: there is room
        then, and nobody has waited in vain for more of it."""
        return max(1, math.ceil(min(MAX_RETRY_AFTER, self.wait(request) / 2)))
