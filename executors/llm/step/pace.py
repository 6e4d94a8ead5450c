"""Measures the pace of a warm executor by timing a few short steps with dummy tokens.

    prompt steps   one prompt, first short, then of as many tokens as take about `_STEP_S`
    decode steps   1, 8 and as many sequences as a step may have, with one token each

The steps take the same path as a request's steps, sampling included. They write meaningless data into the first blocks of KV,
and their sequences are forgotten afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from executors.contract.batch import SamplingParams, SequenceStart, UnifiedBatch
from executors.contract.status import Pace
from executors.llm.step_arrays import whole_tables

_STEP_S = 0.1
"""Target time of the prompt step in seconds, estimated from a shorter one."""
_MOST_S = 0.2
"""Time after which no further step begins, in seconds."""
_FIRST_TOKENS = 16
MOST_TOKENS = 256
"""Longest prompt in tokens. On a CPU longer prompts are hardly faster per token, and their KV would make more memory of an
idle executor resident."""
MOST_TOKENS_ON_DEVICE = 2048
"""The same for a device, which computes hundreds of tokens in hardly more time than a few. Its KV is allocated anyway."""
_PAST = 32
"""Context length of the decode step, in tokens."""
_LEAST_SHARE = 0.25
"""Smallest share of a prompt step's time that counts as time of its tokens, whatever a decode step took. Both are measured
only once or twice, and other load on the machine may slow either of them."""


class _Stopwatch:
    """Runs steps and keeps the shortest time of each shape, (sequences, tokens of each), in `seconds`."""

    def __init__(self, run: Callable[[int, int], object], clock: Callable[[], float]) -> None:
        self.seconds: dict[tuple[int, int], float] = {}
        self._run = run
        self._clock = clock
        self._began = clock()

    def take(self, count: int, tokens: int) -> float:
        """Compute one such step and return the shortest time measured for this shape, in seconds."""
        began = self._clock()
        self._run(count, tokens)
        seconds = max(1e-9, self._clock() - began)
        least = self.seconds[count, tokens] = min(seconds, self.seconds.get((count, tokens), seconds))
        return least

    @property
    def time_is_left(self) -> bool:
        return self._clock() - self._began < _MOST_S


def measure_pace(
    run: Callable[[UnifiedBatch], object],
    max_num_seqs: int,
    max_tokens: int,
    max_model_len: int,
    block_size: int,
    num_blocks: Sequence[int],
    generates: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    most_tokens: int = MOST_TOKENS,
) -> Pace:
    """Time steps that `run` computes over the first of the `num_blocks` of each group. A step has at most `max_tokens` tokens, a
    sequence at most `max_model_len`, a prompt that is timed at most `most_tokens`. If `generates` is False, the model has
    no head and its prompts are pooled.

    One step is computed untimed and two are always timed; no further step begins 0.2 s after the first. Raises what `run`
    raises.
    """
    room = min(max_model_len, block_size * min(num_blocks))
    past = min(_PAST, room - 1)

    def step(count: int, tokens: int) -> object:
        return run(_step(past if tokens == 1 else 0, count, tokens, block_size, num_blocks, generates))

    most = min(max_tokens, room, most_tokens)
    tokens = min(_FIRST_TOKENS, most)
    step(1, tokens)  # the first one takes several times as long: not a word on the pace
    watch = _Stopwatch(step, clock)
    first, alone = watch.take(1, tokens), watch.take(1, 1)
    # Where a step costs much whatever is in it, the longer one takes far less than its tokens suggest: once more, then.
    for _ in range(2):
        longer = min(most, int(tokens * _STEP_S / first))
        if longer <= tokens or first > _STEP_S / 2:
            break
        tokens = longer
        first = watch.take(1, tokens)
    for count in (max_num_seqs, 8):
        if 1 < count <= min(max_num_seqs, max_tokens) and watch.time_is_left:
            watch.take(count, 1)
    for form in ((1, 1), (1, tokens)):
        if watch.time_is_left:
            watch.take(*form)
    prompt, alone = watch.seconds[1, tokens], watch.seconds[1, 1]
    # What a step takes whatever it computes, such as reading the weights, is in both.
    each = max((prompt - alone) / max(1, tokens - 1), _LEAST_SHARE * prompt / tokens)
    decodes = {count: seconds for (count, length), seconds in watch.seconds.items() if length == 1}
    return Pace(each, tuple(sorted(decodes.items())))


def decode_step(past: int, count: int, block_size: int, num_blocks: Sequence[int]) -> UnifiedBatch:
    """Make a step of a token of each of `count` sequences of `past` tokens, over the first of the `num_blocks` of each group."""
    return _step(past, count, 1, block_size, num_blocks, True)


def _step(
    past: int, count: int, tokens: int, block_size: int, num_blocks: Sequence[int], generates: bool
) -> UnifiedBatch:
    """Make a step of `count` sequences that compute `tokens` tokens each after `past` tokens, whose KV holds arbitrary data."""
    width = math.ceil((past + tokens) / block_size)
    slots = np.arange(count, dtype=np.int32)
    prompt, none = np.zeros(past + tokens, np.int32), np.empty(0, np.int32)
    sampling = SamplingParams(temperature=1.0) if generates else None
    pooling = None if generates else "last"
    # Sequences share blocks.
    tables = [np.tile(np.arange(width, dtype=np.int32) % most, (count, 1)) for most in num_blocks]
    return UnifiedBatch(
        epoch=0,
        step_id=1,
        seq_ids=slots.astype(np.int64) + 1,
        slots=slots,
        num_q_tokens=np.full(count, tokens, np.int32),
        pos_offsets=np.full(count, past, np.int32),
        is_final_chunk=np.ones(count, np.bool_),
        num_draft_tokens=np.zeros(count, np.int32),
        token_ids=np.zeros(count * tokens, np.int32),
        starts=tuple(
            SequenceStart(slot + 1, slot, prompt, none, sampling, pooling=pooling) for slot in slots.tolist()
        ),
        tables=whole_tables(slots, tables),
    )  # fmt: skip
