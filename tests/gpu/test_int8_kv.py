"""Keys and values in int8 on a device: what the kernels write is what torch rounds to, and what they read is the formula's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract import ConfigError
from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.kernels.triton import decode_attention as decode_module
from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention
from executors.kernels.triton.extend_attention import extend_attention, query_tiles, rows_per_tile
from executors.kernels.triton.int8_kv import factors
from executors.kernels.triton.rotary import rotate_and_store
from executors.kernels.triton.tuning import choose, kind_of, trying
from executors.llm.attention.check import fault
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.attention.triton_attention import TritonAttention, supports
from executors.llm.checkpoint import loader
from executors.llm.executor import LlmExecutor
from executors.llm.memory import int8_kv
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.fp8 import narrowed
from tests.executors.checkpoints import write_checkpoint
from tests.executors.kernels.steps import spec
from tests.executors.llm.checkpoint.test_fp8_weights import SMALL, chunk, distance
from tests.executors.llm.driver import config
from tests.gpu.test_attention import DEVICE, DTYPES, Batch, check, fresh
from tests.gpu.test_shared_extend import Shared, cut_at_random

HEADS = [
    ((4, 2), 64, None, None, 16, False), ((2, 1), 80, 20, 30.0, 32, False), ((16, 2), 64, 128, None, 16, True),
]  # fmt: skip
"""Query and key heads, their size, window, softcap, tokens of a page, sinks."""


def rounded(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch's cache in int8, as codes and peaks; its keys and values become what that holds. Cells that hold no key of the
    batch have peaks that are no number."""
    for kept in (batch.keys, batch.values):
        for i, exact in enumerate(kept):
            codes, peaks = int8_kv.narrowed(exact)
            kept[i] = codes.double() * peaks.double()[..., None] / 127
    _, pages, heads, page, dim = batch.kv.shape
    layer = torch.empty(2, pages, heads, page * (dim + 4), dtype=torch.int8)
    codes, peaks = int8_kv.views(layer, page, dim)
    codes[:], peaks[:] = int8_kv.narrowed(batch.kv)
    assert peaks.isnan().any(), "cells that nothing may read"
    return int8_kv.views(layer.to(DEVICE), page, dim)


def decoded(
    batch: Batch, out: torch.Tensor, items: list[int], window: int | None, softcap: float | None
) -> None:
    """Decode attention of these items over int8, their keys in three pieces."""
    kv, peaks = rounded(batch)
    chosen = np.array(items)
    pieces = PieceRule(1, 32, count=3).cut(batch.lengths[chosen])
    heads = batch.heads, batch.kv_heads
    decode_attention(
        batch.q.to(DEVICE), kv, out, batch.on_device(batch.tables), batch.on_device(batch.lengths), batch.dim**-0.5,
        batch.on_device(pieces), DecodeWorkspace(len(pieces), *heads, batch.dim, DEVICE), window=window, softcap=softcap,
        items=batch.on_device(np.stack((chosen, batch.starts[chosen]), 1)), sinks=batch.sinks_there, peaks=peaks,
    )  # fmt: skip


@pytest.mark.long(every=2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "dim", "window", "softcap", "page", "sinks"), HEADS)
def test_attention_over_int8_kv(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, window: int | None, softcap: float | None, page: int, sinks: bool
) -> None:  # fmt: skip
    """Both kernels, against float64 softmax over keys and values rounded to int8."""
    batch = Batch([1, 30, 1, 5], [40, 3, 130, 0], heads, dim, page, dtype, dim, sinks)
    out, group = fresh(batch), heads[0] // heads[1]
    decoded(batch, out, [0, 2], window, softcap)
    kv, peaks = rounded(batch)
    tiles = query_tiles(batch.q_lens, batch.past, np.array([1, 3]), rows_per_tile(group, dim, dtype) // group)
    extend_attention(
        batch.q.to(DEVICE), kv, out, batch.on_device(tiles), batch.on_device(batch.starts), batch.on_device(batch.q_lens),
        batch.on_device(batch.past), batch.on_device(batch.tables), dim**-0.5, window=window, softcap=softcap,
        sinks=batch.sinks_there, peaks=peaks,
    )  # fmt: skip
    check(out, batch.expected(window, softcap), dtype)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("stored", ["e4m3", "int8"])
@pytest.mark.parametrize(("tile", "widened"), [(64, 0), (128, 0), (64, 1), (128, 1)])
def test_forms_of_decode_attention_over_8_bits(stored: str, tile: int, widened: int) -> None:
    """Those that a GPU run can choose: pieces that end within a tile, begin behind one and are shorter than one."""
    dtype = torch.float16
    batch = Batch([1, 1, 1, 1], [0, 127, 128, 300], (4, 2), 32, 16, dtype, tile)
    kv, peaks = in_e4m3(batch, (0.02, 0.5)) if stored == "e4m3" else rounded(batch)
    pieces = cut_at_random(batch.lengths, 3, np.random.default_rng(tile))
    out = fresh(batch)
    key = "decode_attention", kind_of(dtype, kv.dtype), 32
    with trying({key: replace(choose(*key), depth=tile, widened=widened)}):
        decode_attention(
            batch.q.to(DEVICE), kv, out, batch.on_device(batch.tables), batch.on_device(batch.lengths), 32**-0.5,
            batch.on_device(pieces), DecodeWorkspace(len(pieces), 4, 2, 32, DEVICE), peaks=peaks,
            kv_scales=(0.02, 0.5) if stored == "e4m3" else (1.0, 1.0),
        )  # fmt: skip
    check(out, batch.expected(None, None), dtype)


def in_e4m3(batch: Batch, scales: tuple[float, float]) -> tuple[torch.Tensor, None]:
    """As `rounded`, in e4m3."""
    for kept, scale in zip((batch.keys, batch.values), scales, strict=True):
        for i, exact in enumerate(kept):
            kept[i] = narrowed(exact, scale).double() * scale
    factors = torch.tensor(scales).view(2, 1, 1, 1, 1)
    return (batch.kv.float() / factors).to(torch.float8_e4m3fn).to(DEVICE), None


@pytest.mark.long
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_shared_keys_in_int8(softcap: float | None) -> None:
    """In pieces that are cut anywhere: loops with and without masks."""
    batch = Batch([30, 5], [40, 300], (2, 1), 80, 16, torch.float32, 80)
    kv, peaks = rounded(batch)
    shared = Shared(batch, np.arange(2))
    pieces = cut_at_random(shared.keys, 4, np.random.default_rng(3))
    found = shared.attend(pieces, 50, softcap, kv=kv, peaks=peaks)
    check(found, batch.expected(50, softcap), torch.float32)


# Peaks of cells that nothing was written to are any numbers.
@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:overflow encountered")
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda keys, values, *rest: (values, keys, *rest), id="peaks of the other side"),
        pytest.param(lambda keys, values, *rest: (keys[1:], values, *rest), id="peaks of the page behind"),
        pytest.param(lambda keys, values, *rest: (keys, values[:, 1:], *rest), id="peaks of the head behind"),
        pytest.param(
            lambda keys, values, key, value: (keys, values, key, value * 127), id="no step of a code"
        ),
    ],
)
def test_peaks_of_others_are_noticed(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch([1, 1], [40, 70], (4, 2), 32, 16, torch.float32, 32)
    # Each token and head of its own size: equal ones would hide a mistake.
    for kept in (batch.keys, batch.values):
        for exact in kept:
            exact *= torch.logspace(-1, 0, exact[..., 0].numel()).view(*exact.shape[:2], 1)
    for i, count in enumerate(batch.lengths):
        places = np.arange(count)
        pages = batch.tables[i, places // 16]
        for side, kept in enumerate((batch.keys, batch.values)):
            batch.kv[side, pages, :, places % 16] = kept[i].float()
    out = fresh(batch)
    decoded(batch, out, [0, 1], None, None)
    check(out, batch.expected(None, None), torch.float32)
    monkeypatch.setattr(decode_module, "factors", lambda *given: wrong(*factors(*given)))
    decoded(batch, out, [0, 1], None, None)
    with pytest.raises(AssertionError):
        check(out, batch.expected(None, None), torch.float32)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page"),
    [(4, 2, 64, 16), (16, 8, 128, 32), (4, 1, 80, 16), (20, 1, 512, 16), (3, 2, 384, 16), (2, 1, 258, 16)],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:All-NaN slice encountered")
def test_keys_and_values_are_stored_in_int8(heads: int, kv_heads: int, dim: int, page: int) -> None:
    """Heads of zeros, of numbers that are too small and of numbers that are not finite among them, and a row without a cell."""
    torch.manual_seed(2)
    tokens = 9
    qkv = torch.randn(tokens, (heads + 2 * kv_heads), dim) * torch.logspace(-3, 3, tokens)[:, None, None]
    qkv[2, -1], qkv[3, -1], qkv[4, -1, 5], qkv[5, heads, 7] = 0.0, 1e-32, torch.inf, torch.nan
    layer = torch.full((2, 3, kv_heads, page * (dim + 4)), -1, dtype=torch.int8, device=DEVICE)
    kv, peaks = int8_kv.views(layer, page, dim)
    cells = torch.randperm(3 * page)[:tokens].to(torch.int32)
    cells[-1] = -1
    q = rotate_and_store(qkv.flatten(1).to(DEVICE), kv, cells.to(DEVICE), heads, peaks=peaks)
    precise = 1e-2 if DEVICE.type == "cuda" else 1e-5  # a GPU multiplies with fewer bits
    assert distance(q.cpu(), int8_kv.turned(qkv[:, :heads])) < precise
    kept = cells[:-1].long()
    for side, first in ((0, heads), (1, heads + kv_heads)):
        exact = qkv[:-1, first : first + kv_heads]
        codes, expected = int8_kv.narrowed(exact if side else int8_kv.turned(exact))
        stored = kv[side].cpu().transpose(1, 2).reshape(3 * page, kv_heads, dim)
        theirs = peaks[side].cpu().transpose(1, 2).reshape(3 * page, kv_heads)
        finite = expected.isfinite()
        assert torch.equal(finite, theirs[kept].isfinite())
        torch.testing.assert_close(theirs[kept][finite], expected[finite], rtol=precise, atol=0)
        # Sums in another order, and a GPU's quotients: a number between two codes goes either way.
        far = (stored[kept].int() - codes.int())[finite].abs()
        assert far.max() <= 1 and far.float().mean() < 1000 * precise / 127
        stored[kept], theirs[kept] = -1, torch.nan
        assert (stored == -1).all() and theirs.isnan().all(), "other cells are as they were"


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(12, 2, 512), (2, 1, 384)])
@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("rotated", [1.0, 0.25])
@pytest.mark.parametrize("normed", ["none", "norm", "plus one", "last"])
def test_wide_heads_are_turned_behind_rotation(
    heads: int, kv_heads: int, dim: int, neighbours: bool, rotated: float, normed: str
) -> None:
    """Of more than 256 numbers: what the kernel for heads that take an ordinary cache gives, turned."""
    torch.manual_seed(5)
    tokens, page = 3, 16
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=DEVICE)
    half, positions = int(rotated * dim / 2), torch.tensor([7, 0, 49], device=DEVICE)
    angles = torch.rand(50, half, device=DEVICE) * 6.3
    how = {
        "positions": positions, "table": torch.stack((angles.cos(), angles.sin()), 1), "eps": 1e-6, "neighbours": neighbours,
        "norms": None if normed == "none" else torch.randn(heads + kv_heads, dim, device=DEVICE),
        "plus_one": normed == "plus one", "norm_last": normed == "last", "query_factors": torch.rand(50, device=DEVICE) + 0.5,
    }  # fmt: skip
    cells = torch.tensor([3, 9, 1], dtype=torch.int32, device=DEVICE)
    plain = torch.zeros(2, 1, kv_heads, page, dim, device=DEVICE)
    expected = rotate_and_store(qkv, plain, cells, heads, **how)
    layer = torch.zeros(2, 1, kv_heads, page * (dim + 4), dtype=torch.int8, device=DEVICE)
    kv, peaks = int8_kv.views(layer, page, dim)
    found = rotate_and_store(qkv, kv, cells, heads, peaks=peaks, **how)
    assert distance(found, int8_kv.turned(expected)) < 1e-5
    plain[0] = int8_kv.turned(plain[0])
    at = (0, slice(None), cells.long())
    for side in (0, 1):
        codes, largest = int8_kv.narrowed(plain[side][at])
        assert (kv[side][at].int() - codes.int()).abs().max() <= 1
        torch.testing.assert_close(peaks[side][at], largest, rtol=1e-5, atol=0)


def test_turning_keeps_scores_and_spreads_a_large_channel() -> None:
    """Blocks of 16 in a head of 80, of 64 in one of 64; a head that has one large channel loses fewer bits turned."""
    for dim in (80, 64, 256):
        q, k = torch.randn(3, 2, dim), torch.randn(3, 2, dim)
        k[..., 5] *= 40
        scores = (q * k).sum(-1)
        torch.testing.assert_close(
            (int8_kv.turned(q) * int8_kv.turned(k)).sum(-1), scores, rtol=1e-4, atol=1e-3
        )
        torch.testing.assert_close(int8_kv.turned(int8_kv.turned(k)), k, rtol=1e-4, atol=1e-4)
        plain = int8_kv.widened(*int8_kv.narrowed(k))
        spread = int8_kv.turned(int8_kv.widened(*int8_kv.narrowed(int8_kv.turned(k))))
        assert (spread - k).norm() < 0.5 * (plain - k).norm()


def test_what_is_read_is_close_to_what_was_written() -> None:
    x = torch.randn(5, 3, 64) * torch.logspace(-20, 20, 5)[:, None, None]
    codes, peaks = int8_kv.narrowed(x)
    assert codes.abs().amax(-1).eq(127).all()
    far = (int8_kv.widened(codes, peaks) - x).abs()
    assert (far <= x.abs().amax(-1, keepdim=True) / 253).all()
    assert int8_kv.narrowed(torch.tensor([[1.0, torch.nan]]))[1].isnan().all()


@pytest.mark.parametrize("device_layout", [False, True])
def test_blocks_hold_codes_and_peaks_apart(device_layout: bool) -> None:
    """No number of a block, head or side lies where another does, and copies take peaks along."""
    model = spec(4, 2, 24, torch.float16, kv_dtype=torch.int8)
    cache = KvCache(model, 3, 16, by_block=not device_layout)
    codes, peaks = cache.parts(0)
    assert peaks is not None and codes.shape == (2, 3, 2, 16, 24) and peaks.shape == (2, 3, 2, 16)
    count = torch.arange(peaks.numel(), dtype=torch.float32).view(peaks.shape)
    codes[:] = (count % 100).to(torch.int8)[..., None]
    peaks[:] = count
    assert torch.equal(peaks, count) and torch.equal(
        codes, (count % 100).to(torch.int8)[..., None].expand(codes.shape)
    )
    cache.copy_blocks(np.array([[0, 2]], np.int32))
    assert torch.equal(peaks[:, 2], count[:, 0]) and torch.equal(peaks[:, 1], count[:, 1])
    assert torch.equal(codes[:, 2], codes[:, 0])


def test_codes_without_peaks_are_refused() -> None:
    codes, peaks = int8_kv.views(torch.zeros(2, 3, 2, 16 * 36, dtype=torch.int8), 16, 32)
    with pytest.raises(ValueError, match="have peaks"):
        factors(codes, None, (1.0, 1.0))
    with pytest.raises(ValueError, match="no others do"):
        factors(codes.half(), peaks, (1.0, 1.0))
    with pytest.raises(ValueError, match="memory of their codes"):
        factors(codes, peaks.contiguous(), (1.0, 1.0))


@pytest.mark.long(every=2)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp", "ignore:invalid value encountered")
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("changes", [{}, {"windows": (30,), "softcap": 20.0}])
def test_the_check_at_the_start(
    backend: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in chunks beside decodes, over a cache whose other cells are NaN."""
    from executors.llm.attention import check as check_module

    if DEVICE.type == "cpu":
        monkeypatch.setattr(check_module, "PAST", (30, 0, 5, 60, 130))
        monkeypatch.setattr(check_module, "CHUNKS", (1, 9, 1, 20, 3))
    model = replace(spec(4, 2, 16, torch.float16, kv_dtype=torch.int8, **changes), device=DEVICE)
    assert fault(TorchAttention() if backend == "torch" else TritonAttention(model), model, 16) is None


def test_odd_heads_are_not_for_devices() -> None:
    odd = spec(4, 2, 33, torch.float16, kv_dtype=torch.int8)
    assert not supports(odd) and supports(replace(odd, kv_dtype=None))
    loader.refuse_unreadable_kv(odd)  # Cohort's CPU kernels have codes in pairs
    for part, backend in ((replace(odd, device=torch.device("cuda:0")), "auto"), (odd, "torch")):
        with pytest.raises(ConfigError, match="kv_cache_dtype int8: heads of 33 numbers"):
            loader.refuse_unreadable_kv(part, backend)


async def _logits(path: Path, backend: str, device: str, kv: str, **changes: Any) -> torch.Tensor:
    """Of a prompt in two chunks, and a decode step."""
    executor = LlmExecutor.from_config(
        replace(
            config(path, device=device), attention=ExecutorAttentionConfig(block_size=16, backend=backend),
            memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 21, kv_cache_dtype=kv), **changes,
        )
    )  # fmt: skip
    await executor.warmup()
    await executor.begin_epoch(1)
    if kv == "int8":
        assert "KV in int8, a scale per head and token" in " ".join(executor.status().notes)
    prompt, parts = [5, 9, 100, 3, 17, 20, 33, 8, 150], []
    for begin, end in ((0, 5), (5, 8), (8, 9)):
        output = await executor.prefill(chunk(prompt[begin:end], begin, [2, 0]))
        assert output.logits is not None
        parts.append(torch.from_numpy(output.logits.numpy().copy()).view(end - begin, -1))
    await executor.shutdown()
    return torch.cat(parts).float()


@pytest.mark.long(extended=True)
async def test_a_model_over_int8_kv_is_the_same_by_each_backend(tmp_path: Path) -> None:
    """By torch and by Triton, which round alike: what is left is far below int8's own error. The CPU kernels round keys as they
    are, so that both errors lie between theirs and torch's."""
    path = write_checkpoint(tmp_path / "model", {**SMALL, "num_hidden_layers": 1})
    wide = await _logits(path, "torch", "cpu", "auto")
    by_torch = await _logits(path, "torch", "cpu", "int8")
    by_triton = await _logits(path, "triton", DEVICE.type, "int8")
    by_cpu = await _logits(path, "auto", "cpu", "int8")
    own = distance(by_torch, wide)
    assert 1e-4 < own < 0.03
    assert distance(by_triton, by_torch) < (0.02 if DEVICE.type == "cuda" else own / 5)
    assert distance(by_cpu, by_torch) < 2 * own


def test_deterministic_steps_on_a_cpu_keep_to_its_own_kernels(tmp_path: Path) -> None:
    asked = replace(
        config(tmp_path), attention=ExecutorAttentionConfig(16, "torch"),
        memory=ExecutorMemoryConfig(kv_cache_dtype="int8"), optimization=OptimizationConfig(deterministic=True),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="kv_cache_dtype int8: not supported with deterministic"):
        loader.kv_dtype(asked, torch.device("cpu"))
