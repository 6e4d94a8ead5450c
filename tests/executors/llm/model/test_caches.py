"""How the memory of layers is grouped, and what the executor says where it has one group only."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executors.contract import ConfigError
from executors.llm.model.caches import (
    KvSpec,
    LayerKv,
    LayerState,
    StateSpec,
    cache_specs,
    indices_in_groups,
    kv_group,
    state_group,
)

FULL = LayerKv(num_heads=8, num_kv_heads=2, head_dim=64, scale=0.125)
NEAR = replace(FULL, window=100)
WIDE = replace(FULL, head_dim=128)
STATE = LayerState((4, 3))
CPU = torch.device("cpu")


def specs(*layers: LayerKv | LayerState | None) -> tuple[KvSpec | StateSpec, ...]:
    return cache_specs(layers, torch.bfloat16, CPU)


def test_layers_that_differ_by_their_windows_share_a_group() -> None:
    assert specs(FULL, NEAR, FULL) == (
        KvSpec(3, 8, 2, 64, torch.bfloat16, CPU, 0.125, None, (None, 100, None)),
    )


def test_heads_that_differ_are_kept_by_layer_and_states_are_a_group_of_their_own() -> None:
    layers = (STATE, FULL, None, STATE, WIDE, NEAR)
    first, second = specs(*layers)
    assert first == StateSpec(2, (4, 3), CPU) and first.bytes_per_slot() == 4096
    assert isinstance(second, KvSpec) and second.windows == (None, None, 100) and second.head_dim == 64
    assert [one.head_dim for one in second.heads] == [64, 128, 64]
    assert second.bytes_per_token() == 2 * 2 * (64 + 128 + 64) * 2
    assert indices_in_groups(layers) == [0, 0, -1, 1, 1, 2]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((FULL, replace(FULL, softcap=3.0)), "different bounds of scores"),
        ((STATE, None), "no layer with attention"),
    ],
)
def test_other_than_one_group_of_kv_is_refused(layers: Any, message: str) -> None:
    model: Any = SimpleNamespace(cache_specs=specs(*layers))
    with pytest.raises(ConfigError, match=message):
        kv_group(model)


def test_states_are_of_one_shape_or_none() -> None:
    model: Any = SimpleNamespace(cache_specs=specs(FULL))
    assert state_group(model) is None
    model.cache_specs = specs(FULL, STATE, LayerState((7,)))
    with pytest.raises(ConfigError, match="different shapes"):
        state_group(model)
