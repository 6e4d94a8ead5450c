"""The fused elementwise kernels against the torch code of executors/llm, in float64 where sums are involved."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from executors.kernels.triton.activation import KINDS, gated
from executors.kernels.triton.norms import rms_norm
from executors.kernels.triton.rotary import rotate_and_store
from executors.llm.model.layers.activations import ACTIVATIONS
from executors.llm.model.rope import rotate
from tests.tiers import sweep

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
"""Infinity is what the kernels count on there."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
"""Without a GPU no bf16: the interpreter cuts where it has to round."""
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    found, expected = found.cpu().double(), expected.cpu().double()
    assert torch.isfinite(found).all()
    error = (found - expected).norm() / expected.norm().clamp_min(1e-9)
    assert error < TOLERANCE[dtype], float(error)


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + float(plus_one))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 100, 896, 1024])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_rms_norm(dtype: torch.dtype, size: int, plus_one: bool, add: bool) -> None:
    torch.manual_seed(size)
    x, residual = torch.randn(2, 7, size, device=DEVICE).to(dtype)
    weight = torch.randn(size, device=DEVICE).to(dtype)
    total = x + residual if add else x
    kept = residual.clone()
    found = rms_norm(x, weight, 1e-6, residual=kept if add else None, plus_one=plus_one)
    close(found, norm(total, weight, 1e-6, plus_one), dtype)
    assert torch.equal(kept, total if add else residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", sorted(KINDS))
@pytest.mark.parametrize("inner", [96, 1536])
def test_gated(dtype: torch.dtype, activation: str, inner: int) -> None:
    torch.manual_seed(inner)
    x = (3 * torch.randn(5, 2 * inner, device=DEVICE)).to(dtype)
    gate, up = x.double().chunk(2, -1)
    close(gated(x, activation), ACTIVATIONS[activation](gate) * up, dtype)


@sweep(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rotated"),
    [(4, 2, 64, 64), (7, 1, 80, 80), (3, 3, 64, 16), (2, 1, 32, 0), (2, 1, 512, 128)],
)
@pytest.mark.parametrize("normed", ["none", "norm", "plus one"])
def test_rotate_and_store(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, rotated: int, normed: str
) -> None:
    torch.manual_seed(heads)
    tokens, page = 9, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=DEVICE).to(dtype)
    kv = torch.full((2, 4, kv_heads, page, dim), 7.0, dtype=dtype, device=DEVICE)
    cells = torch.randperm(4 * page, device=DEVICE)[:tokens]
    cells[4] = -1
    positions = torch.randint(0, 50, (tokens,), device=DEVICE)
    angles = torch.rand(50, rotated // 2, device=DEVICE) * 6.3
    table = torch.stack((angles.cos(), angles.sin()), 1) if rotated else None
    norms = None if normed == "none" else torch.randn(heads + kv_heads, dim, device=DEVICE).to(dtype)

    found = rotate_and_store(
        qkv, kv, cells, heads, positions=positions, table=table, norms=norms, eps=1e-6, plus_one=normed == "plus one"
    )  # fmt: skip

    split = qkv.view(tokens, heads + 2 * kv_heads, dim).double()
    qk, v = split[:, :-kv_heads], split[:, -kv_heads:]
    if norms is not None:
        qk = norm(qk, norms, 1e-6, normed == "plus one")
    if table is not None:
        qk = rotate(qk.float(), table[positions]).double()
    close(found, qk[:, :heads], dtype)
    expected = torch.full(kv.shape, 7.0, dtype=torch.float64, device=DEVICE)
    for row, cell in enumerate(cells.tolist()):
        if cell >= 0:
            expected[0, cell // page, :, cell % page] = qk[row, heads:]
            expected[1, cell // page, :, cell % page] = v[row]
    close(kv, expected, dtype)
    untouched = expected == 7.0
    assert torch.equal(kv.double()[untouched], expected[untouched])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "rotated"), [(64, 64), (80, 24)])
@pytest.mark.parametrize("norm_last", [False, True])
def test_rotation_of_neighbours_norms_after_it_and_queries_that_grow(
    dtype: torch.dtype, dim: int, rotated: int, norm_last: bool
) -> None:
    torch.manual_seed(dim)
    tokens, heads, kv_heads, page = 5, 3, 1, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=DEVICE).to(dtype)
    kv = torch.zeros(2, 1, kv_heads, page, dim, dtype=dtype, device=DEVICE)
    positions, cells = torch.randint(0, 50, (tokens,), device=DEVICE), torch.arange(tokens, device=DEVICE)
    angles = torch.rand(50, rotated // 2, device=DEVICE) * 6.3
    table, factors = torch.stack((angles.cos(), angles.sin()), 1), torch.rand(50, device=DEVICE) + 0.5
    norms = torch.randn(heads + kv_heads, dim, device=DEVICE).to(dtype)

    found = rotate_and_store(
        qkv, kv, cells, heads, positions=positions, table=table, norms=norms, eps=1e-6, neighbours=True, norm_last=norm_last,
        query_factors=factors,
    )  # fmt: skip

    qk = qkv.view(tokens, -1, dim)[:, : heads + kv_heads].double()
    qk = qk if norm_last else norm(qk, norms, 1e-6, False)
    turned = torch.view_as_complex(qk[..., :rotated].unflatten(-1, (-1, 2)).contiguous())
    turned = turned * torch.polar(torch.ones_like(angles), angles)[positions][:, None]
    qk = torch.cat((torch.view_as_real(turned).flatten(-2), qk[..., rotated:]), -1)
    qk = norm(qk, norms, 1e-6, False) if norm_last else qk
    close(found, qk[:, :heads] * factors[positions][:, None, None], dtype)
    close(kv[0, 0, 0, :tokens], qk[:, heads], dtype)


def test_nothing_is_launched_for_no_rows() -> None:
    empty = torch.empty(0, 64, device=DEVICE)
    assert rms_norm(empty, torch.ones(64, device=DEVICE), 1e-6).shape == (0, 64)
    assert gated(empty, "silu").shape == (0, 32)
    assert F.silu(empty).shape == (0, 64)
