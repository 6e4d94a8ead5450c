"""The same numbers as transformers: whole, in chunks, alone and among others."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, DecodeInput, LogitsMode, PrefillInput, Tensor
from executors.contract.batch import KvCacheHandle
from executors.llm.model.config import parse_config, read_config
from executors.llm.model.families import FAMILIES
from tests.executors.llm.driver import Driver, logprobs_in_steps, start
from tests.executors.llm.models import LONGROPE as LONGROPE_FIELDS
from tests.executors.llm.models import SHAPES
from tests.tiers import sweep

LONGROPES = ("phi3-longrope", "phi4-mini-tied-longrope-of-a-part")
MIXED = (
    "qwen3-tied-gqa", "qwen3-window-on-last-layers", "llama-biases-llama3-rope", "mistral-window",
    "qwen2-window-on-last-layers-yarn", "qwen3-moe", "gemma-one-kv-head", "gemma2-caps-alternating-windows",
    "gemma3-two-ropes", "phi3-window", "olmo2", "smollm3-some-layers-without-rope", "gpt2",
    "mixtral-window-one-kv-head",
    "olmoe", "olmo3-windows-yarn", "exaone4-windows-rotated-alone", "granite", "gemma3-beside-images", "mistral-beside-images",
    "qwen3-beside-images", "ministral3-growing-queries", "ministral3-beside-images",
    "glm4-neighbours-of-half-a-head", "hunyuan-norms-last-alpha",
    "qwen2-moe-windows-some-dense-layers", "gpt-oss-sinks-windows", "gemma4-inputs-of-layers-and-shared-kv",
    "gemma4-experts-beside-mlp", "gemma4-beside-images", "gemma4-unified", "gemma4-unified-beside-images",
    "lfm2-biases-kernel-of-5-untied", "lfm2-moe-sigmoid-router", "qwen3-next", "qwen3.5", "qwen3.5-beside-images", "qwen3.5-moe",
    "qwen3.5-moe-beside-images",
)  # fmt: skip
"""At least one shape of every family."""

TOLERANCE = 1e-4
WIDER = {"qwen3_next": 2e-4}
"""Of families for which transformers' own float32 is off from its float64 by nearly as much: 8e-5, and the kernels by 6e-5."""
ORIGINAL_LENGTH = 256  # of the llama shapes


def prompt_of(length: int, vocab_size: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, length).tolist()


def handle(executor, blocks) -> KvCacheHandle:
    """A table for each group: the blocks, counted from the last one in every other group."""
    table = np.array(list(blocks), np.int32)
    last = [group.num_blocks - 1 for group in executor.kv_layout().groups]
    return KvCacheHandle(1, tuple(most - table if i % 2 else table for i, most in enumerate(last)))


def prefill(ids, kv, pos_offset: int = 0, logits: LogitsMode = LogitsMode.ALL, **more) -> PrefillInput:
    return PrefillInput(Tensor.of([ids], "int32"), kv_cache=kv, pos_offset=pos_offset, logits=logits, **more)


def logprobs(logits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(logits).log_softmax(-1).numpy()


def cut(length: int, *first: int, by: int) -> list[int]:
    """Lengths of parts: the first ones, then parts of `by`, together `length`."""
    rest = length - sum(first)
    return [*first, *[by] * (rest // by), *([rest % by] if rest % by else [])]


def length_for(name: str) -> int | None:
    # Stretched, the frequencies of longrope are those of long prompts: transformers changes them with each prompt.
    return None if name in LONGROPES else ORIGINAL_LENGTH


@pytest.fixture
def compare(record_property):
    """Assert that logits are close; the largest difference goes, with family and way, into the table of the README."""

    def check(ref, way: str, pairs) -> None:
        difference = max(float(np.abs(got - expected).max()) for got, expected in pairs)
        family = read_config(ref.path).family.name
        record_property("parity", f"{family} {way} {difference:.3g}")
        assert difference < WIDER.get(family, TOLERANCE)

    return check


@pytest.mark.parametrize("name", SHAPES)
async def test_logits_equal_transformers(reference, compare, name):
    ref = reference(name)
    executor = await start(ref.path, max_model_len=length_for(name))
    ids = prompt_of(61, ref.vocab_size, 1)
    expected = ref.logits(ids)
    blocks = np.random.default_rng(2).permutation(16)

    if executor.kv_layout().state is not None:
        await _compare_with_states(ref, compare, executor, ids, expected)
        return
    whole = await executor.prefill(prefill(ids, handle(executor, blocks)))
    assert whole.logits.shape == (1, 61, ref.vocab_size)
    kept_nothing = await executor.prefill(prefill(ids, None))
    compare(ref, "whole", [(one.logits.numpy()[0], expected) for one in (whole, kept_nothing)])

    chunked = []
    for chunk in range(1, 8):
        parts, begin = [], 0
        table = np.random.default_rng(chunk).permutation(32)[:16]
        while begin < len(ids):
            part = ids[begin : begin + chunk]
            out = await executor.prefill(prefill(part, handle(executor, table), begin))
            parts.append(out.logits.numpy()[0])
            begin += len(part)
        chunked.append(np.concatenate(parts))
    # Chunks longer than the short kind: 24 + 37 goes through the band mask.
    first = await executor.prefill(prefill(ids[:24], handle(executor, blocks)))
    second = await executor.prefill(prefill(ids[24:], handle(executor, blocks), 24))
    chunked.append(np.concatenate((first.logits.numpy()[0], second.logits.numpy()[0])))
    compare(ref, "chunked", [(got, expected) for got in chunked])


async def _compare_with_states(ref, compare, executor, ids, expected) -> None:
    """Compare models whose direct calls keep no state: what is in parts comes from steps, without the last token's row."""
    kept_nothing = await executor.prefill(prefill(ids, None))
    assert kept_nothing.logits.shape == (1, 61, ref.vocab_size)
    compare(ref, "whole", [(kept_nothing.logits.numpy()[0], expected)])
    chunked = []
    for cuts in [*(cut(61, by=chunk) for chunk in range(1, 8)), [24, 37], [61]]:
        chunked += await logprobs_in_steps(executor, [ids], [cuts], seed=len(cuts))
    compare(ref, "chunked", [(got, logprobs(expected)[:-1]) for got in chunked])


@sweep(every=1)
@pytest.mark.parametrize("name", MIXED)
async def test_a_mixed_batch_of_16_is_one_forward_with_the_same_logits(reference, compare, name):
    ref = reference(name)
    executor = await start(ref.path, block_size=16)
    lengths = [1, 2, 3, 5, 8, 9, 12, 12, 12, 17, 30, 31, 33, 64, 140, 47]
    offsets = [0, 0, 16, 7, 0, 0, 0, 0, 0, 20, 3, 100, 0, 64, 60, 0]
    prompts = [
        prompt_of(n + o, ref.vocab_size, i) for i, (n, o) in enumerate(zip(lengths, offsets, strict=True))
    ]
    if executor.kv_layout().state is not None:
        cuts = [
            [*([o] if o else []), n, 1] if o or i % 3 else [*cut(n, by=5), 1]
            for i, (n, o) in enumerate(zip(lengths, offsets, strict=True))
        ]
        extended = [[*prompt, 7] for prompt in prompts]
        found = await logprobs_in_steps(executor, extended, cuts)
        compare(
            ref,
            "mixed",
            [(got, logprobs(ref.logits(prompt))[:-1]) for got, prompt in zip(found, extended, strict=True)],
        )
        return
    tables, taken = [], 0
    for prompt in prompts:
        tables.append(handle(executor, range(taken, taken + len(prompt) // 16 + 1)))
        taken += len(prompt) // 16 + 1
    chunked = [i for i, o in enumerate(offsets) if o]
    await executor.batch_prefill([prefill(prompts[i][: offsets[i]], tables[i]) for i in chunked])

    executor._runtime.runner.forwards = 0
    outputs = await executor.batch_prefill(
        [prefill(p[o:], t, o) for p, o, t in zip(prompts, offsets, tables, strict=True)]
    )
    assert executor._runtime.runner.forwards == 1
    pairs = [
        (out.logits.numpy()[0], ref.logits(prompt)[offset:])
        for prompt, offset, out in zip(prompts, offsets, outputs, strict=True)
    ]

    extended = [[*p, 7] for p in prompts]
    decoded = await executor.batch_decode(
        [DecodeInput(Tensor.of([[7]], "int32"), t, len(p)) for p, t in zip(prompts, tables, strict=True)]
    )
    assert executor._runtime.runner.forwards == 2
    pairs += [
        (out.last_token_logits(), ref.logits(prompt)[-1])
        for prompt, out in zip(extended, decoded, strict=True)
    ]
    compare(ref, "mixed", pairs)


@pytest.mark.long(every=24)
@pytest.mark.parametrize("name", SHAPES)
async def test_greedy_64_tokens_equal_transformers(reference, record_property, name):
    ref = reference(name)
    executor = await start(ref.path, max_model_len=ORIGINAL_LENGTH)
    longer = 64 if name in LONGROPES else 0  # all beyond the length at which its frequencies change
    prompts = [prompt_of(n + longer, ref.vocab_size, n) for n in (1, 7, 20, 33)]
    expected = [ref.greedy(p, 64) for p in prompts]
    for chunk in (1000, 5):
        driver = Driver(executor, seed=chunk)
        seqs = [driver.add(p) for p in prompts]
        assert await driver.generate(seqs, 64, chunk) == expected
        for seq in seqs:
            driver.release(seq)
    record_property("parity", f"{read_config(ref.path).family.name} greedy 0")


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


@pytest.mark.parametrize("name", LONGROPES)
async def test_longrope_takes_the_factors_of_the_length_that_is_served(reference, name):
    ref = reference(name)
    for max_model_len, lengths in ((None, (1, 2, 9, 63, 64)), (ORIGINAL_LENGTH, (65, 100, 256))):
        executor = await start(ref.path, max_model_len=max_model_len)
        assert executor.info().max_model_len == (max_model_len or 64)
        for length in lengths:
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
    got = (await executor.prefill(prefill(ids, handle(executor, range(16))))).logits.numpy()[0]
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


def test_every_family_has_shapes_here_and_in_the_mixed_batch(reference):
    families = {name: read_config(reference(name).path).family.name for name in SHAPES}
    assert set(families.values()) == {family.name for family in FAMILIES}
    assert {families[name] for name in MIXED} == set(families.values())


async def test_gpt2_checkpoints_without_the_prefix(reference, tmp_path):
    ref = reference("gpt2")
    tensors = {
        name.removeprefix("transformer."): t for name, t in load_file(ref.path / "model.safetensors").items()
    }
    # As on the hub: with the causal masks that nobody needs.
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    save_file(tensors, tmp_path / "model.safetensors")
    shutil.copy(ref.path / "config.json", tmp_path)
    executor = await start(tmp_path)
    ids = prompt_of(30, ref.vocab_size, 5)
    got = (await executor.prefill(prefill(ids, None))).logits.numpy()[0]
    assert np.abs(got - ref.logits(ids)).max() < TOLERANCE


# Fields as older checkpoints wrote them -> the fields of transformers 5 that they stand for.
OLD_FIELDS = {
    "llama-biases-llama3-rope": lambda c: {**c, "rope_theta": 500.0, "rope_scaling": _scaling(c)},
    "gemma3-two-ropes": lambda c: {
        **c, "rope_theta": 100000.0, "rope_local_base_freq": 1000.0, "sliding_window_pattern": 6,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0}, "layer_types": None, "_sliding_window_pattern": None,
    },
    "gemma2-caps-alternating-windows": lambda c: {**c, "layer_types": None, "rope_theta": 10000.0},
    "qwen3-window-on-last-layers": lambda c: {**c, "layer_types": None, "rope_theta": 10000.0},
    "qwen3-moe": lambda c: {**c, "num_experts": c["num_local_experts"], "num_local_experts": None, "rope_theta": 10000.0},
    "mixtral": lambda c: {**c, "head_dim": None, "rope_theta": 10000.0},
    "olmoe": lambda c: {**c, "num_experts": 6, "num_local_experts": None, "clip_qkv": None, "rope_theta": 10000.0},
    "granite": lambda c: {**c, "rope_theta": 10000.0},
    "phi3-longrope": lambda c: {
        **c, "rope_theta": 1000.0, "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "su", "short_factor": LONGROPE_FIELDS["short_factor"],
                         "long_factor": LONGROPE_FIELDS["long_factor"]},
    },
    "olmo3-windows-yarn": lambda c: {
        **c, "rope_theta": 500000.0, "layer_types": None,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "exaone4-windows-rotated-alone": lambda c: {
        **c, "layer_types": None, "_sliding_window_pattern": None, "rope_theta": 10000.0,
    },
    "smollm3-some-layers-without-rope": lambda c: {**c, "no_rope_layers": None, "rope_theta": 10000.0},
}  # fmt: skip


def _scaling(config):
    return {k: v for k, v in config["rope_parameters"].items() if k != "rope_theta"}


@pytest.mark.parametrize("name", OLD_FIELDS)
def test_fields_of_older_checkpoints_mean_the_same(reference, name):
    config = json.loads((reference(name).path / "config.json").read_text())
    old = OLD_FIELDS[name](config) | {"rope_parameters": None, "torch_dtype": config["dtype"], "dtype": None}
    assert parse_config(old) == parse_config(config)
