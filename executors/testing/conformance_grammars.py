"""Conformance cases on grammars, for executors that declare them. Standard library and NumPy only.

The grammar is written in token ids, so that no tokenizer is needed to know what may come:

    (a b)+ c?      a: 10 to 19    b: 20 to 39    c: 40 or 41    the text may end after a b or the c
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from executors.contract import SamplingParams
from executors.testing.conformance_kit import (
    DrivenSequence,
    Driver,
    Feed,
    Kit,
    NotApplicable,
    case,
    refused,
    require,
)
from executors.testing.conformance_loras import loaded

_GRAMMAR = "start: (<[10-19]> <[20-39]>)+ <[40-41]>?"
_A, _B, _C = range(10, 20), range(20, 40), range(40, 42)
_ENDS = (1, 2)
_NUM = 9
NOT_DECLARED = "the executor does not declare grammars"


def _allowed(output: list[int]) -> list[int]:
    """The ids that may follow."""
    last = output[-1] if output else None
    if last is None:
        return [*_A]
    if last in _A:
        return [*_B]
    return [*_A, *_C, *_ENDS] if last in _B else [*_ENDS]


def _name(token: int) -> str:
    return "a" if token in _A else "b" if token in _B else "c" if token in _C else "."


def _need_grammars(kit: Kit) -> None:
    if not kit.capabilities.grammars:
        raise NotApplicable(NOT_DECLARED)
    if kit.info.vocab_size <= _C[-1]:
        raise NotApplicable(f"needs more than {_C[-1]} tokens")


def _drawn(kit: Kit, seed: int) -> SamplingParams:
    """Flat enough for every way through the grammar. Judging a difference takes the logits of all that is allowed."""
    logprobs = None if kit.exact else kit.info.logits_width
    return SamplingParams(temperature=8.0, seed=seed, stop_token_ids=_ENDS, logprobs=logprobs)


def _kept(seq: DrivenSequence, what: str) -> None:
    """Every token was allowed where it stands. Raises Nonconformance."""
    for out in seq.outputs:
        require(out is None or out.error is None, f"{what}: failed with {out and out.error!r}")
    for i, token in enumerate(seq.output):
        require(
            token in _allowed(seq.output[:i]), f"{what}: {token} after {seq.output[:i]} is not of its grammar"
        )


def _same(kit: Kit, want: DrivenSequence, actual: DrivenSequence, what: str) -> None:
    """`actual` keeps the grammar and goes the same way, or parts from it at a close call. Raises Nonconformance."""
    _kept(actual, what)
    restored = len(actual.restored)
    for i, (a, b) in enumerate(zip(want.samples[restored:], actual.samples, strict=False), restored):
        if a.token_id == b.token_id:
            continue
        assert want.sampling is not None
        params = replace(want.sampling, allowed_token_ids=tuple(_allowed(want.output[:i])))
        position = len(want.prompt) + i
        close = not kit.exact and (kit.close_call(a, params, position) or kit.close_call(b, params, position))
        require(close, f"{what}, token {i}: expected {a.token_id}, got {b.token_id}")
        return


async def _alone(kit: Kit, seed: int, **changes: Any) -> DrivenSequence:
    prompt, params = kit.prompt(kit.block_size + 1, seed), replace(_drawn(kit, seed), **changes)
    return await kit.alone(prompt, _NUM, params, grammar=_GRAMMAR)


@case
async def grammar_is_kept(kit: Kit) -> None:
    """Every token is allowed where it comes, end tokens where the text may end and nowhere else, then nothing but them."""
    _need_grammars(kit)
    await kit.executor.prepare_grammar(_GRAMMAR)
    pairs: set[str] = set()
    for seed in range(16):
        seq = await _alone(kit, seed)
        require(len(seq.output) == _NUM, f"{len(seq.output)} tokens came, {_NUM} were due")
        _kept(seq, f"seed {seed}")
        _same(kit, seq, await _alone(kit, seed), f"seed {seed} again")
        pairs.update(_name(before) + _name(token) for before, token in pairwise(seq.output))
    for pair in ("ab", "ba", "b."):
        require(pair in pairs, f"{pair} (. is an end token) never came, though it was allowed")


@case
async def grammar_leaves_neighbours_alone(kit: Kit) -> None:
    """In one batch: sequences under a grammar sample what they do alone, and so do those under none."""
    _need_grammars(kit)
    kit.need_slots(4)
    constrained = [await _alone(kit, seed) for seed in (70, 71)]
    free = [
        await kit.alone(kit.prompt(5, 72), _NUM, kit.greedy),
        await kit.alone(kit.long(73), _NUM, kit.drawn(73)),
    ]
    driver = await kit.driver()
    seqs = [
        driver.add(one.prompt, one.sampling, **one.options)
        for one in (constrained[0], free[0], free[1], constrained[1])
    ]
    await driver.prefill(*seqs)
    await driver.decode(_NUM - 1, *seqs)
    for want, actual in ((constrained[0], seqs[0]), (constrained[1], seqs[3])):
        _same(kit, want, actual, "a grammar in a batch")
    kit.same(free[0], seqs[1], "greedy beside grammars")
    kit.same(free[1], seqs[2], "a draw beside grammars")


@case
async def grammar_goes_with_an_adapter(kit: Kit) -> None:
    """In one batch: a sequence with a grammar and an adapter samples what it does alone, beside sequences with one of both."""
    _need_grammars(kit)
    a, b = await loaded(kit)
    kit.need_slots(4)
    prompt, params = kit.prompt(kit.block_size + 1, 77), _drawn(kit, 77)
    options: list[dict[str, Any]] = [
        {"grammar": _GRAMMAR, "adapter": a.name}, {"grammar": _GRAMMAR, "adapter": b.name}, {"grammar": _GRAMMAR},
        {"adapter": a.name},
    ]  # fmt: skip
    alone = [await kit.alone(prompt, _NUM, params, **one) for one in options]
    ways = {tuple(one.output) for one in alone[:3]}
    require(len(ways) == 3, "an adapter does not change what the model says under a grammar")
    driver = await kit.driver()
    seqs = [driver.add(prompt, params, **one) for one in options]
    await driver.prefill(*seqs)
    await driver.decode(_NUM - 1, *seqs)
    for want, actual in zip(alone[:3], seqs[:3], strict=True):
        _same(kit, want, actual, f"{want.options} in a batch")
    kit.same(alone[3], seqs[3], "an adapter beside grammars")


@case
async def grammar_resumes_anywhere(kit: Kit) -> None:
    """Begun again in a new epoch with the tokens so far, at every position, a sequence goes on as if undisturbed."""
    _need_grammars(kit)
    for seed in (74, 75):
        whole = await _alone(kit, seed)
        for count in range(_NUM):
            driver = await kit.driver()
            seq = _resumed(driver, whole, count)
            await driver.prefill(seq)
            await driver.decode(_NUM - count - 1, seq)
            _same(kit, whole, seq, f"resumed after {count} tokens")


def _resumed(driver: Driver, whole: DrivenSequence, count: int) -> DrivenSequence:
    return driver.add(whole.prompt, whole.sampling, output=whole.output[:count], **whole.options)


@case
async def grammar_survives_preemption(kit: Kit) -> None:
    """KV truncated to nothing and computed again, in chunks: the grammar goes on where it was."""
    _need_grammars(kit)
    for at in (1, 4):
        whole = await _alone(kit, 76)
        driver = await kit.driver()
        seq = _resumed(driver, whole, 0)
        await driver.prefill(seq)
        await driver.decode(at - 1, seq)
        driver.truncate(seq, 0)
        await driver.step(Feed(seq, 2))
        await driver.prefill(seq)
        await driver.decode(_NUM - at - 1, seq)
        _same(kit, whole, seq, f"preempted after {at} tokens")


@case
async def grammar_holds_drafts(kit: Kit) -> None:
    """Drafts change nothing: the right ones are taken, one that the grammar forbids or that is not the token ends them."""
    if not kit.capabilities.speculative:
        raise NotApplicable("the executor does not declare speculative")
    _need_grammars(kit)
    whole = await _alone(kit, 77)
    for wrong_at in range(4):
        for wrong in (5, _A[0], _B[-1], _C[0], _ENDS[1]):
            driver = await kit.driver()
            seq = _resumed(driver, whole, 1)
            drafts = whole.output[1:4]
            if wrong_at < 3:
                if drafts[wrong_at] == wrong:
                    continue
                drafts[wrong_at] = wrong
            await driver.step(Feed(seq, drafts=drafts))
            while len(seq.output) < _NUM:
                await driver.step(Feed(seq))
            what = f"draft {wrong_at} is {wrong}"
            _same(kit, whole, seq, what)
            if kit.exact:
                count = len(seq.outputs[0].tokens) if seq.outputs[0] else 0
                require(count == wrong_at + 1, f"{what}: {count} tokens came of the step")


@case
async def broken_grammar_fails_alone(kit: Kit) -> None:
    """What is no grammar is refused, and in a step it fails its sequence, not its neighbours; the slot is good again."""
    _need_grammars(kit)
    kit.need_slots(2)
    broken = 'start: "a'
    await refused(kit.executor.prepare_grammar(broken), "a broken grammar")
    whole = await _alone(kit, 78)
    driver = await kit.driver()
    seq = _resumed(driver, whole, 0)
    bad = driver.add(kit.prompt(3, 79), _drawn(kit, 79), grammar=broken)
    outputs = await driver.step(Feed(bad), Feed(seq))
    error = outputs[0].error if outputs[0] else None
    require(bool(error), "a sequence with a broken grammar did not fail")
    driver.release(bad)
    after = driver.add(whole.prompt, whole.sampling, slot=bad.slot, **whole.options)
    await driver.prefill(seq, after)
    await driver.decode(_NUM - 2, seq, after)
    _same(kit, whole, seq, "the neighbour of a broken grammar")
    _same(kit, whole, after, "the next in its slot")
