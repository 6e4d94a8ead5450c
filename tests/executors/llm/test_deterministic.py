"""`deterministic`: a token's logprobs are the same bits alone, in a batch and in chunks, in every family and number format.

The shapes are odd on purpose. torch computes what does not fill a vector, at the end of each thread's share, with other
instructions: with sizes that are multiples of 64 and few threads that happens to make no difference.
"""

import copy
import json
import random

import pytest
import torch

from executors.contract.batch import SamplingParams
from executors.contract.config import OptimizationConfig
from executors.llm.model.layers.activations import (
    ACTIVATIONS,
    STEADY_ACTIVATIONS,
    steady_sigmoid,
    steady_softplus,
)
from tests.executors.llm.driver import Driver, start
from tests.executors.llm.models import CONFIG_CLASSES, MODEL_CLASSES, SHAPES
from tests.tiers import sweep

# Threads wait for each other on a busy machine.
pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

VOCABULARY = 517
WIDE = {
    "hidden_size": 264, "intermediate_size": 1032, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 66,
}  # fmt: skip
OWN = {
    "GPT2": {"n_embd": 264, "n_inner": 1032, "n_head": 4},
    "GptOss": {**WIDE, "intermediate_size": 130},
    "Mixtral": {**WIDE, "intermediate_size": 130},
    "Olmoe": {**WIDE, "intermediate_size": 130},
    "Qwen2Moe": {**WIDE, "moe_intermediate_size": 130, "shared_expert_intermediate_size": 129},
    "Qwen3Moe": {**WIDE, "moe_intermediate_size": 130, "hidden_act": "silu"},
}
FAMILIES = [
    ("qwen3-tied-gqa", {}),
    ("qwen3-moe", {}),
    ("mixtral", {}),
    ("gpt-oss-sinks-windows", {}),
    ("olmoe", {}),
    ("gemma2-caps-alternating-windows", {}),
    ("gemma3-two-ropes", {"hidden_activation": "gelu", "num_hidden_layers": 3, "layer_types": None}),
    ("olmo2", {}),
    ("qwen2-moe-shared-expert", {}),
    ("gemma4-inputs-of-layers-and-shared-kv", {"global_head_dim": 88}),
    ("gemma4-experts-beside-mlp", {"global_head_dim": 88, "moe_intermediate_size": 130}),
    ("glm4-neighbours-of-half-a-head", {"head_dim": 68}),
    ("hunyuan-norms-last-alpha", {}),
    ("lfm2-short-convolutions", {}),
    ("lfm2-moe-sigmoid-router", {"moe_intermediate_size": 130}),
    ("qwen3-next", {"moe_intermediate_size": 130, "shared_expert_intermediate_size": 129}),
    ("gpt2", {}),
    ("gpt2", {"activation_function": "silu"}),
]
SAMPLING = [
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=1.0, seed=1, logprobs=3),
    SamplingParams(temperature=0.8, seed=2, top_p=0.9, logprobs=3),
    SamplingParams(temperature=1.2, seed=3, top_k=40, min_p=0.01, logprobs=3),
    SamplingParams(temperature=0.9, seed=4, frequency_penalty=0.5, repetition_penalty=1.2, logprobs=3),
]


def write(name, changes, folder):
    """config.json of a shape at odd sizes; the weights will be random."""
    import transformers

    kind, fields = SHAPES[name]
    fields = {**copy.deepcopy(fields), **OWN.get(kind, WIDE), "vocab_size": VOCABULARY, **changes}
    if "vocab_size_per_layer_input" in fields:
        fields["vocab_size_per_layer_input"] = fields["vocab_size"]
    config = getattr(transformers, CONFIG_CLASSES.get(kind, f"{kind}Config"))(
        **fields, bos_token_id=None, eos_token_id=None
    ).to_dict()
    config["architectures"] = [MODEL_CLASSES.get(kind, f"{kind}ForCausalLM")]
    (folder / "config.json").write_text(json.dumps(config, default=str))


async def answers(driver, prompts, chunk, at_once):
    """All that is known of each: tokens with logprobs, and logprobs of the prompt."""
    known = []
    for begin in range(0, len(prompts), at_once):
        seqs = [
            driver.add(prompt, SAMPLING[i % len(SAMPLING)], prompt_logprobs=1)
            for i, prompt in enumerate(prompts[begin : begin + at_once], begin)
        ]
        told = {seq.seq_id: ([], []) for seq in seqs}
        while live := [seq for seq in seqs if len(told[seq.seq_id][0]) < 5]:
            q_tokens = [seq.tokens[seq.computed : seq.computed + chunk] for seq in live]
            final = [seq.computed + len(q) == len(seq.tokens) for seq, q in zip(live, q_tokens, strict=True)]
            output = await driver.step([(s, q, f, 0) for s, q, f in zip(live, q_tokens, final, strict=True)])
            for seq, item in zip(live, output, strict=True):
                if item is not None:
                    told[seq.seq_id][0].extend(item.tokens)
                    told[seq.seq_id][1].extend(item.prompt_logprobs or ())
        known += told.values()
        for seq in seqs:
            driver.release(seq)
    return known


CASES = [
    *((*family, "float32") for family in FAMILIES),
    ("gemma2-caps-alternating-windows", {}, "bfloat16"),
    ("gemma2-caps-alternating-windows", {}, "float16"),
    ("gpt2", {}, "bfloat16"),
    ("gpt2", {}, "float16"),
    ("qwen3-moe", {}, "int8"),
    # torch shares sums of more than 32,768 numbers between threads.
    ("qwen3-tied-gqa", {"vocab_size": 49_157}, "float32"),
]


@sweep(every=6)
@pytest.mark.parametrize(("name", "changes", "kind"), CASES)
async def test_a_token_does_not_depend_on_its_step(name, changes, kind, tmp_path):
    write(name, changes, tmp_path)
    optimization = OptimizationConfig(
        num_threads=2, deterministic=True, quantization="int8" if kind == "int8" else None
    )
    executor = await start(
        tmp_path, load_format="dummy", dtype="bfloat16" if kind == "int8" else kind, optimization=optimization
    )
    driver, rng = Driver(executor), random.Random(1)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(length)] for length in (1, 7, 61, 150, 33, 2, 90)]
    alone = await answers(driver, prompts, 1000, 1)
    assert await answers(driver, prompts, 1000, 7) == alone, "in a batch"
    assert await answers(driver, prompts, 29, 4) == alone, "in chunks"
    await executor.shutdown()


@pytest.mark.parametrize("name", sorted(STEADY_ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steady_activations_are_the_same_functions(name, dtype):
    """Within rounding; and each element alone as among others."""
    x = torch.cat(
        (torch.linspace(-30, 30, 4001), torch.tensor([0.0, -1e-6, 1e-6, -80.0, 80.0, -200.0, 200.0]))
    )
    x = torch.cat((x, x[-88:])).view(64, 64).to(dtype)
    exact = ACTIVATIONS[name](x.double())
    got = STEADY_ACTIVATIONS[name](x)
    assert got.dtype is dtype
    assert torch.allclose(got.double(), exact, rtol=4e-3 if dtype is torch.bfloat16 else 2e-6, atol=3e-6)
    for first, last in ((0, 1), (1, 3), (5, 64), (17, 40)):
        assert torch.equal(STEADY_ACTIVATIONS[name](x[first:last]), got[first:last])
        assert torch.equal(STEADY_ACTIVATIONS[name](x[:, first:last].contiguous()), got[:, first:last])


def test_steady_gates_are_the_same_functions_at_any_place():
    x = torch.cat((torch.linspace(-90, 90, 4001), torch.tensor([0.0, -1e-6, 200.0, -200.0])))
    for steady, exact in ((steady_sigmoid, torch.sigmoid), (steady_softplus, torch.nn.functional.softplus)):
        found = steady(x)
        assert torch.allclose(found.double(), exact(x.double()), rtol=2e-6, atol=1e-38)
        for first, last in ((0, 1), (1, 3), (5, 64), (17, 40)):
            assert torch.equal(steady(x[first:last].clone()), found[first:last])
