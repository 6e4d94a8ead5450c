"""All layers in one call, against the same decoder computed by torch, and against itself cut up in other ways."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.kernels.cpu import cpu_kernels
from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.attention.groups import joined
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.checkpoint.loader import activation_bytes
from executors.llm.checkpoint.weights import load_weights
from executors.llm.fused import cpu_forward
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.memory.kv_cache import KvCache
from executors.llm.memory.kv_groups import equal_heads
from executors.llm.model.api import ForwardInput
from executors.llm.model.caches import kv_group
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.step_arrays import StepArrays
from tests.executors.checkpoints import LLAMA, QWEN3, with_sinks, write_checkpoint
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, both_dtypes, every_isa
from tests.tiers import sweep

MOE = {
    **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 3,
    "moe_intermediate_size": 24, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
_FULL = ("full_attention", "sliding_attention")
GEMMA4: dict[str, Any] = {
    **QWEN3, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 5, "layer_types": [_FULL[i not in (1, 4)] for i in range(5)], "sliding_window": 9,
    "head_dim": 20, "global_head_dim": 20, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 40,
    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "tie_word_embeddings": True, "rope_parameters": None,
}  # fmt: skip
"""A scalar of each layer, normed values and two rotary tables, one of them proportional."""
EQUAL_KV = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
SHARED_KV = {"num_kv_shared_layers": 3, "layer_types": [_FULL[i not in (1, 3)] for i in range(5)]}
GEMMA4_ALL = {
    **GEMMA4, **EQUAL_KV, **SHARED_KV, "global_head_dim": 44, "hidden_size_per_layer_input": 24, "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": QWEN3["vocab_size"] + 5,
}  # fmt: skip
GEMMA4_EXPERTS = {
    "enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 28,
}  # fmt: skip
GEMMA4_MODELS: dict[str, dict[str, Any]] = {
    "gemma4": GEMMA4,
    "gemma4-heads-of-two-sizes": {**GEMMA4, "global_head_dim": 44},
    "gemma4-keys-that-are-values": {**GEMMA4, **EQUAL_KV},
    "gemma4-shared-kv": {**GEMMA4, **SHARED_KV},
    "gemma4-wide-mlps-where-kv-is-shared": {**GEMMA4, **SHARED_KV, "use_double_wide_mlp": True},
    "gemma4-inputs-of-layers": {
        **GEMMA4, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": QWEN3["vocab_size"],
    },
    "gemma4-inputs-wider-than-the-model": {
        **GEMMA4, "hidden_size_per_layer_input": 300, "vocab_size_per_layer_input": QWEN3["vocab_size"],
    },
    "gemma4-all": GEMMA4_ALL,
    "gemma4-experts-beside-mlps": {**GEMMA4, **GEMMA4_EXPERTS},
    "gemma4-all-and-experts": {**GEMMA4_ALL, **GEMMA4_EXPERTS},
    "gemma4-all-whole-blocks": {
        **GEMMA4_ALL, "hidden_size": 64, "head_dim": 32, "global_head_dim": 64, "intermediate_size": 96,
        "hidden_size_per_layer_input": 32,
    },
}  # fmt: skip
QWEN2 = {**QWEN3, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
WHOLE_BLOCKS = {
    "hidden_size": 64, "head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 96,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "qwen3-untied-wide-heads": {
        **QWEN3, "tie_word_embeddings": False, "head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1,
    },
    "qwen3-odd-sizes": {**QWEN3, "hidden_size": 37, "intermediate_size": 51, "head_dim": 22},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6},
    "llama-narrow-heads": {**LLAMA, "head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1},
    "qwen2": QWEN2,
    "mistral-window": {
        **QWEN3, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 9,
    },
    "whole-blocks": {**QWEN3, **WHOLE_BLOCKS},
    "gemma": {
        **QWEN3, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gemma2": {
        **QWEN3, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 20, "sliding_window": 9, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        **QWEN3, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 20, "sliding_window": 9, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2,
    },
    "ministral3-growing-queries": {
        **QWEN3, "architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3",
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000.0, "factor": 32.0, "original_max_position_embeddings": 8,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
    },
    "olmo2": {**QWEN3, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"},
    "olmo3-windows": {
        **QWEN3, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 9, "num_hidden_layers": 4,
    },
    "exaone4-windows": {
        **QWEN3, "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "sliding_window": 9, "num_hidden_layers": 4,
    },
    "glm4-neighbours": {**QWEN3, "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": True},
    "hunyuan-norms-last": {**QWEN3, "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense"},
    "experts": MOE,
    "experts-not-normalized-some-dense-layers": {**MOE, "norm_topk_prob": False, "mlp_only_layers": [1]},
    "experts-odd-sizes-one-chosen": {
        **MOE, "hidden_size": 37, "moe_intermediate_size": 51, "head_dim": 22, "num_experts": 35, "num_experts_per_tok": 1,
    },
    "experts-whole-blocks": {**MOE, **WHOLE_BLOCKS, "moe_intermediate_size": 160, "num_experts": 8},
    "experts-beside-a-shared-one-and-dense-layers": {
        **MOE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "shared_expert_intermediate_size": 33,
        "mlp_only_layers": [0],
    },
    "mixtral": {
        **QWEN3, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": None,
    },
    "olmoe": {
        **QWEN3, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 6, "num_experts_per_tok": 6,
    },
    "gpt-oss": {
        **QWEN3, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 6,
        "num_experts_per_tok": 3, "sliding_window": 9, "num_hidden_layers": 4, "swiglu_limit": 1.5, "attention_bias": True,
    },
    **GEMMA4_MODELS,
}  # fmt: skip
SINKS = {
    "sinks-windows": {
        **QWEN3, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 9, "num_hidden_layers": 4,
    },
    "sinks-wide-heads": {**MODELS["qwen3-untied-wide-heads"], "head_dim": 512},
}  # fmt: skip
"""Models whose heads have sinks, see `with_sinks`."""
every_dtype = pytest.mark.parametrize("dtype", [FP32, BF16, torch.float16], ids=["fp32", "bf16", "fp16"])
BLOCK = 4
ITEMS = [(0, 0, 30), (1, 0, 1), (2, 0, 64), (3, 0, 7)]
"""(sequence, first position, tokens)."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("forward")
    plain = {name: write_checkpoint(root / name, fields) for name, fields in MODELS.items()}
    return plain | {name: write_checkpoint(root / name, SINKS[name], 0, with_sinks) for name in SINKS}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside its activations what else a step allocates is little."""
    sizes = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 1, "head_dim": 128}
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "wide", {**QWEN3, **sizes})


@pytest.fixture(scope="module")
def wide_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {
        "hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 128, "num_experts": 8,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1024, "mlp_only_layers": [],
    }  # fmt: skip
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "experts", {**MOE, **sizes})


@pytest.fixture(scope="module")
def wide_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {
        "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64, "global_head_dim": 128,
        "hidden_size_per_layer_input": 512, "vocab_size_per_layer_input": QWEN3["vocab_size"],
    }  # fmt: skip
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "inputs", {**GEMMA4, **SHARED_KV, **sizes})


@pytest.fixture(scope="module")
def wide_experts_beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {
        "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1, "layer_types": ["full_attention"],
        "num_experts": 8, "top_k_experts": 4, "moe_intermediate_size": 512, "head_dim": 64, "global_head_dim": 64,
    }  # fmt: skip
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "beside", {**GEMMA4, **GEMMA4_EXPERTS, **sizes})


def load(
    path: Path, dtype: torch.dtype, isa: str | None, quantization: str | None = None, length: int = 256
) -> Decoder:
    """`isa` None: computed by torch. `length`: of the longest sequence."""
    kernels = None if isa is None else cpu_kernels(isa)
    config = with_sinks(read_config(path)) if path.name in SINKS else read_config(path)
    decoder = Decoder(config, dtype, torch.device("cpu"), kernels, quantization)
    load_weights(decoder, path, lambda *report: None)
    decoder.prepare(length)
    fuse(TorchAttention(), decoder)
    return decoder


class Runner:
    """Sequences of `length` tokens over a cache of their own, computed in steps."""

    def __init__(
        self, decoder: Decoder, isa: str | None, threads: int = 1, sequences: int = 4, length: int = 64, block: int = BLOCK
    ) -> None:  # fmt: skip
        self.decoder = decoder
        each = -(-length // block)
        self.attention = TorchAttention() if isa is None else CpuAttention(isa, threads)
        # Each size of heads has memory of its own.
        spec = kv_group(decoder)
        sizes = list(dict.fromkeys(spec.each_heads))
        self.caches = [KvCache(part, sequences * each, block) for part in equal_heads(spec)]
        own = [sizes.index(one) for one in spec.each_heads]
        self.places = [(number, own[:index].count(number)) for index, number in enumerate(own)]
        blocks = np.random.default_rng(0).permutation(sequences * each)
        self.tables = blocks.astype(np.int32).reshape(sequences, each)
        self.tokens = np.random.default_rng(1).integers(0, decoder.config.vocab_size, (sequences, length))

    def step(self, items: list[tuple[int, int, int]], wanted: list[int] | None = None) -> list[torch.Tensor]:
        """Hidden states of each item."""
        seqs, begins, counts = np.array(items, np.int64).T
        ids = np.concatenate([self.tokens[i, b : b + n] for i, b, n in items])
        step = StepArrays(ids.astype(np.int64), counts, begins, self.tables[seqs])
        parts = {number: self.attention.begin(step, cache) for number, cache in enumerate(self.caches)}
        attend = parts[0] if len(parts) == 1 else joined(parts, self.places)
        rows = None if wanted is None else torch.tensor(wanted, dtype=torch.int64)
        inputs = ForwardInput(
            torch.from_numpy(step.token_ids), torch.from_numpy(step.positions), attend, rows
        )
        return list(self.decoder.unified_forward(inputs).split(counts.tolist()))


@sweep(every=3)
@every_isa
@every_dtype
@pytest.mark.parametrize("name", [*MODELS, *SINKS])
def test_equals_torch(checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, name: str) -> None:
    decoder = load(checkpoints[name], dtype, isa)
    assert cpu_forward.why_not(decoder) is None
    assert decoder._fused is not None
    got = torch.cat(Runner(decoder, isa).step(ITEMS)).float()
    expected = torch.cat(Runner(load(checkpoints[name], FP32, None), None).step(ITEMS))
    error, size = got - expected, expected.square().mean().sqrt()
    if dtype is FP32:
        assert error.abs().max() < 2e-4 * size
        return
    if dtype is torch.float16:  # weights are rounded to 2^-11 of themselves at worst
        of_tokens = error.square().mean(-1).sqrt() / size
        assert of_tokens.median() < 2**-9
        assert decoder.config.moe is not None or of_tokens.max() < 2**-7
        return
    rounded = torch.cat(Runner(load(checkpoints[name], BF16, None), None).step(ITEMS)).float()
    # torch rounds after every operation, the kernel less often: it may not be further off. Of tokens for which rounding changes
    # the choice of an expert there are a few on either side, and they would be all of a mean.
    of_tokens, of_torch = error.square().mean(-1), (rounded - expected).square().mean(-1)
    if decoder.config.moe is None:
        assert of_tokens.mean() < 1.1**2 * of_torch.mean()
    assert of_tokens.median() < 1.1**2 * of_torch.median()


def test_sinks_change_every_layer(checkpoints: dict[str, Path]) -> None:
    """A layer that had none would be found."""
    decoder = load(checkpoints["sinks-windows"], FP32, None)
    whole = torch.cat(Runner(decoder, None).step(ITEMS))
    for layer in decoder.layers:
        assert layer.attention.sinks is not None
        before = layer.attention.sinks.clone()
        layer.attention.sinks.fill_(-50.0)
        error = torch.cat(Runner(decoder, None).step(ITEMS)) - whole
        layer.attention.sinks.copy_(before)
        assert error.square().mean() > 1e-3 * whole.square().mean()


@sweep(every=7)
@every_isa
@every_dtype
@pytest.mark.parametrize("quantization", [None, "int8", "int4"], ids=["plain", "int8", "int4"])
@pytest.mark.parametrize(
    "name",
    [
        "qwen3",
        "mistral-window",
        "qwen3-odd-sizes",
        "sinks-windows",
        "experts",
        "experts-beside-a-shared-one-and-dense-layers",
        "gemma4-all",
        "gemma4-all-and-experts",
    ],
)
def test_whole_chunks_and_decodes_are_equal_bit_for_bit(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, quantization: str | None, name: str
) -> None:
    # Columns that are no multiple of 32 are not quantized to int4.
    if quantization == "int4":
        name = next(
            (f"{kind}-whole-blocks" for kind in ("experts", "gemma4-all") if kind in name), "whole-blocks"
        )
    decoder = load(checkpoints[name], dtype, isa, quantization)
    assert decoder.fused
    whole = Runner(decoder, isa).step(ITEMS)
    torch.set_num_threads(2)
    chunked = Runner(decoder, isa, threads=2)
    parts: list[list[torch.Tensor]] = [[] for _ in ITEMS]
    for begin in range(0, 64, 5):  # beside the others, in chunks of 5
        items = [(i, begin, min(5, n - begin)) for i, _, n in ITEMS if begin < n]
        for (i, _, _), hidden in zip(items, chunked.step(items), strict=True):
            parts[i].append(hidden)
    alone = Runner(decoder, isa)
    decoded = [alone.step([(2, position, 1)])[0] for position in range(64)]
    for i, hidden in enumerate(whole):
        assert torch.equal(torch.cat(parts[i]), hidden)
    assert torch.equal(torch.cat(decoded), whole[2])


@sweep(every=3)
@every_isa
@both_dtypes
@pytest.mark.parametrize("quantization", [None, "int8", "int4"], ids=["plain", "int8", "int4"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["qwen3", "gemma4-all"])
def test_only_wanted_rows(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, quantization: str | None, threads: int, name: str
) -> None:  # fmt: skip
    torch.set_num_threads(threads)
    if quantization == "int4":
        name = {"qwen3": "whole-blocks"}.get(name, f"{name}-whole-blocks")
    decoder = load(checkpoints[name], dtype, isa, quantization)
    whole = torch.cat(Runner(decoder, isa).step(ITEMS))
    for wanted in ([], [101], [0], [29, 30, 94, 101], list(range(102)), list(range(40, 102))):
        runner = Runner(decoder, isa)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                cpu_forward.torch, "empty", lambda shape, dtype: torch.full(shape, torch.nan, dtype=dtype)
            )
            rows = torch.cat(runner.step(ITEMS, wanted))
        assert torch.equal(rows[wanted], whole[wanted])
        others = sorted(set(range(102)) - set(wanted))
        assert rows[others].isnan().all(), "rows that nobody wants were computed"
        # Keys and values of all tokens are there all the same.
        following = [(2, 50, 1)]
        assert torch.equal(runner.step(following)[0], whole[[31 + 50]])


@sweep(every=1)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "quantization", "most"),
    [
        ("qwen3", "int8", 0.1),
        ("whole-blocks", "int4", 0.4),
        ("experts", "int8", 0.3),
        ("experts-beside-a-shared-one-and-dense-layers", "int8", 0.3),
        ("gemma4-all", "int8", 0.1),
        ("gemma4-all-whole-blocks", "int4", 0.5),
    ],
    ids=str,
)
def test_quantized_weights_are_close(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, name: str, quantization: str, most: float
) -> None:
    expected = torch.cat(Runner(load(checkpoints[name], FP32, None), None).step(ITEMS))
    decoder = load(checkpoints[name], dtype, isa, quantization)
    got = torch.cat(Runner(decoder, isa).step(ITEMS)).float()
    error = (got - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 1e-4 < error < most  # rows of few random numbers: real models are closer
    assert cpu_forward.why_not(decoder) is None


class Mallinfo(ctypes.Structure):
    """What `mallinfo2` returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def allocated() -> int:
    """Bytes that are allocated by malloc in this process."""
    call = ctypes.CDLL(None).mallinfo2
    call.restype = Mallinfo
    found = call()
    return found.hblkhd + found.uordblks


@sweep(every=7)
@every_isa
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [(FP32, None), (BF16, None), (torch.float16, None), (BF16, "int8"), (BF16, "int4")],
    ids=["fp32", "bf16", "fp16", "int8", "int4"],
)
@pytest.mark.parametrize("shape", ["wide", "wide_experts", "wide_inputs", "wide_experts_beside"])
def test_a_step_takes_the_memory_that_is_declared(
    request: pytest.FixtureRequest, shape: str, isa: str, dtype: torch.dtype, quantization: str | None
) -> None:
    decoder = load(request.getfixturevalue(shape), dtype, isa, quantization)
    assert decoder.fused
    runner, items = Runner(decoder, isa, sequences=16), [(i, 0, 64) for i in range(16)]
    grown: list[int] = []

    def measure() -> None:  # in a thread of its own, whose memory is not there yet
        torch.set_num_threads(1)
        before = allocated()
        rows = torch.cat(runner.step(items, list(range(1023))))  # of which some end earlier
        grown.append(allocated() - before - rows.nbytes)
        del rows

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    declared = 1024 * activation_bytes(decoder, cpu_kernels(isa))
    assert 0.97 * declared < grown[0] < 1.03 * declared, (grown, declared)


def test_what_is_not_computed_in_one_call_says_why(tmp_path: Path) -> None:
    cases = {
        "scaled sublayers": {
            **QWEN3, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "residual_multiplier": 0.3,
        },
        "LayerNorm": {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 131, "n_embd": 48, "n_head": 3,
            "n_layer": 2, "n_positions": 64,
        },
    }  # fmt: skip
    for index, (words, fields) in enumerate(cases.items()):
        decoder = Decoder(
            read_config(write_checkpoint(tmp_path / str(index), fields)), FP32, torch.device("cpu")
        )
        assert words in (cpu_forward.why_not(decoder) or "")
