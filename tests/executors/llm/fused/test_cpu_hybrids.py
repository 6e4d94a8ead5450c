"""Layers with states in the one call of the CPU kernels: convolutions, linear attention, gates of attention, sigmoid experts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from executors.contract.status import StateLayout
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.fused import cpu_forward
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.memory.state_cache import StateCache
from executors.llm.model.api import ForwardInput
from executors.llm.model.caches import state_group
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.gated_delta import GatedDelta
from executors.llm.model.layers.sigmoid_experts import SigmoidExperts
from executors.llm.step_arrays import StateSlots, StepArrays
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, every_isa
from tests.executors.llm.fused.test_cpu_experts import with_stored
from tests.executors.llm.fused.test_cpu_forward import ITEMS, Runner, every_dtype, load
from tests.executors.llm.models import LFM2, QWEN3_NEXT, QWEN3_NEXT_MOE
from tests.tiers import sweep

_LFM2 = {
    **LFM2,
    "norm_eps": 1e-5,
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "dtype": "float32",
}
_LFM2_MOE = {
    **_LFM2, "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "num_dense_layers": 2, "num_experts": 6,
    "num_experts_per_tok": 3, "moe_intermediate_size": 20, "use_expert_bias": True, "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
_QWEN = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "dtype": "float32", "attn_output_gate": True}
_DENSE = {**QWEN3_NEXT, **_QWEN, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
_NEXT = {
    **QWEN3_NEXT_MOE, **_QWEN, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "norm_topk_prob": True,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
_BLOCKS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
_EXPERT_BLOCKS = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 32}
_STORED = {
    "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_num_value_heads": 4, "linear_value_head_dim": 64, "linear_key_head_dim": 24,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "lfm2": _LFM2,
    "lfm2-biases-kernel-of-5-convolution-last": {
        **_LFM2, "conv_L_cache": 5, "conv_bias": True,
        "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
    },
    "lfm2-moe": _LFM2_MOE,
    "lfm2-moe-no-bias-not-normalized": {**_LFM2_MOE, "use_expert_bias": False, "norm_topk_prob": False, "num_dense_layers": 0},
    "qwen3-next": _NEXT,
    "qwen3-next-some-dense-layers": {
        **_NEXT, "mlp_only_layers": [1], "norm_topk_prob": False, "linear_num_key_heads": 4, "attention_bias": True,
    },
    "qwen3.5": {**_DENSE, "linear_num_value_heads": 6},
    "qwen3.5-attention-last": {**_DENSE, "layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3.5-moe": {**_NEXT, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"},
    "lfm2-whole-blocks": {**_LFM2, **_BLOCKS, "block_multiple_of": 32},
    "qwen3.5-whole-blocks": {**_DENSE, **_BLOCKS},
    "qwen3-next-whole-blocks": {**_NEXT, **_BLOCKS, **_EXPERT_BLOCKS},
    "qwen3.5-stored": {**_DENSE, **_STORED},
    "lfm2-stored": {
        **_LFM2, "hidden_size": 256, "block_auto_adjust_ff_dim": False, "intermediate_size": 512, "num_attention_heads": 4,
    },
}  # fmt: skip
PLAIN = [name for name in MODELS if not name.endswith(("whole-blocks", "stored"))]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hybrids")
    return {name: with_slow_decay(write_checkpoint(root / name, fields)) for name, fields in MODELS.items()}


def with_slow_decay(folder: Path) -> Path:
    """States that last: of what `write_checkpoint` writes they are forgotten within a few tokens."""
    path, noise = folder / "model.safetensors", torch.Generator().manual_seed(5)
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith("A_log"):
            tensor.uniform_(-6.0, 0.0, generator=noise)
        if name.endswith("dt_bias"):
            tensor.normal_(generator=noise)
    save_file(tensors, path)
    return folder


class Stateful(Runner):
    """Sequences with a slot each."""

    def __init__(
        self, decoder: Decoder, isa: str | None, threads: int = 1, sequences: int = 4, length: int = 64
    ) -> None:
        super().__init__(decoder, isa, threads, sequences, length)
        spec = state_group(decoder)
        assert spec is not None
        self.states = StateCache(spec, StateLayout(spec.bytes_per_slot(), sequences, 1))
        for layer in self.states.layers:
            layer.fill_(torch.nan)

    def step(self, items: list[tuple[int, int, int]], wanted: list[int] | None = None) -> list[torch.Tensor]:
        """Hidden states of each item."""
        seqs, begins, counts = np.array(items, np.int64).T
        ids = np.concatenate([self.tokens[i, b : b + n] for i, b, n in items])
        step = StepArrays(ids.astype(np.int64), counts, begins, self.tables[seqs])
        step.states = StateSlots(np.where(begins > 0, seqs, -1), seqs, np.empty((0, 3), np.int64))
        [cache] = self.caches
        attend, states = self.attention.begin(step, cache), self.states.step(step)
        rows = None if wanted is None else torch.tensor(wanted, dtype=torch.int64)
        inputs = ForwardInput(
            torch.from_numpy(step.token_ids), torch.from_numpy(step.positions), attend, rows, states=states
        )
        return list(self.decoder.unified_forward(inputs).split(counts.tolist()))


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).median())


def around(decoder: Decoder, isa: str) -> torch.Tensor:
    """The same step by torch around the kernels."""
    fused, decoder._fused = decoder._fused, None
    found = torch.cat(Stateful(decoder, isa).step(ITEMS)).float()
    decoder._fused = fused
    return found


@sweep(every=3)
@every_isa
@every_dtype
@pytest.mark.parametrize("name", PLAIN)
def test_equals_torch(checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, name: str) -> None:
    decoder = load(checkpoints[name], dtype, isa)
    assert cpu_forward.why_not(decoder) is None and decoder.fused
    runner = Stateful(decoder, isa)
    got = torch.cat(runner.step(ITEMS)).float()
    plain = Stateful(load(checkpoints[name], FP32, None), None)
    expected = torch.cat(plain.step(ITEMS))
    error, size = got - expected, expected.square().mean().sqrt()
    if dtype is FP32:
        assert error.abs().max() < 3e-4 * size
        for one, other in zip(runner.states.layers, plain.states.layers, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        return
    of_tokens = error.square().mean(-1).sqrt() / size
    if dtype is torch.float16:
        # Rounded weights choose other experts for some tokens.
        assert of_tokens.median() < (2**-8 if decoder.config.moe is None else 2**-7)
        return
    rounded = torch.cat(Stateful(load(checkpoints[name], BF16, None), None).step(ITEMS)).float()
    of_torch = (rounded - expected).square().mean(-1).sqrt() / size
    assert of_tokens.median() < 1.1 * of_torch.median()


@sweep(every=4)
@every_isa
@every_dtype
@pytest.mark.parametrize("quantization", [None, "int8", "int4"], ids=["plain", "int8", "int4"])
@pytest.mark.parametrize(
    "name", ["lfm2-whole-blocks", "lfm2-moe", "qwen3.5-whole-blocks", "qwen3-next-whole-blocks"]
)
def test_whole_chunks_and_decodes_are_equal_bit_for_bit(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, quantization: str | None, name: str
) -> None:
    if quantization == "int4" and name == "lfm2-moe":  # whose columns are no multiple of 32
        name = "lfm2-whole-blocks"
    decoder = load(checkpoints[name], dtype, isa, quantization)
    assert decoder.fused
    whole = Stateful(decoder, isa).step(ITEMS)
    torch.set_num_threads(2)
    chunked = Stateful(decoder, isa, threads=2)
    parts: list[list[torch.Tensor]] = [[] for _ in ITEMS]
    for begin in range(0, 64, 5):  # beside the others, in chunks of 5
        items = [(i, begin, min(5, n - begin)) for i, _, n in ITEMS if begin < n]
        for (i, _, _), hidden in zip(items, chunked.step(items), strict=True):
            parts[i].append(hidden)
    torch.set_num_threads(1)
    alone = Stateful(decoder, isa)
    decoded = [alone.step([(2, position, 1)])[0] for position in range(64)]
    for i, hidden in enumerate(whole):
        assert torch.equal(torch.cat(parts[i]), hidden)
    assert torch.equal(torch.cat(decoded), whole[2])


@sweep(every=2)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "name",
    ["lfm2", "lfm2-biases-kernel-of-5-convolution-last", "qwen3.5", "qwen3.5-attention-last", "qwen3-next"],
)
def test_only_wanted_rows(checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, name: str) -> None:
    """Whichever mixer the last layer has: states and KV are those of all tokens."""
    decoder = load(checkpoints[name], dtype, isa)
    reference = Stateful(decoder, isa)
    whole = torch.cat(reference.step([*ITEMS[:2], (2, 0, 50), ITEMS[3]]))
    following = reference.step([(2, 50, 3)])[0]
    for wanted in ([], [87], [0], [29, 30, 80, 87], list(range(88)), list(range(40, 88))):
        runner = Stateful(decoder, isa)
        rows = torch.cat(runner.step([*ITEMS[:2], (2, 0, 50), ITEMS[3]], wanted))
        assert torch.equal(rows[wanted], whole[wanted]), wanted
        assert torch.equal(runner.step([(2, 50, 3)])[0], following), wanted


@sweep(every=1)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "quantization", "most"),
    [
        ("lfm2", "int8", 0.1), ("qwen3.5", "int8", 0.1), ("qwen3-next", "int8", 0.3), ("lfm2-moe", "int8", 0.3),
        ("lfm2-whole-blocks", "int4", 0.5), ("qwen3.5-whole-blocks", "int4", 0.5),
    ],
    ids=str,
)  # fmt: skip
def test_quantized_weights_are_close(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, name: str, quantization: str, most: float
) -> None:
    expected = torch.cat(Stateful(load(checkpoints[name], FP32, None), None).step(ITEMS))
    decoder = load(checkpoints[name], dtype, isa, quantization)
    assert cpu_forward.why_not(decoder) is None
    got = torch.cat(Stateful(decoder, isa).step(ITEMS)).float()
    assert 1e-4 < far(got, expected) < most
    for layer in decoder.layers:
        if isinstance(layer.mixer, GatedDelta):
            assert layer.mixer.rates.packed is not None
            assert layer.mixer.rates.packed.struct.kind == (0 if dtype is FP32 else 1), "rates stay exact"


@sweep(every=5)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["lfm2-stored", "qwen3.5-stored"])
@pytest.mark.parametrize("rates", [False, True], ids=["plain-rates", "stored-rates"])
def test_layers_as_a_file_holds_them(
    checkpoints: dict[str, Path], isa: str, dtype: torch.dtype, kind: str, name: str, rates: bool
) -> None:
    def stored(part: str) -> bool:
        return ".layers." in part and (rates or not part.endswith(("in_proj_b.weight", "in_proj_a.weight")))

    decoder, plain = with_stored(checkpoints[name], isa, dtype, kind, stored)
    assert cpu_forward.why_not(decoder) is None and decoder.fused
    got = torch.cat(Stateful(decoder, isa).step(ITEMS)).float()
    expected = torch.cat(Stateful(plain, None).step(ITEMS))
    by_torch = around(decoder, isa)
    assert far(got, expected) < 0.05  # rows of activations are rounded to 8 bits
    if dtype is FP32:
        assert far(got, by_torch) < 3e-3  # and a rounding may fall to the other side
    else:
        assert far(got, expected) < 1.1 * far(by_torch, expected)


@every_isa
@pytest.mark.parametrize("name", ["lfm2-moe", "lfm2-moe-no-bias-not-normalized"])
def test_the_bias_counts_for_the_choice_alone(checkpoints: dict[str, Path], isa: str, name: str) -> None:
    """Of an expert that the bias always chooses the share is its own score."""
    plain = load(checkpoints[name], FP32, None)
    decoder = load(checkpoints[name], FP32, isa)
    for one in (plain, decoder):
        for layer in one.layers:
            if (
                isinstance(layer.feed_forward, SigmoidExperts)
                and layer.feed_forward.experts.choice_bias is not None
            ):
                layer.feed_forward.experts.choice_bias.copy_(torch.tensor([-3.0, 5.0, 0.0, 0.3, 5.0, -0.2]))
    fuse(TorchAttention(), decoder)
    expected = torch.cat(Stateful(plain, None).step(ITEMS))
    error = torch.cat(Stateful(decoder, isa).step(ITEMS)) - expected
    assert error.abs().max() < 3e-4 * expected.square().mean().sqrt()


def test_what_is_not_computed_in_one_call_says_why(tmp_path: Path) -> None:
    def why(
        folder: str, fields: dict[str, Any], change: Callable[[Any], Any] = lambda config: config
    ) -> str | None:
        config = change(read_config(write_checkpoint(tmp_path / folder, fields)))
        return cpu_forward.why_not(Decoder(config, FP32, torch.device("meta")))

    wide = "mixers of another kind, or with wider keys or kernels"
    assert why("kernel", {**_LFM2, "conv_L_cache": 17}) == wide
    assert why("keys", {**_DENSE, "linear_key_head_dim": 260}) == wide
    assert why("plain", _DENSE) is None
    assert why("fits", {**_LFM2, "conv_L_cache": 16}) is None


@every_isa
def test_kernels_too_wide_for_the_call_are_torchs(tmp_path: Path, isa: str) -> None:
    path = with_slow_decay(write_checkpoint(tmp_path / "wide", {**_DENSE, "linear_key_head_dim": 260}))
    decoder = load(path, FP32, isa)
    assert not decoder.fused
    got = torch.cat(Stateful(decoder, isa).step(ITEMS))
    expected = torch.cat(Stateful(load(path, FP32, None), None).step(ITEMS))
    assert (got - expected).abs().max() < 3e-4 * expected.square().mean().sqrt()
