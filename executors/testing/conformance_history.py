"""Conformance cases on history: however a sequence's KV came to be, the tokens after it are the same."""

from __future__ import annotations

from executors.contract import DecodeInput, PrefillInput, Tensor, Unsupported
from executors.testing.conformance_kit import DrivenSequence, Driver, Feed, Kit, NotApplicable, case, require

_NUM = 5  # tokens that each comparison samples
NO_HANDLES = "a handle names no state, and the executor refuses it"


async def _in_chunks(driver: Driver, seq: DrivenSequence, size: int) -> None:
    while seq.num_computed + size < len(seq.tokens):
        await driver.step(Feed(seq, size))
    await driver.step(Feed(seq))


@case
async def chunked_equals_whole(kit: Kit) -> None:
    """A prompt in chunks of 1 to 7 tokens, and around a block's size, gives what the whole prompt gives."""
    prompt = kit.long()
    whole = await kit.alone(prompt, _NUM)
    for size in (*range(1, 8), kit.block_size - 1, kit.block_size, kit.block_size + 1):
        driver = await kit.driver()
        seq = driver.add(prompt, kit.greedy)
        await _in_chunks(driver, seq, size)
        await driver.decode(_NUM - 1, seq)
        kit.same(whole, seq, f"chunks of {size}")


@case
async def intermediate_chunks_give_none(kit: Kit) -> None:
    """A chunk that is not final and asked for nothing has the output None; a final one exactly one token."""
    driver = await kit.driver()
    a, b = driver.add(kit.long(1), kit.greedy), driver.add(kit.prompt(3, 2), kit.greedy)
    outputs = await driver.step(Feed(a, 3), Feed(b))
    require(outputs[0] is None, f"an intermediate chunk gave {outputs[0]}")
    require(outputs[1] is not None and len(outputs[1].tokens) == 1, f"a final chunk gave {outputs[1]}")
    outputs = await driver.step(Feed(b), Feed(a, 1))
    require(outputs[1] is None, f"an intermediate chunk of one token gave {outputs[1]}")
    outputs = await driver.step(Feed(a), Feed(b))
    require(all(out is not None and len(out.tokens) == 1 for out in outputs), f"final chunks gave {outputs}")


@case
async def batched_equals_alone(kit: Kit) -> None:
    """Prompts, chunks and decodes of many sequences, mixed in every step, give what each gives alone."""
    kit.need_slots(4)
    prompts = [
        kit.long(3),
        kit.prompt(1, 4),
        kit.prompt(kit.block_size, 5),
        kit.prompt(kit.block_size + 1, 6),
    ]
    alone = [
        await kit.alone(prompt, _NUM, kit.drawn(i) if i % 2 else None) for i, prompt in enumerate(prompts)
    ]
    driver = await kit.driver()
    seqs = [driver.add(prompt, kit.drawn(i) if i % 2 else kit.greedy) for i, prompt in enumerate(prompts)]
    await driver.step(Feed(seqs[1]), Feed(seqs[0], 2))
    await driver.step(Feed(seqs[0], kit.block_size), Feed(seqs[1]), Feed(seqs[3], 1))
    await driver.step(Feed(seqs[2]), Feed(seqs[1]), Feed(seqs[3]), Feed(seqs[0], 1))
    await driver.decode(_NUM, seqs[3], seqs[0], seqs[2], seqs[1])
    for i, (want, actual) in enumerate(zip(alone, seqs, strict=True)):
        kit.same(want, actual, f"sequence {i} of a mixed batch")


@case
async def interleaved_equals_alone(kit: Kit) -> None:
    """Sequences that take turns, a step each, do not disturb one another."""
    kit.need_slots(3)
    prompts = [kit.prompt(kit.block_size + i, 10 + i) for i in range(3)]
    alone = [await kit.alone(prompt, _NUM) for prompt in prompts]
    driver = await kit.driver()
    seqs = [driver.add(prompt, kit.greedy) for prompt in prompts]
    for _ in range(_NUM):
        for seq in seqs:
            await driver.step(Feed(seq))
    for i, (want, actual) in enumerate(zip(alone, seqs, strict=True)):
        kit.same(want, actual, f"sequence {i} of three that take turns")


@case
async def resumed_equals_uninterrupted(kit: Kit) -> None:
    """A sequence started with output tokens (preempted, or met again after a restart) goes on as if nothing had been."""
    prompt = kit.long(7)
    for name, params in (("greedy", kit.greedy), ("sampled", kit.drawn(7))):
        whole = await kit.alone(prompt, 2 * _NUM, params)
        driver = await kit.driver()
        seq = driver.add(prompt, params, output=whole.output[:_NUM])
        await driver.prefill(seq)
        await driver.decode(_NUM - 1, seq)
        kit.same(whole, seq, f"resumed, {name}", offset=_NUM)


@case
async def preempted_equals_uninterrupted(kit: Kit) -> None:
    """truncate_kv(handle, 0), then all its tokens again in the same slot, without a new start."""
    prompt = kit.long(8)
    whole = await kit.alone(prompt, 2 * _NUM, kit.drawn(8))
    driver = await kit.driver()
    seq = driver.add(prompt, kit.drawn(8))
    await driver.prefill(seq)
    await driver.decode(_NUM - 1, seq)
    driver.truncate(seq, 0)
    await _in_chunks(driver, seq, kit.block_size)
    await driver.decode(_NUM - 1, seq)
    kit.same(whole, seq, "preempted and recomputed")


@case
async def truncate_equals_never_decoded(kit: Kit) -> None:
    """Decode, roll back, and decode again: the same as never having decoded."""
    prompt = kit.long(9)
    whole = await kit.alone(prompt, _NUM)
    for right in (0, 2):
        driver = await kit.driver()
        seq = driver.add(prompt, kit.greedy, output=whole.output[:right])
        await driver.prefill(seq)
        keep = seq.num_computed
        # Lead it astray with tokens of our own choice: KV left behind would change what follows.
        seq.tokens[keep:] = kit.prompt(3, 90)
        await driver.prefill(seq)
        driver.truncate(seq, keep)
        seq.tokens[keep:] = whole.output[right : right + 1]
        seq.samples.clear()
        await driver.prefill(seq)
        await driver.decode(1, seq)
        kit.same(whole, seq, f"rolled back to {keep} tokens", offset=right + 1)


@case
async def pending_inputs(kit: Kit) -> None:
    """An input that the host does not know yet is the token sampled for that slot and position."""
    kit.need_slots(2)
    prompts = [kit.long(11), kit.prompt(2, 12)]
    alone = [await kit.alone(prompt, _NUM + 1, kit.drawn(i)) for i, prompt in enumerate(prompts)]
    driver = await kit.driver()
    a, b = (driver.add(prompt, kit.drawn(i)) for i, prompt in enumerate(prompts))
    await driver.step(Feed(a), Feed(b))
    await driver.step(Feed(b, pending=True), Feed(a, pending=True))
    await driver.step(Feed(a), Feed(b, pending=True))
    await driver.step(Feed(b, pending=True))
    await driver.step(Feed(b), Feed(a, pending=True))
    kit.same(alone[0], a, "pending inputs, first sequence")
    kit.same(alone[1], b, "pending inputs, second sequence")


@case
async def cached_prefix_equals_cold(kit: Kit) -> None:
    """A sequence whose table begins with another's full blocks, computed from there on, equals a cold one."""
    kit.need_paged()
    kit.need_no_states()
    kit.need_slots(2)
    shared = kit.prompt(2 * kit.block_size, 13)
    for tail in (kit.prompt(1, 14), kit.prompt(kit.block_size + 2, 15)):
        cold = await kit.alone(shared + tail, _NUM)
        driver = await kit.driver()
        first = driver.add(shared + kit.prompt(3, 16), kit.greedy)
        await driver.prefill(first)
        blocks = [group[:2] for group in first.blocks]
        second = driver.add(shared + tail, kit.greedy, shared_blocks=blocks, num_computed=len(shared))
        await driver.step(Feed(second), Feed(first))
        await driver.decode(_NUM - 1, second, first)
        kit.same(cold, second, f"prefix hit, then {len(tail)} tokens")
        # Its writer may end first; the blocks stay what they were.
        driver.release(first)
        third = driver.add(shared + tail, kit.greedy, shared_blocks=blocks, num_computed=len(shared))
        await driver.step(Feed(third))
        await driver.decode(_NUM - 1, third)
        kit.same(cold, third, "prefix hit after the writer was released")


@case
async def block_permutation_changes_nothing(kit: Kit) -> None:
    """Which blocks a sequence is given does not matter."""
    kit.need_paged()
    kit.need_slots(2)
    prompts = [kit.long(17), kit.long(91)]
    alone = [await kit.alone(prompt, _NUM) for prompt in prompts]
    driver = await kit.driver()
    # From the last block down, in turns: every other block belongs to the other sequence. Each group has an order of its own.
    for index, free in enumerate(driver.free_blocks):
        free[:] = free[::-1] if index % 2 == 0 else free[1::2] + free[::2]
    seqs = [driver.add(prompt, kit.greedy) for prompt in prompts]
    for _ in range(2):
        for seq in seqs:
            await driver.step(Feed(seq, kit.block_size))
    await driver.decode(_NUM, *seqs)
    for want, actual in zip(alone, seqs, strict=True):
        kit.same(want, actual, "blocks in reverse order, in turns")


@case
async def block_copies_come_first(kit: Kit) -> None:
    """A fork: full blocks are shared, the last, partial one is copied in the step that first needs the copy."""
    kit.need_paged()
    kit.need_no_states()
    kit.need_slots(2)
    prompt = kit.long(18)
    alone = [await kit.alone(prompt, _NUM, kit.drawn(choice)) for choice in range(2)]
    driver = await kit.driver()
    first = driver.add(prompt, kit.drawn(0))
    await driver.prefill(first)
    full = (len(prompt) - 1) // kit.block_size
    blocks = [group[:full] for group in first.blocks]
    second = driver.add(prompt, kit.drawn(1), shared_blocks=blocks, num_computed=len(prompt) - 1)
    driver.grow(second, len(prompt))
    pairs = zip(first.blocks, second.blocks, strict=True)
    driver.block_copies = [(group, a[full], b[full]) for group, (a, b) in enumerate(pairs)]
    await driver.step(Feed(first), Feed(second))
    await driver.decode(_NUM - 1, first, second)
    kit.same(alone[0], first, "the sequence that was forked")
    kit.same(alone[1], second, "the fork")


@case
async def single_members_equal_unified(kit: Kit) -> None:
    """prefill, decode, batch_prefill and batch_decode give what unified_decode gives."""
    prompts = [kit.long(19), kit.prompt(4, 20)]
    alone = [await kit.alone(prompt, 2) for prompt in prompts]
    for together in (False, True):
        driver = await kit.driver()
        seqs = [driver.add(prompt, kit.greedy) for prompt in prompts]
        for seq in seqs:
            driver.grow(seq, len(seq.prompt) + 2)
        prefills = [
            PrefillInput(Tensor.of([seq.prompt], "int32"), kv_cache=driver.handle(seq), sampling=kit.greedy)
            for seq in seqs
        ]
        run = kit.executor
        try:
            filled = (
                await run.batch_prefill(prefills)
                if together
                else [await run.prefill(one) for one in prefills]
            )
        except Unsupported:
            if driver.states is None:
                raise
            raise NotApplicable(NO_HANDLES) from None
        decodes = []
        for seq, out in zip(seqs, filled, strict=True):
            require(out.sampled is not None and out.kv_cache is not None, f"prefill gave {out}")
            assert out.sampled is not None and out.kv_cache is not None
            require(
                out.kv_cache.num_tokens == len(seq.prompt),
                f"the handle holds {out.kv_cache.num_tokens} tokens",
            )
            seq.samples.append(out.sampled)
            token = Tensor.of([[out.sampled.token_id]], "int32")
            decodes.append(DecodeInput(token, out.kv_cache, len(seq.prompt), sampling=kit.greedy))
        decoded = await run.batch_decode(decodes) if together else [await run.decode(one) for one in decodes]
        for i, (seq, one) in enumerate(zip(seqs, decoded, strict=True)):
            require(one.sampled is not None, f"decode gave {one}")
            assert one.sampled is not None
            seq.samples.append(one.sampled)
            kit.same(alone[i], seq, f"{'batch_' if together else ''}prefill and decode, sequence {i}")
            driver.release(seq)


@case
async def pooling_is_consistent(kit: Kit) -> None:
    """Pooled output of a prompt in chunks equals that of the whole prompt, and no token comes with it."""
    prompt = kit.long(21)
    for pooling in ("last", "mean", "logits"):
        pooled = []
        for size in (len(prompt), 5):
            driver = await kit.driver()
            if pooling == "logits" and driver.executor.info().label_width < 2:
                continue
            label_ids = (1, 0) if pooling == "logits" else ()
            seq = driver.add(prompt, None, pooling=pooling, label_ids=label_ids)
            try:
                await _in_chunks(driver, seq, size)
            except Unsupported as error:
                raise NotApplicable(str(error)) from error
            out = seq.outputs[-1]
            require(
                out is not None and out.pooled is not None and not out.tokens, f"pooling {pooling} gave {out}"
            )
            assert out is not None and out.pooled is not None
            if pooling == "logits":
                require(out.pooled.shape == (2,), f"2 labels were asked for, and {out.pooled} came")
            pooled.append(out.pooled)
        if not pooled:
            continue
        worst = float(abs(pooled[0] - pooled[1]).max())
        require(worst <= max(kit.tolerance, 1e-5), f"pooling {pooling}: chunks differ from whole by {worst}")
