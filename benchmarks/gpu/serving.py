"""An engine with an executor of random weights, and a reader that costs it next to nothing."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Options
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors.contract import ExecutorConfig, ModelExecutor, ProgressCallback, SamplingParams
from executors.process import connect
from server.system.gc_tuning import freeze_after_load

TEMPERATURE = 0.6
_TINY_KV = 32 << 20
_CAPTURE_PATIENCE, _STILL = 60.0, 4.0


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine is started for a part."""

    shape: str
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 4096
    enforce_eager: bool = False
    prefix_caching: bool = True
    backend: str = "auto"
    """Of attention."""
    executor: str | None = None
    """In place of the one that the options name."""
    model: Path | None = None
    """A checkpoint in place of the shape's random weights."""
    drafts: int = 0
    """From n-grams, in a step."""
    draft_model: bool = False
    """Whether drafts are from a draft model, which is the model itself."""
    max_loras: int = 0
    max_lora_rank: int = 64
    kv_cache_memory_bytes: int | None = None
    """In place of what the options or the device give."""
    kv_cache_dtype: str = "auto"
    max_in_flight: int | None = None
    quantization: str | None = None
    deaths: int = 0
    """Deaths of the executor that the part brings about."""
    progress: ProgressCallback | None = None
    """Called with each report of a start, the first one and those after deaths, on the event loop in process mode."""


@asynccontextmanager
async def engine(options: Options, setup: Setup) -> AsyncIterator[EngineCore]:
    """A started engine, shut down at the end. Prompts are computed as fast as they can be: nobody reads along.

    Raises Failed if its executor died or was reset meanwhile otherwise than the setup says: streams go on after that, and nothing
    else would tell.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = setup.model or shapes.write(setup.shape, Path(folder))
        config = executor_config(options, setup, model)
        limits = EngineConfig(
            max_num_seqs=setup.max_num_seqs, max_num_batched_tokens=setup.max_num_batched_tokens, target_itl=0.0,
            max_queue_wait=1e6, prefix_caching=setup.prefix_caching, max_loras=max(0, setup.max_loras - 1),
            num_speculative_tokens=setup.drafts, max_in_flight=setup.max_in_flight,
            speculative_method="draft_model" if setup.draft_model else "ngram",
        )  # fmt: skip
        core = EngineCore(connect(config, "inline" if options.mode == "inline" else "process"), limits)
        if setup.progress is not None:
            core.executor.set_progress(setup.progress)
        await core.start()
        freeze_after_load()
        epoch = core.stats().epoch
        try:
            yield core
            if (now := core.stats()).epoch != epoch + setup.deaths:
                meant = f", not {setup.deaths}" if setup.deaths else ""
                raise Failed(
                    f"the executor was restarted or reset {now.epoch - epoch} times{meant} meanwhile (steps cut for memory: "
                    f"{now.steps_cut}): see the log"
                )
        finally:
            await core.stop()


def executor_config(options: Options, setup: Setup, model: Path) -> ExecutorConfig:
    """Random weights of the shape, or those of the setup's model, on the device that was asked for."""
    config = ExecutorConfig(
        setup.executor or options.executor, str(model), load_format="auto" if setup.model else "dummy", device=options.device,
        max_num_seqs=setup.max_num_seqs, max_num_batched_tokens=setup.max_num_batched_tokens,
        max_model_len=setup.max_model_len,
    )  # fmt: skip
    attention, memory, speed = config.attention, config.memory, config.optimization
    attention = replace(
        attention, backend=setup.backend, block_size=options.block_size or attention.block_size
    )
    if options.kv_cache_memory_bytes:
        memory = replace(memory, kv_cache_memory_bytes=options.kv_cache_memory_bytes)
    if setup.shape == shapes.TINY:
        # A GPU's whole memory would be millions of blocks of so small a model.
        memory = replace(memory, kv_cache_memory_bytes=_TINY_KV)
    if setup.kv_cache_memory_bytes:
        memory = replace(memory, kv_cache_memory_bytes=setup.kv_cache_memory_bytes)
    memory = replace(memory, kv_cache_dtype=setup.kv_cache_dtype)
    if options.tiny:
        speed = replace(speed, num_threads=1)
    speed = replace(
        speed, enforce_eager=setup.enforce_eager, max_loras=setup.max_loras, max_lora_rank=setup.max_lora_rank,
        quantization=setup.quantization, max_drafts=setup.drafts,
        draft_model=str(model) if setup.draft_model else "",
    )  # fmt: skip
    return replace(config, attention=attention, memory=memory, optimization=speed)


@dataclass(slots=True)
class Crowd:
    """Requests that are asked together and read through one mailbox, by one task. Times are of the engine's clock, seconds;
    `first` and `last` token by request, `counts` of tokens; `tokens` themselves, and when each came, only with `keep`."""

    core: EngineCore
    keep: bool = False
    asked: float = 0.0
    counts: list[int] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    """Prompt tokens of each that were found in the prefix cache."""
    times: list[list[float]] = field(default_factory=list)
    seq_ids: list[int] = field(default_factory=list)
    _mailbox: Mailbox = field(default_factory=lambda: Mailbox(max_bytes=1 << 30))
    _open: int = 0

    def ask(
        self, prompts: Sequence[Sequence[int]], outputs: Sequence[int], temperatures: Sequence[float] | None = None,
        adapters: Sequence[str | None] | None = None, grammars: Sequence[str | None] | None = None,
        seeds: Sequence[int] | None = None, top_k: int = 0,
    ) -> None:  # fmt: skip
        """Submit them; sampled at TEMPERATURE unless told otherwise, whatever ends a text included; `adapters`: digests; `seeds`:
        0, 1, 2 ... if None; `top_k`: tokens that one is drawn from, 0: all."""
        count = len(prompts)
        temperatures = temperatures or [TEMPERATURE] * count
        self.tokens, self.times = [[] for _ in range(count)], [[] for _ in range(count)]
        self.counts, self.first, self.last = [0] * count, [0.0] * count, [0.0] * count
        self.cached = [0] * count
        self._open, self.asked = count, self.core.clock()
        for key, (prompt, tokens) in enumerate(zip(prompts, outputs, strict=True)):
            seed = seeds[key] if seeds else key
            sampling = SamplingParams(temperature=temperatures[key], seed=seed, top_k=top_k)
            request = Request(
                RequestContext(f"check-{key}", self.core.clock()),
                np.array(prompt, np.int32),
                sampling,
                tokens,
                adapter=adapters[key] if adapters else None,
                grammar=grammars[key] if grammars else None,
            )
            self.seq_ids.append(self.core.submit(request, self._mailbox, key))

    async def read(self) -> None:
        """Take in what comes, until the last of them has ended. Raises the error of the first that fails."""
        while self._open:
            taken = await self._mailbox.take()
            now = self.core.clock()
            for key, delta in taken.items():
                if delta.error is not None:
                    raise delta.error
                if delta.tokens:
                    self.first[key] = self.first[key] or now
                    self.last[key] = now
                    self.counts[key] += len(delta.tokens)
                    self.cached[key] = delta.num_cached_tokens
                    if self.keep:
                        self.tokens[key] += [token.token_id for token in delta.tokens]
                        self.times[key] += [now] * len(delta.tokens)
                self._open -= delta.finish_reason is not None

    def leave(self) -> None:
        """What still runs is not wanted any more."""
        for seq_id in self.seq_ids:
            self.core.abort(seq_id)


async def ask_all(core: EngineCore, prompts: Sequence[Sequence[int]], outputs: Sequence[int]) -> Crowd:
    """All of them together, read to the end."""
    crowd = Crowd(core)
    crowd.ask(prompts, outputs)
    await crowd.read()
    return crowd


def capturing(notes: Sequence[str]) -> bool:
    """Whether graphs are still to be captured, by what an executor says of itself. One that has none says nothing of them."""
    counts = (re.match(r"(?:draft model: )?graphs: (\d+) of (\d+) captured$", note) for note in notes)
    return any(one is not None and one[1] != one[2] for one in counts)


_AS_MEANT = {
    "graphs": r"graphs: (\d+) of \1 captured",
    "attention": r"attention: (?!torch).*",
    "sampling": r"sampling: on the device, triton",
}


def fell_back(notes: Sequence[str]) -> str:
    """The note that says an executor does something the slow way: launches kernels one by one, attends or samples by torch.
    Empty if none says so."""
    told = ((note, _AS_MEANT.get(note.partition(":")[0])) for note in notes)
    return next((note for note, meant in told if meant is not None and not re.fullmatch(meant, note)), "")


async def settled(core: EngineCore) -> float:
    """As `captured`, of the engine's executor."""
    return await captured(core.executor)


async def captured(executor: ModelExecutor) -> float:
    """Wait until the executor, left alone, has captured its graphs, or gets no further; seconds that took."""
    began = time.perf_counter()
    notes, since = executor.status().notes, began
    while capturing(notes) and time.perf_counter() - began < _CAPTURE_PATIENCE:
        await asyncio.sleep(0.1)
        now = executor.status().notes
        if now != notes:
            notes, since = now, time.perf_counter()
        elif time.perf_counter() - since > _STILL:
            break
    return time.perf_counter() - began


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait at most so long for a callable to say True, looking now and then."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
