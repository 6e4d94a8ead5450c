"""Requests that come and go over an engine with two steps out: slots, blocks and rows of tables change hands all the time.

Half of them repeat a prefix, two thirds have penalties, biases or seeds, a third is aborted after some tokens, KV is short enough
that sequences are preempted. What a finished request heard depends on nothing of this.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path

from engine.mailbox import Mailbox
from engine.request import EngineStats, Request, TokenDelta
from executors.contract.batch import SamplingParams
from executors.llm.executor import LlmExecutor
from executors.process.inline import InlineExecutor
from tests.engine import harness
from tests.executors.llm.driver import config, start
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor

BLOCKS, SEQS = 22, 6
"""KV of 88 tokens for six sequences of up to 50: some are preempted."""


SETTINGS = (
    SamplingParams(temperature=4.0, seed=1),
    SamplingParams(temperature=4.0, seed=1, top_k=40, top_p=0.95),
    SamplingParams(temperature=0.0, frequency_penalty=20.0, presence_penalty=20.0),
    SamplingParams(temperature=0.0, frequency_penalty=7.0, repetition_penalty=1.9),
    SamplingParams(temperature=3.0, seed=1, repetition_penalty=1.6, presence_penalty=9.0),
    SamplingParams(temperature=4.0, seed=1, logit_bias=((5, 24.0), (77, 20.0), (100, -30.0))),
    SamplingParams(
        temperature=0.0, logit_bias=tuple((token, 40.0) for token in range(3, 200, 50)), presence_penalty=9.0
    ),
    SamplingParams(temperature=4.0, seed=1, allowed_token_ids=tuple(range(0, 200, 7)), frequency_penalty=4.0),
    SamplingParams(temperature=4.0, seed=1, bad_words=((1, 2), (3,)), presence_penalty=9.0),
)
"""Of such strength that a count, a bias or a seed of another sequence changes tokens: the logits of the model are far apart. The
last one needs the host."""
Heard = list[list[int] | None]


@dataclass(frozen=True)
class Visit:
    """A request, and the number of its tokens after which it is aborted; None: it is read to its end."""

    request: Request
    aborted_after: int | None


def visits(count: int, seed: int) -> list[Visit]:
    """So many requests, the same for a seed."""
    rng, made = random.Random(seed), []
    prefix = [rng.randrange(211) for _ in range(17)]
    for number in range(count):
        own = [rng.randrange(211) for _ in range(rng.choice((1, 3, 9, 20)))]
        settings = rng.choice(SETTINGS)
        if settings.temperature:
            settings = replace(settings, seed=number)
        prompt = prefix + own if rng.random() < 0.5 else own
        most = rng.randrange(6, 26)
        aborted = rng.randrange(0, most - 1) if rng.random() < 0.33 else None
        made.append(Visit(harness.request(prompt, most, settings), aborted))
    return made


async def alone(path: Path, asked: list[Visit]) -> Heard:
    """What each request hears by itself, computed by the host; None for those that are aborted."""
    executor = await start(path)
    found: Heard = []
    inline = InlineExecutor(executor.config, executor)
    async with harness.engine(inline, max_in_flight=1) as core:  # type: ignore[arg-type]
        for visit in asked:
            heard = None if visit.aborted_after is not None else await harness.run(core, visit.request)
            found.append(None if heard is None else heard[0])
    return found


async def device(path: Path, captures: bool) -> FakeDeviceExecutor:
    """A warm executor on a fake device with little KV."""
    chosen = config(path, max_num_seqs=SEQS, max_num_batched_tokens=24, max_model_len=64)
    executor = FakeDeviceExecutor.from_config(chosen)
    probe = await start(path)
    size = BLOCKS * probe.kv_layout().groups[0].bytes_per_block
    executor.config = replace(chosen, memory=replace(chosen.memory, kv_cache_memory_bytes=size))
    executor.device = FakeDevice(captures=captures)
    await executor.warmup()
    executor._idle.stop()  # steps are computed on another thread
    while captures and executor.unified.capture_next():
        pass
    return executor


async def crowd(executor: LlmExecutor, asked: list[Visit], seed: int) -> tuple[Heard, EngineStats]:
    """What each request hears in the crowd, None for those that were aborted, and the engine's figures.

    Raises what a sequence failed with."""
    rng = random.Random(seed)
    inline = InlineExecutor(executor.config, executor)
    options = {"max_num_seqs": SEQS, "max_num_batched_tokens": 24, "max_in_flight": 3}
    async with harness.engine(inline, **options) as core:  # type: ignore[arg-type]

        async def visit(one: Visit) -> list[int] | None:
            mailbox, whole = Mailbox(), TokenDelta()
            seq_id = core.submit(one.request, mailbox)
            while whole.finish_reason is None:
                if one.aborted_after is not None and len(whole.tokens) >= one.aborted_after:
                    core.abort(seq_id)
                    return None
                whole.merge((await mailbox.take())[0])
            if whole.error is not None:
                raise whole.error
            return [token.token_id for token in whole.tokens]

        tasks = []
        for one in asked:
            tasks.append(asyncio.create_task(visit(one)))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        found = await asyncio.gather(*tasks)
        async with asyncio.timeout(20):  # the last visits may have left just now
            while core.stats().running or core.stats().waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        stats = core.stats()
        assert stats.resumed == 0 and inline.metrics().failed_steps == 0, "a step failed"
    return list(found), stats
