"""FP8 kernels: rounding to e4m3, products of blocks, and KV in e4m3, each against torch on the same rounded numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig
from executors.kernels.triton.activation import KINDS, gated
from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention
from executors.kernels.triton.extend_attention import extend_attention, query_tiles, rows_per_tile
from executors.kernels.triton.fp8 import SHARING, block_gated, block_matmul, quantize, tile_of, to_e4m3
from executors.kernels.triton.rotary import rotate_and_store
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.executor import LlmExecutor
from executors.llm.model import fp8
from executors.llm.model.config import parse_config
from executors.llm.model.fp8 import E4M3, Fp8Weight, quantized
from executors.llm.model.layers.mlp import Mlp
from executors.llm.model.linear import Linear
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.checkpoint.test_fp8_weights import SMALL, chunk, distance, write_fp8
from tests.executors.llm.driver import config
from tests.gpu.test_attention import Batch, check, fresh
from tests.gpu.test_few_rows import wide_narrow_tiles  # noqa: F401  # a fixture
from tests.gpu.test_shared_extend import Shared, cut_at_random
from tests.tiers import sweep

pytestmark = pytest.mark.long
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]


@triton.jit
def _round_kernel(x, out, COUNT: tl.constexpr):
    at = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    tl.store(out + at, to_e4m3(tl.load(x + at)))


def test_rounding_is_to_the_nearest_even_and_saturates() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
    every = every[torch.isfinite(every)]
    middles = (every[:126] + every[1:127]) / 2
    torch.manual_seed(0)
    spread = torch.randn(512) * torch.exp2(torch.randint(-12, 10, (512,)).float())
    x = torch.cat((every, middles, -middles, spread, torch.tensor([500.0, -1e9, 1e-30])))
    x = torch.cat((x, torch.zeros(-len(x) % 128)))
    out = torch.empty(len(x), dtype=E4M3, device=DEVICE)
    _round_kernel[(len(x) // 128,)](x.to(DEVICE), out, COUNT=128)
    assert torch.equal(out.cpu().float(), x.clamp(-448, 448).to(E4M3).float())


@pytest.mark.long(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns", "blocks"), [(3, 100, False), (2, 1024, False), (5, 384, True), (3, 200, True)]
)
def test_quantize(dtype: torch.dtype, rows: int, columns: int, blocks: bool) -> None:
    torch.manual_seed(columns)
    x = (torch.randn(rows, columns) * torch.rand(rows, 1).exp2()).to(dtype)
    x[0] = 0.0
    found, scales = quantize(x.to(DEVICE), blocks)
    expected, factors = quantized(x, blocks)
    torch.testing.assert_close(scales.cpu(), factors, rtol=1e-6, atol=0.0)
    # A division that rounds otherwise may move a number that lies between two.
    assert (found.cpu().float() != expected.float()).float().mean() < (
        0.01 if DEVICE.type == "cuda" else 1e-9
    )


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("rows", "outputs", "columns", "per_scale", "bias"),
    [
        (1, 128, 256, 128, False),
        (5, 96, 128, 32, True),
        (17, 100, 256, 32, True),  # tiles of 32 rows, to their last and with some left
        (32, 96, 256, 128, False),
        (40, 130, 200, 1, False),
        (70, 256, 384, 64, True),
    ],
)
def test_block_matmul(rows: int, outputs: int, columns: int, per_scale: int, bias: bool) -> None:
    torch.manual_seed(outputs)
    x, x_scales = quantized(torch.randn(rows, columns) * 3, True)
    weight = (torch.randn(outputs, columns) * 50).to(E4M3)
    scales = torch.rand(-(-outputs // per_scale), -(-columns // 128)) / 50
    added = torch.randn(outputs) if bias else None
    found = block_matmul(
        x.to(DEVICE), x_scales.to(DEVICE), weight.to(DEVICE), scales.to(DEVICE), per_scale, torch.float32,
        None if added is None else added.to(DEVICE),
    )  # fmt: skip
    wide = x.double() * x_scales.double().repeat_interleave(128, 1)[:, :columns]
    spread = scales.double().repeat_interleave(per_scale, 0)[:outputs].repeat_interleave(128, 1)[:, :columns]
    expected = wide @ (weight.double() * spread).T + (0.0 if added is None else added.double())
    error = (found.cpu().double() - expected).norm() / expected.norm()
    assert error < (1e-3 if DEVICE.type == "cuda" else 1e-6), float(error)


@pytest.mark.long(every=3)
@sweep(every=4)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("activation", sorted(KINDS))
@pytest.mark.parametrize(
    ("rows", "outputs", "columns", "per_scale", "bias"),
    [(1, 256, 256, 128, False), (5, 66, 128, 1, True), (33, 98, 200, 1, True), (70, 384, 130, 64, False)],
)
def test_the_activation_in_a_block_product(
    rows: int, outputs: int, columns: int, per_scale: int, bias: bool, activation: str
) -> None:
    """Its sums are those of the product alone: in float32 the results differ in their last bits at most, in bf16 they are rounded
    once in place of twice. 33 and 49 columns of a half: tiles that lie across its end."""
    torch.manual_seed(columns)
    x, x_scales = quantized(torch.randn(rows, columns) * 3, True)
    weight = (torch.randn(outputs, columns) * 50).to(E4M3)
    scales = torch.rand(-(-outputs // per_scale), -(-columns // 128)) / 500
    added = torch.randn(outputs).to(DEVICE) if bias else None
    given = (x.to(DEVICE), x_scales.to(DEVICE), weight.to(DEVICE), scales.to(DEVICE), per_scale)
    apart = gated(block_matmul(*given, torch.float32, added), activation)
    found = block_gated(*given, torch.float32, activation, added)
    assert found.shape == (rows, outputs // 2) and found.isfinite().all()
    # On a GPU a tile of other rows may be another instruction; interpreted it is another call of NumPy's BLAS, which chooses the
    # order of its sums by shape, processor and number of threads.
    torch.testing.assert_close(
        found,
        apart,
        rtol=1e-4 if DEVICE.type == "cuda" else 1e-5,
        atol=1e-5 if DEVICE.type == "cuda" else 1e-6,
    )
    narrow = block_gated(*given, torch.bfloat16, activation, added).float()
    assert (narrow - apart).norm() < 2**-7 * apart.norm()


@pytest.mark.parametrize("blocks", [True, False])
def test_only_scales_of_blocks_have_a_product_with_the_activation(blocks: bool) -> None:
    """Of scales per row the product is torch's, which knows none."""
    torch.manual_seed(3)
    ours, torchs = (Fp8Weight(96, 128, DEVICE, blocks, triton=triton) for triton in (True, False))
    weight, bias = torch.randn(96, 128, device=DEVICE), torch.randn(96, device=DEVICE)
    for one in (ours, torchs):
        one.fill(weight, 0)
    x = torch.randn(5, 128, device=DEVICE)
    assert torchs.gated(x, bias, "silu") is None
    found = ours.gated(x, bias, "silu")
    assert (found is not None) is blocks
    if found is not None:
        gate, up = torchs(x, bias).chunk(2, -1)
        assert distance(found, torch.nn.functional.silu(gate) * up) < 1e-2


@pytest.mark.parametrize("has_gate", [True, False])
def test_an_mlp_without_a_gate_is_computed_without_one(has_gate: bool) -> None:
    """Though its weight has a product with one."""
    torch.manual_seed(4)
    mlp = Mlp(parse_config({**SMALL, "hidden_size": 128}), 48, False, torch.float32, DEVICE)
    mlp.gated = has_gate
    mlp.gate_up.hold(Fp8Weight(96, 128, DEVICE, True, triton=True))
    mlp.down = Linear(128, 48 if has_gate else 96, False, torch.float32, DEVICE)
    for linear in mlp.linears:
        weight = torch.randn(linear.weight.shape, device=DEVICE)  # type: ignore[union-attr]
        linear.fill(weight, 0) if linear.given_up else linear.weight.copy_(weight)  # type: ignore[union-attr]
    x = torch.randn(3, 128, device=DEVICE)
    inner = mlp.gate_up(x)
    gate, up = inner.chunk(2, -1)
    silu = torch.nn.functional.silu
    assert distance(mlp(x), mlp.down(silu(gate) * up if has_gate else silu(inner))) < 1e-5


@triton.jit(do_not_specialize=["row_tiles"])
def _tiles_kernel(out, row_tiles, OUTPUT_TILES: tl.constexpr, SHARING: tl.constexpr):
    row, output = tile_of(tl.program_id(0), row_tiles, OUTPUT_TILES, SHARING)
    tl.store(out + 2 * tl.program_id(0), row)
    tl.store(out + 2 * tl.program_id(0) + 1, output)


@pytest.mark.parametrize("output_tiles", [1, 3, 10])
@pytest.mark.parametrize("row_tiles", [1, 2, 7, 8, 9, 16, 19])
def test_every_tile_is_one_programs_and_those_that_share_weights_are_neighbours(
    row_tiles: int, output_tiles: int
) -> None:
    out = torch.full((row_tiles * output_tiles, 2), -1, dtype=torch.int32, device=DEVICE)
    _tiles_kernel[(len(out),)](out, row_tiles, OUTPUT_TILES=output_tiles, SHARING=SHARING)
    tiles = [(row, output) for row, output in out.tolist()]
    assert sorted(tiles) == [(row, output) for row in range(row_tiles) for output in range(output_tiles)]
    # Eight of them, or what is left, go through all outputs before the next eight begin.
    assert tiles == sorted(tiles, key=lambda tile: (tile[0] // SHARING, tile[1], tile[0]))


def test_a_block_product_of_many_tiles() -> None:
    """More tiles of rows than go together, and no multiple of those."""
    torch.manual_seed(4)
    x, x_scales = quantized(torch.randn(9 * 128 + 5, 128), True)
    weight, scales = quantized(torch.randn(300, 128), True)
    found = block_matmul(
        x.to(DEVICE), x_scales.to(DEVICE), weight.to(DEVICE), scales.to(DEVICE), 1, torch.float32
    )
    expected = (x.double() * x_scales) @ (weight.double() * scales).T
    error = (found.cpu().double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < (1e-3 if DEVICE.type == "cuda" else 1e-6)


def test_a_row_of_a_block_product_does_not_depend_on_its_batch() -> None:
    """In numbers whose products within a group are exact: what is left to differ is how groups are scaled and added."""
    torch.manual_seed(1)
    x = torch.randint(-8, 9, (70, 512)).float().to(E4M3).to(DEVICE)
    weight = torch.randint(-8, 9, (64, 512)).float().to(E4M3).to(DEVICE)
    x_scales, scales = torch.rand(70, 4).to(DEVICE), torch.rand(1, 4).to(DEVICE)
    whole = block_matmul(x, x_scales, weight, scales, 64, torch.float32)
    for begin, end in ((0, 1), (8, 10), (30, 70)):
        part = block_matmul(x[begin:end], x_scales[begin:end], weight, scales, 64, torch.float32)
        assert torch.equal(part, whole[begin:end])


def rounded(batch: Batch, scales: tuple[float, float]) -> torch.Tensor:
    """The batch's cache in e4m3; its keys and values become what that holds."""
    for side, kept in enumerate((batch.keys, batch.values)):
        for i, exact in enumerate(kept):
            kept[i] = (exact / scales[side]).clamp(-448, 448).float().to(E4M3).double() * scales[side]
    factors = torch.tensor(scales).view(2, 1, 1, 1, 1)
    return (batch.kv.float() / factors).to(E4M3).to(DEVICE)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dim", "window", "softcap", "scales", "sinks"),
    [
        ((4, 2), 64, None, None, (1.0, 1.0), False), ((2, 1), 80, 20, 30.0, (0.02, 0.5), False),
        ((16, 2), 64, 128, None, (0.02, 0.5), True),
    ],
)  # fmt: skip
def test_attention_over_fp8_kv(
    dtype: torch.dtype, heads: tuple[int, int], dim: int, window: int | None, softcap: float | None,
    scales: tuple[float, float], sinks: bool,
) -> None:  # fmt: skip
    """Both kernels, against float64 softmax over keys and values rounded to e4m3."""
    batch = Batch([1, 30, 1, 5], [40, 3, 130, 0], heads, dim, 16, dtype, dim, sinks)
    kv, out = rounded(batch, scales), fresh(batch)
    q, tables, group = batch.q.to(DEVICE), batch.on_device(batch.tables), heads[0] // heads[1]
    decodes = np.array([0, 2])
    named = batch.on_device(np.stack((decodes, batch.starts[decodes]), 1))
    pieces = PieceRule(1, 32, count=3).cut(batch.lengths[decodes])
    decode_attention(
        q, kv, out, tables, batch.on_device(batch.lengths), dim**-0.5, batch.on_device(pieces),
        DecodeWorkspace(len(pieces), *heads, dim, DEVICE), window=window, softcap=softcap, items=named, kv_scales=scales,
        sinks=batch.sinks_there,
    )  # fmt: skip
    tiles = query_tiles(batch.q_lens, batch.past, np.array([1, 3]), rows_per_tile(group, dim) // group)
    extend_attention(
        q, kv, out, batch.on_device(tiles), batch.on_device(batch.starts), batch.on_device(batch.q_lens),
        batch.on_device(batch.past), tables, dim**-0.5, window=window, softcap=softcap, kv_scales=scales,
        sinks=batch.sinks_there,
    )  # fmt: skip
    check(out, batch.expected(window, softcap), dtype)


@pytest.mark.long
@pytest.mark.parametrize(("softcap", "scales"), [(None, (1.0, 1.0)), (30.0, (0.02, 0.5))])
def test_shared_keys_in_e4m3(softcap: float | None, scales: tuple[float, float]) -> None:
    """Which are widened, and whose scale is in the powers of 2 or before the cap."""
    batch = Batch([30, 5], [40, 300], (2, 1), 80, 16, torch.float32, 80)
    kv = rounded(batch, scales)
    shared = Shared(batch, np.arange(2))
    pieces = cut_at_random(shared.keys, 4, np.random.default_rng(3))
    check(
        shared.attend(pieces, 50, softcap, kv=kv, scales=scales), batch.expected(50, softcap), torch.float32
    )


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 64), (16, 8, 128), (4, 1, 80)])
def test_keys_and_values_are_stored_in_e4m3(heads: int, kv_heads: int, dim: int) -> None:
    torch.manual_seed(2)
    tokens = 9
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    qkv[3, -1] = 1e4  # beyond what e4m3 holds
    kv = torch.zeros(2, 3, kv_heads, 16, dim, dtype=E4M3, device=DEVICE)
    cells = torch.randperm(48)[:tokens]
    scales = (0.25, 0.5)
    q = rotate_and_store(qkv.to(DEVICE), kv, cells.to(DEVICE), heads, kv_scales=scales)
    parts = qkv.view(tokens, -1, dim)
    assert torch.equal(q.cpu(), parts[:, :heads])
    for side, first in ((0, heads), (1, heads + kv_heads)):
        exact = parts[:, first : first + kv_heads] / scales[side]
        stored = kv[side].cpu().float().transpose(1, 2).reshape(48, kv_heads, dim)
        assert torch.equal(stored[cells], exact.clamp(-448, 448).to(E4M3).float())
        stored[cells] = 0.0
        assert not stored.any()


async def _logits(path: Path, backend: str, device: str, kv: str) -> torch.Tensor:
    """Of a prompt in two chunks, and a decode step."""
    executor = LlmExecutor.from_config(
        replace(
            config(path, device=device),
            attention=ExecutorAttentionConfig(block_size=16, backend=backend),
            memory=ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 21, kv_cache_dtype=kv),
        )
    )
    await executor.warmup()
    await executor.begin_epoch(1)
    prompt, parts = [5, 9, 100, 3, 17, 20, 33, 8, 150], []
    for begin, end in ((0, 5), (5, 8), (8, 9)):
        output = await executor.prefill(chunk(prompt[begin:end], begin, [2, 0]))
        assert output.logits is not None
        parts.append(torch.from_numpy(output.logits.numpy().copy()).view(end - begin, -1))
    await executor.shutdown()
    return torch.cat(parts).float()


@pytest.mark.long(extended=True)
@pytest.mark.usefixtures("wide_narrow_tiles")
@pytest.mark.parametrize(("form", "kv"), [("blocks", "fp8"), ("rows", "auto")])
async def test_an_fp8_model_over_triton_gives_what_torch_gives(form: str, kv: str, tmp_path: Path) -> None:
    """Linears in e4m3, and KV in it. Steps of three tokens and one over rows with a scale each take x as it is, which torch's
    rounds to e4m3."""
    path, _ = write_fp8(
        write_checkpoint(tmp_path / "source", {**SMALL, "num_hidden_layers": 1}), tmp_path, form
    )
    expected = await _logits(path, "torch", "cpu", kv)
    found = await _logits(path, "triton", DEVICE.type, kv)
    # A number that lies between two of e4m3 may be rounded either way; on a GPU products by rows are bf16.
    few = slice(5, None) if form == "rows" else slice(0)
    many = slice(0, 5) if form == "rows" else slice(None)
    assert distance(found[many], expected[many]) < (0.05 if DEVICE.type == "cuda" else 0.02)
    assert form == "blocks" or 0.001 < distance(found[few], expected[few]) < 0.08


SIZES = (
    [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
    if DEVICE.type == "cuda"
    else [(48, 64), (32, 160)]
)
"""(rows, columns) of weights: on a GPU those of Qwen3-8B."""


REFUSALS = (
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ... )`",
    "scale_a.numel() == 1 && scale_b.numel() == 1 INTERNAL ASSERT FAILED at Blas.cpp: "
    "Now _scaled_mm only supports per-tensor scaling for CPU backend.",
)


def _weight(rows: int, columns: int) -> tuple[Fp8Weight, torch.Tensor]:
    """One with scales per row, and what it holds in float64."""
    held = Fp8Weight(rows, columns, DEVICE, False)
    held.fill(torch.randn(rows, columns, device=DEVICE) * torch.rand(rows, 1, device=DEVICE), 0)
    return held, held.data.double() * held.scales.double()


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("refused", [None, *REFUSALS])
def test_products_with_scales_per_row(
    rows: int, columns: int, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no kernel with such scales, for a size or at all: with one scale there is."""
    monkeypatch.setattr(fp8, "_REFUSED", set())
    torch.manual_seed(rows)
    held, weight = _weight(rows, columns)
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    bias = torch.randn(rows, device=DEVICE).to(dtype)
    real, tried = torch._scaled_mm, []

    def scaled_mm(*given: torch.Tensor, **named: Any) -> torch.Tensor:
        tried.append(named["scale_a"].numel())
        if refused and named["scale_a"].dim():
            raise RuntimeError(refused)
        return real(*given, **named)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    for count in (1, 16, 127, 256, 257):
        x = torch.randn(count, columns, device=DEVICE).to(dtype)
        data, scales = quantized(x)
        for added in (None, bias):
            expected = data.double() * scales.double() @ weight.T + (0 if added is None else added.double())
            found = held(x, added)
            assert found.dtype is dtype
            assert (found - expected).norm() < (0.01 if dtype is torch.bfloat16 else 1e-5) * expected.norm()
    if refused:
        # A size is tried once: (refused, as one) for the first product of each, then as one.
        assert tried == [1, 1, 1, *[number for count in (16, 127, 256, 257) for number in (count, 1, 1)]]


def test_other_errors_of_products_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: torch.Tensor, **named: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    held, _ = _weight(32, 64)
    monkeypatch.setattr(torch, "_scaled_mm", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        held(torch.randn(3, 64, device=DEVICE), None)
