"""Calls to the engine over a small model of a family, and transformers' judgement of every token and logprob of the answers.

An answer is judged as a whole: transformers computes prompt and output once more in one forward, and every logprob must be that
forward's. A greedy token must be the most likely one there, up to ties of two logprobs that are as close as the comparison is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext, TokenDelta
from executors.contract import (
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
    ParallelConfig,
    SampledToken,
    SamplingParams,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.memory.kv_sizes import LEAST_SNAPSHOTS
from executors.process import connect
from tests.executors.llm.models import Reference

NEW = (
    "ministral3-growing-queries", "ministral3-beside-images", "olmo3-windows-yarn", "glm4-neighbours-of-half-a-head",
    "qwen3-beside-images", "phi4-mini-tied-longrope-of-a-part", "qwen2-moe-windows-some-dense-layers",
    "exaone4-windows-rotated-alone", "hunyuan-norms-last-alpha", "gpt-oss-sinks-windows",
    "gemma4-inputs-of-layers-and-shared-kv", "gemma4-experts-beside-mlp", "gemma4-unified",
)  # fmt: skip
"""Shapes of `tests.executors.llm.models` of the families from Ministral 3 to Gemma 4, one for each form that is published."""
OTHERS = (
    "qwen3-window-on-last-layers", "llama-biases-llama3-rope", "mistral-window", "qwen2-window-on-last-layers-yarn", "qwen3-moe",
    "mixtral-window-one-kv-head", "olmoe", "gemma-one-kv-head", "gemma2-caps-alternating-windows", "gemma3-two-ropes",
    "gemma3-beside-images", "gemma4-beside-images", "gemma4-unified-beside-images", "mistral-beside-images", "phi3-window",
    "olmo2", "smollm3-some-layers-without-rope", "granite", "gpt2",
)  # fmt: skip
"""At least one of every other family."""
HYBRIDS = (
    "lfm2-short-convolutions", "lfm2-moe-sigmoid-router", "qwen3-next", "qwen3.5", "qwen3.5-beside-images", "qwen3.5-moe",
    "qwen3.5-moe-beside-images",
)  # fmt: skip
"""One of every family with states."""

BLOCK, MAX_LEN, SEQS = 8, 192, 8
TOLERANCE = 1e-4
"""Of a logprob, both sides in float32."""
TOP = 2
"""Alternatives beside each token."""
_LEAST = 72
"""Tokens of a judged row, padding included: transformers takes the factors of longrope by the length of what it is given, and
the server those of the length that it serves."""


@dataclass(frozen=True)
class Call:
    """One sequence. `salt`: calls with different ones share no blocks. `allowed`: the only tokens that may be sampled."""

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 0.0
    seed: int = 0
    choice: int = 0
    salt: str | None = None
    allowed: tuple[int, ...] | None = None
    prompt_logprobs: bool = False
    speculative: bool = True

    @property
    def request(self) -> Request:
        """What the engine gets."""
        sampling = SamplingParams(
            temperature=self.temperature, seed=self.seed, choice=self.choice, logprobs=TOP, allowed_token_ids=self.allowed
        )  # fmt: skip
        return Request(
            RequestContext("family", 0.0, cache_salt=self.salt), np.array(self.prompt, np.int32), sampling, self.max_tokens,
            speculative=self.speculative, prompt_logprobs=TOP if self.prompt_logprobs else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """`prompt`: an entry for each prompt token after the first, where asked for. `cached`: prompt tokens found in the prefix
    cache."""

    tokens: tuple[SampledToken, ...]
    prompt: tuple[SampledToken, ...] | None
    cached: int

    @property
    def ids(self) -> list[int]:
        """Token ids of the output."""
        return [token.token_id for token in self.tokens]

    @staticmethod
    def of(delta: TokenDelta) -> Answer:
        """Return the answer that all deltas of a sequence are, merged. Raises the sequence's error."""
        if delta.error is not None:
            raise delta.error
        return Answer(tuple(delta.tokens), delta.prompt_logprobs, delta.num_cached_tokens)


class Judge:
    """transformers' model, and what it said of sequences before."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def logprobs(self, sequences: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Return for each sequence float64 [tokens, vocabulary], all in one forward: nothing that stands behind a token
        changes what is said of it."""
        missing = list(dict.fromkeys(one for one in sequences if one not in self._known))
        if missing:
            ids = np.zeros((len(missing), max(_LEAST, *map(len, missing))), np.int64)
            for row, one in zip(ids, missing, strict=True):
                row[: len(one)] = one
            with torch.no_grad(), _one_thread():
                logits = self.reference.model(torch.from_numpy(ids)).logits.double()
                rows = torch.log_softmax(logits, -1).numpy()
            self._known |= {one: row[: len(one)] for one, row in zip(missing, rows, strict=True)}
        return [self._known[one] for one in sequences]

    def check(self, calls: Sequence[Call], answers: Sequence[Answer], tolerance: float = TOLERANCE) -> None:
        """Compare every logprob with the model's, and every greedy token with its most likely one."""
        wholes = [(*call.prompt, *answer.ids) for call, answer in zip(calls, answers, strict=True)]
        for call, answer, rows in zip(calls, answers, self.logprobs(wholes), strict=True):
            assert len(answer.tokens) == call.max_tokens
            outputs = rows[len(call.prompt) - 1 : -1]
            for token, row in zip(answer.tokens, outputs, strict=True):
                _check_token(token, row)
                if not call.temperature:
                    allowed = row if call.allowed is None else row[list(call.allowed)]
                    assert allowed.max() - row[token.token_id] <= 2 * TOLERANCE, "not the most likely token"
            if call.prompt_logprobs:
                assert answer.prompt is not None
                assert [token.token_id for token in answer.prompt] == list(call.prompt[1:])
                for token, row in zip(answer.prompt, rows, strict=False):
                    _check_token(token, row)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other make a small forward a hundred times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_token(token: SampledToken, row: np.ndarray) -> None:
    """Compare a token's logprob and its alternatives with those of the whole vocabulary."""
    assert token.logprob is not None
    assert abs(token.logprob - row[token.token_id]) < TOLERANCE, "another logprob"
    assert len(token.top_logprobs) >= TOP
    best = np.sort(row)[::-1]
    for (token_id, logprob), expected in zip(token.top_logprobs[:TOP], best, strict=False):
        assert abs(logprob - row[token_id]) < TOLERANCE and abs(logprob - expected) < TOLERANCE


@dataclass
class Served:
    """An engine over a model, and every step that it asked for."""

    core: EngineCore
    steps: list[UnifiedBatch] = field(default_factory=list)

    async def together(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answers to calls that come at once."""
        mailboxes = [Mailbox() for _ in calls]
        for call, mailbox in zip(calls, mailboxes, strict=True):
            self.core.submit(call.request, mailbox)
        return list(await asyncio.gather(*(_whole(mailbox) for mailbox in mailboxes)))

    async def alone(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answers to calls one after the other, which share nothing and get no drafts."""
        answers = []
        for number, call in enumerate(calls):
            answers += await self.together([replace(call, salt=f"alone {number}", speculative=False)])
        return answers

    async def choices(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answers to calls that are choices of one prompt."""
        mailbox = Mailbox()
        self.core.submit_choices([call.request for call in calls], mailbox)
        whole = {key: TokenDelta() for key in range(len(calls))}
        while any(one.finish_reason is None for one in whole.values()):
            for key, delta in (await mailbox.take()).items():
                whole[key].merge(delta)
        return [Answer.of(one) for one in whole.values()]


async def _whole(mailbox: Mailbox) -> Answer:
    whole = TokenDelta()
    while whole.finish_reason is None:
        whole.merge((await mailbox.take())[0])
    return Answer.of(whole)


async def too_few_bytes(model: Path, **settings: Any) -> int:
    """Return bytes of KV that hold the longest sequence, and not what a crowd needs."""
    async with served(model, **settings) as engine:
        layout = engine.core.executor.kv_layout()
        states = 0 if layout.state is None else (SEQS + LEAST_SNAPSHOTS) * layout.state.slot_bytes
        return 30 * sum(group.bytes_per_block for group in layout.groups) + states


@asynccontextmanager
async def served(
    model: Path, *, kv_bytes: int = 16 << 20, budget: int = 24, draft_model: Path | None = None, mtp: bool = False,
    deterministic: bool = False, quantization: str | None = None,
    spoil: Callable[[UnifiedBatch], UnifiedBatch] = lambda batch: batch, mode: str = "inline", ranks: int = 1, **settings: Any,
) -> AsyncIterator[Served]:  # fmt: skip
    """A model in float32. `kv_bytes`: as many as calls may need, or see `too_few_bytes`. `budget`: tokens of a step. `spoil`
    makes of each step what the executor gets. `mode`: where the executor runs, "inline" or "process"; `ranks`: processes that
    share the model. `settings` of the engine. At the end all blocks must be free, and the accounting in order."""
    config = ExecutorConfig(
        "llm", str(model), dtype="float32", device="cpu", max_model_len=MAX_LEN, max_num_seqs=SEQS,
        max_num_batched_tokens=budget, attention=ExecutorAttentionConfig(BLOCK),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=kv_bytes),
        # Threads that wait for each other on a busy machine make small tests ten times slower.
        optimization=OptimizationConfig(
            num_threads=1, deterministic=deterministic, draft_model=str(draft_model or ""), mtp=mtp,
            quantization=quantization,
        ),
    )  # fmt: skip
    if ranks > 1:
        parallel = ParallelConfig(tensor_parallel_size=ranks)
        config = replace(config, parallel=parallel, executor_type=parallel.executor_type)
    executor = connect(config, mode)
    # What a step computes depends on no measured time.
    limits = {"max_num_seqs": SEQS, "max_num_batched_tokens": budget, "target_itl": 0.0}
    core = EngineCore(executor, EngineConfig(**limits, **settings))  # type: ignore[arg-type]
    found = Served(core)
    executor.unified_decode = _recorded(executor.unified_decode, found.steps, spoil)  # type: ignore[method-assign]
    # Without it every draft is verified; with it, as many as pay on this machine.
    executor.pace = lambda: None  # type: ignore[method-assign]
    await core.start()
    try:
        yield found
        assert core.stats().kv_blocks_used == 0
        core.check_integrity()
    finally:
        await core.stop()


def _recorded(
    step: Callable[[UnifiedBatch], Any], steps: list[UnifiedBatch], spoil: Callable[[UnifiedBatch], UnifiedBatch]
) -> Callable[[UnifiedBatch], Any]:  # fmt: skip
    async def recording(batch: UnifiedBatch) -> UnifiedOutput:
        steps.append(batch)
        return await step(spoil(batch))

    return recording
