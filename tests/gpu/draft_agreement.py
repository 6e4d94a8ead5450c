"""Drafts on the device change no token: verified in graphs of mixed steps, beside the same texts without drafts.

A small model in float32, prompts that repeat themselves, so that n-grams find something to guess, and half of the texts sampled.
Then the model itself is its draft model: nearly all drafts must be accepted. `draft_forward_us` of one forward, by rows.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.serving import TEMPERATURE, Crowd, Setup, engine, settled
from tests.gpu.agreement import compare

DRAFTS = 4
LEAST_RIGHT = 0.9
"""Share of the drafts of the model itself that must be accepted: rounding differs between a draft's shape and a step's."""


def run(options: Options, found: Found) -> None:
    """Raises Failed where tokens differ, or where no draft was verified."""
    found(asyncio.run(_run(options)))


async def _run(options: Options) -> dict[str, Any]:
    count, tokens = (4, 12) if options.tiny else (32, 200)
    prompts = [(list(range(i, i + 6)) * 4)[: 12 + i % 7] for i in range(count)]
    heard, counts, figures = [], [], dict[str, Any]()
    for drafts, from_model in ((0, False), (DRAFTS, False), (DRAFTS, True)):
        setup = Setup(shapes.TINY, max_num_seqs=24, drafts=drafts, draft_model=from_model)
        async with engine(options, setup) as core:
            await settled(core)
            if from_model:  # as large as the model, it would not pay
                assert core._scheduler is not None
                core._scheduler.policies.lengths._verify = None
            crowd = Crowd(core, keep=True)
            crowd.ask(prompts, [tokens] * count, [TEMPERATURE if i % 2 else 0.0 for i in range(count)])
            await crowd.read()
            stats, pace = core.stats().drafts, core.executor.pace()
            if from_model and pace is not None:
                figures["draft_forward_us"] = {str(rows): 1e6 * seconds for rows, seconds in pace.draft_steps}
        counts.append((stats.num_draft_tokens, stats.num_accepted_tokens))
        heard.append(crowd.tokens)
    if not counts[1][0]:
        raise Failed("no draft was verified")
    verified, accepted = counts[2]
    if not verified or accepted < LEAST_RIGHT * verified:
        raise Failed(f"the model accepts {accepted} of {verified} drafts of its own")
    return {
        "drafts_verified": counts[1][0], "drafts_accepted": counts[1][1], **compare(heard[1], heard[0]),
        "model_drafts_verified": verified, "model_drafts_accepted": accepted,
        "model_drafts_identical": compare(heard[2], heard[0])["identical"], **figures,
    }  # fmt: skip
