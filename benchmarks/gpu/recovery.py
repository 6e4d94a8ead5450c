"""SIGKILL of an executor under streams: every stream goes on, no token is lost or doubled, and how long each one paused.

Are they the right tokens? A recovered sequence is computed anew from its prompt and its committed tokens, in other batches
than before. In float32 on a CPU that changes no token: the streams must be those of an undisturbed run. In bf16 on a GPU a
draw may fall on the other side of a border within rounding, and what follows is another text, so equality is no test there.
Then each stream is asked about itself: a request whose prompt is the stream's text up to some place after the kill, with its
seed, must draw the stream's next token. Noise depends on the seed and the absolute position, so that one token lost or
doubled, in the stream or in what the executor computed from, changes the noise or the context of all draws behind it, and
wrong weights change all logits: then draws agree by chance only, from there on. Rounding changes less than one in ten, here and
there. A stream is wrong if `IN_A_ROW` of its draws after a kill disagree one after the other.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from benchmarks.gpu.part import Failed, Found
from benchmarks.gpu.serving import Crowd
from benchmarks.gpu.stages import Recovery, StageLog, check_stages, recovery_seconds
from engine.core.engine import EngineCore
from engine.interruptions import Outage

CAUSES = ("executor_died:signal",)
AFTER = (0, 1, 2, 4, 8, 16, 24, 32)
"""Tokens of a stream that are drawn again, counted from the first one after each kill."""
IN_A_ROW = 4
_PATIENCE = 60.0
"""Seconds for streams to come as far as the next kill, a recovery included."""
Tokens = Sequence[Sequence[int]]
Times = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Load:
    """Streams that run while the executor is killed: prompts as token ids, tokens that each is to be given, and how many each
    must have at the least when a kill comes.

    `drawn_from`: most likely tokens that one is drawn from, 0: all. Random weights give 152k tokens nearly equal shares, and
    rounding in bf16 moves the sums of shares by more than one of them: of draws from all of them 59 of 256 agreed on an H200, and
    a quarter do of random logits with its noise; of draws from eight 0.86 and more do, and none behind another text.
    """

    prompts: list[list[int]]
    tokens: int
    kills: tuple[int, ...]
    drawn_from: int = 0


async def recovery(
    core: EngineCore, found: Found, log: StageLog, load: Load, exact: bool, on_device: bool,
    kill: Callable[[], object] | None = None, causes: Sequence[str] = CAUSES,
) -> None:  # fmt: skip
    """Streams with `load.kills`; one kill is `kill`, or SIGKILL. `exact`: streams must be those of an undisturbed run. Raises
    Failed where a stream, a stage or a moment is not what it must be; what is known by then was found."""
    undisturbed = await _all(core, load)
    before = len(core.outages())
    crowd, killed = await _killed(core, load, kill or core.executor.kill)  # type: ignore[attr-defined]
    check_complete(crowd.tokens, load.tokens)
    outages = outages_of(list(core.outages())[before:], len(killed), causes)
    pauses = [pauses_of(crowd.times, one) for one in outages]
    moments = [moments_of(crowd.times, at, one) for at, one in zip(killed, outages, strict=True)]
    stages = [recovery_seconds(log.between(one.noticed, one.ready), one) for one in moments]
    found(
        {
            "streams": len(load.prompts),
            "tokens_each": load.tokens,
            "kills": len(killed),
            "causes": [one.cause for one in outages],
            "pause_seconds": max(map(max, pauses)),
            "pause_seconds_by_kill": [max(one) for one in pauses],
            "recovery_seconds_by_stage": stages,
            "same_as_undisturbed": sum(a == b for a, b in zip(crowd.tokens, undisturbed, strict=True)),
        }
    )
    if exact:
        check_same(crowd.tokens, undisturbed)
    agree = await _drawn_again(core, load, crowd, outages)
    drawn, same = (sum(map(of, agree.values())) for of in (len, sum))
    found({"drawn_again": drawn, "drawn_the_same": same})
    check_draws(agree, exact)
    for seconds in stages:
        check_stages(seconds, on_device, first=False)


async def _all(core: EngineCore, load: Load) -> list[list[int]]:
    crowd = Crowd(core, keep=True)
    crowd.ask(load.prompts, [load.tokens] * len(load.prompts), top_k=load.drawn_from)
    await crowd.read()
    check_complete(crowd.tokens, load.tokens)
    return crowd.tokens


async def _killed(core: EngineCore, load: Load, kill: Callable[[], object]) -> tuple[Crowd, list[float]]:
    """The streams, and when each kill was sent."""
    crowd, killed = Crowd(core, keep=True), list[float]()
    crowd.ask(load.prompts, [load.tokens] * len(load.prompts), top_k=load.drawn_from)
    reading = asyncio.create_task(crowd.read())
    try:
        for least in load.kills:
            await _come_as_far(crowd, least, reading)
            if max(crowd.counts) >= load.tokens:
                raise Failed("a stream ended before the executor was killed")
            killed.append(core.clock())
            kill()
        async with asyncio.timeout(_PATIENCE):
            await reading
    except TimeoutError:
        raise Failed(f"streams did not end within {_PATIENCE:.0f} s of the last kill") from None
    finally:
        reading.cancel()
    return crowd, killed


async def _come_as_far(crowd: Crowd, least: int, reading: asyncio.Task[None]) -> None:
    """Look every millisecond: small models give a token in less, and the streams must not end meanwhile."""
    deadline = time.monotonic() + _PATIENCE
    while min(crowd.counts) < least and not reading.done():
        if time.monotonic() > deadline:
            raise Failed(f"after {_PATIENCE:.0f} s a stream has {min(crowd.counts)} tokens, not {least}")
        await asyncio.sleep(0.001)


# -- the streams' tokens -----------------------------------------------------------------------------------------------------


def check_complete(tokens: Tokens, count: int) -> None:
    """Raises Failed unless each stream has so many tokens."""
    wrong = [f"{number} has {len(one)}" for number, one in enumerate(tokens) if len(one) != count]
    if wrong:
        raise Failed(f"{len(wrong)} streams have not {count} tokens: number {wrong[0]}")


def check_same(tokens: Tokens, expected: Tokens) -> None:
    """Raises Failed with the first place where a stream differs."""
    for number, (one, other) in enumerate(zip(tokens, expected, strict=True)):
        if list(one) != list(other):
            place = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            raise Failed(f"stream {number} differs from the undisturbed run from token {place} on")


def places_after(times: Sequence[float], readies: Sequence[float]) -> list[list[int]]:
    """Which tokens of a stream are drawn again, for each moment when an executor was ready: `AFTER` it, before the next."""
    firsts = [*(bisect_right(times, ready) for ready in readies), len(times)]
    return [[first + more for more in AFTER if first + more < end] for first, end in pairwise(firsts)]


async def _drawn_again(
    core: EngineCore, load: Load, crowd: Crowd, outages: Sequence[Outage]
) -> dict[tuple[int, int], list[bool]]:
    """By (stream, kill), whether each token that is drawn once more is the stream's."""
    readies = [ended_of(one) for one in outages]
    asked = [
        (row, number, at)
        for row, times in enumerate(crowd.times)
        for number, places in enumerate(places_after(times, readies))
        for at in places
    ]
    again = Crowd(core, keep=True)
    prompts = [load.prompts[row] + crowd.tokens[row][:at] for row, _, at in asked]
    again.ask(prompts, [1] * len(asked), seeds=[row for row, _, _ in asked], top_k=load.drawn_from)
    await again.read()
    agree: dict[tuple[int, int], list[bool]] = {
        (row, number): [] for row in range(len(load.prompts)) for number in range(len(readies))
    }
    for (row, number, at), (token,) in zip(asked, again.tokens, strict=True):
        agree[row, number].append(token == crowd.tokens[row][at])
    return agree


def check_draws(agree: Mapping[tuple[int, int], Sequence[bool]], exact: bool) -> None:
    """Of each (stream, kill), whether each draw agrees, in order. Raises Failed where there is none, and where `IN_A_ROW`
    disagree (`exact`: any)."""
    for (row, number), draws in agree.items():
        if not draws:
            raise Failed(f"stream {row} has no token after kill {number}")
        runs = [len(list(run)) for same, run in groupby(draws) if not same]
        if max(runs, default=0) >= (1 if exact else min(IN_A_ROW, len(draws))):
            raise Failed(
                f"stream {row} is not the text that its seed draws: {sum(draws)} of {len(draws)} tokens after kill {number} agree"
            )


# -- moments -----------------------------------------------------------------------------------------------------------------


def outages_of(outages: Sequence[Outage], count: int, causes: Sequence[str]) -> list[Outage]:
    """Those of a run, one for each kill. Raises Failed for others."""
    if len(outages) != count or any(one.ended is None or one.cause not in causes for one in outages):
        known = ", ".join(one.cause for one in outages)
        raise Failed(f"{count} kills, and the engine knows of {len(outages)} outages: {known}")
    return list(outages)


def ended_of(outage: Outage) -> float:
    """When the next life was ready."""
    assert outage.ended is not None
    return outage.ended


def pauses_of(times: Times, outage: Outage) -> list[float]:
    """Seconds that each stream stood still around an outage: between its last token before the next life was ready and its first
    one after that. Raises Failed for a stream that has none on one side, or one while there was no executor."""
    ready, found = ended_of(outage), []
    for number, one in enumerate(times):
        first = bisect_right(one, ready)
        if first in (0, len(one)):
            raise Failed(f"stream {number} has no token {'after' if first else 'before'} an outage")
        pause = one[first] - one[first - 1]
        if pause < ready - outage.began - _LATE_READER:
            raise Failed(f"stream {number} was given a token while no executor lived")
        found.append(pause)
    return found


_LATE_READER = 0.25
"""Seconds. Tokens that were delivered before an outage may be read within it."""


def moments_of(times: Times, killed: float, outage: Outage) -> Recovery:
    """The moments of a recovery, for `recovery_seconds`."""
    ready = ended_of(outage)
    firsts = [one[bisect_right(one, ready)] for one in times]
    return Recovery(killed, outage.began, ready, min(firsts), max(firsts))
