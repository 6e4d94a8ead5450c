"""Offsets of echoed tokens, with tokenizers of every kind that writes text as it was: each token where it stands."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import processors

from engine.text.generation import TextDelta
from engine.text.prompt_logprobs import prompt_texts
from engine.text.tokenizer import Tokenizer
from executors.contract import SampledToken
from server.answer.prompt_tokens import PromptSide
from server.schemas.completions import CompletionRequest
from tests.engine.text.kinds import trained
from tests.loop_turns import LoopTurns
from tests.server.prepare.test_fill_in_middle import LINE_KINDS

TEXT = "The quick brown fox (x, y) didn't\n    jump over two words"
END = "</s>"


def tokenizer_of(folder: Path, kind: str) -> Tokenizer:
    """With a token that it puts before and behind every text."""
    raw = RawTokenizer.from_str(trained(kind))
    marks = [(END, raw.token_to_id(END))]
    raw.post_processor = processors.TemplateProcessing(single=f"{END} $A {END}", special_tokens=marks)
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


async def told(tokenizer: Tokenizer, ids: list[int], echo: str, end: int) -> dict[str, list[int]]:
    """The `logprobs` of the prompt."""
    body = CompletionRequest.model_validate({"prompt": echo, "echo": True, "logprobs": 0})
    side = PromptSide(body, ids, echo, end)
    tokens = await prompt_texts(tokenizer, ids, [SampledToken(id_, -1.0) for id_ in ids[1:]])
    await side.take(TextDelta(0, "", prompt_logprobs=tokens))
    assert side.logprobs is not None and side.complete
    found: dict[str, list[int]] = json.loads(side.logprobs.encoded())
    return found


@pytest.mark.parametrize("kind", LINE_KINDS)
async def test_each_token_stands_where_its_offset_says(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of(tmp_path, kind)
    ids = tokenizer.encode(TEXT)
    found = await told(tokenizer, ids, TEXT, len(ids) - 1)
    offsets, texts = found["text_offset"], [tokenizer.token_text(id_) for id_ in ids]
    assert offsets[0] == offsets[1] == 0
    assert offsets[-1] == len(TEXT)
    for begin, end, text in zip(offsets[1:-1], offsets[2:], texts[1:-1], strict=True):
        assert TEXT[begin:end] in (
            text,
            text.removeprefix(" "),
        )  # the first one has a space that the text has not
    assert [TEXT[begin:end] for begin, end in pairwise(offsets[2:])] == texts[2:-1]


@pytest.mark.parametrize("kind", LINE_KINDS)
async def test_ids_are_told_by_their_own_text(tmp_path: Path, kind: str) -> None:
    tokenizer = tokenizer_of(tmp_path, kind)
    ids = tokenizer.encode("größer: 日本語, 👍🏽", False)
    echo = tokenizer.decode(ids, False)
    offsets = (await told(tokenizer, ids, echo, len(ids)))["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert max(offsets) < len(echo)


async def test_others_run_while_a_long_prompt_is_told(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, "byte_level")
    ids = tokenizer.encode("The quick brown fox. " * 3000, False)
    began = time.perf_counter()
    async with LoopTurns() as turns:
        await told(tokenizer, ids, tokenizer.decode(ids, False), len(ids))
    assert len(ids) > 10_000
    assert turns.count > len(ids) / 1024, f"{turns.count} turns in {time.perf_counter() - began:.3f} s"
