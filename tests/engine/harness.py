"""An engine on a fake executor, and readers that check every token against the executor's function of history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.metrics_sink import MetricsSink
from engine.request import FinishReason, Request, RequestContext, TokenDelta
from executors import registry
from executors.contract import ExecutorAttentionConfig, ExecutorConfig, SamplingParams
from executors.testing.fakes.base import FakeExecutor

GREEDY = SamplingParams(temperature=0.0)


class OnADevice:
    """A fake executor that says it computes on a device, where three steps are out. `sizes`: for those who count steps by their
    sequences; `turn`: held by the step that is computed."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.turn = asyncio.Lock()
        self.sizes = Counter[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def info(self) -> Any:
        """See the contract."""
        return replace(self.inner.info(), device="cuda:0")

    def capabilities(self) -> Any:
        """See the contract."""
        return replace(self.inner.capabilities(), max_in_flight=3)


def fake(
    executor: str = "paged_fake", *, seqs: int = 8, block_size: int = 4, **options: str | int | float | bool
):
    """A fake executor, not warmed up."""
    made = registry.create(
        ExecutorConfig(
            executor,
            max_num_seqs=seqs,
            max_model_len=256,
            attention=ExecutorAttentionConfig(block_size=block_size),
            options=options,
        )
    )
    assert isinstance(made, FakeExecutor)
    return made


@asynccontextmanager
async def engine(
    executor: FakeExecutor,
    observer: MetricsSink | None = None,
    *,
    clock: Callable[[], float] | None = None,
    **config: float,
) -> AsyncIterator[EngineCore]:
    """A started engine; at the end everything must be accounted for. `clock`: the event loop's by default, virtual or not."""
    config = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "restart_pause": 0.01,
        "recovery_timeout": 0.2,
        **config,
    }
    clock = clock or asyncio.get_running_loop().time
    core = EngineCore(executor, EngineConfig(**config), observer, clock=clock)  # type: ignore[arg-type]
    await core.start()
    try:
        yield core
    finally:
        await core.stop()
    core.check_integrity()


def request(
    prompt: list[int], max_tokens: int = 8, sampling: SamplingParams = GREEDY, stop: tuple[int, ...] = ()
) -> Request:
    return Request(
        RequestContext("test", 0.0), np.array(prompt, np.int32), sampling, max_tokens, frozenset(stop)
    )


async def read(mailbox: Mailbox, key: int = 0) -> TokenDelta:
    """Everything of one sequence until its end, merged."""
    whole = TokenDelta()
    while whole.finish_reason is None:
        whole.merge((await mailbox.take())[key])
    return whole


async def read_all(mailboxes: Sequence[Mailbox], first: TokenDelta) -> list[TokenDelta]:
    """As `read` of each; `first` was taken from the first mailbox before."""
    texts = [await read(mailbox) for mailbox in mailboxes]
    texts[0].tokens[:0] = first.tokens
    return texts


async def run(core: EngineCore, asked: Request) -> tuple[list[int], FinishReason | None]:
    """Submit and read to the end: token ids and finish reason. Raises the sequence's error."""
    mailbox = Mailbox()
    core.submit(asked, mailbox)
    whole = await read(mailbox)
    if whole.error is not None:
        raise whole.error
    return [token.token_id for token in whole.tokens], whole.finish_reason
