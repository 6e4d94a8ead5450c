"""A new kind of layer takes one file (`toy_layer.py`), an entry in the table of kinds and a family's row: loader, memory, steps
and engine take it as they are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from engine.mailbox import Mailbox
from executors.contract import (
    ConfigError,
    DecodeInput,
    InvalidInput,
    KvCacheHandle,
    OptimizationConfig,
    ParallelConfig,
    PrefillInput,
    Tensor,
    Unsupported,
)
from executors.llm.checkpoint.loader import load_model
from executors.llm.executor import LlmExecutor
from executors.llm.memory.state_limits import refuse_states
from executors.llm.model import architectures, families
from executors.llm.model.config import read_config
from executors.llm.model.family import Family
from executors.llm.model.layers.kinds import MIXERS
from executors.llm.parallel.shard import plan_shard
from tests.engine.harness import engine, request, run
from tests.executors.llm.driver import Driver, Sequence, config
from tests.house.toy_layer import RunningAverage

ROW = Family(
    name="toy",
    architectures=("ToyForCausalLM",),
    body="ToyModel",
    model_types=("toy",),
    mixers={"average": "running_average"},
    sizes=("decay_groups",),
)
HIDDEN, HEADS, SIZE, INNER, VOCABULARY = 32, 4, 8, 48, 97
CONFIG: dict[str, Any] = {
    "architectures": ["ToyForCausalLM"], "model_type": "toy", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": SIZE,
    "intermediate_size": INNER, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "layer_types": ["average", "full_attention", "average"], "decay_groups": 4, "dtype": "float32",
}  # fmt: skip
PROMPTS = [[5, 17, 3, 88, 41, 9, 60], [7], [70, 2, 2, 31, 64, 12, 90, 1, 55, 33, 8], [11, 19, 23]]
Weights = dict[str, torch.Tensor]


def make_weights() -> Weights:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 1.5 / shape[-1] ** 0.5

    made = {
        "model.embed_tokens.weight": draw(VOCABULARY, HIDDEN) * 4, "lm_head.weight": draw(VOCABULARY, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }  # fmt: skip
    for i, kind in enumerate(CONFIG["layer_types"]):
        layer = f"model.layers.{i}."
        made |= {f"{layer}{one}_layernorm.weight": torch.ones(HIDDEN) for one in ("input", "post_attention")}
        made |= {f"{layer}mlp.{one}_proj.weight": draw(INNER, HIDDEN) for one in ("gate", "up")}
        made[f"{layer}mlp.down_proj.weight"] = draw(HIDDEN, INNER)
        if kind == "average":
            made |= {f"{layer}average.{one}_proj.weight": draw(HIDDEN, HIDDEN) * 2 for one in ("in", "out")}
            # Half-lives from one token to several hundred, so that a state that is stale by any number of tokens shows.
            made[f"{layer}average.decay"] = torch.tensor([0.0, 2.0, 4.0, 6.0])
        else:
            made |= {f"{layer}self_attn.{one}_proj.weight": draw(HIDDEN, HIDDEN) for one in "qkvo"}
    return made


@pytest.fixture(scope="module")
def weights() -> Weights:
    return make_weights()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: Weights) -> Path:
    """A checkpoint of the toy family, which is in the tables."""
    monkeypatch.setitem(MIXERS, "running_average", RunningAverage)
    for module in (families, architectures):
        monkeypatch.setattr(module, "FAMILIES", (*families.FAMILIES, ROW))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def attention(x: torch.Tensor, w: Weights, layer: str) -> torch.Tensor:
    """Causal attention with rotation of the halves, as in Llama."""
    q, k, v = (
        F.linear(x, w[f"{layer}self_attn.{one}_proj.weight"]).view(-1, HEADS, SIZE).transpose(0, 1)
        for one in "qkv"
    )
    angles = torch.outer(
        torch.arange(len(x)).double(), 10000.0 ** (-torch.arange(0, SIZE, 2).double() / SIZE)
    )
    cos, sin = torch.cat((angles, angles), -1).cos().float(), torch.cat((angles, angles), -1).sin().float()
    q, k = (
        one * cos + torch.cat((-one[..., SIZE // 2 :], one[..., : SIZE // 2]), -1) * sin for one in (q, k)
    )
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(out.transpose(0, 1).reshape(len(x), -1), w[f"{layer}self_attn.o_proj.weight"])


def average(x: torch.Tensor, w: Weights, layer: str) -> torch.Tensor:
    """The average in closed form: a matrix of powers of the decays over all positions."""
    new = F.linear(x, w[f"{layer}average.in_proj.weight"])
    decay = torch.sigmoid(w[f"{layer}average.decay"]).repeat_interleave(HIDDEN // 4)
    age = (torch.arange(len(x))[:, None] - torch.arange(len(x)))[..., None]
    shares = torch.where(age < 0, 0.0, (1 - decay) * decay ** age.clamp_min(0))
    return F.linear((shares * new).sum(1), w[f"{layer}average.out_proj.weight"])


def reference_hidden(tokens: list[int], w: Weights) -> torch.Tensor:
    """Hidden states [T, hidden] of whole sequences, after the last norm."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (HIDDEN,), w[name], 1e-6)

    x = w["model.embed_tokens.weight"][tokens]
    for i, kind in enumerate(CONFIG["layer_types"]):
        layer = f"model.layers.{i}."
        mixer = average if kind == "average" else attention
        x = x + mixer(norm(x, f"{layer}input_layernorm.weight"), w, layer)
        y = norm(x, f"{layer}post_attention_layernorm.weight")
        gate, up = (F.linear(y, w[f"{layer}mlp.{one}_proj.weight"]) for one in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, w[f"{layer}mlp.down_proj.weight"])
    return norm(x, "model.norm.weight")


def reference_tokens(prompt: list[int], count: int, w: Weights) -> list[int]:
    """The most likely continuation."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int((reference_hidden(tokens, w)[-1] @ w["lm_head.weight"].T).argmax()))
    return tokens[len(prompt) :]


async def start(path: Path, **changes: Any) -> LlmExecutor:
    executor = LlmExecutor.from_config(config(path, **changes))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


def leave(driver: Driver, sequence: Sequence) -> None:
    """End a sequence; its slot is the next one that is given."""
    driver.executor.release_cache(sequence.seq_id)
    driver.slots.append(sequence.slot)


async def test_the_checkpoint_is_loaded_and_computed(toy: Path, weights: Weights) -> None:
    executor = await start(toy)
    prompt = PROMPTS[2]
    out = await executor.prefill(PrefillInput(Tensor.of([prompt], "int32"), want_hidden_states=True))
    assert out.hidden_states is not None
    torch.testing.assert_close(
        torch.from_numpy(out.hidden_states.numpy()[0].copy()), reference_hidden(prompt, weights), rtol=1e-4, atol=1e-4
    )  # fmt: skip
    assert executor.info().num_parameters == sum(one.numel() for one in weights.values())


@pytest.mark.parametrize("chunk", [1000, 1, 3])
async def test_states_are_carried_per_sequence_and_over_chunks(
    toy: Path, weights: Weights, chunk: int
) -> None:
    driver = Driver(await start(toy))
    sequences = [driver.add(prompt) for prompt in PROMPTS]
    found = await driver.generate(sequences, 10, chunk=chunk)
    assert found == [reference_tokens(prompt, 10, weights) for prompt in PROMPTS]


async def test_sequences_that_take_turns_equal_each_alone(toy: Path, weights: Weights) -> None:
    driver = Driver(await start(toy))
    first, second = driver.add(PROMPTS[0]), driver.add(PROMPTS[2])
    found: list[list[int]] = [[], []]
    for _ in range(5):
        found[0] += (await driver.generate([first], 1))[0]
        found[1] += (await driver.generate([second], 1))[0]
    assert found == [reference_tokens(PROMPTS[i], 5, weights) for i in (0, 2)]


async def test_a_used_slot_and_a_preempted_sequence_start_fresh(toy: Path, weights: Weights) -> None:
    driver = Driver(await start(toy))
    old = driver.add(PROMPTS[2])
    await driver.generate([old], 6)
    leave(driver, old)
    new = driver.add(PROMPTS[0])
    assert new.slot == old.slot
    wanted = reference_tokens(PROMPTS[0], 8, weights)
    assert await driver.generate([new], 4) == [wanted[:4]]
    new.computed = 0  # preempted: everything is computed again, in the same slot
    assert await driver.generate([new], 4) == [wanted[4:]]


async def test_a_step_that_does_not_continue_its_state_is_refused(toy: Path, weights: Weights) -> None:
    driver = Driver(await start(toy, block_size=32))
    old = driver.add(PROMPTS[0])
    await driver.generate([old], 2)
    old.computed -= 2
    with pytest.raises(InvalidInput, match=r"has seen 8 tokens, and the step begins at position 6"):
        await driver.step([(old, old.tokens[6:8], False, 0)])
    old.computed += 2
    # It did no harm.
    assert await driver.generate([old], 3) == [reference_tokens(PROMPTS[0], 5, weights)[2:]]
    leave(driver, old)
    # The new sequence in the slot has as many tokens as the old one had, as after a prefix hit.
    new = driver.add(old.tokens)
    new.computed = len(old.tokens) - 1
    with pytest.raises(InvalidInput, match="holds no state, and the step begins at position"):
        await driver.step([(new, new.tokens[-1:], True, 0)])


async def test_direct_calls_that_keep_a_state_are_refused(toy: Path) -> None:
    executor = await start(toy)
    handle = KvCacheHandle(1, (np.arange(4, dtype=np.int32),))
    one = Tensor.of([[1]], "int32")
    with pytest.raises(Unsupported, match="unified_decode"):
        await executor.prefill(PrefillInput(one, kv_cache=handle))
    with pytest.raises(Unsupported, match="unified_decode"):
        await executor.decode(DecodeInput(one, handle, 3))


async def test_facts_say_that_there_are_states(toy: Path) -> None:
    executor = await start(toy)
    layout = executor.kv_layout()
    assert layout.state is not None and 2 * HIDDEN * 4 < layout.state.slot_bytes == 4096
    # Of one layer of attention: less than a page, and a block has no less.
    assert 2 * HEADS * SIZE * 4 * layout.block_size < layout.groups[0].bytes_per_block == 4096
    assert executor.capabilities().speculative
    needed = executor.capabilities().memory.overhead_memory
    assert needed > 16 * layout.state.slot_bytes


@pytest.mark.parametrize("quantization", ["int8", "int4"])
async def test_its_linear_layers_are_quantized_as_all_others(toy: Path, quantization: str) -> None:
    wide, narrow = (
        load_model(config(toy, optimization=OptimizationConfig(num_threads=1, quantization=one)), lambda *report: None)
        for one in (None, quantization)
    )  # fmt: skip
    assert narrow.parameter_bytes < wide.parameter_bytes


async def test_the_engine_serves_it(toy: Path, weights: Weights) -> None:
    """Equal prompts, choices of one call, and preemption: KV for a third of what six sequences need."""
    executor = LlmExecutor.from_config(config(toy, kv_bytes=52 * 4096, max_model_len=96))
    prompts = [PROMPTS[0] * 10] * 3 + [PROMPTS[2]] * 3
    wanted = [reference_tokens(prompt, 24, weights) for prompt in prompts]
    async with engine(executor, max_num_batched_tokens=16) as core:  # type: ignore[arg-type]
        found = await asyncio.gather(*(run(core, request(prompt, 24)) for prompt in prompts))
        assert [tokens for tokens, _ in found] == wanted
        assert core.stats().preemptions > 0
        again, _ = await run(core, request(prompts[0], 24))
        mailbox = Mailbox()
        core.submit_choices([request(prompts[0], 24)] * 2, mailbox)
        choices: dict[int, list[int]] = {0: [], 1: []}
        while any(len(one) < 24 for one in choices.values()):
            for key, delta in (await mailbox.take()).items():
                choices[key] += [token.token_id for token in delta.tokens]
        assert choices == {0: wanted[0], 1: wanted[0]}
        assert again == wanted[0] and core.stats().prefix_hits >= 64


def test_settings_without_support_are_refused_by_name(toy: Path) -> None:
    model, settings = load_model(config(toy), lambda *report: None).model, config(toy)
    parallel = ParallelConfig(tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size.*kind running_average"):
        plan_shard(read_config(toy), parallel, {}, None)
    with pytest.raises(ConfigError, match="draft_model"):
        refuse_states(
            model, replace(settings, optimization=replace(settings.optimization, draft_model=str(toy)))
        )
    with pytest.raises(ConfigError, match="draft_model"):
        load_model(
            replace(settings, optimization=replace(settings.optimization, draft_model=str(toy))), lambda *report: None
        )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": None}, "layer_types is missing"),
        (
            {"layer_types": ["average", "full_attention", "conv"]},
            "'conv'; supported: full_attention, average",
        ),
        ({"decay_groups": None}, "decay_groups"),
        ({"layer_types": ["average"] * 3}, "no layer with attention"),
    ],
)
def test_faults_of_the_configuration_are_named(toy: Path, change: dict[str, Any], message: str) -> None:
    fields = {name: value for name, value in {**CONFIG, **change}.items() if value is not None}
    (toy / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=message):
        load_model(config(toy, load_format="dummy"), lambda *report: None)
