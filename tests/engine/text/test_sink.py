"""Text that goes to a call's sink in place of its iteration: together they give what an iteration alone gives."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.text.generation import Generation, TakeText, TextDelta, TextEngine, TextRequest
from engine.text.tokenizer import Tokenizer
from tests.engine.harness import engine, fake
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.text_requests import text_request

VOCAB = 264
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"n": 3, "temperature": 1.0, "seed": 5},
    "logprobs": {"n": 2, "temperature": 1.0, "seed": 6, "logprobs": 2},
    "stop": {"n": 2, "temperature": 1.0, "seed": 7, "stop": ("Q", "zz", "0")},
    "ends": {"ends": lambda: lambda text: "Q" in text, "temperature": 1.0, "seed": 7, "n": 2},
    "prompts": {"prompts": ((1, 2, 3), (4, 5)), "prompt_logprobs": 3},
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load(byte_level(), tmp_path)


def ask(**fields: Any) -> TextRequest:
    common = {"prompts": ((1, 2),), "max_tokens": 200, "temperature": 0.0, "ignore_eos": True}
    return text_request("r", **{**common, **fields})


class Sink:
    """Takes deltas in the order in which the iteration's are read. `every`: not ready for each so many-th."""

    def __init__(self, deltas: list[TextDelta], every: int = 0) -> None:
        self.taken = self.looks = 0
        self._deltas = deltas
        self._every = every

    @property
    def ready(self) -> bool:
        self.looks += 1
        return not self._every or self.looks % self._every > 0

    def take(self, delta: TextDelta) -> None:
        self.taken += 1
        self._deltas.append(delta)

    def text_taker(self, index: int) -> TakeText | None:
        return None

    def flush(self, now: float) -> None:
        """There is nothing to send."""


async def hear(generation: Generation, deltas: list[TextDelta], sink: Sink | None) -> dict[int, Any]:
    async with generation:
        generation.sink = sink
        async for delta in generation:
            deltas.append(delta)
    told: dict[int, Any] = defaultdict(lambda: ["", [], [], None, None])
    for delta in deltas:
        one = told[delta.index]
        assert one[3] is None, "a delta after the end"
        one[0] += delta.text
        one[1] += delta.token_ids
        one[2] += delta.logprobs or ()
        one[3] = delta.finish_reason and (delta.finish_reason, delta.stop_reason)
        one[4] = one[4] or delta.prompt_logprobs
    return dict(sorted(told.items()))


@pytest.mark.parametrize("every", [0, 2, 7])
@pytest.mark.parametrize("name", CALLS)
async def test_sink_and_iteration_give_all_in_order(tokenizer: Tokenizer, name: str, every: int) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        text = TextEngine(core, tokenizer)
        alone = text.start(ask(**CALLS[name]))
        expected = await hear(alone, [], None)
        deltas = list[TextDelta]()
        sink, call = Sink(deltas, every), text.start(ask(**CALLS[name]))
        assert await hear(call, deltas, sink) == expected
        assert call.usage.completion_tokens == alone.usage.completion_tokens
        assert sink.taken > (4 if every else 20), "the sink was passed by"
        async with asyncio.timeout(20):
            while core.stats().running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


class Texts(Sink):
    """Takes the text of plain choices alone. `every`: its function refuses each so many-th text."""

    def __init__(self, deltas: list[TextDelta], every: int = 0) -> None:
        super().__init__(deltas, every)
        self.texts = 0

    def text_taker(self, index: int) -> TakeText:
        return partial(self._text, index)

    def _text(self, index: int, text: str) -> bool:
        if self.ready:
            self.texts += 1
            self._deltas.append(TextDelta(index, text))
            return True
        return False


@pytest.mark.parametrize("every", [0, 2, 7])
@pytest.mark.parametrize("name", CALLS)
async def test_text_alone_and_deltas_give_all_in_order(tokenizer: Tokenizer, name: str, every: int) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        text = TextEngine(core, tokenizer)
        alone = text.start(ask(**CALLS[name]))
        expected = await hear(alone, [], None)
        deltas = list[TextDelta]()
        sink, call = Texts(deltas, every), text.start(ask(**CALLS[name]))
        found = await hear(call, deltas, sink)
        assert call.usage == alone.usage
        if name in {"logprobs", "stop", "ends"}:
            assert sink.texts == 0, "more than text is made of its tokens"
            assert found == expected
        else:
            assert sink.texts > (4 if every else 20), "the function was passed by"
            for told in (*found.values(), *expected.values()):
                told[1] = []  # ids: a text comes without
            assert found == expected


async def test_an_error_with_a_text_ends_the_call_alone(tokenizer: Tokenizer) -> None:
    class Broken(Texts):
        def _text(self, index: int, text: str) -> bool:
            if self.texts == 3:
                raise ZeroDivisionError
            return super()._text(index, text)

    async with engine(fake(vocab_size=VOCAB)) as core:
        text, deltas = TextEngine(core, tokenizer), list[TextDelta]()
        other = asyncio.create_task(hear(text.start(ask(n=2, seed=5)), [], None))
        broken = Broken(deltas)
        with pytest.raises(ZeroDivisionError):
            await hear(text.start(ask()), deltas, broken)
        assert broken.texts == 3
        assert all(one[3] == ("length", None) for one in (await other).values())
        assert core.stats().running == 0


async def test_a_call_that_was_left_takes_no_text(tokenizer: Tokenizer) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        deltas = list[TextDelta]()
        sink, call = Texts(deltas), TextEngine(core, tokenizer).start(ask())
        listener = asyncio.create_task(hear(call, deltas, sink))
        async with asyncio.timeout(20):
            while sink.texts < 5:  # noqa: ASYNC110
                await asyncio.sleep(0)
        listener.cancel()
        await asyncio.wait([listener])
        count, tokens = sink.texts, call.usage.completion_tokens
        assert not call.takers and call.sink is None
        async with asyncio.timeout(20):
            while core.stats().running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (sink.texts, call.usage.completion_tokens) == (count, tokens)


async def test_an_error_of_the_sink_ends_the_call_alone(tokenizer: Tokenizer) -> None:
    class Broken(Sink):
        def take(self, delta: TextDelta) -> None:
            super().take(delta)
            if self.taken == 5:
                raise ZeroDivisionError

    async with engine(fake(vocab_size=VOCAB)) as core:
        text, deltas = TextEngine(core, tokenizer), list[TextDelta]()
        other = asyncio.create_task(hear(text.start(ask(n=2, seed=5)), [], None))
        broken = Broken(deltas)
        with pytest.raises(ZeroDivisionError):
            await hear(text.start(ask()), deltas, broken)
        assert broken.taken == 5
        assert all(one[3] == ("length", None) for one in (await other).values())
        assert core.stats().running == 0


async def test_an_ended_call_with_a_sink_is_freed_at_once(tokenizer: Tokenizer) -> None:
    class Knows(Sink):
        generation: Generation

    async with engine(fake(vocab_size=VOCAB)) as core:
        deltas = list[TextDelta]()
        call = TextEngine(core, tokenizer).start(ask())
        sink = Knows(deltas)
        sink.generation = call
        gc.disable()
        try:
            await hear(call, deltas, sink)
            gone = weakref.ref(sink)
            del call, sink
            assert gone() is None
        finally:
            gc.enable()
