"""`unified_decode`: sampling, pending inputs, verification, truncation, failures, and what a release leaves behind."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from executors.contract import (
    DecodeInput,
    InvalidInput,
    KvCacheHandle,
    OutOfMemory,
    PrefillInput,
    Skipped,
    StepFailed,
    Tensor,
    Unsupported,
    reference_sampler,
)
from executors.contract.batch import ItemOutput, SamplingParams, SequenceStart
from executors.contract.errors import ItemFault
from tests.executors.llm.driver import GREEDY, Driver, start

RANDOM = SamplingParams(temperature=1.3, top_k=40, top_p=0.95, seed=77)


@pytest.fixture
async def executor(qwen3):
    return await start(qwen3)


@pytest.fixture
def driver(executor):
    return Driver(executor)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 211, length).tolist()


async def test_tokens_are_those_of_the_reference_sampler(reference, driver):
    ref = reference("qwen3-tied-gqa")
    settings = [
        GREEDY,
        RANDOM,
        SamplingParams(seed=5),
        SamplingParams(temperature=0.4, seed=6),
        replace(RANDOM, choice=1),
    ]
    prompts = [prompt_of(n, n) for n in (3, 9, 30, 4, 9)]
    seqs = [driver.add(p, s) for p, s in zip(prompts, settings, strict=True)]
    got = await driver.generate(seqs, 8, chunk=7)
    for prompt, sampling, tokens in zip(prompts, settings, got, strict=True):
        logits = ref.logits(prompt + tokens)
        for i, token in enumerate(tokens):
            position = len(prompt) + i
            assert token == reference_sampler.choose(logits[position - 1], sampling, position)


async def test_intermediate_chunks_give_none_and_run_no_lm_head(driver, monkeypatch):
    model = driver.executor._runtime.runner.model
    rows = []
    logits = model.logits_for_sampling
    monkeypatch.setattr(
        model, "logits_for_sampling", lambda hidden: rows.append(len(hidden)) or logits(hidden)
    )
    seq, other = driver.add(prompt_of(20)), driver.add(prompt_of(20, 1))
    output = await driver.step([(seq, seq.tokens[:12], False, 0)])
    assert output[0] is None and rows == []
    output = await driver.step([(seq, seq.tokens[12:], True, 0), (other, other.tokens[:9], False, 0)])
    assert len(output[0].tokens) == 1 and output[1] is None and rows == [1]


async def test_pending_inputs_come_from_the_pool(driver):
    prompts = [prompt_of(5), prompt_of(11, 1), prompt_of(3, 2)]
    known = [driver.add(p, RANDOM) for p in prompts]
    expected = await driver.generate(known, 6)
    for seq in known:
        driver.release(seq)

    seqs = [driver.add(p, RANDOM) for p in prompts]
    got = [[] for _ in seqs]
    for step in range(6):
        items = [(s, s.tokens if step == 0 else [-1], True, 0) for s in seqs]
        total = sum(len(q) for _, q, *_ in items)
        pending = None if step == 0 else np.ones(total, np.bool_)
        output = await driver.step(items, pending=pending)
        for tokens, item in zip(got, output, strict=True):
            tokens.append(item.tokens[0].token_id)
    assert got == expected


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
async def test_drafts_give_what_sequential_decoding_gives(driver, sampling):
    prompt = prompt_of(10)
    plain = driver.add(prompt, sampling)
    expected = (await driver.generate([plain], 14))[0]
    wrong = (expected[4] + 1) % 211
    for drafts, accepted in [
        (expected[1:4], 3), ([*expected[1:4], wrong, 5], 3), ([wrong, expected[2]], 0), (expected[1:12], 11),
    ]:  # fmt: skip
        seq, neighbour = driver.add(prompt, sampling), driver.add(prompt_of(7, 3), sampling)
        await driver.step([(seq, seq.tokens, True, 0), (neighbour, neighbour.tokens[:4], False, 0)])
        items = [
            (neighbour, neighbour.tokens[4:], True, 0),
            (seq, [seq.tokens[-1], *drafts], True, len(drafts)),
        ]
        output = await driver.step(items)
        assert [t.token_id for t in output[1].tokens] == expected[1 : accepted + 2]
        assert len(output[0].tokens) == 1
        assert seq.computed == 10 + accepted + 1
        rest = await driver.generate([seq], 14 - len(seq.tokens) + 10)
        assert seq.tokens[10:] == expected and rest is not None
        for one in (seq, neighbour):
            driver.release(one)


async def test_drafts_on_the_last_chunk_of_a_prompt(driver):
    plain = driver.add(prompt_of(10))
    expected = (await driver.generate([plain], 3))[0]
    seq = driver.add(prompt_of(10))
    output = await driver.step([(seq, [*seq.tokens, *expected[:2]], True, 2)])
    assert [t.token_id for t in output[0].tokens] == expected


async def test_truncate_then_decode_equals_never_having_decoded(driver):
    seq = driver.add(prompt_of(9), RANDOM)
    expected = (await driver.generate([seq], 12))[0]
    for keep in (15, 9, 3, 0):
        driver.executor.truncate_kv(KvCacheHandle(seq.seq_id), keep)
        seq.computed, seq.tokens = keep, seq.tokens[: max(keep, 9) + 1]
        got = (await driver.generate([seq], 21 - len(seq.tokens), chunk=4))[0]
        assert seq.tokens[9:] == expected and got is not None
    driver.executor.truncate_kv_for_cache_id(424242, 0)
    with pytest.raises(InvalidInput):
        driver.executor.truncate_kv_for_cache_id(seq.seq_id, -1)


async def test_a_fork_over_copied_blocks_continues_like_its_source(driver):
    seq = driver.add(prompt_of(10))
    expected = (await driver.generate([seq], 5))[0]
    fork = driver.add(prompt_of(10))
    fork.computed = 9
    copied = driver.free.pop()
    fork.blocks = [*seq.blocks[:2], copied]  # two full blocks of 4 are shared, the third is copied
    copies = np.array([[0, seq.blocks[2], copied]], np.int32)
    await driver.step([(fork, fork.tokens[9:], True, 0)], block_copies=copies)
    assert [fork.tokens[10], *(await driver.generate([fork], 4))[0]] == expected


async def test_logprobs_and_prompt_logprobs(reference, driver):
    ref = reference("qwen3-tied-gqa")
    prompt = prompt_of(20)
    table = [reference_sampler.log_softmax(row) for row in ref.logits(prompt)]
    seq = driver.add(prompt, replace(RANDOM, logprobs=2), prompt_logprobs=3)
    other = driver.add(prompt_of(4, 9), GREEDY)
    entries, token = [], None
    for begin, end in ((0, 7), (7, 12), (12, 20)):
        output = await driver.step([(seq, prompt[begin:end], end == 20, 0), (other, [1], True, 0)])
        entries += output[0].prompt_logprobs
        assert output[1].tokens[0].logprob is None
        token = output[0].tokens[0] if end == 20 else None
    assert [e.token_id for e in entries] == prompt[1:]
    for entry, row in zip(entries, table, strict=False):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert [t for t, _ in entry.top_logprobs] == np.argsort(-row, kind="stable")[:3].tolist()
    assert token.logprob == pytest.approx(float(table[-1][token.token_id]), abs=1e-4)
    assert len(token.top_logprobs) == 2


async def test_pooling(driver):
    prompt = prompt_of(13)
    full = await driver.executor.prefill(PrefillInput(Tensor.of([prompt], "int32"), want_hidden_states=True))
    hidden = full.hidden_states.numpy()[0]
    last, mean = driver.add(prompt, None, pooling="last"), driver.add(prompt, None, pooling="mean")
    output = await driver.step([(last, prompt[:5], False, 0), (mean, prompt[:5], False, 0)])
    assert output[0] is None and output[1] is None
    output = await driver.step([(last, prompt[5:], True, 0), (mean, prompt[5:], True, 0)])
    assert np.allclose(output[0].pooled, hidden[-1], atol=1e-4)
    assert np.allclose(output[1].pooled, hidden.mean(0), atol=1e-4)
    assert output[0].tokens == ()


async def test_without_sampling_nothing_is_returned(driver):
    seq = driver.add(prompt_of(3), None)
    assert (await driver.step([(seq, seq.tokens, True, 0)]))[0] is None


async def test_nan_fails_its_item_alone_and_leaves_no_trace(executor):
    driver = Driver(executor)
    prompts = [prompt_of(6, i) for i in range(3)]
    seqs = [driver.add(p) for p in prompts]
    expected = await driver.generate(seqs, 6)
    for seq in seqs:
        driver.release(seq)
    seqs = [driver.add(p) for p in prompts]
    await driver.step([(s, s.tokens, True, 0) for s in seqs])
    for layer in executor._runtime.runner.cache.layers:
        layer[:, seqs[1].blocks] = torch.nan
    output = await driver.step([(s, s.tokens[-1:], True, 0) for s in seqs])
    assert isinstance(output[1], ItemOutput) and "not finite" in output[1].error and output[1].tokens == ()
    assert [seqs[i].tokens[6:] for i in (0, 2)] == [expected[i][:2] for i in (0, 2)]
    # Whoever gets the poisoned blocks next does not notice.
    poisoned = seqs[1].blocks
    driver.release(seqs[1])
    again = driver.add(prompts[1])
    assert (await driver.generate([again], 6))[0] == expected[1]
    assert set(again.blocks) & set(poisoned)


async def test_settings_that_leave_nothing_are_told_from_a_broken_model(executor):
    """Words of several ids forbid the last allowed one in the middle of the output; the neighbour goes on."""
    driver = Driver(executor)
    stuck = driver.add(prompt_of(6, 1), SamplingParams(allowed_token_ids=(5,), bad_words=((5, 5, 5),)))
    broken = driver.add(prompt_of(6, 2), SamplingParams(allowed_token_ids=(5, 6)))
    free = driver.add(prompt_of(6, 3))
    await driver.step([(s, s.tokens, True, 0) for s in (stuck, broken, free)])
    await driver.step([(s, s.tokens[-1:], True, 0) for s in (stuck, broken, free)])
    assert stuck.tokens[6:] == [5, 5]
    for layer in executor._runtime.runner.cache.layers:
        layer[:, broken.blocks] = torch.nan
    output = await driver.step([(s, s.tokens[-1:], True, 0) for s in (stuck, broken, free)])
    assert (output[0].fault, output[1].fault) == (ItemFault.NOTHING_LEFT, ItemFault.NOT_FINITE)
    assert len(free.tokens) == 9


def _swap(**fields):
    return lambda batch: replace(batch, **fields)


def _ints(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize(("change", "message"), [
    (_swap(token_ids=_ints(1, 211, 3)), "token id"),
    (_swap(token_ids=_ints(1, -1, 3)), "token id"),
    (_swap(token_ids=_ints(1, 2)), "add up"),
    (_swap(num_q_tokens=_ints(0)), "at least one"),
    (_swap(pos_offsets=_ints(510)), "exceed 512"),
    (_swap(pos_offsets=_ints(-1)), "negative"),
    (_swap(pos_offsets=_ints(5)), "needs 2"),
    (_swap(num_draft_tokens=_ints(3)), "num_draft_tokens"),
    (_swap(is_final_chunk=np.array([False]), num_draft_tokens=_ints(1)), "only a final chunk"),
    (_swap(starts=()), "never started"),
    (_swap(block_copies=np.array([[0, 0, 1_000_000]], np.int32)), "block copy"),
    (lambda b: replace(b, tables=replace(b.tables, block_ids=_ints(1_000_000))), "block table"),
    (lambda b: replace(b, tables=replace(b.tables, groups=_ints(1))), "a group outside 0..0"),
    (lambda b: replace(b, tables=replace(b.tables, slots=_ints(100_000))), "slots"),
    (lambda b: replace(b, starts=(SequenceStart(1, 100_000, _ints(1), _ints()),)), "outside"),
    (lambda b: replace(b, starts=(replace(b.starts[0], pooling="max"),)), "pooling"),
    (lambda b: replace(b, starts=(replace(b.starts[0], adapter="a"),)), "adapter 'a' is not loaded"),
    (lambda b: replace(b, starts=(replace(b.starts[0], grammar="g"),)), "does not support grammars"),
])  # fmt: skip
async def test_broken_batches_are_refused_before_anything_is_computed(driver, change, message):
    runner = driver.executor._runtime.runner
    before = runner.forwards
    seq = driver.add([1, 2, 3])
    batch = driver.batch([(seq, [1, 2, 3], True, 0)])
    with pytest.raises(InvalidInput, match=message):
        await driver.executor.unified_decode(change(batch))
    assert runner.forwards == before
    assert len((await driver.executor.unified_decode(batch))[0].tokens) == 1


@pytest.mark.parametrize(("raised", "expected"), [
    (RuntimeError("boom"), StepFailed), (MemoryError("none left"), OutOfMemory),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), OutOfMemory),
])  # fmt: skip
async def test_after_a_failed_step_only_a_new_epoch_helps(driver, monkeypatch, raised, expected):
    executor = driver.executor
    seq = driver.add([1, 2, 3])

    def fail(hidden):
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(executor._runtime.runner.model, "logits_for_sampling", fail)
        with pytest.raises(expected):
            await driver.step([(seq, [1, 2, 3], True, 0)])
    with pytest.raises(Skipped):
        await driver.step([(seq, [1, 2, 3], True, 0)])
    await executor.begin_epoch(2)
    assert len(executor.slot_table()) == 0
    with pytest.raises(Skipped, match="epoch 1"):
        await driver.step([(seq, [1, 2, 3], True, 0)])
    fresh = Driver(executor, epoch=2)
    seq = fresh.add([1, 2, 3])
    await fresh.step([(seq, [1, 2, 3], True, 0)])
    assert executor.metrics().failed_steps == 1


async def test_release_leaves_nothing_behind(driver):
    executor = driver.executor
    seq = driver.add(prompt_of(30), RANDOM)
    first = (await driver.generate([seq], 4))[0]
    assert executor.cache_metrics_snapshot()["blocks_in_tables"] == len(seq.blocks)
    driver.release(seq)
    executor.release_cache(seq.seq_id)
    executor.release_cache(999_999)
    snapshot = executor.cache_metrics_snapshot()
    assert snapshot["blocks_in_tables"] == 0 and snapshot["sequences"] == 0
    # The same slot and blocks serve the next sequence as if they were new.
    other = driver.add(prompt_of(30), RANDOM)
    assert other.slot == seq.slot
    assert (await driver.generate([other], 4))[0] == first


async def test_verification_of_one_sequence(driver):
    executor = driver.executor
    prompt = prompt_of(8)
    seq = driver.add(prompt, RANDOM)
    expected = (await driver.generate([seq], 6))[0]
    handle = KvCacheHandle(1, (np.array([driver.free.pop() for _ in range(5)], np.int32),), 8)
    await executor.prefill(PrefillInput(Tensor.of([prompt], "int32"), kv_cache=handle))

    def token(value, place):
        return DecodeInput(Tensor.of([[value]], "int32"), handle, 8 + place, sampling=RANDOM)

    one_by_one = [await executor.decode(token(t, i)) for i, t in enumerate(expected[:4])]
    together = await executor.forward_verify([token(t, i) for i, t in enumerate(expected[:4])])
    for a, b in zip(one_by_one, together, strict=True):
        assert np.abs(a.last_token_logits() - b.last_token_logits()).max() < 1e-4
        assert a.sampled == b.sampled and a.kv_cache.num_tokens == b.kv_cache.num_tokens
    accepted = (
        await executor.speculative_decode(token(expected[0], 0), [*expected[1:3], 0, 0])
    ).accepted_tokens
    assert [t.token_id for t in accepted] == expected[1:4]
    with pytest.raises(Unsupported):
        await executor.speculative_decode(token(1, 0), [1], acceptance_threshold=0.5)
    with pytest.raises(InvalidInput):
        await executor.forward_verify([token(1, 0), token(2, 2)])
