"""Sinks: a logit of each head in the softmax's denominator, without a value. Every attention against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executors.contract.errors import ConfigError
from executors.llm.attention.library import Unsuitable, check_model
from executors.llm.attention.plain_torch import QUERY_TILE, TorchAttention
from executors.llm.kernel_support.kernel_choice import choose_attention
from executors.llm.model.caches import KvSpec
from tests.executors.kernels.steps import Sequences
from tests.executors.kernels.steps import spec as plain_spec
from tests.executors.llm.attention.test_cpu_attention import BF16, FP32, MIXED, both_dtypes
from tests.gpu.attention_fakes import flash_2, flash_3, pretend, varlen_attn

windows_and_caps = pytest.mark.parametrize(
    ("window", "softcap"), [(None, None), (1, None), (128, None), (600, 5.0), (None, 3.0)]
)


def spec(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, **changes) -> KvSpec:
    """Of one layer with sinks."""
    return plain_spec(heads, kv_heads, head_dim, dtype, sinks=True, **changes)


def by_formula(seqs: Sequences, items: list[tuple[int, int, int]]) -> np.ndarray:
    """o = sum_j e^(s_j) v_j / (e^sink + sum_j e^(s_j)), float64 [T, heads, head_dim], head by head."""
    s, out = seqs.spec, []
    assert seqs.sinks is not None
    for i, begin, count in items:
        q, k, v = (x[i][: begin + count].double().numpy() for x in (seqs.q, seqs.k, seqs.v))
        behind = np.arange(begin, begin + count)[:, None] - np.arange(begin + count)
        hidden = (behind < 0) | (behind >= (s.windows[0] or 1 << 30))
        result = np.empty((count, s.num_heads, s.head_dim))
        for head, sink in enumerate(seqs.sinks.double().tolist()):
            own = head // (s.num_heads // s.num_kv_heads)
            scores = q[begin:, head] @ k[:, own].T * s.scale
            if s.softcap is not None:
                scores = s.softcap * np.tanh(scores / s.softcap)
            weights = np.where(hidden, 0.0, np.exp(scores))
            result[:, head] = weights @ v[:, own] / (weights.sum(1, keepdims=True) + np.exp(sink))
        out.append(result)
    return np.concatenate(out)


def check(got: torch.Tensor, expected: np.ndarray | torch.Tensor) -> None:
    """See `check` of test_cpu_attention.py; torch rounds scores as well."""
    error = np.abs(got.double().numpy() - np.asarray(expected, np.float64))
    assert error.max() < (2e-5 if got.dtype is FP32 else 0.06)
    assert np.sqrt(np.square(error).mean()) < (1e-6 if got.dtype is FP32 else 0.006)


@both_dtypes
@windows_and_caps
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (8, 1)])
def test_torch_equals_the_formula(
    dtype: torch.dtype, window: int | None, softcap: float | None, heads: int, kv_heads: int
) -> None:
    """Decodes, verifications, chunks behind others and whole prompts: each kind of group, and each is cut into tiles."""
    items = [(1, 2, 1), (4, 60, 5), (5, 64, 66), (3, 63, 1), (8, 512, 1), (0, 0, 1), (7, 0, QUERY_TILE + 20)]
    seqs = Sequences(spec(heads, kv_heads, 16, dtype, windows=(window,), softcap=softcap), MIXED)
    expected = by_formula(seqs, items)
    cache = seqs.cache([max([b for i, b, _ in items if i == seq], default=0) for seq in range(len(MIXED))])
    cache.layers[0].nan_to_num_(0.0)  # it reads padding, with weight 0
    check(seqs.run(items, TorchAttention(), cache), expected)
    check(seqs.expected(items), expected)
    without = seqs.expected(items, sinks=False)
    assert np.abs(without.double().numpy() - expected).max() > 0.3, "sinks of this size do nothing"


def test_a_library_without_sinks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsuitable, match="no sinks"):
        check_model(spec(4, 2, 64, BF16), (9, 0))
    check_model(plain_spec(4, 2, 64, BF16), (9, 0))
    for library in (flash_2(), flash_3()):
        pretend(monkeypatch, library, varlen=varlen_attn)
        for name in ("flash-attn", "varlen"):
            with pytest.raises(ConfigError, match="no sinks"):
                choose_attention(
                    spec(4, 2, 64, BF16), name, block_size=256 if library.__name__ == "flash_attn" else 16
                )
        assert isinstance(choose_attention(spec(4, 2, 64, BF16)), TorchAttention)
