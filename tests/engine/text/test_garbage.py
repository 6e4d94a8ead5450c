"""What a call holds is gone with the call: in circles its prompt would stay until the garbage collector comes, seldom."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from engine.errors import EngineError, InvalidRequest
from engine.request import RequestContext
from engine.text.embedding import Embedder, EmbeddingRequest
from engine.text.generation import Generation, TextEngine, TextRequest
from engine.text.tokenizer import Tokenizer
from tests.engine.harness import engine, fake
from tests.engine.tokenizers_for_tests import byte_level, load

VOCAB = 264


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load(byte_level(), tmp_path)


async def until_dead(*watched: weakref.ref[object]) -> None:
    """The loop's task lets go of a sequence a turn after its reader did."""
    for _ in range(100):
        if all(one() is None for one in watched):
            return
        await asyncio.sleep(0.01)
    alive = [one() for one in watched if one() is not None]
    raise AssertionError([(one, gc.get_referrers(one)) for one in alive])


async def read(generation: Generation, deltas: int) -> None:
    """So many deltas at most; then the call is left."""
    async with generation:
        async for _ in generation:
            deltas -= 1
            if not deltas:
                break


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("deltas", [1, 1000], ids=["left early", "read to its end"])
async def test_a_generation(tokenizer: Tokenizer, no_collector: None, n: int, deltas: int) -> None:
    request = TextRequest(RequestContext("r", 0.0), ((1, 2, 3),), max_tokens=30, n=n, ignore_eos=True)
    async with engine(fake(vocab_size=VOCAB)) as core:
        generation = TextEngine(core, tokenizer).start(request)
        watched = weakref.ref(generation), weakref.ref(generation._mailbox)
        await read(generation, deltas)
        del generation
        await until_dead(*watched)


async def test_a_generation_that_fails(tokenizer: Tokenizer, no_collector: None) -> None:
    request = TextRequest(RequestContext("r", 0.0), ((1, 2, 3),), max_tokens=30, n=2, ignore_eos=True)
    async with engine(fake(vocab_size=VOCAB, fail="nan@step=3")) as core:
        generation = TextEngine(core, tokenizer).start(request)
        watched = weakref.ref(generation), weakref.ref(generation._mailbox)
        try:
            await read(generation, 1000)
        except EngineError:
            failed = True
        del generation
        assert failed
        await until_dead(*watched)


async def test_a_generation_that_is_refused(tokenizer: Tokenizer, no_collector: None) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        generation = Generation(
            core, tokenizer, TextRequest(RequestContext("r", 0.0), ((1, 2, 3), (VOCAB + 5,)), max_tokens=5)
        )
        watched = weakref.ref(generation), weakref.ref(generation._mailbox)
        try:
            generation._submit()
        except InvalidRequest:
            refused = True
        del generation
        assert refused
        await until_dead(*watched)


async def test_embeddings(no_collector: None) -> None:
    async with engine(fake(vocab_size=VOCAB)) as core:
        embedder = Embedder(
            core, EmbeddingRequest(RequestContext("r", 0.0), tuple((1, 2, 3) for _ in range(70)))
        )
        watched = weakref.ref(embedder), weakref.ref(embedder._mailbox)
        assert len(await embedder.run()) == 70
        del embedder
        await until_dead(*watched)
