"""Sinks: a logit of each head in the softmax's denominator, without a value. Every attention against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executors.contract.errors import ConfigError
from executors.llm.attention import cpu_attention
from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.attention.library import LibraryAttention, Unsuitable, check_model
from executors.llm.attention.plain_torch import QUERY_TILE, TorchAttention
from executors.llm.kernel_support.kernel_choice import choose_attention
from executors.llm.model.caches import KvSpec
from tests.executors.kernels.steps import Sequences
from tests.executors.kernels.steps import spec as plain_spec
from tests.executors.llm.attention import test_cpu_attention, test_int8_kv
from tests.executors.llm.attention.test_cpu_attention import (
    BF16,
    FP32,
    ISAS,
    MIXED,
    both_dtypes,
    every_isa,
    kernel,
    mixed_items,
)
from tests.gpu.attention_fakes import flash_2, flash_3, pretend, varlen_attn
from tests.tiers import sweep

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


@sweep(every=2)
@both_dtypes
@windows_and_caps
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (4, 2)])
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
        assert not isinstance(choose_attention(spec(4, 2, 64, BF16)), LibraryAttention)


# -- the CPU kernels -----------------------------------------------------------------------------------------------------

cells = pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=["as computed", "int8"])


def check_kernel(got: torch.Tensor, seqs: Sequences, items: list[tuple[int, int, int]]) -> None:
    judge = test_cpu_attention if seqs.spec.kv_dtype is None else test_int8_kv
    judge.check(got, seqs.expected(items))


@pytest.mark.long(every=4)
@sweep(every=3)
@every_isa
@both_dtypes
@cells
@windows_and_caps
def test_the_cpu_kernel_equals_the_formula(
    isa: str, dtype: torch.dtype, kv_dtype: torch.dtype | None, window: int | None, softcap: float | None
) -> None:
    """Around the borders of tiles and splits. With a window of 1 a token sees itself and the sink."""
    changes = {"windows": (window,), "softcap": softcap, "kv_dtype": kv_dtype}
    seqs = Sequences(spec(4, 2, 32, dtype, **changes), [*MIXED, 1300])
    items = [*mixed_items(), (10, 1200, 90)]
    check_kernel(seqs.run(items, kernel(isa)), seqs, items)


@every_isa
@cells
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (16, 2), (7, 1)])
def test_each_head_has_its_own_sink(
    isa: str, kv_dtype: torch.dtype | None, heads: int, kv_heads: int
) -> None:
    """As far apart as a score may be, beyond and below all of them: one takes everything, another nothing."""
    seqs = Sequences(spec(heads, kv_heads, 32, FP32, kv_dtype=kv_dtype), [1, 70, 600])
    assert seqs.sinks is not None
    seqs.sinks[:3] = torch.tensor([200.0, -200.0, 5.0])
    items = [(0, 0, 1), (1, 0, 70), (2, 590, 10)]
    got = seqs.run(items, kernel(isa))
    check_kernel(got, seqs, items)
    assert got[:, 0].abs().max() < 1e-30, "a sink of 200 leaves nothing to the keys"
    alone = seqs.expected(items, sinks=False)
    assert torch.allclose(got[:, 1], alone[:, 1].float(), atol=2e-4)


@pytest.mark.long(every=4)
@every_isa
@both_dtypes
@cells
@pytest.mark.parametrize("window", [None, 700])
def test_a_sink_counts_once_however_keys_are_cut(
    isa: str,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Histories that several threads share are merged from pieces, and single steps cut them in other ways. Bit for bit."""
    monkeypatch.setattr(cpu_attention, "SERIAL_COST", 0)
    length = 2100
    seqs = Sequences(spec(4, 2, 32, dtype, windows=(window,), kv_dtype=kv_dtype), [length, 5])
    items = [(0, length - 70, 70), (1, 4, 1)]
    alone = torch.cat([seqs.run([item], CpuAttention(isa, 1)) for item in items])
    check_kernel(alone, seqs, items)
    for threads in (2, 7):
        assert torch.equal(seqs.run(items, CpuAttention(isa, threads)), alone)
    singles = [(0, length - 70 + i, 1) for i in range(70)]
    assert torch.equal(seqs.run(singles, kernel(isa)), alone[:70])


def test_the_cpu_kernel_is_chosen() -> None:
    for kv_dtype in (None, torch.int8):
        chosen = choose_attention(spec(4, 2, 64, BF16, kv_dtype=kv_dtype))
        assert chosen.name == (f"cohort-cpu {ISAS[0]}" if ISAS else "torch")
