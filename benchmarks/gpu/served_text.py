"""Stages of `served` about texts that the host has a part in: grammars and drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import shapes
from benchmarks.gpu.engine import check_counts, random_prompts
from benchmarks.gpu.made_tokenizer import ids_of
from benchmarks.gpu.part import Failed
from benchmarks.gpu.serving import Crowd
from engine.core.engine import EngineCore

if TYPE_CHECKING:
    from benchmarks.gpu.served import Stages

DRAFTS = 4
_STREAMS = 64


async def grammars(stages: Stages) -> None:
    """Tokens a second of one stream that follows a JSON schema, and of 63 streams beside one that does: with it and without."""
    tiny = stages.options.tiny
    streams, tokens, prompt = (4, 8, 8) if tiny else (_STREAMS, 256, 128)
    grammar, end = long_array(4 * tokens), int(shapes.SHAPES[stages.shape]["eos_token_id"])
    async with stages.engine(prefix_caching=False) as core:
        await core.prepare_grammar(grammar)
        given = random_prompts(streams, prompt, 3, stages.shape)
        for warm in (True, False):
            alone = await _rates(core, given[:1], tokens, [grammar], end)
            if not warm:
                stages.found({"grammar_alone_tokens_per_s": alone[0]})
        for name, first in (("without", None), ("with", grammar)):
            rates = await _rates(core, given, tokens, [first] + [None] * (streams - 1), end)
            others = sum(rates[1:]) / (streams - 1)
            stages.found({f"stream_{name}_a_grammar_beside_tokens_per_s": others})


def long_array(items: int) -> str:
    """A grammar of a JSON schema, in the form that executors take, whose texts have at least so many tokens."""
    schema: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": items}
    return json.dumps({"grammars": [{"json_schema": schema}]})


def check_array(text: Sequence[int], end: int) -> None:
    """Raises Failed unless a text of `made_tokenizer`'s is the beginning of an array of integers: a stream that nothing holds to
    its grammar is as fast as any. `end`: id of the end token."""
    foreign = set(text) - set(ids_of("[]-,0123456789 \n\r\t", end))
    if foreign or not set(text) & set(ids_of("[", end)):
        raise Failed(f"a text left its grammar: {len(foreign)} other tokens in {text[:8]} ...")


async def _rates(
    core: EngineCore, prompts: list[list[int]], tokens: int, grammars: list[str | None], end: int
) -> list[float]:
    """Tokens a second of each, from its first to its last. Raises Failed for a text that leaves its grammar."""
    crowd = Crowd(core, keep=True)
    count = len(prompts)
    crowd.ask(prompts, [tokens] * count, grammars=grammars)
    await crowd.read()
    check_counts(crowd, [tokens] * count)
    for text, grammar in zip(crowd.tokens, grammars, strict=True):
        if grammar is not None:
            check_array(text, end)
    return [
        (tokens - 1) / max(last - first, 1e-9) for first, last in zip(crowd.first, crowd.last, strict=True)
    ]


async def drafts(stages: Stages) -> None:
    """Tokens a second of one stream whose prompt repeats itself, without drafts and with drafts from n-grams; the engine may find
    that drafts do not pay, and verify none. Both give the same text, greedily, but for what rounding decides."""
    tokens = 8 if stages.options.tiny else 384
    prompt = (random_prompts(1, 16, 5, stages.shape)[0] * 16)[:200]
    rates, texts = [], []
    for number in (0, DRAFTS):
        async with stages.engine(prefix_caching=False, num_speculative_tokens=number) as core:
            for _ in range(2):
                crowd = Crowd(core, keep=True)
                crowd.ask([prompt], [tokens], [0.0])
                await crowd.read()
                check_counts(crowd, [tokens])
            rates.append((tokens - 1) / max(crowd.last[0] - crowd.first[0], 1e-9))
            texts.append(crowd.tokens[0])
            seen = core.stats().drafts
    same = next((i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), tokens)
    stages.found({
        "no_drafts_tokens_per_s": rates[0], "drafts_tokens_per_s": rates[1], "drafts_factor": rates[1] / rates[0],
        "drafts_verified": seen.num_draft_tokens, "drafts_accepted": seen.num_accepted_tokens, "drafts_same_tokens": same,
    })  # fmt: skip
