"""Conformance cases on choosing tokens: sampling, logprobs, verification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from executors.contract import (
    DecodeInput,
    ItemOutput,
    SampledToken,
    SamplingParams,
    Tensor,
    Unsupported,
    reference_sampler,
)
from executors.testing.conformance_kit import GREEDY, Feed, Kit, NotApplicable, case, require, row_of

_NUM = 6


@case
async def seeded_sampling_is_reproducible(kit: Kit) -> None:
    """The same seed gives the same tokens: again, in a batch, and in another slot; other seeds and choices give others."""
    kit.need_slots(4)
    prompt = kit.prompt(9, 30)
    params = kit.drawn(31)
    first = await kit.alone(prompt, _NUM, params)
    kit.same(first, await kit.alone(prompt, _NUM, params), "the same seed again")
    driver = await kit.driver()
    seqs = [driver.add(prompt, kit.drawn(100 + i)) for i in range(2)]
    seqs.append(driver.add(prompt, params))
    await driver.prefill(*seqs)
    await driver.decode(_NUM - 1, *seqs)
    kit.same(first, seqs[-1], "the same seed in a batch")
    driver = await kit.driver()
    other = driver.add(prompt, params, slot=driver.free_slots[-1])
    await driver.prefill(other)
    await driver.decode(_NUM - 1, other)
    kit.same(first, other, "the same seed in the last slot")


@case
async def seeds_and_choices_differ(kit: Kit) -> None:
    """Over many seeds, and over many choices of one seed, more than one first token comes out at a high temperature."""
    kit.need_slots(2)
    prompt = kit.prompt(5, 32)
    hot = SamplingParams(temperature=20.0, seed=1)
    for name, variants in (
        ("seeds", [replace(hot, seed=seed) for seed in range(24)]),
        ("choices", [replace(hot, choice=choice) for choice in range(24)]),
    ):
        driver = await kit.driver()
        tokens = set()
        for params in variants:
            seq = driver.add(prompt, params)
            await driver.prefill(seq)
            tokens.add(seq.output[0])
            driver.release(seq)
        require(len(tokens) > 1, f"24 {name} gave the same token {tokens}")


@case
async def sampling_follows_the_reference(kit: Kit) -> None:
    """Temperature, top-k, top-p and noise choose what `reference_sampler` chooses from the same logits."""
    prompt = kit.prompt(7, 33)
    for i, (temperature, top_p) in enumerate(((0.0, 1.0), (0.7, 1.0), (1.0, 0.6), (3.0, 0.9))):
        params = SamplingParams(temperature, top_k=6, top_p=top_p, seed=2**63 + i, choice=i, logprobs=16)
        seq = await kit.alone(prompt, _NUM, params)
        for position, token in enumerate(seq.samples, start=len(prompt)):
            listed = [logprob for _, logprob in token.top_logprobs]
            if listed[params.top_k - 1] == listed[-1]:
                continue  # tokens that are not listed may tie with the k-th: the candidates are unknown
            chosen = reference_sampler.choose(row_of(token, kit.info.logits_width), params, position)
            fine = chosen == token.token_id or (not kit.exact and kit.close_call(token, params, position))
            require(
                fine, f"{params} at position {position}: the reference takes {chosen}, the executor {token}"
            )


@case
async def logprobs_are_consistent(kit: Kit) -> None:
    """Logprobs are log-softmax of the raw logits: sorted, within 1 in all, independent of the sampling parameters."""
    prompt = kit.prompt(6, 34)
    count = 20
    tables = []
    for temperature, top_k in ((0.0, 0), (1.0, 0), (5.0, 3)):
        params = SamplingParams(temperature, top_k=top_k, seed=5, logprobs=count)
        seq = await kit.alone(prompt, 3, params)
        for token in seq.samples:
            _check_table(token, min(count, kit.info.logits_width))
        tables.append(seq.samples[0].top_logprobs)
    for table in tables[1:]:
        _check_equal(kit, tables[0], table, "tables at different temperatures")
    greedy = await kit.alone(prompt, 1, SamplingParams(0.0, logprobs=0))
    only = greedy.samples[0]
    require(not only.top_logprobs, f"logprobs=0 asks for no alternatives, got {only}")
    require(
        kit.near(only.logprob, tables[0][0][1]),
        f"the greedy token's logprob {only} is not the best, {tables[0][0]}",
    )
    bare = await kit.alone(prompt, 1, SamplingParams(0.0))
    require(bare.samples[0].logprob is None, f"no logprobs were asked for, got {bare.samples[0]}")


def _check_table(token: SampledToken, count: int) -> None:
    values = [logprob for _, logprob in token.top_logprobs]
    require(len(values) == count, f"{count} alternatives were asked for, {len(values)} came")
    require(values == sorted(values, reverse=True), f"alternatives are not sorted: {values}")
    require(len({token_id for token_id, _ in token.top_logprobs}) == count, "an alternative occurs twice")
    require(sum(math.exp(value) for value in values) <= 1.001, f"probabilities exceed 1: {values}")
    listed = dict(token.top_logprobs)
    require(
        token.logprob is not None and token.logprob <= values[0] + 1e-6,
        f"logprob is missing or too high: {token}",
    )
    if token.token_id in listed:
        require(listed[token.token_id] == token.logprob, f"the token's logprob is not the table's: {token}")


def _check_equal(kit: Kit, a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]], what: str) -> None:
    """Value by value: near ties may be listed in either order."""
    for (_, x), (_, y) in zip(a, b, strict=True):
        require(kit.near(x, y), f"{what} differ: {x} and {y}")


@case
async def prompt_logprobs_are_consistent(kit: Kit) -> None:
    """One entry for each prompt token after the first, the same in chunks and whole, and what sampling there would say."""
    prompt = kit.prompt(kit.block_size + 5, 35)
    driver = await kit.driver()
    whole = driver.add(prompt, kit.greedy, prompt_logprobs=3)
    await driver.prefill(whole)
    entries = whole.prompt_logprobs
    require(
        [e.token_id for e in entries] == prompt[1:], f"{len(entries)} entries for {len(prompt)} prompt tokens"
    )
    for size in (1, 4):
        driver = await kit.driver()
        seq = driver.add(prompt, kit.greedy, prompt_logprobs=3)
        while seq.num_computed < len(prompt):
            await driver.step(Feed(seq, min(size, len(prompt) - seq.num_computed)))
        require(
            len(seq.prompt_logprobs) == len(entries),
            f"chunks of {size} gave {len(seq.prompt_logprobs)} entries",
        )
        for a, b in zip(entries, seq.prompt_logprobs, strict=True):
            require(
                a.token_id == b.token_id and kit.near(a.logprob, b.logprob),
                f"chunks of {size}: {a} became {b}",
            )
            _check_equal(kit, a.top_logprobs, b.top_logprobs, f"alternatives in chunks of {size}")
    for length in (1, kit.block_size, len(prompt) - 1):
        sampled = await kit.alone(prompt[:length], 1, SamplingParams(0.0, logprobs=3))
        entry = entries[length - 1]
        _check_equal(
            kit, sampled.samples[0].top_logprobs, entry.top_logprobs, f"prompt logprobs of token {length}"
        )


@case
async def tokens_do_not_depend_on_logprobs(kit: Kit) -> None:
    """Sequences that ask for no logprobs, in one batch and in a slot used before, sample what those that ask do."""
    kit.need_slots(3)
    prompts = [kit.prompt(kit.block_size + i, 43 + i) for i in range(4)]
    settings = [replace(kit.drawn(43 + i) if i else GREEDY, logprobs=16) for i in range(4)]
    alone = [await kit.alone(prompt, _NUM, params) for prompt, params in zip(prompts, settings, strict=True)]
    driver = await kit.driver()
    plain = [replace(params, logprobs=None) for params in settings]
    seqs = [driver.add(prompt, params) for prompt, params in zip(prompts[:3], plain[:3], strict=True)]
    await driver.prefill(*seqs)
    await driver.decode(2, *seqs)
    driver.release(seqs[0])
    seqs.append(driver.add(prompts[3], plain[3], slot=seqs[0].slot))
    await driver.decode(_NUM - 1, *seqs[1:])
    for i, (want, actual) in enumerate(zip(alone, seqs, strict=True)):
        require(all(token.logprob is None for token in actual.samples), f"sequence {i} asked for no logprobs")
        kit.same_ids(want, actual, f"sequence {i} without logprobs")


@case
async def verify_equals_sequential(kit: Kit) -> None:
    """Drafts that are right are all accepted, one that is wrong ends it there; what follows is as without drafts."""
    if not kit.capabilities.speculative:
        raise NotApplicable("the executor does not declare speculative")
    num_drafts = 4
    for params in (kit.greedy, kit.drawn(36)):
        prompt = kit.prompt(kit.block_size - 2, 37)
        plain = await kit.alone(prompt, 2 * num_drafts + 3, params)
        for wrong_at in range(num_drafts + 1):
            driver = await kit.driver()
            # The first token restored rather than sampled: a close call there would end the comparison at once.
            seq = driver.add(prompt, params, output=plain.output[:1])
            drafts = plain.output[1 : 1 + num_drafts]
            if wrong_at < num_drafts:
                drafts[wrong_at] = (drafts[wrong_at] + 1) % kit.info.vocab_size
            if wrong_at % 2:  # drafts may follow a decode or a prompt's last chunk
                await driver.step(Feed(seq, len(prompt)))
            await driver.step(Feed(seq, drafts=drafts))
            what = f"{num_drafts} drafts, number {wrong_at} wrong"
            _check_acceptance(drafts, seq.samples, what)
            kit.same(plain, seq, what, offset=1)
            bystander = driver.add(kit.prompt(3, 38), kit.greedy)
            await driver.step(Feed(bystander), Feed(seq))
            await driver.step(Feed(seq), Feed(bystander))
            kit.same(plain, seq, f"{what}, and two tokens more", offset=1)


def _check_acceptance(drafts: Sequence[int], tokens: Sequence[SampledToken], what: str) -> None:
    """A draft is accepted iff it equals the token sampled at its place: tokens go on exactly while they equal drafts."""
    right = 0
    while right < min(len(drafts), len(tokens)) and tokens[right].token_id == drafts[right]:
        right += 1
    require(
        len(tokens) == right + 1, f"{what}: {len(tokens)} tokens came, {right} of them equal drafts {drafts}"
    )


@case
async def verify_in_a_mixed_batch(kit: Kit) -> None:
    """Sequences with drafts, without, and with a chunk share a step."""
    if not kit.capabilities.speculative:
        raise NotApplicable("the executor does not declare speculative")
    kit.need_slots(3)
    prompts = [kit.long(39), kit.prompt(3, 40), kit.long(41)]
    plain = [await kit.alone(prompt, _NUM, kit.drawn(i)) for i, prompt in enumerate(prompts)]
    driver = await kit.driver()
    a, b, c = (
        driver.add(prompt, kit.drawn(i), output=plain[i].output[:1] if i < 2 else ())
        for i, prompt in enumerate(prompts)
    )
    await driver.step(Feed(b, len(b.prompt)), Feed(a, len(a.prompt)))
    right, wrong = plain[0].output[1:3], (plain[1].output[2] + 1) % kit.info.vocab_size
    outputs = await driver.step(Feed(c, 5), Feed(a, drafts=right), Feed(b))
    _check_acceptance(right, _tokens(outputs[1]), "right drafts in a mixed batch")
    outputs = await driver.step(Feed(b, drafts=[wrong, 0]), Feed(c), Feed(a))
    _check_acceptance([wrong, 0], _tokens(outputs[0]), "wrong drafts in a mixed batch")
    await driver.step(Feed(a), Feed(b), Feed(c))
    for i, seq in enumerate((a, b, c)):
        kit.same(plain[i], seq, f"sequence {i} of a batch with drafts", offset=1 if i < 2 else 0)


def _tokens(output: ItemOutput | None) -> tuple[SampledToken, ...]:
    return output.tokens if output is not None else ()


@case
async def single_sequence_verification(kit: Kit) -> None:
    """forward_verify and speculative_decode agree with sequential decode; thresholds other than 1.0 are unsupported."""
    kit.need_no_states()
    prompt = kit.prompt(kit.block_size + 1, 42)
    plain = await kit.alone(prompt, 4)
    fed = plain.tokens[len(prompt) :]
    for wrong_at in (0, 1, 2, None):
        driver = await kit.driver()
        seq = driver.add(prompt, kit.greedy)
        driver.grow(seq, len(prompt) + 5)
        await driver.step(Feed(seq))
        first = DecodeInput(_one(fed[0]), driver.handle(seq), len(prompt), sampling=kit.greedy)
        drafts = fed[1:3]
        if wrong_at is not None and wrong_at < 2:
            drafts[wrong_at] = (drafts[wrong_at] + 1) % kit.info.vocab_size
        verified = await kit.executor.speculative_decode(first, drafts)
        seq.samples[:] = verified.accepted_tokens
        require(
            verified.acceptance_count == len(seq.samples) - 1,
            f"{verified.acceptance_count} drafts accepted, {len(seq.samples)} tokens",
        )
        require(
            verified.kv_cache.num_tokens == first.pos_offset + len(seq.samples),
            f"KV of {verified.kv_cache.num_tokens} tokens after {len(seq.samples)} at {first.pos_offset}",
        )
        kit.same(plain, seq, f"speculative_decode, draft {wrong_at} wrong", offset=1)
        if kit.exact and wrong_at is not None:
            require(
                len(seq.samples) == wrong_at + 1, f"{len(seq.samples)} tokens, draft {wrong_at} was wrong"
            )
    driver = await kit.driver()
    seq = driver.add(prompt, kit.greedy)
    driver.grow(seq, len(prompt) + 5)
    await driver.step(Feed(seq))
    handle = driver.handle(seq)
    inputs = [
        DecodeInput(
            _one(token), replace(handle, num_tokens=len(prompt) + i), len(prompt) + i, sampling=kit.greedy
        )
        for i, token in enumerate(fed[:3])
    ]
    outputs = await kit.executor.forward_verify(inputs)
    seq.samples[:] = [out.sampled for out in outputs if out.sampled is not None]
    require(len(seq.samples) == 3, f"forward_verify of 3 tokens sampled {len(seq.samples)}")
    kit.same(plain, seq, "forward_verify", offset=1)
    try:
        await kit.executor.speculative_decode(inputs[0], [1], acceptance_threshold=0.5)
    except Unsupported:
        return
    require(False, "acceptance_threshold=0.5 did not raise Unsupported")


def _one(token: int) -> Tensor:
    return Tensor.of([[token]], "int32")
