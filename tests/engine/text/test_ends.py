"""A choice that its caller ends by what it has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.text.generation import TextEngine
from engine.text.tokenizer import Tokenizer
from executors.testing.fakes.oracle import expected_tokens
from tests.engine.harness import engine, fake
from tests.engine.tokenizers_for_tests import byte_level, load
from tests.text_requests import text_request

VOCAB = 264


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return load(byte_level(), tmp_path)


def ends_with(wanted: str) -> Callable[[], Callable[[str], bool]]:
    """True for the token that completes `wanted`; complains if it is told more."""

    def made() -> Callable[[str], bool]:
        seen: list[str] = []

        def ends(text: str) -> bool:
            assert wanted not in "".join(seen), "told of a token after the end"
            seen.append(text)
            return wanted in "".join(seen)

        return ends

    return made


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_the_token_that_ends_it_is_the_last(tokenizer: Tokenizer, in_flight: int) -> None:
    ids = expected_tokens([1, 2], 40, vocab_size=VOCAB)
    text = tokenizer.decode(ids)
    made = fake(vocab_size=VOCAB, step_delay_ms=1)
    wanted = text[6:9]
    request = text_request(
        "r", ((1, 2),), max_tokens=200, temperature=0.0, ignore_eos=True, logprobs=0, ends=ends_with(wanted)
    )
    async with engine(made, max_in_flight=in_flight) as core:
        shown, tokens, reasons = "", 0, []
        async with TextEngine(core, tokenizer).start(request) as generation:
            async for delta in generation:
                shown += delta.text
                tokens += len(delta.logprobs or ())
                reasons.append((delta.finish_reason, delta.stop_reason))
        assert await core.drain(1)
    enough = next(n for n in range(1, 41) if wanted in tokenizer.decode(ids[:n]))
    assert shown.rstrip("\ufffd") == tokenizer.decode(ids[:enough]).rstrip("\ufffd")
    assert generation.usage.completion_tokens == tokens == enough
    assert reasons[-1] == ("stop", None)
    assert set(reasons[:-1]) <= {(None, None)}
    assert made.steps < 60


async def test_each_choice_has_its_own(tokenizer: Tokenizer) -> None:
    request = text_request(
        "r", ((1, 2), (3,)), max_tokens=30, temperature=0.0, ignore_eos=True, ends=ends_with("\0never")
    )
    async with (
        engine(fake(vocab_size=VOCAB)) as core,
        TextEngine(core, tokenizer).start(request) as generation,
    ):
        last = {delta.index: delta.finish_reason async for delta in generation}
    assert last == {0: "length", 1: "length"}
