"""`WaitEstimate`: estimates how long a request waits to be started, from measurements and, before those, a forecast."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from engine.request import Request
from engine.sequence import Sequence
from engine.waiting.answers import AnswerLengths, Guess, OutputLimits
from engine.waiting.forecast import Forecast, Work, streams

_MEMORY = 10.0
"""Seconds of computing prompts after which a measurement of their pace counts 1/e."""
_ENOUGH = 1.0
"""Seconds of computing prompts before their pace says anything: the first steps of a cold executor are many times as slow."""
_USED_SHARE = 0.8
"""Share of outputs that is in the KV pool while sequences give way to each other: between half and all of them."""
_GAIN_SMOOTHING = 0.1
_DECAY = math.exp(-1 / 32)
"""Weight that the durations of earlier sequences keep each time another sequence ends."""


@dataclass(slots=True)
class Waiting:
    """`count` sequences with `tokens` tokens of prompts, `fresh` of them not shared with earlier prompts; decode steps follow the
    prompts of `joining` sequences, whose outputs `limits` tells."""

    count: int = 0
    tokens: int = 0
    fresh: float = 0
    joining: int = 0
    limits: OutputLimits = field(default_factory=OutputLimits)


class StepSize(Protocol):
    """The numbers of a step that the estimate needs; a `UnifiedBatch` has them."""

    @property
    def num_decodes(self) -> int:
        """Number of items that decode."""

    @property
    def num_prompt_tokens(self) -> int:
        """Number of query tokens of all other items."""


class WaitEstimate:
    """Estimates waiting times. Written by `WaitingQueue` and by the scheduler, which tells it of steps.

    The wait is the longer of two times: until the prompts ahead are computed, and until as many sequences have ended as slots or
    blocks are missing. The pace of prompts is measured in tokens as submitted, cached or not; before anything was measured it
    comes from `forecast`, whose place measurements take little by little.

    Where there is a forecast, sequences end when the tokens that are left to them are computed, which `AnswerLengths` guesses, at
    the pace of decode steps: known before the first request, and corrected by each step. Without one they are taken to end
    in the order in which they started, each as long after its start as others took; time without an executor is left out.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.forecast: Forecast | None = None
        self._clock = clock
        self._trust = 1.0
        """Weight of the forecast relative to the measurements."""
        self._steps: deque[StepSize] = deque()
        """Steps in flight, the oldest first."""
        self._prompt_seconds = 0.0
        self._prompt_tokens = 0.0
        self._started: dict[Sequence, float] = {}
        """When each sequence that has not ended was admitted first, by `_worked`; the oldest first."""
        self._run_seconds = 0.0
        self._ended = 0.0
        self._lengths = AnswerLengths()
        self._gain = 1.0
        """Tokens that a decode step gives each sequence: more than one with drafts."""
        self._num_slots = self._capacity = 1
        self._kv_tokens = math.inf
        self._moved = clock()
        """When the last step was done, or a sequence was started while none ran."""
        self._stopped: float | None = None
        """Time at which the executor was lost; None while there is one."""
        self._away = 0.0
        """Total seconds without an executor."""

    # -- what happens --------------------------------------------------------------------------------------------------

    def open(self, num_slots: int, kv_tokens: float = math.inf) -> None:
        """`num_slots` sequences can run at once, and have `kv_tokens` tokens together."""
        self._num_slots = self._capacity = num_slots
        self._kv_tokens = kv_tokens

    def start(self, seq: Sequence) -> None:
        """Record that a sequence was admitted for the first time."""
        if not self._started:
            self._moved = self._clock()
        self._started[seq] = self._worked()

    def end(self, seq: Sequence) -> None:
        """Record that a started sequence has ended."""
        started = self._started.pop(seq)
        self._run_seconds = self._run_seconds * _DECAY + max(0.0, self._worked() - started)
        self._ended = self._ended * _DECAY + 1
        self._lengths.learn(seq)

    def gained(self, tokens: float) -> None:
        """A step without prompts gave each of its sequences so many tokens."""
        self._gain += _GAIN_SMOOTHING * (tokens - self._gain)

    def emptied(self) -> None:
        """Record that no sequence waits to be started, so the KV demand of the next ones is unknown."""
        self._capacity = self._num_slots

    def stuck(self, running: int) -> None:
        """Record that no further sequence fits beside `running` sequences."""
        self._capacity = max(1, running)

    def stopped(self) -> None:
        """The executor is lost, with what it did since the last step that was done. The next step shows that it is back."""
        self._steps.clear()
        if self._stopped is None:
            self._stopped = self._moved

    def _worked(self) -> float:
        """Seconds of the clock, without those in which there was no executor: a restart tells nothing of how long sequences
        take."""
        return (self._clock() if self._stopped is None else self._stopped) - self._away

    def submitted(self, step: StepSize) -> None:
        """Record that a step was submitted after those in flight."""
        self._steps.append(step)

    def observe(self, seconds: float, prompt_tokens: int) -> None:
        """The oldest step in flight took `seconds`; `prompt_tokens` were computed by it, or found in the cache by sequences
        admitted to it."""
        self._moved = self._clock()
        if self._steps:
            step = self._steps.popleft()
            if self.forecast is not None:
                self.forecast.learn(step.num_prompt_tokens, step.num_decodes, seconds)
        if self._stopped is not None:
            self._away += max(0.0, self._moved - seconds - self._stopped)
            self._stopped = None
        if prompt_tokens:
            decay = math.exp(-seconds / _MEMORY)
            self._prompt_seconds = self._prompt_seconds * decay + seconds
            self._prompt_tokens = self._prompt_tokens * decay + prompt_tokens
            self._trust *= decay

    # -- how long ------------------------------------------------------------------------------------------------------

    @property
    def num_started(self) -> int:
        """Number of sequences that were started and have not ended."""
        return len(self._started)

    def wait(self, ahead: Waiting, goes_first: Callable[[Request], bool], num_kept: int = 0) -> float:
        """Seconds, about, until a request with `ahead` before it is started. `goes_first` says of a running request whether the
        rest of its prompt is computed before. `num_kept` free slots are not for it."""
        by_tokens = self._until_computed(ahead, goes_first)
        if self.forecast is None:
            if not ahead.count:
                return by_tokens
            free = self._capacity - num_kept - len(self._started)
            return max(by_tokens, self._until_ended(ahead.count + 1 - free))
        return max(by_tokens, self._until_computed_to_the_end(self.forecast, ahead, num_kept))

    @property
    def _measured(self) -> bool:
        """Whether the pace of prompts was measured for long enough."""
        return self._prompt_seconds >= _ENOUGH and self._prompt_tokens > 0

    def _until_computed(self, ahead: Waiting, goes_first: Callable[[Request], bool]) -> float:
        """Seconds until the prompts ahead are computed."""
        measured, enough = 0.0, self._measured
        if enough and ahead.count:
            measured = ahead.tokens * self._prompt_seconds / self._prompt_tokens
        if self.forecast is None or not (ahead.count or self._started):
            return measured
        trust = self._trust if enough else 1.0
        return trust * self.forecast.seconds(self._work(ahead, goes_first)) + (1 - trust) * measured

    def _work(self, ahead: Waiting, goes_first: Callable[[Request], bool]) -> Work:
        """What is computed first: steps in flight, the rest of prompts that were started, and what waits ahead."""
        rest = running = coming = 0
        for seq in self._started:
            remaining = max(0, seq.num_uncomputed_tokens - 1)
            more = streams(seq.request)
            if not remaining:
                running += more
            elif goes_first(seq.request):
                rest, coming = rest + remaining, coming + more
        return Work(
            in_flight=sum(step.num_prompt_tokens for step in self._steps),
            decodes=max((step.num_decodes for step in self._steps), default=0),
            elapsed=self._clock() - self._moved,
            rest=rest,
            tokens=round(ahead.fresh),
            count=ahead.count,
            running=running,
            coming=coming,
            joining=ahead.joining,
        )

    def _until_ended(self, count: int) -> float:
        """Seconds until `count` sequences have ended, those that will be admitted meanwhile included, by how long others took."""
        if not self._ended:
            return 0.0
        each = self._run_seconds / self._ended
        rounds, number = divmod(count - 1, self._capacity)
        started = next(islice(self._started.values(), number, None), None)
        remaining = each if started is None else min(each, max(0.0, started + each - self._worked()))
        return rounds * each + remaining

    def _until_computed_to_the_end(self, forecast: Forecast, ahead: Waiting, num_kept: int) -> float:
        """Seconds until there is a slot, by the tokens that are left to those that have one. Those that wait get the slots in
        turn, each for the same time: that of its tokens, and of the prompts of all others, which every stream waits for."""
        guess = self._lengths.guess(self._started)
        slots = min(self._capacity, self._fitting(guess, ahead)) if ahead.count else self._num_slots
        slots = max(1, min(slots, self._num_slots - num_kept))
        count = ahead.count + 1 - (slots - len(self._started))
        if count <= 0:
            return 0.0
        token = forecast.decode_step(slots) / self._gain
        rest = forecast.prompt(sum(max(0, seq.num_uncomputed_tokens - 1) for seq in self._started))
        ends = [guess.left(seq) * token + rest for seq in self._started]
        if not ahead.count:  # all slots are taken, and the next that is free is this request's
            return min(ends)
        prompts = forecast.prompt(ahead.fresh / ahead.count)
        if self._measured:  # the cache may hold more of them than can be told beforehand
            prompts = min(prompts, ahead.tokens / ahead.count * self._prompt_seconds / self._prompt_tokens)
        each = guess.total(ahead.limits) / ahead.count * token + slots * prompts
        ends += [each + rest] * (slots - len(ends))
        rounds, number = divmod(count - 1, slots)
        return sorted(ends)[number] + rounds * each

    def _fitting(self, guess: Guess, ahead: Waiting) -> int:
        """How many sequences the KV pool has room for: those that run and those that wait are alike, and not all of them are at
        the end of their output at once."""
        if self._kv_tokens == math.inf:
            return self._num_slots
        tokens = ahead.fresh + _USED_SHARE * guess.total(ahead.limits)
        for seq in self._started:
            tokens += seq.num_known_tokens - seq.num_cached_tokens + _USED_SHARE * guess.left(seq)
        each = tokens / (ahead.count + len(self._started))
        return max(1, min(self._num_slots, int(self._kv_tokens / max(1.0, each))))
