"""A model computed in float64 throughout, whatever casts it holds."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from executors.llm.tools.widened import Float64

EPS, WIDTH, VOCABULARY = 1e-6, 24, 40


class Block(nn.Module):
    """What models of transformers do in float32 whatever their dtype is, and what they write in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("frequencies", 1.0 / 100.0 ** (torch.arange(WIDTH).float() / WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        wide = x.to(torch.float32)
        x = self.norm * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)
        angles = torch.arange(len(ids)).float()[:, None] * self.frequencies
        x = x * angles.cos().to(dtype=x.dtype) + self.up(x).type_as(x)
        mask = torch.full((len(ids), len(ids)), torch.finfo(x.dtype).min, dtype=self.norm.dtype).triu(1)
        weights = torch.softmax(x @ x.T / WIDTH**0.5 + mask, dim=-1, dtype=torch.float32).to(x.dtype)
        out = torch.zeros(len(ids), WIDTH, dtype=torch.float32)
        out.index_add_(0, torch.arange(len(ids)), weights @ x)
        out[0] = out[0].half().bfloat16().float() * 2
        return out @ self.embed.weight.T


def by_hand(block: Block, ids: list[int]) -> np.ndarray:
    table, norm, frequencies, weight, bias = (
        one.detach().numpy().astype(np.float64)
        for one in (block.embed.weight, block.norm, block.frequencies, block.up.weight, block.up.bias)
    )
    x = table[ids]
    x = norm * x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    x = x * np.cos(np.arange(len(ids))[:, None] * frequencies) + x @ weight.T + bias
    scores = np.where(np.tri(len(ids), dtype=bool), x @ x.T / WIDTH**0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ x
    out[0] *= 2
    return out @ table.T


def test_all_is_computed_in_float64() -> None:
    torch.manual_seed(0)
    block, ids = Block().eval(), [3, 1, 39, 1, 7]
    expected = by_hand(block, ids)
    with torch.inference_mode():
        with Float64():
            got = block(torch.tensor(ids))
        narrow = block(torch.tensor(ids))
    assert got.dtype is torch.float64
    assert np.abs(got.numpy() - expected).max() < 1e-13 * np.abs(expected).max()
    assert narrow.dtype is torch.float32, "afterwards all is as before"
    assert np.abs(narrow.numpy() - expected).max() > 1e-8
    assert all(one.dtype is torch.float32 for one in block.parameters())


def test_results_in_containers_and_writes_into_a_narrow_tensor() -> None:
    narrow = torch.zeros(3)
    with Float64():
        values, indices = torch.tensor([1.0, 3.0, 2.0]).topk(2)
        narrow.add_(torch.ones(3))
        torch.mul(narrow, 3.0, out=narrow)
        narrow += values.sum() - 5
        joined = torch.cat([narrow, values])
        product = narrow @ joined[:3]
    assert values.dtype is joined.dtype is product.dtype is torch.float64 and indices.dtype is torch.int64
    assert narrow.tolist() == [3.0, 3.0, 3.0] and narrow.dtype is torch.float32
