"""How many blocks each group of layers gets, and what a layer's place is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorMemoryConfig,
    KvGroup,
    KvLayout,
    StateLayout,
)
from executors.contract.config import ExecutorAttentionConfig
from executors.llm.memory.kv_groups import blocks_of_sequence, group_specs, group_windows, layer_places
from executors.llm.memory.kv_plan import plan_kv
from executors.llm.memory.kv_sizes import LEAST_SNAPSHOTS
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.model.caches import KvSpec, StateSpec

GIB = 1 << 30
PATTERN = tuple(None if layer % 6 == 5 else 512 for layer in range(26))
"""Windows of Gemma 3's layers."""
TOKEN = 2 * 256 * 2
"""Bytes of a layer's key and value of a token."""


def spec(windows: tuple[int | None, ...], **changes: object) -> KvSpec:
    made = KvSpec(len(windows), 4, 1, 256, torch.bfloat16, torch.device("cpu"), 0.06, None, windows)
    return replace(made, **changes)  # type: ignore[arg-type]


def config(
    num_bytes: int | None, seqs: int = 8, tokens: int = 512, length: int | None = None
) -> ExecutorConfig:
    return ExecutorConfig(
        "llm", max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length,
        attention=ExecutorAttentionConfig(block_size=16), memory=ExecutorMemoryConfig(kv_cache_memory_bytes=num_bytes),
    )  # fmt: skip


def layout(
    windows: tuple[int | None, ...],
    num_bytes: int,
    length: int = 32768,
    beside: tuple[int, ...] = (),
    **limits: int,
) -> KvLayout:
    return plan_kv(spec(windows), config(num_bytes, **limits), length, beside=beside).layout


def test_layers_with_one_window_are_a_group_in_the_order_of_their_first() -> None:
    assert group_windows(spec((512, None, 512, 1024)), 4096) == (512, None, 1024)
    assert group_windows(spec((512, None, 512, 1024)), 1024) == (512, None), (
        "a window as long as any sequence hides nothing"
    )
    assert group_windows(spec((4096,) * 3), 4096) == (None,)
    assert group_windows(spec((4096,) * 3), 8192) == (4096,)
    assert group_windows(spec((4096,) * 3), 8192, draft=True) == (None,), "a draft model's KV lies beside"
    assert group_windows(spec((None,), model_windows=(7, None)), 8192) == (7, None), (
        "every stage has all groups"
    )


def test_places_of_layers() -> None:
    groups = [KvGroup(8, 0, 512), KvGroup(8, 0)]
    assert layer_places((512, 512, None, 9000, 512), groups) == ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2))
    first, second = group_specs(
        spec((512, 512, None, 9000, 512), kv_scales=tuple((float(i), 1.0) for i in range(5))), groups
    )
    assert first.windows == (512,) * 3 and [pair[0] for pair in first.kv_scales] == [0, 1, 4]
    assert second.windows == (None, 9000) and [pair[0] for pair in second.kv_scales] == [2, 3]


def test_one_group_is_sized_as_ever() -> None:
    made = layout((None,) * 4, GIB)
    assert made == KvLayout.of(16, GIB // (4 * TOKEN * 16), 4 * TOKEN * 16)


def test_windows_get_twice_what_sequences_use_and_full_layers_the_rest() -> None:
    made = layout(PATTERN, 8 * GIB, seqs=64)
    window, full = made.groups
    assert (window.window, full.window) == (512, None)
    assert (window.bytes_per_block, full.bytes_per_block) == (22 * TOKEN * 16, 4 * TOKEN * 16)
    assert window.num_blocks == 2 * (64 * (512 + 32) + 512) // 16
    assert 0 <= 8 * GIB - made.num_bytes < full.bytes_per_block
    assert made.max_tokens == made.capacity_tokens == 16 * full.num_blocks > 1_500_000
    assert 0.25 * made.capacity_tokens > 16 * (8 * GIB // (26 * TOKEN * 16)), "as one group"


def test_where_memory_is_short_all_groups_hold_as_many_tokens() -> None:
    made = layout(PATTERN, GIB, seqs=256, length=8192)
    window, full = made.groups
    assert window.num_blocks == full.num_blocks == GIB // (26 * TOKEN * 16)


@pytest.mark.parametrize("num_bytes", [159_000_000, 170_000_000, 250_000_000, 900_000_000])
def test_one_sequence_of_the_greatest_length_always_fits(num_bytes: int) -> None:
    made = layout(PATTERN, num_bytes, seqs=256)
    window, full = made.groups
    assert made.num_bytes <= num_bytes
    assert full.num_blocks >= 2048 and window.num_blocks >= (512 + 32 + 512) // 16
    least = 32768 * 4 * TOKEN + (512 + 32 + 512) * 22 * TOKEN
    with pytest.raises(ConfigError, match=f"one sequence needs {least:,} bytes of KV"):
        layout(PATTERN, least - 1)
    assert layout(PATTERN, least).num_bytes == least


def test_a_length_that_does_not_fit_is_reduced_and_its_windows_with_it() -> None:
    """13.5 MB hold 500 tokens of all layers: no sequence is longer than a window then."""
    plan = plan_kv(spec(PATTERN), config(None), 32768, measured=13_500_000)
    assert plan.max_model_len == 496 and [group.window for group in plan.layout.groups] == [None]
    assert plan.note == "max_model_len reduced from 32768 to 496: KV memory allows no more"
    plan = plan_kv(spec(PATTERN), config(None), 32768, measured=50_000_000)
    window, full = plan.layout.groups
    assert 512 < plan.max_model_len == 16 * full.num_blocks < 32768
    assert window.num_blocks == (512 + 32 + 512) // 16 and plan.layout.num_bytes <= 50_000_000


def test_where_every_layer_has_a_window_the_context_is_that_of_the_sequences_that_fit() -> None:
    """64 KiB a block. A sequence keeps 34 blocks, a step adds 32."""
    rich = layout((512,) * 4, GIB)
    assert [group.window for group in rich.groups] == [512]
    assert rich.groups[0].num_blocks == 2 * (8 * 34 + 32) and rich.capacity_tokens == 8 * 32768
    poor = layout((512,) * 4, 4 * TOKEN * 16 * (3 * 34 + 32 + 5))
    assert poor.groups[0].num_blocks == 3 * 34 + 32 + 5 and poor.capacity_tokens == 3 * 32768
    least = layout((512,) * 4, 4 * TOKEN * 16 * 66)
    assert least.capacity_tokens == 32768
    with pytest.raises(ConfigError, match="max_model_len 32768: one sequence needs"):
        layout((512,) * 4, 4 * TOKEN * 16 * 66 - 1)


def test_a_draft_model_lies_beside_the_layers_that_keep_all_tokens() -> None:
    window, full = layout(PATTERN, 8 * GIB, beside=(1024,)).groups
    assert window.bytes_per_block == 22 * TOKEN * 16 and full.bytes_per_block == (4 * TOKEN + 1024) * 16
    _, full = layout(PATTERN, 8 * GIB, beside=(1000, 10)).groups
    assert full.bytes_per_block == 4 * TOKEN * 16 + 16384 + 4096, "each group's part is a multiple of 4 KiB"
    [only] = layout((512,) * 4, 8 * GIB, beside=(1024,)).groups
    assert only.window is None and only.bytes_per_block == (4 * TOKEN + 1024) * 16


def test_a_stage_without_layers_of_a_group_has_its_blocks_without_bytes() -> None:
    stage = spec((None,) * 2, model_windows=PATTERN)
    groups = plan_kv(stage, config(GIB), 4096).layout.groups
    assert [(group.window, group.bytes_per_block) for group in groups] == [(512, 0), (None, 2 * TOKEN * 16)]
    cache = PagedKv(stage, groups, 16)
    assert len(cache.layers) == 2 and cache.num_bytes == groups[1].num_blocks * 2 * TOKEN * 16
    cache.copy_blocks(np.array([[0, 1, 2], [1, 3, 4]], np.int32))
    cache.give_back(0, np.array([1], np.int32))


def test_gemma_3_at_30_000_tokens_holds_what_its_windows_need() -> None:
    needed = TOKEN * (4 * 30_000 + 22 * 512)
    groups = layout(PATTERN, GIB, seqs=1).groups
    held = sum(blocks_of_sequence(group.window, 30_000, 16) * group.bytes_per_block for group in groups)
    assert needed <= held <= 1.05 * needed
    assert 5 * held < TOKEN * 26 * 30_000, "as one group"
    for window in (1024, 4096):
        assert blocks_of_sequence(window, 30_000, 16) * 16 <= 1.05 * window


def test_copies_and_freed_memory_stay_within_their_group() -> None:
    small = replace(spec((4, None, 4)), head_dim=16, dtype=torch.float32)
    cache = PagedKv(small, [KvGroup(6, 0, 4), KvGroup(9, 0)], 16)
    for number, layer in enumerate(cache.layers):
        layer.copy_(torch.arange(layer.shape[1]).view(1, -1, 1, 1, 1) + 100.0 * number)
    assert [layer.shape[1] for layer in cache.layers] == [6, 9, 6] and cache.num_blocks == (6, 9)
    cache.copy_blocks(np.array([[0, 1, 2], [1, 8, 0], [0, 3, 5]], np.int32))
    blocks = [layer[0, :, 0, 0, 0].tolist() for layer in cache.layers]
    assert blocks == [[0, 1, 1, 3, 4, 3], [108, *range(101, 109)], [200, 201, 201, 203, 204, 203]]


STATES = StateSpec(3, (1024,), torch.device("cpu"))


def with_states(num_bytes: int, length: int = 4096, **limits: int) -> KvLayout:
    return plan_kv(spec((None,) * 2), config(num_bytes, **limits), length, states=STATES).layout


@pytest.mark.parametrize("num_bytes", [9 << 20, 16 << 20, 100 << 20, GIB])
def test_states_and_blocks_share_one_budget(num_bytes: int) -> None:
    """A slot for each sequence, and snapshots that take a third of what blocks do: the blocks are as many as fit beside them."""
    found = with_states(num_bytes)
    state = found.state
    assert state is not None and (state.slot_bytes, state.interval) == (12288, 64)
    assert found.num_bytes == found.block_bytes + state.num_slots * 12288 <= num_bytes
    snapshots, wanted = state.num_slots - 8, max(8, found.block_bytes // 36864)
    assert 8 <= snapshots <= wanted
    longest = 4096 // 16
    if found.groups[0].num_blocks > longest:
        assert snapshots == wanted
        more = found.block_bytes + found.groups[0].bytes_per_block
        fits = more + (8 + max(8, more // 36864)) * 12288 <= num_bytes
        assert not fits or found.groups[0].num_blocks == 8 * longest, "more would have fitted"
    again = with_states(found.num_bytes)
    assert again == found, "the next life of an executor gets the same from the bytes of this one"


def test_too_little_memory_for_states_names_the_setting() -> None:
    least = 4096 // 16 * 16 * 2 * TOKEN + (200 + LEAST_SNAPSHOTS) * 12288
    assert with_states(least, seqs=200).state == StateLayout(12288, 208, 64)
    with pytest.raises(
        ConfigError, match=r"max-num-seqs: states of 200 sequences are 2,555,904 of these bytes"
    ):
        with_states(least - 1, seqs=200)
