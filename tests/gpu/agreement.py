"""The whole engine on the device, twice: as it is meant to run, and the plain way. Both have to give the same tokens.

A small model in float32, whose rounding hardly ever decides a token: graphs, the token pool, overlapping steps, mixed batches and
the device's sampler against eager forwards over torch's attention.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.serving import TEMPERATURE, Crowd, Setup, engine, settled

LEAST = 0.95
"""Share of sequences that must be the same to the last token. A draw that falls on a border within rounding is possible, and all
that follows it is another text then."""

WANTED = (
    r"graphs: (\d+) of \1 captured",
    r"(?!.*; forward by torch)attention: cohort-triton(; not .*)?",
    "sampling: on the device, triton",
)
"""What an executor that works as it is meant to says of itself. No library has kernels for float32 and pages of 16."""

Tokens = list[list[int]]


def run(options: Options, found: Found) -> None:
    """Raises Failed where they differ."""
    fast, notes = asyncio.run(_tokens(options, Setup(shapes.TINY, max_num_seqs=24)))
    found({"executor_notes": notes})
    if options.device != "cpu":
        as_meant(notes)
    plain = Setup(shapes.TINY, max_num_seqs=24, enforce_eager=True, backend="torch")
    found(compare(fast, asyncio.run(_tokens(options, plain))[0]))


def as_meant(notes: Sequence[str]) -> None:
    """Raises Failed where an executor fell back to something slower: it would agree with the plain way all the more."""
    for wanted in WANTED:
        if not any(re.fullmatch(wanted, note) for note in notes):
            raise Failed(f"no note of the executor is {wanted!r}: {'; '.join(notes)}")


async def _tokens(options: Options, setup: Setup) -> tuple[Tokens, list[str]]:
    """More sequences than run at once, half of them greedy, some longer than a step takes."""
    count, most = (6, 12) if options.tiny else (64, 300)
    work = shapes.offline(count, 3, most, 250)
    async with engine(options, setup) as core:
        await settled(core)
        crowd = Crowd(core, keep=True)
        crowd.ask(work.prompts, work.outputs, [TEMPERATURE if i % 2 else 0.0 for i in range(count)])
        await crowd.read()
        notes = list(core.executor.status().notes)
    return crowd.tokens, notes


def compare(found: Tokens, expected: Tokens) -> dict[str, float | int]:
    """Figures. Raises Failed for fewer than LEAST."""
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    if same < LEAST * len(expected):
        first = next(i for i, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
        place = next(
            (i for i, (a, b) in enumerate(zip(found[first], expected[first], strict=False)) if a != b), -1
        )
        raise Failed(
            f"{len(expected) - same} of {len(expected)} sequences differ from the plain way, number {first} at {place}"
        )
    return {"sequences": len(expected), "identical": same}
