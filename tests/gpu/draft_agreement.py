"""Drafts on the device change no token: verified in graphs of mixed steps, beside the same texts without drafts.

A small model in float32, prompts that repeat themselves, so that n-grams find something to guess, and half of the texts sampled.
Draft models are refused on a GPU and not part of it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.serving import TEMPERATURE, Crowd, Setup, engine, settled
from tests.gpu.agreement import compare

DRAFTS = 4


def run(options: Options, found: Found) -> None:
    """Raises Failed where tokens differ, or where no draft was verified."""
    found(asyncio.run(_run(options)))


async def _run(options: Options) -> dict[str, Any]:
    count, tokens = (4, 12) if options.tiny else (32, 200)
    prompts = [(list(range(i, i + 6)) * 4)[: 12 + i % 7] for i in range(count)]
    heard, verified = [], (0, 0)
    for drafts in (0, DRAFTS):
        async with engine(options, Setup(shapes.TINY, max_num_seqs=24, drafts=drafts)) as core:
            await settled(core)
            crowd = Crowd(core, keep=True)
            crowd.ask(prompts, [tokens] * count, [TEMPERATURE if i % 2 else 0.0 for i in range(count)])
            await crowd.read()
            stats = core.stats().drafts
            verified = stats.num_draft_tokens, stats.num_accepted_tokens
        heard.append(crowd.tokens)
    if not verified[0]:
        raise Failed("no draft was verified")
    return {"drafts_verified": verified[0], "drafts_accepted": verified[1], **compare(heard[1], heard[0])}
