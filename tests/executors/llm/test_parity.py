"""The same numbers as transformers: whole, in chunks, alone and among others."""

import numpy as np
import pytest

from executors.batch import KvCacheHandle
from executors.contract import ConfigError, DecodeInput, LogitsMode, PrefillInput, Tensor
from tests.executors.llm.driver import Driver, start
from tests.executors.llm.models import SHAPES

TOLERANCE = 1e-4
ORIGINAL_LENGTH = 256  # of the llama shapes


def prompt_of(length: int, vocab_size: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, length).tolist()


def handle(blocks, num_tokens: int = 0, cache_id: int = 1) -> KvCacheHandle:
    return KvCacheHandle(cache_id, (np.array(list(blocks), np.int32),), num_tokens)


def prefill(ids, kv, pos_offset: int = 0, logits: LogitsMode = LogitsMode.ALL, **more) -> PrefillInput:
    return PrefillInput(Tensor.of([ids], "int32"), kv_cache=kv, pos_offset=pos_offset, logits=logits, **more)


@pytest.mark.parametrize("name", SHAPES)
async def test_logits_equal_transformers(reference, name):
    ref = reference(name)
    executor = await start(ref.path, max_model_len=ORIGINAL_LENGTH)
    ids = prompt_of(61, ref.vocab_size, 1)
    expected = ref.logits(ids)
    blocks = np.random.default_rng(2).permutation(16)

    whole = await executor.prefill(prefill(ids, handle(blocks)))
    assert whole.logits.shape == (1, 61, ref.vocab_size)
    assert np.abs(whole.logits.numpy()[0] - expected).max() < TOLERANCE
    kept_nothing = await executor.prefill(prefill(ids, None))
    assert np.abs(kept_nothing.logits.numpy()[0] - expected).max() < TOLERANCE

    for chunk in range(1, 8):
        parts, begin = [], 0
        table = np.random.default_rng(chunk).permutation(32)[:16]
        while begin < len(ids):
            part = ids[begin : begin + chunk]
            out = await executor.prefill(prefill(part, handle(table), begin))
            parts.append(out.logits.numpy()[0])
            begin += len(part)
        assert np.abs(np.concatenate(parts) - expected).max() < TOLERANCE

    # Chunks longer than the short kind: 24 + 37 goes through the band mask.
    first = await executor.prefill(prefill(ids[:24], handle(blocks)))
    second = await executor.prefill(prefill(ids[24:], handle(blocks), 24))
    both = np.concatenate((first.logits.numpy()[0], second.logits.numpy()[0]))
    assert np.abs(both - expected).max() < TOLERANCE


@pytest.mark.parametrize("name", ["qwen3-tied-gqa", "llama-biases-llama3-rope"])
async def test_a_mixed_batch_of_16_is_one_forward_with_the_same_logits(reference, name):
    ref = reference(name)
    executor = await start(ref.path, block_size=16)
    lengths = [1, 2, 3, 5, 8, 9, 12, 12, 12, 17, 30, 31, 33, 64, 140, 47]
    offsets = [0, 0, 16, 7, 0, 0, 0, 0, 0, 20, 3, 100, 0, 64, 60, 0]
    prompts = [
        prompt_of(n + o, ref.vocab_size, i) for i, (n, o) in enumerate(zip(lengths, offsets, strict=True))
    ]
    tables, taken = [], 0
    for prompt in prompts:
        tables.append(handle(range(taken, taken + len(prompt) // 16 + 1)))
        taken += len(prompt) // 16 + 1
    chunked = [i for i, o in enumerate(offsets) if o]
    await executor.batch_prefill([prefill(prompts[i][: offsets[i]], tables[i]) for i in chunked])

    executor._loaded.runner.forwards = 0
    outputs = await executor.batch_prefill(
        [prefill(p[o:], t, o) for p, o, t in zip(prompts, offsets, tables, strict=True)]
    )
    assert executor._loaded.runner.forwards == 1
    for prompt, offset, out in zip(prompts, offsets, outputs, strict=True):
        assert np.abs(out.logits.numpy()[0] - ref.logits(prompt)[offset:]).max() < TOLERANCE

    extended = [[*p, 7] for p in prompts]
    decoded = await executor.batch_decode(
        [DecodeInput(Tensor.of([[7]], "int32"), t, len(p)) for p, t in zip(prompts, tables, strict=True)]
    )
    assert executor._loaded.runner.forwards == 2
    for prompt, out in zip(extended, decoded, strict=True):
        assert np.abs(out.last_token_logits() - ref.logits(prompt)[-1]).max() < TOLERANCE


@pytest.mark.parametrize("name", SHAPES)
async def test_greedy_64_tokens_equal_transformers(reference, name):
    ref = reference(name)
    executor = await start(ref.path, max_model_len=ORIGINAL_LENGTH)
    prompts = [prompt_of(n, ref.vocab_size, n) for n in (1, 7, 20, 33)]
    expected = [ref.greedy(p, 64) for p in prompts]
    for chunk in (1000, 5):
        driver = Driver(executor, seed=chunk)
        seqs = [driver.add(p) for p in prompts]
        assert await driver.generate(seqs, 64, chunk) == expected
        for seq in seqs:
            driver.release(seq)


async def test_stretched_contexts_are_as_long_as_they_say(reference):
    lengths = {"linear": 512, "dynamic": ORIGINAL_LENGTH, "yarn": 256, "llama3": 256}
    for name in SHAPES:
        kind = name.removesuffix("-rope").split("-")[-1]
        if kind in lengths:
            executor = await start(reference(name).path)
            assert executor.info().max_model_len == lengths[kind]


async def test_dynamic_rope_at_its_default_context_equals_transformers(reference):
    ref = reference("llama-dynamic-rope")
    executor = await start(ref.path)
    for length in (1, 2, 9, 64, 255, ORIGINAL_LENGTH):
        ids = prompt_of(length, ref.vocab_size, length)
        got = (await executor.prefill(prefill(ids, None))).logits.numpy()[0]
        assert np.abs(got - ref.logits(ids)).max() < TOLERANCE


async def test_dynamic_rope_is_stretched_only_on_request(reference):
    ref = reference("llama-dynamic-rope")
    executor = await start(ref.path, max_model_len=512)
    assert executor.info().max_model_len == 512
    ids = prompt_of(512, ref.vocab_size, 3)  # of the full length, transformers has the same base
    got = (await executor.prefill(prefill(ids, None))).logits.numpy()[0]
    assert np.abs(got - ref.logits(ids)).max() < TOLERANCE
    with pytest.raises(ConfigError, match="max_model_len 513 is longer than the model's 512"):
        await start(ref.path, max_model_len=513)


async def test_bf16_is_close_to_fp32(reference):
    ref = reference("qwen3-tied-gqa")
    executor = await start(ref.path, dtype="bfloat16")
    assert executor.info().dtype == "bfloat16"
    ids = prompt_of(40, ref.vocab_size, 3)
    got = (await executor.prefill(prefill(ids, handle(range(16))))).logits.numpy()[0]
    expected = ref.logits(ids)
    assert np.abs(got - expected).mean() < 0.05 * expected.std()
    assert (got.argmax(-1) == expected.argmax(-1)).mean() > 0.8


async def test_hidden_states_give_the_logits(reference):
    ref = reference("llama-biases-llama3-rope")
    executor = await start(ref.path)
    ids = prompt_of(9, ref.vocab_size, 4)
    out = await executor.prefill(prefill(ids, None, want_hidden_states=True))
    hidden = out.hidden_states.numpy()[0]
    assert hidden.shape == (9, 40)
    head = ref.model.lm_head.weight.detach().numpy()
    assert np.abs(hidden @ head.T - out.logits.numpy()[0]).max() < TOLERANCE
