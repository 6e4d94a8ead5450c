"""Conformance cases on settings that change logits or look back at the sequence: penalties, bias, masks, min-p, typical-p."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from executors.contract import ItemFault, LogitsMode, PrefillInput, SamplingParams, Tensor, reference_sampler
from executors.contract.token_history import TokenHistory
from executors.testing.conformance_kit import DrivenSequence, Feed, Kit, NotApplicable, case, require

_FEW = tuple(range(4, 12))
"""So few ids that the output repeats itself, or else penalties would have nothing to do."""
_APART = tuple((token, 0.37 * token) for token in _FEW)
"""Biases that leave no ties, which would excuse any choice."""
_SETTINGS = (
    SamplingParams(0.0, allowed_token_ids=_FEW, logit_bias=_APART, frequency_penalty=1.5),
    SamplingParams(
        1.0, seed=3, allowed_token_ids=_FEW, logit_bias=_APART, repetition_penalty=1.7, presence_penalty=2.0
    ),
    SamplingParams(2.0, seed=4, typical_p=0.7, logit_bias=((5, 4.0), (6, -3.0)), min_p=0.01),
    SamplingParams(0.0, logit_bias=((9, 90.0),), min_tokens=3, stop_token_ids=(9,)),
    SamplingParams(1.0, seed=5, allowed_token_ids=(5, 6, 7, 8), bad_words=((5,), (6, 7), (7, 6))),
)


async def _check(kit: Kit, seq: DrivenSequence, what: str) -> None:
    """Every sampled token is what the reference takes from the raw logits after the same tokens."""
    params = seq.sampling
    assert params is not None
    first = len(seq.prompt) + len(seq.restored)
    rng = np.random.default_rng(0)
    for place, token in enumerate(seq.samples, first):
        ids = Tensor.of([seq.tokens[:place]], "int32")
        row = (await kit.executor.prefill(PrefillInput(ids, logits=LogitsMode.LAST))).last_token_logits()
        row = row.astype(np.float32)
        history = TokenHistory(seq.prompt, seq.tokens[len(seq.prompt) : place])
        chosen = {reference_sampler.choose(row, params, place, history)}
        for _ in range(0 if kit.exact else 64):
            noise = rng.uniform(-kit.tolerance, kit.tolerance, len(row)).astype(np.float32)
            chosen.add(reference_sampler.choose(row + noise, params, place, history))
        require(
            token.token_id in chosen,
            f"{what}, {params} at position {place}: the reference takes {sorted(chosen)}, the executor {token}",
        )


@case
async def settings_follow_the_reference(kit: Kit) -> None:
    """Penalties, bias, masks, min-p and typical-p, each sequence of a batch with others, choose what the reference does."""
    kit.need_slots(len(_SETTINGS))
    driver = await kit.driver()
    seqs = [driver.add([*kit.prompt(5 + i, 50), *_FEW[:3]], one) for i, one in enumerate(_SETTINGS)]
    await driver.prefill(*seqs[:2])
    await driver.step(*(Feed(seq) for seq in seqs[:2]), *(Feed(seq, 3) for seq in seqs[2:]))
    await driver.decode(6, *seqs)
    for seq in seqs:
        await _check(kit, seq, "in a mixed batch")


@case
async def settings_survive_rollback(kit: Kit) -> None:
    """Counts are what the sequence's tokens say: after recompute from nothing, after tokens were forgotten, when restored,
    and when an input's id is known to the executor alone."""
    for number, params in enumerate(_SETTINGS):
        driver = await kit.driver()
        seq = driver.add([*kit.prompt(6, 51 + number), *_FEW[:3]], params)
        await driver.prefill(seq)
        await driver.decode(4, seq)
        driver.truncate(seq, 0)
        await driver.step(Feed(seq, 4))
        await driver.prefill(seq)
        await driver.step(Feed(seq, pending=True))
        await driver.decode(1, seq)
        await _check(kit, seq, "after recompute")
        again = await driver_with(kit, seq, params)
        require(
            again.output[: len(seq.output)] == seq.output[: len(again.output)] or not kit.exact,
            f"{params}: restored after 3 tokens it went on with {again.output}, not {seq.output}",
        )
        await _check(kit, again, "restored")


async def driver_with(kit: Kit, seq: DrivenSequence, params: SamplingParams) -> DrivenSequence:
    """A new sequence with its first three output tokens restored, rolled back once on its way."""
    driver = await kit.driver()
    again = driver.add(seq.prompt, params, output=seq.output[:3])
    await driver.prefill(again)
    await driver.decode(2, again)
    driver.truncate(again, len(again.tokens) - 2, num_tokens=len(again.tokens) - 1)
    again.samples.pop()
    await driver.decode(2, again)
    return again


@case
async def an_error_ends_nobody_elses_step(kit: Kit) -> None:
    """A step that was submitted before an item's error was known goes on from a token that was never sampled: whatever it
    takes for it, the others get what they would have got."""
    kit.need_slots(2)
    only = _FEW[0]
    dead_end = replace(kit.greedy, allowed_token_ids=(only,), bad_words=((only, only),))
    alone = await kit.alone(kit.prompt(7, 70), 4)
    driver = await kit.driver()
    a, b = driver.add(kit.prompt(5, 71), dead_end), driver.add(kit.prompt(7, 70), kit.greedy)
    await driver.step(Feed(b), Feed(a))
    outputs = await driver.step(Feed(a), Feed(b))
    require(
        outputs[0] is not None
        and outputs[0].error is not None
        and outputs[0].fault is ItemFault.NOTHING_LEFT,
        f"nothing was left, and came {outputs[0]}",
    )
    a.tokens.append(only)
    outputs = await driver.step(Feed(b), Feed(a, pending=True))
    require(outputs[0] is not None and outputs[0].error is None, f"the other gave {outputs[0]}")
    kit.same(alone, b, "beside an item with an error")


@case
async def settings_with_drafts(kit: Kit) -> None:
    """A draft's row sees the drafts before it, and a rejected draft is not counted."""
    if not kit.capabilities.speculative:
        raise NotApplicable("the executor does not declare speculative")
    for number, params in enumerate(_SETTINGS):
        prompt = [*kit.prompt(6, 60 + number), *_FEW[:3]]
        plain = await kit.alone(prompt, 7, params)
        for wrong_at in (0, 2, 3):
            driver = await kit.driver()
            seq = driver.add(prompt, replace(params), output=plain.output[:2])
            drafts = plain.output[2:5]
            if wrong_at < 3:
                drafts[wrong_at] = next(token for token in _FEW if token != drafts[wrong_at])
            await driver.step(Feed(seq, drafts=drafts))
            if kit.exact:
                count = len(seq.samples)
                require(count == wrong_at + 1, f"{params}: {count} tokens, but draft {wrong_at} was wrong")
            await driver.decode(2, seq)
            await _check(kit, seq, f"with drafts, number {wrong_at} wrong")
