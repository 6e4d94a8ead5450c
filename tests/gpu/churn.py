"""Texts of a crowded engine against the same texts alone: aborts at random moments, preemption, shared prefixes, reused slots.

A small model in float32 serves 300 requests with memory for the KV of nine, with graphs and overlapping steps. A third of the
requests leave before their end. Half have penalties, biases or bans, whose counters lie in rows that requests use one after the
other. Then a second engine computes each text that ended, alone: one sequence, one step out, no graphs, no prefix cache.

Draws are from eight tokens at most: rounding decides a draw once in several runs of this part, and every text has to be equal.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Figures, Found, Options
from benchmarks.gpu.serving import Setup, engine, settled, until
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.observer import Observer, Observers
from engine.request import EngineStats, Request, RequestContext
from executors.contract import SamplingParams, UnifiedBatch, UnifiedOutput
from tests.gpu.agreement import as_meant

SLOTS = 16
BLOCK = 16
"""Tokens of a KV page, unless the options say otherwise."""
STEP_TOKENS = 40
"""Prompts are computed in chunks, beside decodes."""
_PATIENCE = 10.0
_SEED = 47
"""Of the requests."""
_VOCABULARY = 250
_FLOAT32 = 2
"""Times the bytes that `shapes.kv_bytes` counts, of bf16."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `leaves`: tokens of all requests, from its submission on, after which it is aborted; None: it stays."""

    prompt: list[int]
    tokens: int
    sampling: SamplingParams
    leaves: int | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + self.tokens


def work(tiny: bool) -> list[Call]:
    """The requests, always the same."""
    rng = random.Random(_SEED)
    count, most = (60, 26) if tiny else (300, 36)
    stems = [_ids(rng, rng.randint(34, 70)) for _ in range(5)]
    return [_call(rng, number, count, most, stems) for number in range(count)]


def _call(rng: random.Random, number: int, count: int, most: int, stems: Sequence[list[int]]) -> Call:
    stem = rng.choice(stems) if rng.random() < 0.75 else []
    prompt = stem + _ids(rng, rng.randint(1, 24))
    late = number >= count - count // 8
    sampling = _settings(rng, number, hosted=late and number % 4 == 0)
    # The moment may come before the first step, in the prompt, while the request waits for memory, or behind its end.
    leaves = rng.randrange(0, 14 * most) if rng.random() < 0.4 else None
    return Call(prompt, rng.randint(4, most), sampling, leaves)


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(_VOCABULARY) for _ in range(count)]


def _settings(rng: random.Random, number: int, hosted: bool) -> SamplingParams:
    """Odd numbers: settings whose rows the device keeps; some of those depend on earlier tokens. `hosted`: the host samples the
    steps in which the request takes part, and follows the rows of the others meanwhile."""
    if hosted:
        return SamplingParams(temperature=0.8, top_k=6, typical_p=0.7, seed=number)
    plain = SamplingParams(temperature=rng.choice((0.0, 0.8)), top_k=8, top_p=0.95, seed=number)
    if number % 2 == 0:
        return plain
    ids = rng.sample(range(_VOCABULARY), 6)
    shaped: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.4, "presence_penalty": 0.4},
        {"frequency_penalty": 0.6, "repetition_penalty": 1.2},
        {"logit_bias": tuple((one, 3.0) for one in ids[:3]), "frequency_penalty": 0.8},
        {"bad_words": ((ids[0],), (ids[1],)), "presence_penalty": 0.7},
        {"allowed_token_ids": tuple(range(number % 5, _VOCABULARY, 5)), "frequency_penalty": 0.5},
    )
    return replace(plain, **rng.choice(shaped))


class Overlap(Observer):
    """Counts the steps that were submitted while another one was out."""

    def __init__(self) -> None:
        self.steps = self.overlapped = self._out = 0

    def step_submitted(self, batch: UnifiedBatch) -> None:
        """See `Observer`."""
        self.steps += 1
        self.overlapped += self._out > 0
        self._out += 1

    def step_landed(
        self, batch: UnifiedBatch, output: UnifiedOutput, seqs: Sequence[Any], seconds: float, now: float
    ) -> None:
        """See `Observer`."""
        self._out -= 1


@dataclass(slots=True)
class Clients:
    """Send the calls in bursts, at most `most_open` at once, and abort those whose moment has come. One task reads for all."""

    core: EngineCore
    calls: Sequence[Call]
    most_open: int
    texts: list[list[int]] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)
    """By call: its last token came."""
    aborted: list[bool] = field(default_factory=list)
    moments: Counter[str] = field(default_factory=Counter)
    """Of aborts: what the call was doing."""
    _leaves_at: dict[int, int] = field(default_factory=dict)
    _seq_ids: list[int] = field(default_factory=list)
    _open: int = 0
    _heard: int = 0
    """Tokens of all calls."""
    _mailbox: Mailbox = field(default_factory=lambda: Mailbox(max_bytes=1 << 30))

    async def run(self) -> None:
        """Until each call has ended or left. Raises the error of the first that fails, and Failed for a token after an abort."""
        self.texts = [[] for _ in self.calls]
        self.ended, self.aborted = ([False] * len(self.calls) for _ in range(2))
        rng = random.Random(7)
        while True:
            if self._open <= self.most_open // 2:
                for _ in range(rng.randint(1, self.most_open - self._open)):
                    self._send()
            # At once after the deltas were taken: what comes of a call after this was put behind its abort.
            self._abort()
            if not self._open:
                if len(self._seq_ids) == len(self.calls):
                    return
                continue
            self._take(await self._mailbox.take())

    def _send(self) -> None:
        number = len(self._seq_ids)
        if number == len(self.calls):
            return
        call = self.calls[number]
        context = RequestContext(f"churn-{number}", self.core.clock())
        request = Request(context, np.array(call.prompt, np.int32), call.sampling, call.tokens)
        self._seq_ids.append(self.core.submit(request, self._mailbox, number))
        self._open += 1
        if call.leaves is not None:
            self._leaves_at[number] = self._heard + call.leaves

    def _abort(self) -> None:
        due = [number for number, at in self._leaves_at.items() if at <= self._heard]
        if not due:
            return
        views = {view.seq_id: view for view in self.core.sequences(1 << 20)}
        for number in due:
            del self._leaves_at[number]
            view = views.get(self._seq_ids[number])
            self.moments["submitted" if view is None else view.status] += 1
            self.core.abort(self._seq_ids[number])
            self.aborted[number] = True
            self._open -= 1

    def _take(self, taken: dict[int, Any]) -> None:
        for number, delta in taken.items():
            if delta.error is not None:
                raise delta.error
            if self.aborted[number]:
                raise Failed(f"call {number} was given {len(delta.tokens)} tokens after its abort")
            self.texts[number] += [token.token_id for token in delta.tokens]
            self._heard += len(delta.tokens)
            if delta.finish_reason is not None:
                self.ended[number] = True
                self._open -= 1
                self._leaves_at.pop(number, None)


def run(options: Options, found: Found) -> None:
    """Raises Failed where a text differs, something leaks, or what the part is for did not happen."""
    calls = work(options.tiny)
    asyncio.run(_run(options, calls, found))


def pool_bytes(calls: Sequence[Call], block: int, sequences: int = 9) -> int:
    """Bytes of KV pages for so many of the calls, of mean length."""
    mean = sum(call.length for call in calls) / len(calls)
    return -int(-sequences * mean // block) * block * shapes.kv_bytes(shapes.TINY) * _FLOAT32


async def _run(options: Options, calls: Sequence[Call], found: Found) -> None:
    block = options.block_size or BLOCK
    crowded = Setup(
        shapes.TINY, max_num_seqs=SLOTS, max_num_batched_tokens=STEP_TOKENS, max_model_len=256, max_in_flight=2,
        kv_cache_memory_bytes=pool_bytes(calls, block),
    )  # fmt: skip
    async with engine(options, crowded) as core:
        await settled(core)
        overlap = Overlap()
        cast(Observers, core.observer).add(overlap)
        clients = Clients(core, calls, most_open=3 * SLOTS)
        await clients.run()
        figures = await _ended(core, clients, overlap)
        found(figures)
        notes = list(core.executor.status().notes)
        found({"executor_notes": notes})
    if options.device != "cpu":
        as_meant(notes)
    judge(figures)
    kept = [number for number, ended in enumerate(clients.ended) if ended]
    alone = await texts_alone(options, [calls[number] for number in kept])
    texts = [clients.texts[number] for number in kept]
    found(compare(kept, [calls[number] for number in kept], texts, alone))


async def _ended(core: EngineCore, clients: Clients, overlap: Overlap) -> Figures:
    """Figures, once nothing runs any more. Raises Failed for a block or slot that is not given back."""
    if not await until(lambda: core.stats().kv_blocks_used == 0 == core.stats().running, _PATIENCE):
        held = core.stats()
        raise Failed(f"{held.kv_blocks_used} blocks are held by nothing, {held.running} sequences run")
    try:
        core.check_integrity()
    except RuntimeError as error:
        raise Failed(f"the accounts of blocks and slots do not add up: {error}") from error
    stats: EngineStats = core.stats()
    return {
        "calls": len(clients.calls),
        "finished": sum(clients.ended),
        "aborted": sum(clients.aborted),
        "aborted_while": dict(clients.moments),
        "tokens": sum(len(text) for text in clients.texts),
        "kv_blocks": stats.kv_blocks_total,
        "preemptions": stats.preemptions,
        "prefix_hit_tokens": stats.prefix_hits,
        "steps": overlap.steps,
        "steps_overlapped": overlap.overlapped,
    }


def judge(figures: Figures) -> None:
    """Raises Failed where the engine was not crowded: equal texts would say little then."""
    calls, ended, left = figures["calls"], figures["finished"], figures["aborted"]
    if ended + left != calls:
        raise Failed(f"{calls - ended - left} of {calls} calls neither ended nor left")
    if not 0.15 * calls <= left <= 0.5 * calls:
        raise Failed(f"{left} of {calls} calls were aborted, not about 30%")
    for name in ("preemptions", "prefix_hit_tokens", "steps_overlapped"):
        if not figures[name]:
            raise Failed(f"{name}: 0, so this part has shown nothing of it")


async def texts_alone(options: Options, calls: Sequence[Call]) -> list[list[int]]:
    """Texts of calls that an engine for one sequence computes one after the other."""
    setup = Setup(
        shapes.TINY, max_num_seqs=1, max_num_batched_tokens=256, max_model_len=256, max_in_flight=1, prefix_caching=False,
        enforce_eager=True,
    )  # fmt: skip
    async with engine(options, setup) as core:
        stay = [replace(call, leaves=None) for call in calls]
        clients = Clients(core, stay, most_open=len(stay))
        await clients.run()
    return clients.texts


def compare(
    numbers: Sequence[int], calls: Sequence[Call], texts: Sequence[list[int]], alone: Sequence[list[int]]
) -> Figures:
    """Figures. Raises Failed for a text that is not as long as asked for, or differs from itself alone."""
    for number, call, text in zip(numbers, calls, texts, strict=True):
        if len(text) != call.tokens:
            raise Failed(f"call {number} ended with {len(text)} of {call.tokens} tokens")
    wrong = []
    for number, call, text, other in zip(numbers, calls, texts, alone, strict=True):
        if text != other:
            place = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), len(other))
            kind = "penalties" if call.sampling.edits_logits else "plain"
            wrong.append(f"{number} ({kind}) at token {place} of {call.tokens}")
    if wrong:
        raise Failed(
            f"{len(wrong)} of {len(texts)} texts differ from themselves alone: {'; '.join(wrong[:5])}"
        )
    return {"identical": len(texts)}
