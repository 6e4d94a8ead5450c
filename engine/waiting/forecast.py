"""`Forecast`: estimates the duration of work from the pace of an executor's warm-up, before similar work was measured.

A step with prompts takes the time of its decodes plus the time of its prompt tokens. While no sequence streams, a step is as
full of prompts as it may be; beside streams, as `LatencyBudget` allows. So prompts take two to three times as long once the
first of them has become a stream. A burst on a server that has just started meets exactly this.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from engine.policies.budget import FIRST_CHUNK, chunk_tokens
from engine.request import Request
from executors.contract import Pace

_PIECES = 16
"""Pieces in which a queue is looked at, as its prompts turn into streams one after the other."""
_RECENT = 8
"""Number of recent prompts that a new one is compared with."""
_MEMORY = 10.0
"""Seconds of computing after which a measured step counts 1/e."""
_FIRST_STEPS = 16
"""Steps, about, in which `LatencyBudget` knows nothing of decodes yet: it measures them after eight steps of about as many
streams, and a burst has more of them with every step."""
_PRIOR = 0.1
"""Seconds of computing that the pace counts as, beside what steps have taken: half as long as it was measured, for steps are
measured as they are and the pace at its best."""
_ENOUGH = 2.0
"""Seconds of computing that tell whether a pace holds. The first steps alone do not: they read weights for the first time."""


def streams(request: Request) -> bool:
    """Return whether decode steps follow its prompt."""
    return request.pooling is None and request.max_tokens > 1


@dataclass(frozen=True, slots=True)
class Work:
    """The work that is computed before a new request is started.

    - `in_flight` prompt tokens are in steps that are out, beside `decodes` decodes, since `elapsed` seconds.
    - `rest` prompt tokens of running sequences follow, then `tokens` of `count` sequences that wait.
    - `running` sequences stream, or will when what is in flight is done; `coming` will when `rest` is computed; `joining` of
      those that wait will when their prompts are.
    """

    in_flight: int = 0
    decodes: int = 0
    elapsed: float = 0.0
    rest: int = 0
    tokens: int = 0
    count: int = 0
    running: int = 0
    coming: int = 0
    joining: int = 0


class Forecast:
    """Seconds by `pace`, of steps with at most `step_tokens` tokens of at most `num_slots` sequences. `target_itl` as
    `EngineConfig` has it.

    A pace measured in a moment may be wrong, say on a machine that was busy while it started: the first steps correct it, by how
    much longer they take than it says.
    """

    def __init__(self, pace: Pace, step_tokens: int, num_slots: int, target_itl: float | None = None) -> None:
        self._pace = pace
        self._step_tokens = step_tokens
        self._num_slots = num_slots
        self._target_itl = target_itl
        self._measured = self._expected = _PRIOR
        self._decodes_taken = self._decodes_expected = 0.0
        """The same of steps with decodes alone."""
        self._first: float = _FIRST_STEPS * FIRST_CHUNK
        """Prompt tokens that will be computed beside streams before decodes are measured alone."""

    def learn(self, prompt_tokens: int, decodes: int, seconds: float) -> None:
        """Record how long a step with this many prompt tokens and decodes took."""
        if decodes:
            self._first = max(0, self._first - prompt_tokens) if prompt_tokens else 0
        decay = math.exp(-seconds / _MEMORY)
        # What a step takes whatever it computes is in that of one decode.
        expected = prompt_tokens * self._pace.prompt_token + self._pace.decode_step(max(1, decodes))
        self._measured = self._measured * decay + seconds
        self._expected = self._expected * decay + expected
        if decodes and not prompt_tokens:
            self._decodes_taken = self._decodes_taken * decay + seconds
            self._decodes_expected = self._decodes_expected * decay + expected

    @property
    def ratio(self) -> float:
        """Factor by which steps take longer than the pace says."""
        return self._measured / self._expected

    @property
    def proven_ratio(self) -> float | None:
        """`ratio`, None until steps have taken, or by the pace should have taken, long enough to prove it."""
        return self.ratio if max(self._measured, self._expected) >= _ENOUGH else None

    def seconds(self, work: Work) -> float:
        """Return the seconds until all that work is done."""
        now = 0.0
        if work.in_flight:
            step = work.in_flight * self._pace.prompt_token + self._pace.decode_step(work.decodes)
            now = max(0.0, step * self.ratio - work.elapsed)
        return now + self.ratio * self._later(work)

    def _later(self, work: Work) -> float:
        """Return the seconds of the work after the steps in flight, by the uncorrected pace."""
        prompts = _Prompts(self, self._first)
        prompts.compute(work.rest, work.running)
        running, tokens, count = work.running + work.coming, work.tokens, work.count
        if not running and tokens:
            # What fits into the step that comes next is computed before any of it streams.
            together = min(tokens, self._step_tokens)
            prompts.compute(together, 0)
            share = together / tokens
            running += min(work.joining, max(1, round(work.joining * share)))
            tokens, count = tokens - together, max(1, round(count * (1 - share)))
        remaining = max(0, work.running + work.coming + work.joining - running)
        pieces = min(_PIECES, count) if tokens else 0
        for piece in range(pieces):
            prompts.compute(tokens / pieces, running + round(remaining * piece / pieces))
        return prompts.seconds

    def decode_step(self, num_seqs: int) -> float:
        """Return the seconds of a step with one token of each of so many sequences. Before such steps were measured alone they
        are taken to be as much slower than the pace as all steps are."""
        measured = self._decodes_taken + _PRIOR * self.ratio
        scale = measured / (self._decodes_expected + _PRIOR)
        return scale * self._pace.decode_step(min(num_seqs, self._num_slots))

    def prompt(self, tokens: float) -> float:
        """Return the seconds of so many prompt tokens beside whatever else steps compute."""
        return self.ratio * tokens * self._pace.prompt_token

    def each(self, running: int, first: bool = False) -> float:
        """Seconds per prompt token beside so many streams, by the pace as it is. `first`: decodes were not measured yet."""
        alone, most = self._pace.prompt_token, self._step_tokens
        base = self._pace.decode_step(min(running, self._num_slots))
        if not base or self._target_itl == 0:
            chunk = most
        elif first:
            chunk = min(most, FIRST_CHUNK)
        else:
            chunk = chunk_tokens(base, alone, self._target_itl, most)
        return alone + base / chunk


class _Prompts:
    """Prompts computed one after the other, in `seconds`. The first `first` tokens beside streams are of the time when decodes
    were not measured yet."""

    def __init__(self, forecast: Forecast, first: float) -> None:
        self.seconds = 0.0
        self._forecast = forecast
        self._first = first

    def compute(self, tokens: float, running: int) -> None:
        """Return the seconds for this many tokens beside this many streams."""
        first = min(tokens, self._first) if running else 0.0
        self._first -= first
        self.seconds += first * self._forecast.each(running, first=True)
        self.seconds += (tokens - first) * self._forecast.each(running)


class SharedPrefixes:
    """Guesses how much of a prompt is computed already when its turn comes: what it has in common with one of the last prompts.

    The cache of prefixes is asked when a sequence is admitted; a burst of requests with one long system prompt, which come
    before any of them was computed, would look many times as much work as it is.
    """

    def __init__(self, block_size: int) -> None:
        """`block_size` tokens are shared or not; 0: nothing is."""
        self._block_size = block_size
        self._recent: deque[Request] = deque(maxlen=_RECENT)

    def fresh(self, request: Request) -> int:
        """Tokens of its prompt that have to be computed; it is one of the last prompts from now on."""
        ids = request.prompt_token_ids
        if not self._block_size or request.needs_whole_prompt:
            return len(ids)
        most = (len(ids) - 1) // self._block_size * self._block_size  # one at least is computed in any case
        shared = 0
        for other in reversed(self._recent):
            if _root(other) == _root(request):
                shared = max(shared, _alike(ids[:most], other.prompt_token_ids))
            if shared == most:
                break
        self._recent.append(request)
        return len(ids) - shared // self._block_size * self._block_size


def _root(request: Request) -> tuple[str | None, str | None, int | None]:
    """What prompts have in common that may share KV."""
    return request.adapter, request.context.cache_salt, request.second_segment


def _alike(one: np.ndarray, other: np.ndarray) -> int:
    """Return the length of the common prefix."""
    length = min(len(one), len(other))
    if not length or one[0] != other[0]:
        return 0
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
