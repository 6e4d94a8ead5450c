"""A scenario: everything that a seed decides, and what must hold in the end."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.core.step_budget import LEAST_TOKENS
from engine.errors import DeadlinePassed, EngineError, ExecutorFailed, SequenceFailed, Unavailable
from engine.kv import cache_points
from engine.kv.disk.disk import Disk
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, Stage, TokenDelta
from executors import registry
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, Pace, SamplingParams
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.paged import BYTES_PER_TOKEN
from executors.testing.fakes.sealing import SealingFake
from tests.sim.adoption import Broken, Lives, ReturnWatch
from tests.sim.executor import Faults, SimExecutor
from tests.sim.prompts import judge_prompt
from tests.sim.reuse import watch_reuse
from tests.sim.virtual_loop import run

VOCAB = 40
POISON = 39
"""A token whose logits are no numbers."""
ADAPTERS = ("first", "second", "third", "fourth")
PATIENCE = 6.0
"""Virtual seconds after which somebody starves."""


_PACE = Pace(0.0002, ((1, 0.0012), (8, 0.0026)), ((1, 0.0001), (8, 0.0002)))
"""What steps take in virtual seconds, about."""


@dataclass(slots=True)
class Stream:
    """One call: `n` choices of one prompt."""

    arrival: float
    prompt: tuple[int, ...]
    sampling: SamplingParams
    n: int
    max_tokens: int
    stop: frozenset[int]
    priority: int
    salt: str | None
    abort_after: float | None
    finish_after: int | None
    """Tokens after which the text side ends the first choice."""
    prompt_logprobs: int | None = None
    """Asked for with the first choice."""
    pooling: str | None = None
    """An embedding: one choice, no tokens."""
    tenant: str = ""
    patience: float | None = None
    """Seconds after its arrival that it may wait to be started."""
    adapter: str | None = None
    speculative: bool = True
    cache_points: tuple[int, ...] = ()


@dataclass(slots=True)
class Scenario:
    """What a seed decides."""

    seed: int
    executor: str
    native: bool
    block_size: int
    num_blocks: int
    num_slots: int
    budget: int
    max_in_flight: int
    policy: str
    target_itl: float | None
    prefix_caching: bool
    drafts: int
    faults: Faults
    streams: list[Stream] = field(default_factory=list)
    poisoned: bool = False
    blocks_per_span: int = 0
    kept_blocks: int = 0
    """Free blocks that keep their memory."""
    window: str = ""
    """KV groups, as the fake's option; "": a full one."""
    window_blocks: int = 0
    rolling: int = cache_points.ROLLING
    """Tokens of output between two cache points."""
    max_loras: int = 0
    dropped_at: float | None = None
    """When all adapters are dropped."""
    drafts_right: float = 0.0
    """Share of the draft model's guesses that are right; 0: n-grams."""
    weighs_drafts: bool = False
    """Whether the engine knows what steps take, and so how many drafts pay."""
    fingerprint: str = ""
    """Not empty: blocks outlive the executor."""
    scribbling: float = 0.0
    """Share of the blocks in which a dying life flips a bit."""
    other_lives: float = 0.0
    """Share of lives with another fingerprint than the one before."""
    as_device: bool = False
    """Whether the number of steps in flight is what a device gets by default, not one that is set."""
    num_states: int = 0
    """Slots of states of layers; 0: there are none."""
    state_interval: int = 0


def draw(seed: int) -> Scenario:
    """The scenario of a seed; small numbers, so that everything gets in everything's way."""
    rng = random.Random(seed)
    block_size = rng.choice((1, 2, 3, 4, 4, 8))
    longest = rng.choice((12, 20, 40))
    most_output = rng.choice((3, 8, 16))
    # The longest sequence fits the pool when alone; beyond that it is tight or roomy.
    least = -(-(longest + most_output) // block_size)
    scenario = Scenario(
        seed=seed,
        executor=rng.choice(("paged_fake", "paged_fake", "paged_fake", "echo")),
        native=rng.random() < 0.75,
        block_size=block_size,
        num_blocks=least + rng.choice((0, 1, 3, 10, 60)),
        num_slots=rng.choice((1, 2, 3, 5, 8)),
        budget=rng.choice((1, 3, 7, 16, 64)),
        max_in_flight=rng.choice((1, 2, 2, 2, 3)),
        policy=rng.choice(("fcfs", "fcfs", "priority")),
        target_itl=rng.choice((None, 0.0, 0.004)),
        prefix_caching=rng.random() < 0.85,
        drafts=rng.choice((0, 0, 0, 1, 3)),
        faults=_faults(rng),
    )
    scenario.poisoned = scenario.native and rng.random() < 0.25
    family = [tuple(rng.randrange(8) for _ in range(longest)) for _ in range(2)]
    for _ in range(rng.randrange(2, 12)):
        scenario.streams.append(_stream(rng, scenario, family, longest, most_output))
    # Of its own numbers: what a seed was before embeddings came, it still is.
    about_prompts = random.Random(f"prompts {seed}")
    scenario.streams = [_about_prompt(about_prompts, stream) for stream in scenario.streams]
    about_queue = random.Random(f"queue {seed}")
    if about_queue.random() < 0.3:
        scenario.policy = "fair"
    scenario.streams = [_about_queue(about_queue, stream) for stream in scenario.streams]
    about_memory = random.Random(f"memory {seed}")
    # Not beside poison: steps of few tokens are not where it spreads.
    if about_memory.random() < 0.3 and not scenario.poisoned:
        scenario.faults.room = about_memory.choice((LEAST_TOKENS, 12, 20, 40))
        scenario.faults.short = about_memory.choice((1, 3, 1000))
    about_spare = random.Random(f"spare {seed}")
    if scenario.executor == "paged_fake" and about_spare.random() < 0.5:
        scenario.blocks_per_span = about_spare.choice((1, 2, 3, 7))
        scenario.kept_blocks = about_spare.choice((0, 0, 2, 5))
    about_adapters = random.Random(f"adapters {seed}")
    if about_adapters.random() < 0.4:
        scenario.max_loras = about_adapters.choice((1, 1, 2, 3))
        scenario.dropped_at = about_adapters.choice((None, 0.4))
        scenario.streams = [
            replace(stream, adapter=about_adapters.choice((None, *ADAPTERS)))
            if stream.pooling is None and stream.prompt_logprobs is None
            else stream
            for stream in scenario.streams
        ]
    about_drafts = random.Random(f"drafts {seed}")
    # Not beside poison: a wrong guess may be that token, and the fake then fails the whole item.
    if about_drafts.random() < 0.4 and scenario.native and not scenario.poisoned:
        scenario.drafts = about_drafts.choice((1, 2, 4))
        scenario.drafts_right = about_drafts.choice((0.2, 0.6, 0.95))
    scenario.weighs_drafts = about_drafts.random() < 0.3
    scenario.streams = [
        replace(stream, speculative=about_drafts.random() < 0.8) for stream in scenario.streams
    ]
    about_windows = random.Random(f"windows {seed}")
    if scenario.executor == "paged_fake" and about_windows.random() < 0.45:
        _draw_windows(about_windows, scenario)
    about_seals = random.Random(f"seals {seed}")
    if scenario.executor == "paged_fake" and about_seals.random() < 0.5:
        _outlive(about_seals, scenario)
    about_states = random.Random(f"states {seed}")
    if scenario.executor == "paged_fake" and scenario.native and not scenario.fingerprint:
        _draw_states(about_states, scenario)
    elif scenario.fingerprint and scenario.native and about_states.random() < 0.6:
        _draw_states(about_states, scenario)  # a third: the others are of blocks alone
    about_depth = random.Random(f"depth {seed}")
    # With two it changes nothing but who decides; of those with three it is 10% of all seeds.
    scenario.as_device = scenario.max_in_flight > 1 and about_depth.random() < 0.5
    return scenario


def _draw_states(rng: random.Random, scenario: Scenario) -> None:
    """Half of the scenarios: layers have states, whose slots are tight or roomy."""
    if rng.random() < 0.5:
        return
    scenario.executor = "state_fake"
    scenario.num_states = scenario.num_slots + rng.choice((0, 1, 2, 4, 8, 40))
    scenario.state_interval = scenario.block_size * rng.choice((1, 1, 1, 2, 3))
    scenario.rolling = rng.choice((2, 4, 6))
    scenario.streams = [
        replace(stream, cache_points=tuple(rng.sample(range(40), rng.choice((0, 0, 1, 3)))))
        for stream in scenario.streams
    ]


def _draw_windows(rng: random.Random, scenario: Scenario) -> None:
    """One to three KV groups with windows, whose pools are tight or roomy."""
    sizes = [rng.choice((2, 3, 5, 8, 12, 20)) for _ in range(2)]
    form = rng.choice(("full,{}", "full,{}", "full,{},{}", "{},full", "{},{}", "{}"))
    scenario.window = form.format(*sizes)
    # Enough to slide, or to hold the longest sequence whole; beyond that it is tight or roomy.
    size = scenario.block_size
    sliding = -(-(max(sizes) + scenario.budget * scenario.max_in_flight + 3 * size) // size)
    whole = -(-max(len(stream.prompt) + stream.max_tokens for stream in scenario.streams) // size)
    scenario.window_blocks = min(sliding, whole) + rng.choice((0, 1, 3, 10, 60))
    scenario.rolling = rng.choice((2, 4, 6))


def windows_of(scenario: Scenario) -> tuple[int | None, ...]:
    """The window of each KV group."""
    parts = scenario.window.split(",") if scenario.window else ["full"]
    return tuple(None if part == "full" else int(part) for part in parts)


def _outlive(rng: random.Random, scenario: Scenario) -> None:
    """Blocks outlive the executor, which dies more often."""
    scenario.fingerprint = "a"
    scenario.scribbling = rng.choice((0.0, 0.0, 0.0, 0.05, 0.3))
    scenario.other_lives = rng.choice((0.0, 0.0, 0.0, 0.5))
    for _ in range(rng.choice((1, 2, 2, 4))):
        kind = rng.choice(("died", "died", "lost", "failed"))
        scenario.faults.by_step.setdefault(rng.randrange(5, 80), kind)


def _about_queue(rng: random.Random, stream: Stream) -> Stream:
    patience = rng.choice((0.0, 0.001, 0.01, 0.1)) if rng.random() < 0.1 else None
    return replace(stream, tenant=rng.choice("aaaab"), patience=patience)


def _about_prompt(rng: random.Random, stream: Stream) -> Stream:
    kind = rng.random()
    if kind < 0.15:
        return replace(stream, prompt_logprobs=rng.choice((0, 1, 3)))
    if kind < 0.3:
        pooling = rng.choice(("last", "mean"))
        return replace(stream, pooling=pooling, n=1, max_tokens=1, finish_after=None)
    return stream


def _faults(rng: random.Random) -> Faults:
    if rng.random() < 0.5:
        return Faults()
    steps = {
        rng.randrange(1, 60): rng.choice(("refused", "failed", "died", "lost", "lost"))
        for _ in range(rng.randrange(1, 4))
    }
    deaths = [rng.random() * 0.1] if rng.random() < 0.3 else []
    return Faults(steps, deaths, rng.choice((0, 0, 1)))


def _stream(
    rng: random.Random, scenario: Scenario, family: list[tuple[int, ...]], longest: int, most_output: int
) -> Stream:
    length = rng.randrange(1, longest + 1)
    shared = rng.randrange(0, length + 1) if rng.random() < 0.8 else 0
    prompt = (*rng.choice(family)[:shared], *(rng.randrange(VOCAB - 1) for _ in range(length - shared)))
    if scenario.poisoned and rng.random() < 0.15:
        at = rng.randrange(len(prompt))
        prompt = (*prompt[:at], POISON, *prompt[at + 1 :])
    sampling = rng.choice(
        (
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=0.9, seed=rng.randrange(5)),
            SamplingParams(temperature=0.7, top_k=4, seed=rng.randrange(5)),
        )
    )
    if rng.random() < 0.05 and scenario.native:
        sampling = SamplingParams(temperature=0.5, seed=3, repetition_penalty=1.3)
    max_tokens = rng.randrange(1, most_output + 1)
    stop = frozenset(rng.sample(range(VOCAB), 3)) if rng.random() < 0.3 else frozenset()
    return Stream(
        arrival=rng.choice((0.0, rng.random() * 0.05, rng.random() * 0.3)),
        prompt=prompt,
        sampling=sampling,
        n=rng.choice((1, 1, 1, 2, 3)),
        max_tokens=max_tokens,
        stop=stop,
        priority=rng.randrange(3),
        salt=rng.choice((None, None, None, "a")),
        abort_after=rng.random() * 0.1 if rng.random() < 0.2 else None,
        finish_after=rng.randrange(1, max_tokens + 1) if rng.random() < 0.1 else None,
    )


@lru_cache(4096)
def _oracle(
    prompt: tuple[int, ...],
    count: int,
    sampling: SamplingParams,
    adapter: str | None = None,
    windows: tuple[int | None, ...] = (None,),
) -> list[int]:
    return expected_tokens(prompt, count, sampling, vocab_size=VOCAB, adapter_digest=adapter, windows=windows)


class Run:
    """One run of a scenario on the real engine."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.returns: ReturnWatch | None = None
        options: dict[str, Any] = {
            "native": scenario.native,
            "vocab_size": VOCAB,
            "max_adapters": scenario.max_loras + 1,
            "drafts_right": scenario.drafts_right,
        }
        if scenario.executor != "echo":
            options["fingerprint"] = scenario.fingerprint
        if scenario.executor != "echo":
            options |= {"num_blocks": scenario.num_blocks, "blocks_per_span": scenario.blocks_per_span}
        if scenario.num_states:
            options |= {"num_states": scenario.num_states, "state_interval": scenario.state_interval}
            del options["native"]
        if scenario.window:
            options |= {"window": scenario.window, "window_blocks": scenario.window_blocks}
        self.windows = windows_of(scenario)
        inner = registry.create(
            ExecutorConfig(
                scenario.executor,
                max_num_seqs=scenario.num_slots,
                max_model_len=64,
                attention=ExecutorAttentionConfig(block_size=scenario.block_size),
                options=options,
            )
        )
        assert isinstance(inner, FakeExecutor)
        if scenario.poisoned:
            rng = random.Random(scenario.seed + 1)
            inner.failures.append(
                Failure(rng.choice(("nan", "nan_logits")), token=POISON, times=rng.choice((1, 2, 10**9)))
            )
        self.executor = SimExecutor(
            inner, random.Random(scenario.seed), scenario.faults, scenario.max_in_flight, scenario.as_device
        )
        if isinstance(inner, SealingFake) and scenario.fingerprint:
            rng = random.Random(f"lives {scenario.seed}")
            self.executor.lives = Lives(inner, rng, scenario.scribbling, scenario.other_lives)

    async def run(self) -> EngineCore:
        """To the end of all streams. Raises AssertionError of some kind where the engine is wrong."""
        scenario = self.scenario
        config = EngineConfig(
            max_num_seqs=scenario.num_slots,
            max_num_batched_tokens=scenario.budget,
            scheduling_policy=scenario.policy,  # type: ignore[arg-type]
            target_itl=scenario.target_itl,
            prefix_caching=scenario.prefix_caching,
            max_in_flight=None if scenario.as_device else scenario.max_in_flight,
            num_speculative_tokens=scenario.drafts,
            speculative_method="draft_model" if scenario.drafts_right else "ngram",
            max_loras=scenario.max_loras,
            restart_pause=0.01,
            kept_kv_bytes=scenario.kept_blocks * scenario.block_size * BYTES_PER_TOKEN,
        )
        if scenario.blocks_per_span:  # between two arrivals, and while others run
            config = replace(
                config, integrity_check_after=0.002, give_back_after=0.002, give_back_unused_after=0.03
            )
        clock = asyncio.get_running_loop().time
        core = EngineCore(self.executor, config, clock=clock, disk=self.disk())  # type: ignore[arg-type]
        self.executor.core = core
        await core.start()
        self.started(core)
        assert core._scheduler is not None
        for group in core._scheduler.kv.groups:
            watch_reuse(group.pool)
        if scenario.fingerprint and not scenario.poisoned:
            lag = scenario.max_in_flight * (1 + scenario.drafts)
            self.returns = ReturnWatch(core._scheduler, lag)
        if scenario.weighs_drafts:
            core._scheduler.policies.lengths.expect(_PACE, overlaps=scenario.max_in_flight > 1)
        if scenario.max_loras:
            await self._add_adapters(core)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(self._stream(core, stream) for stream in scenario.streams))
            if not await core.drain(PATIENCE):
                raise Broken("somebody is still there")
        await asyncio.sleep(3)  # results of steps still out, and the engine's own look at its books
        if self.executor.broken is not None:
            raise self.executor.broken
        stats = core.stats()
        if core.detail or stats.stage is Stage.FAILED:
            raise Broken(f"the engine says: {core.detail}")
        core.check_integrity()
        self._judge_memory(core)
        if stats.kv_blocks_used or stats.running or stats.waiting:
            raise Broken(f"something is left: {stats}")
        waiting = core._waiting
        if waiting.count or waiting.tokens or waiting._groups or waiting._fresh or waiting.estimate._started:
            raise Broken(f"{waiting.count} sequences of {waiting.tokens} tokens are left in the queue")
        twice = [seq_id for seq_id, count in self.executor.released.items() if count > 1]
        if twice:
            raise Broken(f"released more than once: {twice}")
        if len(self.executor.inner.table):
            raise Broken("the executor still holds a sequence")
        await core.stop()
        return core

    def disk(self) -> Disk | None:
        """What keeps KV beside memory."""
        return None

    def started(self, core: EngineCore) -> None:
        """The engine has started."""

    async def _add_adapters(self, core: EngineCore) -> None:
        for adapter in ADAPTERS:
            for _ in range(100):
                try:
                    await core.add_adapter(adapter, f"/{adapter}")
                    break
                except Unavailable:  # it died a moment ago
                    await asyncio.sleep(0.01)
        if self.scenario.dropped_at is not None:
            for adapter in ADAPTERS:
                asyncio.get_running_loop().call_later(self.scenario.dropped_at, core.drop_adapter, adapter)

    def _judge_memory(self, core: EngineCore) -> None:
        """At rest no span has memory beyond what may be kept: one span more at most, for a part of one is not given back."""
        assert core._loop is not None and core._scheduler is not None
        spare, states = core._loop.spare_memory, core._scheduler.kv.states
        if spare._active and states is not None:
            free = states.num_slots - states.num_snapshots
            if sum(states._has_memory[slot] for slot in states._free) > spare._kept_slots:
                raise Broken(f"memory of {free} slots of states is kept, {spare._kept_slots} may keep it")
        for share in core._loop.spare_memory._groups:
            pool, keep = share.group.pool, share.keep
            if keep > self.scenario.kept_blocks or pool.num_with_memory >= keep + pool.blocks_per_span:
                raise Broken(f"{pool.num_with_memory} blocks have memory, {keep} may keep it")

    async def _stream(self, core: EngineCore, stream: Stream) -> None:
        await asyncio.sleep(stream.arrival)
        mailbox, asked = Mailbox(), np.array(stream.prompt, np.int32)
        now, patience = core.clock(), stream.patience
        deadline = None if patience is None else now + patience
        context = RequestContext("sim", now, stream.priority, stream.salt, stream.tenant, deadline)
        requests = [
            Request(
                context, asked, _choice(stream.sampling, choice), stream.max_tokens, stream.stop,
                adapter=stream.adapter, speculative=stream.speculative, pooling=stream.pooling,
                prompt_logprobs=None if choice else stream.prompt_logprobs, cache_points=stream.cache_points,
            )
            for choice in range(stream.n)
        ]  # fmt: skip
        try:
            ids = core.submit_choices(requests, mailbox)
        except DeadlinePassed:
            if stream.patience is None:
                raise Broken("a deadline that nobody set") from None
            return
        reader = asyncio.create_task(self._read(core, stream, mailbox, ids))
        if stream.abort_after is None:
            await reader
            return
        await asyncio.wait((reader,), timeout=stream.abort_after)
        for seq_id in ids:
            core.abort(seq_id)
        if reader.done():
            reader.result()
        reader.cancel()

    async def _read(self, core: EngineCore, stream: Stream, mailbox: Mailbox, ids: list[int]) -> None:
        whole = {key: TokenDelta() for key in range(stream.n)}
        open_keys, cut = set(whole), stream.finish_after
        while open_keys:
            for key, delta in (await mailbox.take()).items():
                if key not in open_keys:
                    continue
                whole[key].merge(delta)
                if whole[key].finish_reason is not None:
                    open_keys.discard(key)
                elif key == 0 and cut is not None and len(whole[key].tokens) >= cut:
                    core.finish(ids[0], cut)
                    open_keys.discard(key)
        for key, delta in whole.items():
            self._judge(stream, key, delta, cut if key == 0 else None)

    def _judge(self, stream: Stream, key: int, got: TokenDelta, cut: int | None) -> None:
        if got.error is not None:
            self._judge_error(stream, got.error)
            return
        judge_prompt(stream, key, got, VOCAB, self.windows)
        if stream.pooling is not None:
            return
        want = self._oracle(stream, key)
        tokens = [token.token_id for token in got.tokens]
        if got.finish_reason is None:  # ended by the text side, which has seen at least `cut` tokens
            if cut is None or len(tokens) < cut or tokens != want[: len(tokens)]:
                raise Broken(f"{tokens} is not the beginning of {want}")
            return
        ends = [i for i, token in enumerate(want, 1) if token in stream.stop]
        length = ends[0] if ends else len(want)
        reason = FinishReason.STOP if ends else FinishReason.LENGTH
        if (tokens, got.finish_reason) != (want[:length], reason):
            raise Broken(
                f"prompt {stream.prompt}, choice {key}: {tokens} {got.finish_reason}, not {want[:length]} {reason}"
            )

    def _oracle(self, stream: Stream, choice: int) -> list[int]:
        sampling = _choice(stream.sampling, choice)
        return _oracle(stream.prompt, stream.max_tokens, sampling, stream.adapter, self.windows)

    def _judge_error(self, stream: Stream, error: EngineError) -> None:
        if isinstance(error, DeadlinePassed) and stream.patience is not None:
            return
        if isinstance(error, SequenceFailed) and self.scenario.poisoned:
            if POISON in stream.prompt:
                return
            if any(POISON in self._oracle(stream, choice) for choice in range(stream.n)):
                return
        # In three failed steps in a row; one that was refused counts as two.
        enough = 3 - ("refused" in self.scenario.faults.by_step.values())
        if (
            isinstance(error, ExecutorFailed)
            and self.executor.fired >= enough
            and self.executor.broken is None
        ):
            return
        raise Broken(f"{type(error).__name__}: {error}") from error


def _choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    return replace(sampling, choice=choice)


def simulate(seed: int) -> EngineCore:
    """Run the scenario of a seed; raises AssertionError (Broken, Deadlock) or whatever the engine raised."""
    scenario, rolling = draw(seed), cache_points.ROLLING
    cache_points.ROLLING = scenario.rolling
    try:
        return run(Run(scenario).run())
    finally:
        cache_points.ROLLING = rolling
