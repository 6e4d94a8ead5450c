"""Experts in the one call of the CPU kernels: in every stored form, many tokens of one expert, and what is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from executors.kernels.cpu import STORED_KINDS, cpu_kernels
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.fused import cpu_forward
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.model.config import read_config
from executors.llm.model.decoder import Decoder
from executors.llm.model.layers.experts import Experts
from executors.llm.model.linear import Linear, StoredFormat
from tests.executors.checkpoints import write_checkpoint
from tests.executors.kernels.blocks import dequantized, random_rows
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, every_isa
from tests.executors.llm.fused.test_cpu_forward import ITEMS, MOE, Runner, load
from tests.tiers import sweep

WIDE = {
    **MOE, "hidden_size": 256, "moe_intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 1, "num_experts": 5,
    "num_experts_per_tok": 2,
}  # fmt: skip
FIRST = ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "MXFP4")
KINDS = (*FIRST, *(kind for kind in STORED_KINDS if kind not in FIRST))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("experts") / "wide", WIDE)


def experts_of(decoder: Decoder) -> list[Linear]:
    return [
        linear
        for layer in decoder.layers
        if isinstance(layer.feed_forward, Experts)
        for expert in layer.feed_forward.experts
        for linear in expert.linears
    ]


def with_stored(
    path: Path, isa: str, dtype: torch.dtype, kind: str, stored: Callable[[str], bool] = lambda name: ".experts." in name
) -> tuple[Decoder, Decoder]:  # fmt: skip
    """A decoder whose `stored` weights are random rows of `kind` beside others in `dtype`, and the same in float32, computed by
    torch."""
    plain = load(path, FP32, None)
    names = [name for name, place in plain.places().items() if place.linear is not None and stored(name)]
    decoder = Decoder(
        read_config(path), dtype, torch.device("cpu"), cpu_kernels(isa), stored=dict.fromkeys(names, StoredFormat(kind))
    )  # fmt: skip
    for name, place in decoder.places().items():
        if place.linear is None:
            place.tensor.copy_(plain.places()[name].tensor)
    decoder.embed.copy_(plain.embed)
    for number, (linear, wide) in enumerate(zip(decoder.linears(), plain.linears(), strict=True)):
        assert wide.weight is not None
        if linear.stored:
            as_large = 0.06 / dequantized(kind, random_rows(kind, 8, wide.weight.shape[1])).std()
            rows = random_rows(kind, *wide.weight.shape, seed=number, scale=float(as_large))
            numbers = torch.from_numpy(dequantized(kind, rows))
            linear.fill_blocks(torch.from_numpy(rows), 0)
            wide.weight.copy_(numbers)
        else:
            linear.fill(wide.weight, 0)
    decoder.finish()
    decoder.prepare(256)
    fuse(TorchAttention(), decoder)
    return decoder, plain


@sweep(every=4)
@every_isa
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_experts_as_a_file_holds_them(wide: Path, isa: str, dtype: torch.dtype, kind: str) -> None:
    decoder, plain = with_stored(wide, isa, dtype, kind)
    assert decoder.fused and cpu_forward.why_not(decoder) is None
    assert {one for linear in experts_of(decoder) for one in linear.stored} == {kind}
    got = torch.cat(Runner(decoder, isa).step(ITEMS)).float()
    expected = torch.cat(Runner(plain, None).step(ITEMS))
    fused, decoder._fused = decoder._fused, None
    by_torch = torch.cat(Runner(decoder, isa).step(ITEMS)).float()
    decoder._fused = fused

    def median(one: torch.Tensor, other: torch.Tensor) -> float:
        return float(((one - other).norm(dim=-1) / other.norm(dim=-1)).median())

    assert median(got, expected) < 0.02  # rows of activations are rounded to 8 bits
    if dtype is FP32:
        assert median(got, by_torch) < 1e-5
    else:  # torch rounds more often
        assert median(got, expected) < 1.1 * median(by_torch, expected)


@sweep(every=3)
@every_isa
@pytest.mark.parametrize("quantization", [None, "int8", "int4"], ids=["plain", "int8", "int4"])
def test_many_tokens_of_an_expert_are_the_tokens_of_few(
    wide: Path, isa: str, quantization: str | None
) -> None:
    """More rows than a panel is multiplied with at a time."""
    decoder = load(wide, BF16, isa, quantization)
    torch.set_num_threads(2)
    runner = Runner(decoder, isa, threads=2, sequences=16)
    together = runner.step([(i, 0, 64) for i in range(16)])
    torch.set_num_threads(1)
    for i in range(16):
        alone = Runner(decoder, isa, sequences=16)
        assert torch.equal(alone.step([(i, 0, 64)])[0], together[i])


def test_experts_whose_columns_have_orders_of_their_own_are_left_to_torch(wide: Path) -> None:
    decoder = load(wide, FP32, None)
    assert cpu_forward.why_not(decoder) is None
    kernels = cpu_kernels()
    decoder = load(wide, FP32, kernels.isa)
    weight = experts_of(decoder)[3].packed
    assert weight is not None
    weight.set_order(torch.arange(256).flip(0))
    assert cpu_forward.why_not(decoder) == "experts in different formats"
