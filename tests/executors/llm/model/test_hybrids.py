"""Models with states per sequence in an executor and an engine: a state is the same however its sequence got there."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract import ConfigError, InvalidInput, OptimizationConfig, ParallelConfig
from executors.contract.config import ExecutorMemoryConfig
from executors.llm.checkpoint.loader import load_model
from executors.llm.executor import LlmExecutor
from executors.llm.memory.state_limits import refuse_states
from tests.engine.harness import engine, request, run
from tests.executors.llm.driver import Driver, config, logprobs_in_steps, start
from tests.tiers import sweep

NAMES = (
    "lfm2-biases-kernel-of-5-untied",
    "lfm2-moe-sigmoid-router",
    "qwen3-next",
    "qwen3.5-moe-beside-images",
)
names = pytest.mark.parametrize("name", NAMES)


def prompt_of(length: int, vocabulary: int, seed: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(0, vocabulary, length)]


def states_of(executor: LlmExecutor, slot: int) -> list[torch.Tensor]:
    """The states of a slot, of every layer that has one."""
    cache = executor._runtime.runner.states
    assert cache is not None
    return [layer[slot].clone() for layer in cache.layers]


@names
async def test_states_are_the_same_whatever_the_cuts(reference: Any, name: str) -> None:
    """Also where a cut is shorter than what a convolution carries, and beside sequences of any other lengths."""
    ref = reference(name)
    executor = await start(ref.path)
    prompt = prompt_of(50, ref.vocab_size, 1)
    found = []
    for seed, sizes in enumerate([[50], [1] * 50, [2, 3, 1, 40, 4], [47, 1, 1, 1]]):
        driver = Driver(executor, seed)
        seq, others = driver.add(prompt, None), [driver.add(prompt_of(9 * seed + 1, ref.vocab_size, 2), None)]
        for i, size in enumerate(sizes):
            items = [(seq, prompt[seq.computed : seq.computed + size], False, 0)]
            if i == 1:
                items.insert(seed % 2, (others[0], others[0].tokens, False, 0))
            await driver.step(items)
        found.append(states_of(executor, seq.state))
        for one in (seq, *(one for one in others if one.started)):
            driver.release(one)
    assert all(float(state.abs().max()) > 0.0 for state in found[0])
    for states in found[1:]:
        for got, expected in zip(states, found[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@names
async def test_preempted_killed_and_aborted_sequences_go_on_with_the_same_tokens(
    reference: Any, name: str
) -> None:
    ref = reference(name)
    executor = await start(ref.path)
    driver = Driver(executor)
    prompts = [prompt_of(n, ref.vocab_size, n) for n in (11, 26, 3)]
    wanted = [ref.greedy(prompt, 8) for prompt in prompts]
    aborted = driver.add(prompt_of(30, ref.vocab_size, 9))
    seqs = [driver.add(prompt) for prompt in prompts]
    await driver.step([(aborted, aborted.tokens[:17], False, 0)])
    driver.release(aborted)  # in the middle of its prompt; its slot is the next one's
    seqs.append(driver.add(prompts[0]))
    assert seqs[-1].slot == aborted.slot
    found = await driver.generate(seqs, 4, chunk=6)
    assert found == [one[:4] for one in [*wanted, wanted[0]]]
    seqs[1].computed = 0  # preempted: everything is computed again
    assert await driver.generate(seqs, 2, chunk=7) == [one[4:6] for one in [*wanted, wanted[0]]]
    killed = await start(ref.path)  # another process; the engine tells it what there is of each sequence
    after = Driver(killed, seed=5)
    resumed = [after.add(seq.tokens) for seq in seqs]
    for old, new in zip(seqs, resumed, strict=True):
        new.num_prompt = old.num_prompt
    assert await after.generate(resumed, 2, chunk=5) == [one[6:] for one in [*wanted, wanted[0]]]


@sweep(every=1)
@names
async def test_the_engine_preempts_and_shares_prefixes(reference: Any, name: str) -> None:
    """Equal prompts in a pool that is too small for all; then one more, and one that goes on behind it."""
    ref = reference(name)
    layout = (await start(ref.path)).kv_layout()
    assert layout.state is not None and layout.state.interval == 64
    prompts = [prompt_of(73, ref.vocab_size, 1)] * 3 + [prompt_of(21, ref.vocab_size, 2)] * 3
    wanted = {tuple(prompt): ref.greedy(prompt, 24) for prompt in prompts}
    num_bytes = 32 * layout.groups[0].bytes_per_block + 24 * layout.state.slot_bytes
    settings = {"kv_bytes": num_bytes, "max_model_len": 120}
    async with engine(
        LlmExecutor.from_config(config(ref.path, **settings)), max_num_batched_tokens=16
    ) as core:  # type: ignore[arg-type]
        found = await asyncio.gather(*(run(core, request(prompt, 24)) for prompt in prompts))
        assert [tokens for tokens, _ in found] == [wanted[tuple(prompt)] for prompt in prompts]
        assert core.stats().preemptions > 0
        again, _ = await run(core, request(prompts[0], 24))
        assert again == wanted[tuple(prompts[0])]
        before = core.stats().prefix_hits
        longer = prompts[0] + prompt_of(9, ref.vocab_size, 3)
        behind, _ = await run(core, request(longer, 8))
        assert behind == ref.greedy(longer, 8)
        assert core.stats().prefix_hits == before + 64, "tokens up to the last snapshot"


@names
async def test_a_step_that_does_not_continue_its_state_is_refused(reference: Any, name: str) -> None:
    ref = reference(name)
    driver = Driver(await start(ref.path))
    seq = driver.add(prompt_of(12, ref.vocab_size, 1))
    await driver.step([(seq, seq.tokens[:8], False, 0)])
    seq.computed = 4
    with pytest.raises(InvalidInput, match="has seen 8 tokens, and the step begins at position 4"):
        await driver.step([(seq, seq.tokens[4:], True, 0)])


@sweep(every=1)
@names
async def test_weights_in_bf16_int8_and_int4_are_close(reference: Any, name: str) -> None:
    ref = reference(name)
    # Of several prompts the tokens that agree best: a few for which rounding chooses another expert would be most of a mean, and
    # which ones these are is another matter on each CPU.
    prompts = [prompt_of(40, ref.vocab_size, seed) for seed in (3, 4, 5, 6)]
    expected = torch.cat([torch.from_numpy(ref.logits(ids)).log_softmax(-1)[:-1] for ids in prompts])
    for quantization, bound in ((None, 0.01), ("int8", 0.05), ("int4", 0.25)):
        optimization = OptimizationConfig(num_threads=1, quantization=quantization)
        executor = await start(ref.path, dtype="bfloat16", optimization=optimization)
        found = await logprobs_in_steps(executor, prompts, [[17, 1, 22]] * 4)
        by_token = (expected.exp() * (expected - torch.from_numpy(np.concatenate(found)))).sum(-1)
        divergence = by_token.sort().values[: len(by_token) * 4 // 5].mean()
        assert 0.0 < float(divergence) < bound, (quantization, float(divergence))


@names
def test_settings_without_support_are_refused_by_name(reference: Any, name: str) -> None:
    path = reference(name).path
    settings = config(path)
    model = load_model(settings, lambda *report: None).model
    for change, word in (
        (
            replace(settings, optimization=replace(settings.optimization, draft_model=str(path))),
            "draft_model",
        ),
        (replace(settings, parallel=ParallelConfig(pipeline_parallel_size=2)), "pipeline_parallel_size"),
    ):
        with pytest.raises(ConfigError, match=word):
            refuse_states(model, change)


async def test_tensors_of_a_head_that_guesses_tokens_are_left_out_with_a_note(
    reference: Any, tmp_path: Path
) -> None:
    """As published checkpoints have them beside the model; of the nested form the part that sees images, too."""
    for name in ("qwen3-next", "qwen3.5-moe-beside-images"):
        ref, folder = reference(name), tmp_path / name
        tensors = load_file(ref.path / "model.safetensors")
        beside = {"mtp.fc.weight": torch.ones(48, 96), "mtp.norm.weight": torch.ones(48)}
        beside |= {"mtp.layers.0.self_attn.q_proj.weight": torch.ones(192, 48)}
        folder.mkdir()
        save_file({**tensors, **beside}, folder / "model.safetensors")
        shutil.copy(ref.path / "config.json", folder)
        loaded = load_model(config(folder), lambda *report: None)
        [note] = [one for one in loaded.warnings if "mtp" in one]
        assert note == (
            """the MTP head (3 tensors, mtp.*) is not used; --speculative-config '{"method": "mtp"}' takes drafts from it"""
        )
        executor = await start(folder)
        ids = prompt_of(20, ref.vocab_size, 4)
        [found] = await logprobs_in_steps(executor, [ids], [[20]])
        expected = torch.from_numpy(ref.logits(ids)).log_softmax(-1).numpy()[:-1]
        assert np.abs(found - expected).max() < 1e-4


@names
@pytest.mark.parametrize("kv", ["int8", "fp8"])
async def test_keys_and_values_of_their_attention_may_be_narrow(reference: Any, name: str, kv: str) -> None:
    ref = reference(name)
    memory = ExecutorMemoryConfig(kv_cache_memory_bytes=16 << 20, kv_cache_dtype=kv)
    ids = prompt_of(40, ref.vocab_size, 3)
    expected = torch.from_numpy(ref.logits(ids)).log_softmax(-1)[:-1]
    executor = await start(ref.path, dtype="bfloat16", memory=memory, block_size=16)
    [found] = await logprobs_in_steps(executor, [ids], [[17, 1, 22]])
    by_token = (expected.exp() * (expected - torch.from_numpy(found))).sum(-1)
    # Without the few tokens for which rounding chooses another expert.
    assert 0.0 < float(by_token.sort().values[: len(by_token) * 4 // 5].mean()) < 0.05


async def test_attention_with_gates_alone_has_no_states(reference: Any) -> None:
    executor = await start(reference("qwen3.5-attention-alone").path)
    assert executor.kv_layout().state is None
    assert any("layers: in one call" in note for note in executor.status().notes)
