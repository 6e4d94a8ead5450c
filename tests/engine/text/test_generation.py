"""Calls with one or many choices, on an engine with a fake executor."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ContextLengthExceeded, DeadlinePassed, ExecutorFailed
from engine.metrics_sink import MetricsSink
from engine.request import Request, RequestContext
from engine.text.embedding import Embedder, EmbeddingRequest
from engine.text.generation import Generation, TextDelta, TextEngine, TextRequest
from engine.text.tokenizer import Tokenizer
from executors.contract import SamplingParams
from executors.testing.fakes.failures import Failure
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.text_requests import text_request

VOCAB = 264


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load(byte_level(), tmp_path)


def ask(**fields: object) -> TextRequest:
    return text_request(
        **{"request_id": "r", "prompts": ((1, 2),), "max_tokens": 20, "temperature": 0.0, **fields}
    )  # type: ignore[arg-type]


async def collect(generation: Generation) -> tuple[dict[int, str], dict[int, TextDelta]]:
    """Whole text and last delta of each choice."""
    texts: dict[int, str] = defaultdict(str)
    last: dict[int, TextDelta] = {}
    async with generation:
        async for delta in generation:
            assert delta.index not in last or last[delta.index].finish_reason is None, "a delta after the end"
            texts[delta.index] += delta.text
            last[delta.index] = delta
    return dict(texts), last


async def test_text_equals_the_whole_decoded(tokenizer: Tokenizer) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        generation = TextEngine(core, tokenizer).start(ask(ignore_eos=True, skip_special_tokens=False))
        texts, last = await collect(generation)
    assert texts == {
        0: tokenizer.decode(expected_tokens([1, 2], 20, vocab_size=VOCAB), skip_special_tokens=False)
    }
    assert last[0].finish_reason == "length"
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (2, 20)


class _Times(MetricsSink):
    """Keeps what a call took."""

    def __init__(self) -> None:
        self.ttft: list[float] = []
        self.e2e: list[float] = []

    def first_token(self, ttft: float) -> None:
        self.ttft.append(ttft)

    def finished(self, outcome: str, prompt_tokens: int, output_tokens: int, e2e: float) -> None:
        self.e2e.append(e2e)


async def test_times_and_deadlines_count_from_a_calls_arrival(tokenizer: Tokenizer) -> None:
    """Not from when its prompt was tokenized and its grammar compiled."""
    heard = _Times()
    async with engine(fake(vocab_size=VOCAB), heard) as core:
        texts = TextEngine(core, tokenizer)
        long_ago = core.clock() - 100
        await collect(texts.start(ask(arrival_time=long_ago, n=2, temperature=1.0)))
        await Embedder(core, EmbeddingRequest(RequestContext("r", long_ago), ((1, 2),))).run()
        await collect(texts.start(ask(arrival_time=core.clock())))
        assert [round(took) for took in heard.ttft] == [100, 100, 0]
        assert [round(took) for took in heard.e2e] == [100, 100, 100, 0]
        with pytest.raises(DeadlinePassed):
            await collect(texts.start(ask(arrival_time=long_ago, deadline=long_ago + 99)))
        with pytest.raises(DeadlinePassed):
            late = EmbeddingRequest(RequestContext("r", long_ago, deadline=long_ago + 99), ((1, 2),))
            await Embedder(core, late).run()
        await collect(texts.start(ask(arrival_time=long_ago, deadline=long_ago + 160)))


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(tokenizer: Tokenizer) -> None:
    request = ask(prompts=((1, 2), (3,)), n=2, temperature=1.0, seed=5, ignore_eos=True)
    async with engine(fake(vocab_size=VOCAB)) as core:
        texts, _ = await collect(TextEngine(core, tokenizer).start(request))
    for index in range(4):
        sampling = SamplingParams(seed=5, choice=index % 2)
        ids = expected_tokens(request.prompts[index // 2], 20, sampling, vocab_size=VOCAB)
        assert texts[index] == tokenizer.decode(ids)


async def test_equal_prompts_of_one_call_are_answered_differently(tokenizer: Tokenizer) -> None:
    """As n choices of one prompt are; the others are answered as they are by themselves."""
    request = ask(
        prompts=((1, 2), (3,), (1, 2), (1, 2)),
        n=2,
        temperature=1.0,
        seed=5,
        ignore_eos=True,
        prompt_logprobs=0,
    )
    told = {}
    async with engine(fake(vocab_size=VOCAB)) as core:
        texts: dict[int, str] = defaultdict(str)
        async with TextEngine(core, tokenizer).start(request) as generation:
            async for delta in generation:
                texts[delta.index] += delta.text
                told |= {delta.index: len(delta.prompt_logprobs)} if delta.prompt_logprobs is not None else {}
    for index, choice in enumerate((0, 1, 0, 1, 2, 3, 4, 5)):
        sampling = SamplingParams(seed=5, choice=choice)
        ids = expected_tokens(request.prompts[index // 2], 20, sampling, vocab_size=VOCAB)
        assert texts[index] == tokenizer.decode(ids)
    assert set(told) == {0, 2, 4, 6}, "each prompt's logprobs come with its first choice"


async def test_the_default_limit_is_each_prompts_own(tokenizer: Tokenizer) -> None:
    """Near the end of the context it is what fits; and what others of the call have room for does not count."""
    async with engine(fake(vocab_size=VOCAB, num_blocks=64)) as core:
        most = core.max_model_len
        prompts = ((1,), (1,) * (most - 3), (1,) * (most - 16))
        request = ask(prompts=prompts, max_tokens=None, default_tokens=16, ignore_eos=True)
        lengths: dict[int, int] = defaultdict(int)
        async with TextEngine(core, tokenizer).start(request) as generation:
            async for delta in generation:
                lengths[delta.index] += len(delta.token_ids)
    assert lengths == {0: 16, 1: 3, 2: 16}


async def test_a_stop_string_ends_the_choice_and_only_its_tokens_count(tokenizer: Tokenizer) -> None:
    ids = expected_tokens([1, 2], 20, vocab_size=VOCAB)
    text = tokenizer.decode(ids)
    stop = text[5:8]
    made = fake(vocab_size=VOCAB, step_delay_ms=1)
    async with engine(made) as core:
        generation = TextEngine(core, tokenizer).start(ask(stop=(stop,), max_tokens=200, ignore_eos=True))
        texts, last = await collect(generation)
        assert await core.drain(1)
    assert texts[0] == text[: text.index(stop)]
    assert (last[0].finish_reason, last[0].stop_reason) == ("stop", stop)
    enough = next(n for n in range(1, 21) if stop in tokenizer.decode(ids[:n]))
    assert generation.usage.completion_tokens == enough
    assert made.steps < 40


async def test_the_end_token_is_counted_but_no_text(tokenizer: Tokenizer) -> None:
    ids = expected_tokens([1, 2], 20, vocab_size=VOCAB)
    end = ids[6]
    cut = ids.index(end)
    async with engine(fake(vocab_size=VOCAB)) as core:
        texts, last = await collect(TextEngine(core, tokenizer).start(ask(stop_token_ids=(end,))))
    assert texts[0] == tokenizer.decode(ids[:cut])
    assert (last[0].finish_reason, last[0].stop_reason) == ("stop", end)


async def test_logprobs_cover_the_tokens_one_for_one(tokenizer: Tokenizer) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        generation = TextEngine(core, tokenizer).start(ask(logprobs=2, ignore_eos=True))
        async with generation:
            entries = [entry async for delta in generation for entry in delta.logprobs or ()]
    assert [e.token.token_id for e in entries] == expected_tokens([1, 2], 20, vocab_size=VOCAB)
    for entry in entries:
        assert len(entry.top) == 2 and entry.token.logprob == entry.top[0][2]
        assert entry.raw == tokenizer.token_bytes(entry.token.token_id)


async def test_leaving_early_aborts(tokenizer: Tokenizer) -> None:
    made = fake(vocab_size=VOCAB, step_delay_ms=1)
    async with engine(made) as core:
        async with TextEngine(core, tokenizer).start(ask(n=3, max_tokens=200, ignore_eos=True)) as generation:
            async for _ in generation:
                break
        assert await core.drain(0.5)
        async with asyncio.timeout(10):  # the step that was out comes in
            while core.stats().kv_blocks_used or not made.released:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    assert made.steps < 20 and set(made.released.values()) == {1}


async def test_cancelling_the_reader_aborts(tokenizer: Tokenizer) -> None:
    made = fake(vocab_size=VOCAB, step_delay_ms=1)
    async with engine(made) as core:
        task = asyncio.create_task(
            collect(TextEngine(core, tokenizer).start(ask(max_tokens=200, ignore_eos=True)))
        )
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await core.drain(0.5)
    assert made.steps < 60


async def test_one_prompt_too_long_refuses_the_whole_call(tokenizer: Tokenizer) -> None:
    made = fake(vocab_size=VOCAB)
    async with engine(made) as core:
        with pytest.raises(ContextLengthExceeded):
            TextEngine(core, tokenizer).start(ask(prompts=((1,), (2,) * 300)))
        assert await core.drain(0.5)
    assert made.steps <= 1


async def test_a_failure_reaches_the_reader(tokenizer: Tokenizer) -> None:
    made = fake(vocab_size=VOCAB)
    made.failures.append(Failure("die", token=1, times=3))
    async with engine(made) as core:
        with pytest.raises(ExecutorFailed):
            await collect(TextEngine(core, tokenizer).start(ask(n=2)))
        assert await core.drain(0.5)


async def test_all_sequences_of_a_call_carry_its_context(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object itself, whole: choices, prompts, and prompts to embed."""
    async with engine(fake(vocab_size=VOCAB), scheduling_policy="priority") as core:
        submitted: list[Request] = []
        submit, submit_choices = core.submit, core.submit_choices

        def one(request: Request, *more: Any, **named: Any) -> Any:
            submitted.append(request)
            return submit(request, *more, **named)

        def several(requests: list[Request], *more: Any) -> Any:
            submitted.extend(requests)
            return submit_choices(requests, *more)

        monkeypatch.setattr(core, "submit", one)
        monkeypatch.setattr(core, "submit_choices", several)
        context = RequestContext("r", core.clock(), 2, "salt", "tenant", core.clock() + 60)
        call = TextRequest(context, ((1, 2), (3,)), 2, max_tokens=2)
        await collect(TextEngine(core, tokenizer).start(call))
        assert len(submitted) == 4
        await Embedder(core, EmbeddingRequest(context, ((1, 2), (3,)))).run()
    assert len(submitted) == 6 and all(request.context is context for request in submitted)
