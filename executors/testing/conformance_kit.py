"""What the conformance cases are written with: `Kit`, the `@case` decorator, comparisons with a tolerance.

Standard library and NumPy only.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from executors.contract import (
    ExecutorCapabilities,
    InvalidInput,
    ModelExecutor,
    ModelInfo,
    SampledToken,
    SamplingParams,
    reference_sampler,
)
from executors.testing.driver import GREEDY, DrivenSequence, Driver, Feed

MakeExecutor = Callable[[], ModelExecutor]
"""Makes an executor that was not warmed up yet."""

Inject = Callable[[ModelExecutor, str, int], None]
"""Makes the next step that computes sequence `int` fail: kind "step_failed", "out_of_memory" or "nan"."""


class LoraSource(NamedTuple):
    """What `load_adapter` is given of an adapter that the executor under test can load."""

    name: str
    path: str
    digest: str


STATES = "a sequence begins with a state beside its blocks: see the cases on states"


class Nonconformance(AssertionError):
    """The executor breaks the contract; the message says where."""


class NotApplicable(Exception):
    """The case does not concern this executor; the message says why."""


def require(condition: bool, message: str) -> None:
    """Raises Nonconformance unless the condition holds."""
    if not condition:
        raise Nonconformance(message)


class Kit:
    """One warm executor under test, and how strictly to judge it. Each case begins an epoch of its own.

    `tolerance`: 0 means exact, bit for bit. Above 0 it is the largest difference allowed between two logprobs, and a
    token may differ where the two best candidates lie no further apart than that.
    """

    def __init__(
        self,
        make: MakeExecutor,
        executor: ModelExecutor,
        tolerance: float = 0.0,
        inject: Inject | None = None,
        epoch: int = 1,
        adapters: Sequence[LoraSource] = (),
    ) -> None:
        self.make = make
        self.adapters = adapters
        self.executor = executor
        self.tolerance = tolerance
        self.inject = inject
        self.epoch = epoch
        self.info: ModelInfo = executor.info()
        self.capabilities: ExecutorCapabilities = executor.capabilities()
        self.paged = self.capabilities.paged
        self.block_size = executor.kv_layout().block_size if self.paged else 8

    @property
    def exact(self) -> bool:
        """True if every comparison is bit for bit."""
        return self.tolerance == 0.0

    async def driver(self) -> Driver:
        """A driver in a new epoch: the executor holds nothing."""
        driver = await Driver.start(self.executor, self.epoch)
        self.epoch += 1
        return driver

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        """A prompt of random tokens, the same for the same arguments."""
        rng = random.Random(f"{seed}:{length}")
        return [rng.randrange(self.info.vocab_size) for _ in range(length)]

    def long(self, seed: int = 0) -> list[int]:
        """A prompt of two blocks and a bit."""
        return self.prompt(2 * self.block_size + 3, seed)

    def judged(self, params: SamplingParams) -> SamplingParams:
        """The params, with the logprobs that judging a difference takes; exact comparison needs none."""
        if self.exact:
            return params
        return replace(params, logprobs=max(params.logprobs or 0, 2 if params.greedy else params.top_k + 8))

    @property
    def greedy(self) -> SamplingParams:
        """Greedy sampling, fit for `same`."""
        return self.judged(GREEDY)

    def drawn(self, seed: int) -> SamplingParams:
        """Real sampling, fit for `same`."""
        return self.judged(SamplingParams(temperature=0.9, top_k=8, top_p=0.95, seed=seed))

    async def alone(
        self, prompt: list[int], num_tokens: int, params: SamplingParams | None = None, **options: Any
    ) -> DrivenSequence:
        """The plain truth that cases compare with: a cold executor, one sequence, its whole prompt, then decodes."""
        driver = await self.driver()
        seq = driver.add(prompt, params or self.greedy, **options)
        await driver.prefill(seq)
        await driver.decode(num_tokens - 1, seq)
        return seq

    def need_slots(self, n: int) -> None:
        """Raises NotApplicable for an executor that cannot take n sequences in a step."""
        if self.capabilities.max_batch_size < n:
            raise NotApplicable(f"needs {n} sequences in a step")

    def need_paged(self) -> None:
        """Raises NotApplicable for an executor that owns its KV."""
        if not self.paged:
            raise NotApplicable("the executor owns its KV")

    def need_no_states(self) -> None:
        """Raises NotApplicable for an executor whose sequences cannot begin with blocks alone."""
        if self.executor.kv_layout().state is not None:
            raise NotApplicable(STATES)

    # -- comparison ----------------------------------------------------------------------------------------------------

    def same(self, expected: DrivenSequence, actual: DrivenSequence, what: str, offset: int = 0) -> None:
        """The two sequences sampled the same tokens; `actual` may have begun `offset` tokens later. Raises Nonconformance."""
        want = expected.samples[offset:]
        require(bool(want) and bool(actual.samples), f"{what}: nothing was sampled")
        params = expected.sampling or GREEDY
        first = len(expected.prompt) + len(expected.restored) + offset
        for i, (a, b) in enumerate(zip(want, actual.samples, strict=False)):
            if not self.same_token(a, b, params, first + i, f"{what}, token {offset + i}"):
                return  # a permitted difference: the histories part here

    def same_token(
        self, a: SampledToken, b: SampledToken, params: SamplingParams, position: int, what: str
    ) -> bool:
        """True if the tokens are equal, False if they differ permissibly. Raises Nonconformance."""
        if self.exact:
            require(a == b, f"{what}: expected {a}, got {b}")
            return True
        if a.token_id != b.token_id:
            close = self.close_call(a, params, position) or self.close_call(b, params, position)
            require(close, f"{what}: expected {a}, got {b}, and it was no close call")
            return False
        if a.logprob is not None and b.logprob is not None:
            require(
                abs(a.logprob - b.logprob) <= self.tolerance,
                f"{what}: logprob {a.logprob} became {b.logprob}",
            )
        return True

    def same_ids(self, expected: DrivenSequence, actual: DrivenSequence, what: str) -> None:
        """As `same` for a sequence that asked for no logprobs; `expected` did ask. Raises Nonconformance."""
        params = expected.sampling or GREEDY
        for i, (a, b) in enumerate(zip(expected.samples, actual.samples, strict=False)):
            if a.token_id != b.token_id:
                close = not self.exact and self.close_call(a, params, len(expected.prompt) + i)
                require(close, f"{what}, token {i}: expected {a}, got {b}")
                return

    def close_call(self, token: SampledToken, params: SamplingParams, position: int) -> bool:
        """True if logprobs that differ by the tolerance could have chosen another token."""
        if params.greedy:
            best = [logprob for _, logprob in token.top_logprobs[:2]]
            return len(best) == 2 and best[0] - best[1] <= 2 * self.tolerance
        # Choose again from logprobs that were disturbed a little: another token means that this one stood on an edge.
        chosen = set()
        rng = np.random.default_rng(position)
        row = row_of(token, self.info.logits_width)
        for _ in range(64):
            noise = rng.uniform(-self.tolerance, self.tolerance, len(row)).astype(np.float32)
            chosen.add(reference_sampler.choose(row + noise, params, position))
        return len(chosen) > 1

    def near(self, a: float | None, b: float | None) -> bool:
        """True if two logprobs agree within the tolerance (and a little rounding)."""
        return a is not None and b is not None and abs(a - b) <= max(self.tolerance, 1e-5)


def row_of(token: SampledToken, width: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """float32 [width]: logits rebuilt from a token's alternatives; -inf for those that were not listed."""
    row = np.full(width, -np.inf, np.float32)
    for token_id, logprob in token.top_logprobs:
        row[token_id] = logprob
    return row


async def refused(awaitable: Awaitable[object], what: str) -> None:
    """Raises Nonconformance unless awaiting raises InvalidInput."""
    try:
        await awaitable
    except InvalidInput:
        return
    raise Nonconformance(f"{what} was not refused with InvalidInput")


CaseFunction = Callable[[Kit], Awaitable[None]]
CASES: dict[str, CaseFunction] = {}


def case(function: CaseFunction) -> CaseFunction:
    """Register a case under its function's name."""
    CASES[function.__name__] = function
    return function


__all__ = [
    "CASES",
    "GREEDY",
    "CaseFunction",
    "DrivenSequence",
    "Driver",
    "Feed",
    "Inject",
    "Kit",
    "LoraSource",
    "MakeExecutor",
    "Nonconformance",
    "NotApplicable",
    "case",
    "refused",
    "require",
    "row_of",
]  # fmt: skip
