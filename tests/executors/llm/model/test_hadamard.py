"""`Hadamard` beside the matrix of its definition."""

from __future__ import annotations

import pytest
import torch

from executors.llm.model.hadamard import Hadamard, matrix
from executors.llm.model.linear import Linear
from executors.llm.model.rotation import Rotation

CPU = torch.device("cpu")


def product(x: torch.Tensor, size: int) -> torch.Tensor:
    """By definition, in float64: the sign is that of the number of bits that row and column share."""
    signs = [[(-1.0) ** bin(i & j).count("1") for j in range(size)] for i in range(size)]
    blocks = x.double().view(len(x), -1, size) @ torch.tensor(signs, dtype=torch.float64) / size**0.5
    return blocks.view(x.shape)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 128, 512])
@pytest.mark.parametrize("by_factors", [False, True])
def test_products(size: int, by_factors: bool) -> None:
    x = torch.randn(5, 2 * max(size, 8), generator=torch.Generator().manual_seed(size))
    transform = Hadamard(size, CPU, by_factors)
    before = x.clone()
    ours = transform(x)
    assert torch.equal(x, before), "the input must stay"
    assert torch.allclose(ours.double(), product(x, size), atol=1e-5)
    assert torch.allclose(transform(ours), x, atol=1e-5), "it is its own inverse"
    narrow = transform(x.bfloat16())
    assert narrow.dtype is torch.bfloat16
    assert torch.equal(narrow, product(x.bfloat16(), size).bfloat16()) or size > 1
    assert torch.allclose(narrow.double(), product(x.bfloat16(), size), rtol=2**-8, atol=1e-5)


def test_rows_do_not_depend_on_the_step() -> None:
    x = torch.randn(2100, 128, generator=torch.Generator().manual_seed(0))
    for transform in (Hadamard(128, CPU), Hadamard(32, CPU, by_factors=True)):
        transform.be_steady()
        whole = transform(x)
        assert torch.equal(whole[2090:2091], transform(x[2090:2091]))
        assert torch.equal(whole[7:12], transform(x[7:12]))


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("by_factors", [False, True])
def test_a_slice_of_columns(size: int, by_factors: bool) -> None:
    """Of a block and of two."""
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    found = Hadamard(size, CPU, by_factors)(x[:, 8:24])
    assert torch.allclose(found.double(), product(x[:, 8:24].contiguous(), size), atol=1e-6)


def test_matrix() -> None:
    assert torch.allclose(matrix(16, CPU).double() / 4, product(torch.eye(16), 16))


def test_a_linear_layer_with_rotations() -> None:
    """The bias belongs to the output; what adapters add comes after its transform."""
    draw = torch.Generator().manual_seed(3)
    linear = Linear(12, 16, True, torch.float32, CPU)
    assert linear.weight is not None and linear.bias is not None
    linear.weight.normal_(generator=draw)
    linear.bias.normal_(generator=draw)
    linear.rotation = Rotation(Hadamard(16, CPU), ((4, 12, Hadamard(4, CPU)),))
    x, extra = torch.randn(3, 16, generator=draw), torch.randn(3, 12, generator=draw)
    expected = product(x, 16) @ linear.weight.double().T + linear.bias.double()
    expected[:, 4:] = product(expected[:, 4:].contiguous(), 4)
    assert torch.allclose(linear(x).double(), expected, atol=1e-5)
    assert torch.allclose(linear(x, extra).double(), expected + extra, atol=1e-5)
    assert torch.allclose(linear.wide(x, extra).double(), expected + extra, atol=1e-5)
    assert linear.gated(x, "silu") is None
