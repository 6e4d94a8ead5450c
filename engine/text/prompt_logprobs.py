"""Logprobs of a prompt's own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.text.choice import TokenText, begins_at
from engine.text.detokenizer import detokenizer
from engine.text.tokenizer import Tokenizer
from executors.contract import SampledToken

_AT_ONCE = 1024
"""Number of logprobs processed before other tasks may run: a few milliseconds."""


async def prompt_texts(
    tokenizer: Tokenizer, ids: Sequence[int], logprobs: Sequence[SampledToken]
) -> tuple[TokenText, ...]:
    """One entry for each of the prompt's `ids`; `logprobs` describes all but the first, which has no logprob.

    Offsets count the characters of the prompt's text with its special tokens.
    """
    stream = detokenizer(tokenizer, skip_special_tokens=False)
    entries: list[TokenText] = []
    offset = since_yield = 0
    for id_, token in zip(ids, (SampledToken(ids[0]), *logprobs), strict=True):
        top = tuple(
            (tokenizer.token_text(i), tokenizer.token_bytes(i), value) for i, value in token.top_logprobs
        )
        own, text = tokenizer.token_text(id_), stream.push(id_)
        entries.append(TokenText(token, own, tokenizer.token_bytes(id_), begins_at(offset, text, own), top))
        offset += len(text)
        since_yield += 1 + len(top)
        if since_yield >= _AT_ONCE:
            await asyncio.sleep(0)
            since_yield = 0
    return tuple(entries)
