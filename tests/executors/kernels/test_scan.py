"""Layers with states on the CPU's kernels: torch's layers say the same, and a token's result does not depend on its step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract.status import StateLayout
from executors.kernels.cpu import cpu_kernels
from executors.llm.memory.state_cache import SlotStates, StateCache
from executors.llm.model.api import ForwardInput
from executors.llm.model.caches import LayerState, StateSpec
from executors.llm.model.config import read_config
from executors.llm.model.layers.base import LayerStep, Share, Sublayer
from executors.llm.model.layers.gated_delta import GatedDelta
from executors.llm.model.layers.short_convolution import ShortConvolution
from executors.llm.step_arrays import StateSlots, StepArrays
from tests.executors.checkpoints import write_config
from tests.executors.llm.attention.test_cpu_attention import every_isa
from tests.executors.llm.models import LFM2, QWEN3_NEXT_MOE
from tests.tiers import sweep

DELTAS: dict[str, dict[str, Any]] = {
    "one-head": {"heads": (1, 1), "sizes": (64, 64)},
    "two-tiles-of-many-keys": {"heads": (2, 2), "sizes": (128, 64)},
    "value-heads-share-keys": {"heads": (2, 6), "sizes": (128, 128)},
    "parts-of-tiles": {"heads": (2, 4), "sizes": (12, 20)},
    "odd": {"heads": (3, 3), "sizes": (17, 37), "kernel": 3},
    "wide-kernel": {"heads": (1, 2), "sizes": (20, 8), "kernel": 6},
    "by-key-head": {"heads": (2, 6), "sizes": (24, 40), "by_key": True},
    "whole-heads-of-odd-keys": {"heads": (2, 2), "sizes": (33, 128)},
    "heads-in-two-parts": {"heads": (1, 2), "sizes": (20, 256)},
    "tiled": {"heads": (2, 6), "sizes": (24, 40), "tiled": True},
}
"""(key heads, value heads) and (key size, value size). `by_key`: projections of Qwen3-Next; `tiled`: heads of GGUF files."""
LENGTHS = [1, 7, 30, 3]
SLOTS = 12
every_delta = pytest.mark.parametrize("name", DELTAS)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def filled(layer: Sublayer) -> Sublayer:
    """With random weights, and rates from those that forget all to those that forget nothing."""
    noise = torch.Generator().manual_seed(0)
    for linear in layer.linears:
        assert linear.weight is not None
        linear.weight.normal_(0.0, 1.2 / linear.weight.shape[1] ** 0.5, generator=noise)
        if linear.bias is not None:
            linear.bias.normal_(generator=noise)
    layer.cache_index = 0
    if isinstance(layer, ShortConvolution):
        layer.weight.normal_(generator=noise)
        if layer.bias is not None:
            layer.bias.normal_(generator=noise)
    if isinstance(layer, GatedDelta):
        layer.weight.normal_(0.0, 0.5, generator=noise)
        layer.a_log.uniform_(-6.0, 1.0, generator=noise)
        layer.dt_bias.normal_(0.0, 2.0, generator=noise)
        layer.norm.uniform_(0.5, 1.5, generator=noise)
    return layer


def delta(folder: Path, name: str) -> GatedDelta:
    shape = DELTAS[name]
    (key_heads, heads), (key, value) = shape["heads"], shape["sizes"]
    family = "Qwen3Next" if shape.get("by_key") else "Qwen3_5"
    model_type = {"Qwen3Next": "qwen3_next", "Qwen3_5": "qwen3_5_text"}[family]
    fields = {
        **QWEN3_NEXT_MOE, "rms_norm_eps": 1e-6,
        "architectures": [f"{family}ForCausalLM"], "model_type": model_type,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": heads, "linear_key_head_dim": key, "linear_value_head_dim": value,
        "linear_conv_kernel_dim": shape.get("kernel", 4),
    }  # fmt: skip
    config = read_config(write_config(folder, fields))
    if shape.get("tiled"):
        names = replace(config.family.names, delta_tiled=True)
        config = replace(config, family=replace(config.family, names=names))
    layer = filled(GatedDelta(config, config.layers[0], torch.float32, torch.device("cpu")))
    assert isinstance(layer, GatedDelta)
    return layer


def convolution(folder: Path, kernel: int, bias: bool, hidden: int = 76) -> ShortConvolution:
    fields = {
        **LFM2, "norm_eps": 1e-5, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "conv_L_cache": kernel,
        "conv_bias": bias,
        "hidden_size": hidden,
    }  # fmt: skip
    config = read_config(write_config(folder, fields))
    layer = filled(ShortConvolution(config, config.layers[0], torch.float32, torch.device("cpu")))
    assert isinstance(layer, ShortConvolution)
    return layer


def cache_for(layer: Sublayer) -> StateCache:
    """Slots of numbers that no state has."""
    memory = layer.memory()
    assert isinstance(memory, LayerState)
    spec = StateSpec(1, memory.shape, torch.device("cpu"))
    cache = StateCache(spec, StateLayout(spec.bytes_per_slot(), SLOTS, 1))
    cache.layers[0].fill_(torch.nan)
    return cache


def step_of(
    cache: StateCache, lengths: list[int], begins: list[int], slots: list[tuple[int, int]],
    snapshots: list[tuple[int, int, int]] = [],  # noqa: B006
) -> SlotStates:  # fmt: skip
    """Items with (source, destination), and (item, position, slot) of snapshots."""
    counts, offsets = np.array(lengths), np.array(begins)
    arrays = StepArrays(
        np.zeros(sum(lengths), np.int64), counts, offsets, np.zeros((len(lengths), 1), np.int32)
    )
    sources, destinations = np.array(slots, np.int64).T
    arrays.states = StateSlots(sources, destinations, np.array(snapshots, np.int64).reshape(-1, 3))
    return cache.step(arrays)


def forward(layer: Sublayer, x: torch.Tensor, states: SlotStates) -> torch.Tensor:
    ids = torch.zeros(len(x), dtype=torch.int64)

    def attend(*arguments: object) -> torch.Tensor:
        raise AssertionError("a layer with a state attends to nothing")

    return layer.forward(x, LayerStep(ForwardInput(ids, ids, attend, states=states), [], Share()))


def compare_with_torch(layer: Any, isa: str) -> None:
    """Two steps: items that begin, of which one keeps states at inner places, then items that go on, in place and elsewhere."""
    noise, hidden = torch.Generator().manual_seed(1), layer.inward.weight.shape[1]
    first, second = (torch.randn(sum(LENGTHS), hidden, generator=noise) for _ in range(2))
    found = []
    for kernels in (None, cpu_kernels(isa)):
        layer.by_kernels = None
        if kernels is not None:
            layer.use_kernels(kernels)
            assert layer.by_kernels is not None
        cache = cache_for(layer)
        begun = step_of(
            cache, LENGTHS, [0] * 4, [(-1, 3), (-1, 0), (-1, 7), (-1, 1)], [(2, 29, 9), (1, 1, 10), (2, 2, 8)]
        )
        out = [forward(layer, first, begun)]
        slots = [(3, 3), (9, 4), (8, 5), (7, 7)]
        lengths = [30, 1, 3, 7]
        out.append(forward(layer, second, step_of(cache, lengths, [1, 29, 2, 30], slots, [(0, 2, 11)])))
        found.append((*out, cache.layers[0]))
    written = [0, 1, 3, 4, 5, 7, 8, 9, 10, 11]
    (*expected, states), (*got, by_kernels) = found
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(by_kernels[written], states[written], rtol=1e-5, atol=1e-5)
    assert by_kernels[[2, 6]].isnan().all(), "a slot that no item has was written"
    assert all(float(one.abs().max()) > 0.1 for one in (*expected, states[written]))


@every_isa
@every_delta
def test_the_delta_rule_is_torchs(tmp_path: Path, isa: str, name: str) -> None:
    compare_with_torch(delta(tmp_path, name), isa)


@every_isa
@pytest.mark.parametrize(("kernel", "bias"), [(3, False), (4, True), (5, True), (2, False)])
def test_short_convolutions_are_torchs(tmp_path: Path, isa: str, kernel: int, bias: bool) -> None:
    compare_with_torch(convolution(tmp_path, kernel, bias), isa)


def whole_and_cut(layer: Any, rows: tuple[torch.Tensor, ...]) -> None:
    """`rows`: what the projections made of a sequence. Whole, beside others, cut, and token by token."""
    count, cache = len(rows[0]), cache_for(layer)

    def run(
        cuts: list[int],
        slots: tuple[int, int],
        others: list[int],
        threads: int,
        snapshots: list[tuple[int, int]],
    ) -> tuple[torch.Tensor, ...]:
        """In steps of these many tokens, between two slots in turn; `others`: items of as many rows, before and behind."""
        torch.set_num_threads(threads)
        cache.layers[0].fill_(torch.nan)
        out, begin, source = [], 0, -1
        for number, size in enumerate(cuts):
            to = slots[number % 2]
            lengths = [*others[:1], size, *others[1:]]
            at, begins = len(others[:1]), [0] * len(lengths)
            begins[at] = begin
            places = [(-1, 8 + i) for i in range(len(lengths))]
            places[at] = source, to
            kept = [(at, place, slot) for place, slot in snapshots if begin < place < begin + size]
            states = step_of(cache, lengths, begins, places, kept)
            before = sum(others[:1])
            mine = slice(before, before + size)
            stacked = [torch.randn(sum(lengths), part.shape[1]) for part in rows]
            for part, whole in zip(stacked, rows, strict=True):
                part[mine] = whole[begin : begin + size]
            made = layer.by_kernels(*stacked, states.slots, 0, torch.float32)
            out.append(made[mine])
            begin, source = begin + size, to
        states_at = [cache.layers[0][slot].clone() for _, slot in snapshots]
        return torch.cat(out), cache.layers[0][source].clone(), *states_at

    whole = run([count], (0, 1), [], 1, [(7, 4), (16, 5)])
    assert all(part.isfinite().all() for part in whole)
    for cuts, others, threads in (
        ([count], [], 2), ([count], [3, 50, 1], 2), ([1] * count, [], 1), ([5, 1, 20, count - 26], [1, 2], 2),
        ([count - 1, 1], [40], 1),
    ):  # fmt: skip
        for slots in ((0, 0), (0, 1)):
            found = run(cuts, slots, others, threads, [])
            assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=False)), (
                cuts,
                slots,
            )
    # A state at an inner place is the one behind a step that ends there.
    for place, kept in ((7, whole[2]), (16, whole[3])):
        short = run([place], (0, 0), [], 1, []) if place < count else None
        assert short is not None and torch.equal(short[1], kept)


@sweep(every=3)
@every_isa
@every_delta
def test_the_delta_rule_has_the_same_bits_in_every_step(tmp_path: Path, isa: str, name: str) -> None:
    layer = delta(tmp_path, name)
    layer.use_kernels(cpu_kernels(isa))
    x = torch.randn(40, 48, generator=torch.Generator().manual_seed(2))
    whole_and_cut(layer, (layer.inward(x), layer.rates(x)))


@every_isa
@pytest.mark.parametrize("kernel", [3, 4, 5])
def test_short_convolutions_have_the_same_bits_in_every_step(tmp_path: Path, isa: str, kernel: int) -> None:
    layer = convolution(tmp_path, kernel, True)
    layer.use_kernels(cpu_kernels(isa))
    x = torch.randn(40, 76, generator=torch.Generator().manual_seed(2))
    whole_and_cut(layer, (layer.inward(x),))


@every_isa
def test_results_are_rounded_once(tmp_path: Path, isa: str) -> None:
    layer = delta(tmp_path, "odd")
    layer.use_kernels(cpu_kernels(isa))
    assert layer.by_kernels is not None
    x = torch.randn(9, 48, generator=torch.Generator().manual_seed(2))
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        states = step_of(cache_for(layer), [9], [0], [(-1, 0)])
        found.append(layer.by_kernels(layer.inward(x), layer.rates(x), states.slots, 0, dtype))
    assert torch.equal(found[1], found[0].bfloat16()) and torch.equal(found[2], found[0].half())


def test_sizes_that_the_kernels_do_not_have_are_torchs(tmp_path: Path) -> None:
    """A kernel of 17 and keys of 257."""
    kernels: Any = object()  # which is not touched
    layer = convolution(tmp_path / "kernel", 17, False)
    layer.use_kernels(kernels)
    assert layer.by_kernels is None
    DELTAS["too-wide"] = {"heads": (1, 1), "sizes": (257, 8)}
    try:
        wide = delta(tmp_path / "keys", "too-wide")
    finally:
        del DELTAS["too-wide"]
    wide.use_kernels(kernels)
    assert wide.by_kernels is None
