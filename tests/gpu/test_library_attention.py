"""A library's attention in the executor: what it is handed, in steps the host sends and in those found on the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

import executors.llm.assembly.parts
from executors.llm.attention.check import Problem
from executors.llm.attention.library import LibraryAttention, PackedLibraryAttention, PagedMeta, over, pack
from executors.llm.attention.packed import PackedAttention, PagedAttend, StepMeta
from executors.llm.executor import LlmExecutor
from executors.llm.fused.triton_forward import TritonForward
from executors.llm.kernel_support.kernel_choice import MAKERS, choose_attention
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from tests.executors.checkpoints import write_checkpoint
from tests.executors.kernels.steps import Sequences
from tests.executors.llm.driver import config
from tests.gpu.attention_fakes import flash_3, paged, pretend
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.test_backends import CPU, DEVICE, FP16, MODEL
from tests.gpu.test_executor import SMALL, heard
from tests.gpu.workloads import PLAIN, Maker, play

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]


def test_packed_parts_keep_their_shapes() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 1 << 30, shape) for shape in ((3,), (0,), (2, 5), (4,), (0, 3), (1,))]
    found = pack(parts, CPU)
    assert all(one.data_ptr() % 16 == found[0].data_ptr() % 16 for one in found if one.numel())
    for part, one in zip(parts, found, strict=True):
        assert one.dtype == torch.int32 and np.array_equal(one.numpy(), part)


@pytest.mark.parametrize("decodes_alone", [True, False])
def test_a_step_found_on_the_device_is_the_same_step(
    decodes_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As graphs hand it over: padded, wider tables, more rows than tokens; padding must not be written anywhere."""
    pretend(monkeypatch, flash_3())
    backend = choose_attention(MODEL)
    assert isinstance(backend, PackedLibraryAttention) and isinstance(backend, PackedAttention)
    past = [40, 17, 3]
    counts = [1, 1, 1] if decodes_alone else [1, 9, 4]
    problem = Problem(MODEL, 16, past, counts)
    rows = sum(counts)
    q, k, v = (
        torch.cat(
            [getattr(item, side)[p : p + n] for item, p, n in zip(problem.items, past, counts, strict=True)]
        )
        for side in "qkv"
    )
    padding = 2
    tables = torch.from_numpy(np.pad(problem.tables, ((0, padding), (0, 3)))).to(DEVICE)
    cells = torch.tensor(
        [
            int(problem.tables[i, place // 16]) * 16 + place % 16
            for i, (p, n) in enumerate(zip(past, counts, strict=True))
            for place in range(p, p + n)
        ]
        + [-1] * padding,
        dtype=torch.int32,
        device=DEVICE,
    )
    int32 = lambda values: torch.tensor(values + [0] * padding, dtype=torch.int32, device=DEVICE)  # noqa: E731
    singles = torch.tensor([[0, 0], [4, rows]], dtype=torch.int32, device=DEVICE)
    chunks = np.array([] if decodes_alone else [1, 2], np.int64)
    tiles = backend.tiles(np.array(counts), np.array(past), chunks)
    meta = StepMeta(
        cells, int32(np.cumsum([0, *counts])[:3].tolist()), int32(counts), int32(past),
        int32((np.array(past) + counts).tolist()), tables, torch.from_numpy(tiles).to(DEVICE), None if decodes_alone else singles,
        5 if decodes_alone else 2, torch.from_numpy(backend.pieces(np.array(past) + 1)).to(DEVICE),
        torch.from_numpy(backend.tile_pieces(tiles, np.array(counts), np.array(past))).to(DEVICE),
    )  # fmt: skip
    assert backend.most_pieces(5, 100) == backend.most_tile_pieces(5, 100) == 0
    backend.reserve(0, 0, problem.cache)
    attend = backend.bind(meta, problem.cache)
    assert isinstance(attend, PagedAttend)
    before = problem.cache.layers[0].clone()
    pad = lambda x: torch.cat((x, torch.full((padding, *x.shape[1:]), 7.0, dtype=FP16, device=DEVICE)))  # noqa: E731
    found = attend(0, pad(q), pad(k), pad(v))[:rows].float()
    wanted = torch.cat(
        [problem._expected(i, p, p + n, None) for i, (p, n) in enumerate(zip(past, counts, strict=True))]
    )
    assert (found - wanted).norm() / wanted.norm() < 2e-3
    changed = ~(before.nan_to_num(99.0) == problem.cache.layers[0].nan_to_num(99.0)).all(-1)
    assert int(changed.sum()) == 2 * rows * MODEL.num_kv_heads
    assert not (problem.cache.layers[0] == 7.0).any()


async def test_a_model_over_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fused forward writes keys and values where the library looks for them; the status names it."""
    window = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}
    path = write_checkpoint(tmp_path / "model", {**SMALL, "num_hidden_layers": 1, "head_dim": 16, **window})
    expected, _ = await heard(path, "torch", "cpu")
    pretend(monkeypatch, flash_3())
    found, executor = await heard(path, "flash-attn", DEVICE.type, block_size=8, dtype="float16", eager=True)
    loaded = executor._ready()
    assert isinstance(loaded.runner.attention, LibraryAttention)
    assert isinstance(loaded.runner.model._fused, TritonForward)
    assert executor.status().notes[0] == "attention: flash-attn 3"
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=2e-2)


def test_without_triton_a_library_writes_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, flash_3())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = replace(MODEL, device=CPU)
    backend = choose_attention(model)
    assert type(backend) is LibraryAttention and not isinstance(backend, PackedAttention)
    seqs = Sequences(model, [30, 20])
    cache: KvCache = seqs.cache([10, 19])
    items = [(0, 10, 20), (1, 19, 1)]
    assert torch.allclose(seqs.run(items, backend, cache).float(), seqs.expected(items), atol=2e-3)  # type: ignore[arg-type]


class Plain:
    """A library's kernel that takes float32 too. As all that is captured, it asks for no value before it runs."""

    name = "plain"

    def __call__(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, meta: PagedMeta, spec: KvSpec, window: int | None
    ) -> torch.Tensor:  # fmt: skip
        for one in (meta.q_bounds, meta.k_bounds, meta.lengths, meta.tables, keys, values):
            one[:0]  # where it lies is part of what is captured
        out = torch.empty_like(q)
        with _disable_current_modes():
            bounds, lengths = meta.q_bounds.tolist(), meta.lengths.tolist()
            out.copy_(paged(q, keys, values, bounds, lengths, meta.tables, spec.scale, (-1, 0), 0.0))
        return out


MAKERS["plain"] = lambda wish: over("plain", Plain())


class Executor(FakeDeviceExecutor):
    order = ("plain",)


if DEVICE.type == "cpu":  # with a GPU kernels are not interpreted, and the fake device is a CPU

    async def test_packed_steps_over_a_library_give_what_the_host_gives(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By graphs, and one by one where there is none; two steps out."""
        monkeypatch.setattr(executors.llm.assembly.parts, "fuse", lambda attention, model, checks: None)
        monkeypatch.setattr("executors.llm.step.launched.graphs.MIXED_TOKENS", (16,))
        path = write_checkpoint(tmp_path / "model", {**SMALL, "num_hidden_layers": 1})
        settings = config(path, max_num_seqs=8)
        ours, theirs = Executor.from_config(settings), LlmExecutor.from_config(settings)
        device = ours.device = FakeDevice()
        for executor in (ours, theirs):
            await executor.warmup()
            await executor.begin_epoch(1)
        ours._idle.stop()
        while ours.unified.capture_next():
            pass
        ops = Maker(theirs, 5, PLAIN).make(12, 4)
        found, expected = await play(ours, ops, 2), await play(theirs, ops)
        assert len(expected) > 3
        assert {seq: [token for token, _ in one] for seq, one in found.items()} == {
            seq: [token for token, _ in one] for seq, one in expected.items()
        }
        assert 5 < device.replays // 2 < len(ops)
