"""Readers that are behind, or never come: what they get is what others get, and what they hold is bounded."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import mailbox
from engine.core.engine import EngineCore
from engine.errors import ReaderTooSlow
from engine.mailbox import Mailbox
from engine.text import generation
from engine.text.generation import Generation, TextDelta, TextEngine, TextRequest, TokenText
from engine.text.tokenizer import Tokenizer
from tests.engine.harness import engine, fake
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.text_requests import text_request

VOCAB = 264
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"n": 3, "temperature": 1.0, "seed": 5},
    "logprobs": {"n": 2, "temperature": 1.0, "seed": 6, "logprobs": 20},
    "stop": {"n": 2, "temperature": 1.0, "seed": 7, "stop": ("Q", "zz", "0")},
    "prompts": {"prompts": ((1, 2, 3), (4, 5)), "logprobs": 2, "prompt_logprobs": 3},
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load(byte_level(), tmp_path)


def ask(**fields: Any) -> TextRequest:
    common = {"prompts": ((1, 2),), "max_tokens": 240, "temperature": 0.0, "ignore_eos": True}
    return text_request("r", **{**common, **fields})


class Heard:
    """All deltas of one choice, put together."""

    def __init__(self) -> None:
        self.text, self.pieces = "", 0
        self.ids: list[int] = []
        self.logprobs: list[TokenText] = []
        self.prompt_logprobs: tuple[TokenText, ...] | None = None
        self.end: tuple[Any, Any] | None = None

    def take(self, delta: TextDelta) -> None:
        assert self.end is None, "a delta after the end"
        assert len(delta.token_ids) <= 1024
        self.pieces += 1
        self.text += delta.text
        self.ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.end = delta.finish_reason, delta.stop_reason

    @property
    def all(self) -> tuple[Any, ...]:
        return self.text, self.ids, self.logprobs, self.prompt_logprobs, self.end


async def hear(started: Generation) -> dict[int, Heard]:
    heard: dict[int, Heard] = defaultdict(Heard)
    async with started:
        async for delta in started:
            heard[delta.index].take(delta)
    return dict(sorted(heard.items()))


async def idle(core: EngineCore) -> None:
    async with asyncio.timeout(20):
        while core.stats().running or core.stats().waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", CALLS)
async def test_who_reads_when_all_is_over_gets_what_others_get(tokenizer: Tokenizer, name: str) -> None:
    request = ask(**CALLS[name])
    async with engine(fake(vocab_size=VOCAB)) as core:
        prompt = await hear(TextEngine(core, tokenizer).start(request))
        late = TextEngine(core, tokenizer).start(request)
        if not request.stop:
            await idle(core)  # otherwise it is the reader that ends it
        found = await hear(late)
        assert late.usage.completion_tokens == sum(len(one.ids) for one in prompt.values())
    assert {index: one.all for index, one in found.items()} == {i: one.all for i, one in prompt.items()}
    if name == "logprobs":
        assert all(one.pieces >= 240 * 21 / 1024 for one in found.values()), "not all of it at once"
    assert all(one.pieces > 200 for one in prompt.values()) or request.stop


async def test_a_reader_beyond_the_bound_is_given_up_at_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(on_full: Callable[[], None]) -> Mailbox:
        return Mailbox(252 * 100, on_full)

    request = ask(**CALLS["logprobs"])
    async with engine(fake(vocab_size=VOCAB)) as core:
        text_engine = TextEngine(core, tokenizer)
        whole = await hear(text_engine.start(request))
        monkeypatch.setattr(generation, "Mailbox", small)
        late = text_engine.start(request)
        await idle(core)
        assert core.stats().kv_blocks_used == 0, "what it held is free, though it never read"
        monkeypatch.setattr(generation, "Mailbox", Mailbox)
        other = text_engine.start(request)
        heard: dict[int, Heard] = defaultdict(Heard)
        async with late:
            with pytest.raises(ReaderTooSlow):
                async for delta in late:
                    heard[delta.index].take(delta)
        assert {i: one.all for i, one in (await hear(other)).items()} == {
            i: one.all for i, one in whole.items()
        }
    for index, one in heard.items():
        assert 40 < len(one.ids) < 240
        assert one.ids == whole[index].ids[: len(one.ids)], "no gap in what it got"
        assert one.logprobs == whole[index].logprobs[: len(one.ids)]
        assert one.end is None


async def test_what_one_step_gives_a_reader_is_bounded(tokenizer: Tokenizer) -> None:
    """However much waits: what is made of it, text and JSON, is large."""
    async with engine(fake(vocab_size=VOCAB)) as core:
        late = TextEngine(core, tokenizer).start(ask(n=4, temperature=1.0, seed=1, logprobs=20))
        await idle(core)
        async with late:
            async for delta in late:
                assert delta.logprobs is not None
                assert sum(1 + len(one.top) for one in delta.logprobs) <= mailbox._AT_ONCE + 21
