"""`Backlog`: how much waits to be begun, and how long that will take by what was measured."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from engine.request import Request
from engine.sequence import Sequence
from engine.waiting.forecast import Forecast, SharedPrefixes, Work, answer_tokens, streams
from engine.waiting.not_started import Unbegun

_MEMORY = 10.0
"""Seconds of computing prompts after which a measurement of their pace counts 1/e."""
_ENOUGH = 1.0
"""Seconds of computing prompts before their pace says anything: the first steps of a cold executor are many times as slow."""
_KEPT = math.exp(-1 / 32)
"""What counts of how long sequences took, with each one more that ends."""
MAX_RETRY_AFTER = 300
"""Seconds. Longer estimates are guesses about requests that have not come yet."""


@dataclass(slots=True)
class Waiting:
    """So many sequences, with so many tokens of prompts, `fresh` of them not found in prompts before; `joining` of the sequences
    are followed by decode steps."""

    count: int = 0
    tokens: int = 0
    fresh: float = 0
    joining: int = 0


class Backlog:
    """Sequences that were submitted and never admitted. Written by callers (`enter`) and by the loop task, on one event
    loop.

    - `count` of them, and `tokens` of their prompts: as they were submitted, cached or not, for nobody knows before what will be
      found. The pace of prompts is measured in the same unit. Choices that share a prompt have it once.
    - `unbegun`: since when and until when each of them waits.

    How long they wait is the longer of two times: until the prompts before them are computed, and until as many sequences have
    ended as are missing slots or blocks for them. Those are taken to end in the order in which they began, each as long after
    that as others took; the time in which there was no executor is left out. What comes before whom is the queue policy's
    order, simplified.

    Before anything was measured, both are what a `Forecast` says, if there is one; what is measured takes its place little by
    little.
    """

    def __init__(
        self, policy: str = "fcfs", clock: Callable[[], float] = time.monotonic, patience: float = math.inf
    ) -> None:
        """`patience`: seconds that a sequence waits at most, see `Unbegun`."""
        self.count = 0
        self.tokens = 0
        self._policy = policy
        self._clock = clock
        self._groups: dict[str | int, Waiting] = {}
        """By tenant or by priority, where the policy tells them apart."""
        self.unbegun = Unbegun(patience, clock)
        self._fresh: dict[Sequence, int] = {}
        """Of those that wait: prompt tokens that are not found in prompts before."""
        self._prefixes = SharedPrefixes(0)
        self._forecast: Forecast | None = None
        self._trust = 1.0
        """How much the forecast counts beside what was measured."""
        self._out: deque[tuple[int, int]] = deque()
        """Prompt tokens and decodes of the steps that are out."""
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

    # -- who waits -----------------------------------------------------------------------------------------------------

    def enter(self, seq: Sequence) -> None:
        """It waits from now on."""
        tokens = self.tokens_of(seq)
        self._fresh[seq] = self._prefixes.fresh(seq.request) if tokens else 0
        self._count(seq, 1)
        self.unbegun.add(seq)

    def begin(self, seq: Sequence) -> None:
        """It was admitted for the first time."""
        self._leave(seq)
        self.unbegun.begin(seq)
        if not self._begun:
            self._moved = self._clock()
        self._begun[seq] = self._worked()

    def end(self, seq: Sequence) -> None:
        """It ended, in whatever way."""
        began = self._begun.pop(seq, None)
        if began is None:
            self._leave(seq)
            self.unbegun.remove(seq)
        else:
            self._took = self._took * _KEPT + max(0.0, self._worked() - began)
            self._ended = self._ended * _KEPT + 1

    def _leave(self, seq: Sequence) -> None:
        self._count(seq, -1)
        del self._fresh[seq]
        if not self.count:
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
        group.fresh += change * self._fresh[seq]
        group.joining += change * streams(seq.request)
        if not group.count:
            del self._groups[key]

    def _group(self, request: Request) -> str | int:
        if self._policy == "priority":
            return request.priority
        return request.tenant if self._policy == "fair" else ""

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

    def expects(self, forecast: Forecast, prefix_block_size: int = 0) -> None:
        """How long things take before they were measured. Prompts share blocks of `prefix_block_size` tokens; 0: nothing."""
        self._forecast = forecast
        self._prefixes = SharedPrefixes(prefix_block_size)

    def stuck(self, running: int) -> None:
        """Beside so many running sequences there is no room for another one."""
        self._capacity = max(1, running)

    def stopped(self) -> None:
        """The executor is lost. What it did since the last step that was done is lost too; it is back with the next one."""
        self._out.clear()
        if self._stopped is None:
            self._stopped = self._moved

    def _worked(self) -> float:
        """Seconds of the clock, without those in which there was no executor: a restart tells nothing of how long sequences
        take."""
        return (self._clock() if self._stopped is None else self._stopped) - self._away

    def launched(self, decodes: int, prompt_tokens: int) -> None:
        """A step of so much is out, behind those before it."""
        self._out.append((prompt_tokens, decodes))

    def observe(self, seconds: float, prompt_tokens: int) -> None:
        """A step took so long, with so many tokens of prompts in it: computed, or found where others had computed them."""
        self._moved = self._clock()
        if self._out:
            out = self._out.popleft()
            if self._forecast is not None:
                self._forecast.learn(*out, seconds)
        if self._stopped is not None:
            self._away += max(0.0, self._moved - seconds - self._stopped)
            self._stopped = None
        if prompt_tokens:
            kept = math.exp(-seconds / _MEMORY)
            self._prompt_seconds = self._prompt_seconds * kept + seconds
            self._prompt_tokens = self._prompt_tokens * kept + prompt_tokens
            self._trust *= kept

    def ahead(self, request: Request) -> Waiting:
        """What is begun before a request that comes now."""
        own = self._group(request)
        if self._policy == "priority":
            before = [group for key, group in self._groups.items() if key <= own]  # type: ignore[operator]  # all int
            return _sum(before)
        mine = self._groups.get(own, Waiting())
        # Of others no more than of its own, and one of each that may come before it.
        others = [
            _first(group, mine.count + 1, mine.tokens + group.tokens // group.count)
            for key, group in self._groups.items()
            if key != own
        ]
        return _sum((mine, *others))

    def wait(self, request: Request) -> float:
        """Seconds, about, until a request that comes now is begun. 0 if nothing is before it, or nothing was measured yet and
        there is no forecast."""
        ahead = self.ahead(request)
        by_tokens = self._until_computed(request, ahead)
        if not ahead.count:
            return by_tokens
        return max(by_tokens, self._until_ended(ahead.count + 1 - (self._capacity - len(self._begun))))

    def _until_computed(self, request: Request, ahead: Waiting) -> float:
        """Seconds until the prompts before it are computed."""
        measured = 0.0
        enough = self._prompt_seconds >= _ENOUGH and self._prompt_tokens > 0
        if enough and ahead.count:
            measured = ahead.tokens * self._prompt_seconds / self._prompt_tokens
        if self._forecast is None or not (ahead.count or self._begun):
            return measured
        trust = self._trust if enough else 1.0
        return trust * self._forecast.seconds(self._work(request, ahead)) + (1 - trust) * measured

    def _work(self, request: Request, ahead: Waiting) -> Work:
        """What is computed before it: what is out, what is left of the prompts that were begun, and what waits."""
        group = self._group(request)
        rest = running = coming = 0
        for seq in self._begun:
            left = max(0, seq.num_uncomputed_tokens - 1)
            more = streams(seq.request)
            if not left:
                running += more
            elif self._goes_on_before(seq, group):
                rest, coming = rest + left, coming + more
        return Work(
            in_flight=sum(prompt_tokens for prompt_tokens, _ in self._out),
            decodes=max((decodes for _, decodes in self._out), default=0),
            elapsed=self._clock() - self._moved,
            rest=rest,
            tokens=round(ahead.fresh),
            count=ahead.count,
            running=running,
            coming=coming,
            joining=ahead.joining,
        )

    def _goes_on_before(self, seq: Sequence, group: str | int) -> bool:
        """Whether the rest of its prompt comes before a new request of that group."""
        own = self._group(seq.request)
        return own <= group if self._policy == "priority" else own == group  # type: ignore[operator]  # both int

    def _until_ended(self, count: int) -> float:
        """Seconds until so many sequences have ended, those that will be admitted meanwhile included."""
        if count <= 0:
            return 0.0
        if self._ended:
            each = self._took / self._ended
        elif self._forecast is not None and self._begun:
            each = self._forecast.answer(
                sum(answer_tokens(seq.request) for seq in self._begun) / len(self._begun)
            )
        else:
            return 0.0
        rounds, number = divmod(count - 1, self._capacity)
        began = next(islice(self._begun.values(), number, None), None)
        left = each if began is None else min(each, max(0.0, began + each - self._worked()))
        return rounds * each + left

    def retry_after(self, request: Request) -> int:
        """Whole seconds, at least 1, after which half of what is before this request now will have been begun: there is room
        then, and nobody has waited in vain for more of it."""
        return max(1, math.ceil(min(MAX_RETRY_AFTER, self.wait(request) / 2)))


def _sum(groups: Iterable[Waiting]) -> Waiting:
    total = Waiting()
    for one in groups:
        total.count += one.count
        total.tokens += one.tokens
        total.fresh += one.fresh
        total.joining += one.joining
    return total


def _first(group: Waiting, most: int, most_tokens: int) -> Waiting:
    """The first of a group, of so many sequences and so many tokens at most, taken to be alike."""
    count, tokens = min(group.count, most), min(group.tokens, most_tokens)
    share = tokens / group.tokens if group.tokens else 0.0
    return Waiting(count, tokens, group.fresh * share, min(group.joining, count))
