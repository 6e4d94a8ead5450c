"""Layers with heads of different sizes: the groups of their KV, its bytes, and the attention of each size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError, KvGroup
from executors.llm.attention.backend import AttentionBackend
from executors.llm.attention.by_heads import AttentionByHeads
from executors.llm.attention.cpu_attention import MAX_HEAD_DIM
from executors.llm.attention.groups import begin
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.kernel_support.kernel_choice import choose_attention
from executors.llm.memory.kv_groups import equal_heads, group_specs, group_windows, layer_places
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.model.caches import KvSpec, LayerKv, cache_specs, kv_group
from executors.llm.step_arrays import StepArrays

CPU = torch.device("cpu")
NEAR = LayerKv(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, window=5)
FAR = LayerKv(num_heads=4, num_kv_heads=1, head_dim=16, scale=1.0)


def spec(*layers: LayerKv, **more: Any) -> KvSpec:
    model: Any = SimpleNamespace(cache_specs=cache_specs(layers, torch.float32, CPU, **more))
    return kv_group(model)


def test_each_window_has_a_group_with_heads_of_its_own() -> None:
    whole = spec(NEAR, NEAR, FAR, NEAR)
    assert whole.bytes_per_token() == (3 * 2 * 2 * 8 + 2 * 16) * 4
    assert group_windows(whole, 100) == (5, None)
    assert group_windows(whole, 4) == (5, None), "windows that hide nothing stay apart where heads differ"
    groups = [KvGroup(7, 0, 5), KvGroup(9, 0, None)]
    near, far = group_specs(whole, groups)
    assert (near.num_layers, near.num_kv_heads, near.head_dim, near.heads) == (3, 2, 8, ())
    assert (far.num_layers, far.num_kv_heads, far.head_dim, far.heads) == (1, 1, 16, ())
    assert layer_places(whole.windows, groups) == ((0, 0), (0, 1), (1, 0), (0, 2))
    assert equal_heads(whole) == (near, far)
    assert equal_heads(near) == (near,)


def test_scales_of_fp8_go_with_their_layers() -> None:
    whole = spec(
        NEAR, FAR, NEAR, kv_dtype=torch.float8_e4m3fn, kv_scales=((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))
    )
    near, far = group_specs(whole, [KvGroup(1, 0, 5), KvGroup(1, 0)])
    assert near.kv_scales == ((1.0, 2.0), (5.0, 6.0)) and far.kv_scales == ((3.0, 4.0),)


def test_heads_that_differ_within_a_window_are_refused() -> None:
    whole = spec(FAR, LayerKv(4, 2, 8, 1.0))
    with pytest.raises(ConfigError, match="one window with different heads"):
        group_windows(whole, 100)
    with pytest.raises(ConfigError, match="cannot lie in one group"):
        group_specs(whole, [KvGroup(1, 0)])
    with pytest.raises(ConfigError, match="draft model beside heads of different sizes"):
        group_windows(spec(NEAR, LayerKv(4, 1, 16, 1.0, window=9)), 100, draft=True)


def test_each_size_of_heads_gets_its_backend() -> None:
    chosen = choose_attention(spec(NEAR, FAR), "torch")
    assert isinstance(chosen, AttentionByHeads) and len(chosen.parts) == 2
    assert "heads of 8: torch" in chosen.note and "heads of 16: torch" in chosen.note
    alike = choose_attention(spec(NEAR, NEAR), "torch")
    assert isinstance(alike, TorchAttention)


def test_heads_of_256_and_512_have_the_kernel_and_larger_ones_go_through_torch() -> None:
    near, far = LayerKv(8, 1, 256, 1.0, window=512), LayerKv(8, 1, 512, 1.0)
    names = [part.name.split()[0] for part in _parts(near, far)]
    assert names == ["cohort-cpu", "cohort-cpu"]
    far = LayerKv(8, 1, MAX_HEAD_DIM + 2, 1.0)
    assert [part.name.split()[0] for part in _parts(near, far)] == ["cohort-cpu", "torch"]
    with pytest.raises(ConfigError, match="deterministic: needs Cohort's own attention kernel"):
        choose_attention(spec(near, far), deterministic=True)


def _parts(*layers: LayerKv) -> tuple[AttentionBackend, ...]:
    chosen = choose_attention(spec(*layers))
    assert isinstance(chosen, AttentionByHeads)
    return chosen.parts


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_layers_of_each_size_see_their_own_keys(backend: str) -> None:
    whole = spec(NEAR, FAR)
    groups = [KvGroup(4, 0, 5), KvGroup(4, 0)]
    kv = PagedKv(whole, groups, 4)
    tables = np.array([[2, 0, 1]], np.int32)
    step = StepArrays(
        np.zeros(9, np.int32), np.array([9]), np.array([0]), tables, more_tables=(tables[:, ::-1].copy(),)
    )
    attend = begin(choose_attention(whole, backend), step, kv)
    for layer, one in enumerate((NEAR, FAR)):
        torch.manual_seed(layer)
        q = torch.randn(9, one.num_heads, one.head_dim)
        k, v = torch.randn(2, 9, one.num_kv_heads, one.head_dim)
        places = torch.arange(9)
        hidden = places[None] > places[:, None]
        if one.window:
            hidden |= places[None] <= places[:, None] - one.window
        shared = one.num_heads // one.num_kv_heads
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(shared, 1)).masked_fill(
            hidden, -torch.inf
        )
        expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.repeat_interleave(shared, 1))
        assert torch.allclose(attend(layer, q, k, v), expected, atol=1e-5)
        table = tables[0] if layer == 0 else tables[0, ::-1]
        cells = (
            kv.of_group(layer).layers[0][0].transpose(1, 2)[table.copy()].reshape(12, one.num_kv_heads, -1)
        )
        assert torch.equal(cells[:9], k)
