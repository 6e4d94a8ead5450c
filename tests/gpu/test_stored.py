"""Weights as files hold them on a device: their layout, and the Triton kernels, beside the formats' own dequantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from executors.contract import PrefillInput, Tensor
from executors.contract.config import ExecutorAttentionConfig
from executors.kernels.device_layouts import LAYOUTS, DeviceRows, table_of, widened
from executors.kernels.triton import stored, tuning
from executors.llm.checkpoint.device_blocks import device_rows
from executors.llm.checkpoint.loader import load_model
from executors.llm.kernel_support import kernel_check, stored_support
from executors.llm.model.stored_weight import StoredWeight
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.kernels.blocks import block_size, dequantized, random_rows
from tests.executors.llm.checkpoint.quantized_checkpoints import FORMS, write_quantized
from tests.executors.llm.checkpoint.test_fp8_weights import distance, logits
from tests.executors.llm.driver import config, start
from tests.tiers import sweep

pytestmark = pytest.mark.long
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KINDS = sorted(LAYOUTS)


def columns_of(kind: str) -> int:
    """More than a tile of 128, and no multiple of one where the format allows it."""
    size = block_size(kind)
    return 256 if size == 256 else 160 if size == 32 else 2 * size + (64 if size == 64 else 0)


@pytest.fixture
def large_tiles() -> Iterator[None]:
    """The interpreter takes its time for each program, however small."""
    keys: list[tuning.Key] = [
        ("stored_row", "", "plain"),
        ("stored_row", "", "words"),
        ("stored_row", "", "table"),
        ("stored_widen", "", ""),
    ]
    wide = {key: replace(tuning.choose(*key), outputs=128) for key in keys}
    with tuning.trying(wide if DEVICE.type == "cpu" else {}):
        yield


def rows_of(kind: str, rows: int, columns: int) -> tuple[DeviceRows, torch.Tensor]:
    """On the device, and what they stand for, float32 [rows, columns]."""
    raw = random_rows(kind, rows, columns, scale=10.0)
    made = DeviceRows.empty(kind, rows, columns, DEVICE)
    for begin in range(0, rows, 7):  # as they come from a file: in pieces
        made.put(device_rows(torch.from_numpy(raw[begin : begin + 7]), kind), begin)
    return made, torch.from_numpy(np.array(dequantized(kind, raw))).view(rows, columns)


@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_loses_nothing(kind: str) -> None:
    held, exact = rows_of(kind, 19, columns_of(kind))
    assert torch.equal(widened(held).cpu(), exact)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_looked_up_exactly(kind: str) -> None:
    held, exact = rows_of(kind, 19, columns_of(kind))
    ids = torch.tensor([3, 18, 0, 3, 7], device=DEVICE)
    found = stored.widened(held, table_of(held.layout, DEVICE), ids, torch.float32).cpu()
    if DEVICE.type == "cpu":
        assert torch.equal(found, exact[ids])
    else:  # a product and a difference in one instruction round once
        assert torch.allclose(found, exact[ids.cpu()], rtol=1e-6, atol=1e-6)


@pytest.mark.long(every=4)
@sweep(every=5)
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        *((kind, rows) for kind in KINDS for rows in (3, 17)),
        *((kind, rows) for kind in ("Q4_K", "Q6_K") for rows in (1, 4, 5)),
    ],
)
def test_products(kind: str, rows: int) -> None:
    held, exact = rows_of(kind, 45, columns_of(kind))
    x = torch.randn(rows, held.columns, generator=torch.Generator().manual_seed(1))
    bias = torch.arange(45.0)
    out = torch.full((rows, 50), -7.0, device=DEVICE)
    stored.matmul(
        x.to(DEVICE),
        held,
        table_of(held.layout, DEVICE),
        bias.to(DEVICE) if rows != 3 else None,
        out[:, 2:47],
    )
    expected = x.double() @ exact.double().T + (bias if rows != 3 else 0)
    scale = x.abs().double() @ exact.abs().double().T + bias.abs() + 1e-9
    assert ((out[:, 2:47].cpu() - expected).abs() / scale).max() < 1e-6
    assert (out[:, :2] == -7).all() and (out[:, 47:] == -7).all()


@pytest.mark.long(every=3)
@sweep(every=4)
@pytest.mark.parametrize("rows", [40, 100, 130])
@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K", "uint8-f32"])
def test_products_of_many_rows(kind: str, rows: int) -> None:
    held, exact = rows_of(kind, 150, columns_of(kind))
    x = torch.randn(rows, held.columns, generator=torch.Generator().manual_seed(1))
    out = torch.empty(rows, 150, device=DEVICE)
    stored.matmul(x.to(DEVICE), held, table_of(held.layout, DEVICE), None, out)
    assert torch.allclose(out.cpu(), x @ exact.T, rtol=1e-4, atol=1e-3)


def test_a_row_does_not_depend_on_the_others() -> None:
    """As long as they are few."""
    held, _ = rows_of("Q4_K", 40, 512)
    x = torch.randn(stored.MOST_ROWS, 512, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def product(part: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(part), 40, device=DEVICE)
        stored.matmul(part, held, None, None, out)
        return out

    whole = product(x)
    for i in range(len(x)):
        assert torch.equal(product(x[i : i + 1].contiguous())[0], whole[i])


@pytest.mark.parametrize("rows", [1, 5, 19, 200])
def test_a_weight_is_widened_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row of it, of some with a short part at the end, of all rows at once; biases go along."""
    monkeypatch.setattr(stored, "PART_BYTES", rows * 256 * 4 + 100)
    held, exact = rows_of("Q5_K", 19, 256)
    x = torch.randn(6, 256, generator=torch.Generator().manual_seed(1))
    bias, out = torch.arange(19.0), torch.full((6, 25), torch.nan, device=DEVICE)
    stored.matmul(x.to(DEVICE), held, None, bias.to(DEVICE), out[:, 3:22])
    assert torch.allclose(out[:, 3:22].cpu(), x @ exact.T + bias, rtol=1e-4, atol=1e-3)
    assert out[:, :3].isnan().all() and out[:, 22:].isnan().all()


@pytest.mark.parametrize("rows", [stored.MOST_ROWS, stored.MOST_ROWS + 1])
def test_half_precision_rounds_a_weight_once_or_not_at_all(rows: int) -> None:
    """Few rows are multiplied by the numbers of the file."""
    held, exact = rows_of("Q6_K", 33, 256)
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(1)).half()
    out = torch.empty(rows, 33, dtype=torch.float16, device=DEVICE)
    stored.matmul(x.to(DEVICE), held, None, None, out)
    expected = x.double() @ (exact if rows <= stored.MOST_ROWS else exact.half()).double().T
    error = (out.cpu().double() - expected).norm() / expected.norm()
    assert error < 4e-4, error  # of the results' own rounding


def test_parts_of_different_formats_and_columns_in_another_order() -> None:
    kinds = [(20, "Q4_K"), (9, "Q6_K"), (30, "Q4_0")]
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3))
    weight = StoredWeight(kinds, 256, order, DEVICE)
    exact = []
    begin = 0
    for rows, kind in kinds:
        raw = random_rows(kind, rows, 256, seed=begin)
        for first in range(0, rows, 6):
            weight.take(device_rows(torch.from_numpy(raw[first : first + 6]), kind), begin + first)
        exact.append(torch.from_numpy(np.array(dequantized(kind, raw))).view(rows, 256))
        begin += rows
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(59, generator=torch.Generator().manual_seed(2))
    found = weight(x.to(DEVICE), bias.to(DEVICE)).cpu()
    assert torch.allclose(found, x[:, order] @ torch.cat(exact).T + bias, rtol=1e-4, atol=1e-4)


def test_memory_is_that_of_the_file_or_little_more() -> None:
    """Codes of 2 and 3 bits take 4, and MXFP4 a whole float for each scale."""
    ratios = {}
    for kind in KINDS:
        columns = 1024
        held = DeviceRows.empty(kind, 8, columns, torch.device("cpu"))
        ratios[kind] = held.num_bytes / random_rows(kind, 8, columns).nbytes
    print({kind: round(ratio, 3) for kind, ratio in ratios.items()})
    assert {kind for kind, ratio in ratios.items() if ratio > 1.08} == {"Q2_K", "Q3_K", "MXFP4"}
    assert max(ratios.values()) < 2


def test_columns_that_are_no_whole_blocks() -> None:
    with pytest.raises(ValueError, match="no whole blocks of 256"):
        DeviceRows.empty("Q4_K", 4, 288, torch.device("cpu"))


@pytest.mark.long(every=2)
@sweep(every=3)
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_K", "Q6_K", "IQ4_XS", "uint4-g128", "uint8-f32"])
def test_the_check_before_serving_sees_a_wrong_kernel(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_check, "_STORED", (kind,))
    monkeypatch.setattr(kernel_check, "_STORED_ROWS", (3,))
    if DEVICE.type == "cpu":  # the interpreter has no bfloat16
        draw = kernel_check._Draw.of(torch.float32, DEVICE)
        monkeypatch.setattr(kernel_check._Draw, "of", lambda dtype, device: draw)
    assert kernel_check.stored_fault(DEVICE) is None
    real = stored.matmul

    def wrong(x: torch.Tensor, weight: DeviceRows, table: object, bias: object, out: torch.Tensor) -> None:
        real(x, weight, table, bias, out)  # type: ignore[arg-type]
        out[1, 5] += 5 * out.abs().max()

    monkeypatch.setattr(stored, "matmul", wrong)
    assert f"stored {kind}" in str(kernel_check.stored_fault(DEVICE))


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "cpu"])
def test_the_torch_backend_widens(device: str) -> None:
    assert stored_support.why_not(torch.device(device), "torch") == "attention backend torch is set"


@pytest.mark.long(every=2)
@sweep(every=3)
@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("form", ["gptq-act-order", "gptq-8-zeros", "awq-32", "packed-float32"])
async def test_a_checkpoint_of_whole_numbers_is_served_as_it_is_stored(tmp_path: Path, form: str) -> None:
    """Beside the same numbers in float32, widened by torch."""
    quantized, wide = write_quantized(tmp_path, FORMS[form])
    expected, _ = await logits(wide, "torch", chunks=(9, 1))
    found, executor = await logits(quantized, "triton", chunks=(9, 1), device=DEVICE.type)
    assert distance(found, expected) < 1e-5
    assert executor.info().quantization == FORMS[form].kind
    notes = " ".join(executor.status().notes)
    assert (
        f"linear layers as the file holds them: {FORMS[form].kind}" in notes and "were widened" not in notes
    )


def test_a_note_says_which_kernel_was_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantized, _ = write_quantized(tmp_path, FORMS["awq-32"])
    monkeypatch.setattr(stored_support, "_fault", lambda device: "stored uint4-g32: differs by 0.5")
    attention = ExecutorAttentionConfig(block_size=16, backend="triton")
    note = load_model(config(quantized, attention=attention), lambda *_: None).note
    assert note is not None
    assert "weights were widened: stored uint4-g32: differs by 0.5" in note
    assert "as the file holds them" not in note


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "max_position_embeddings": 256, "tie_word_embeddings": True,
    "dtype": "float32", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 300,
}  # fmt: skip
FORMATS = {
    "attn_q": "Q4_K", "attn_k": "Q4_K", "attn_v": "Q6_K", "attn_output": "Q4_1", "ffn_gate": "Q4_0", "ffn_up": "Q5_K",
    "ffn_down": "Q5_0", "token_embd": "Q8_0",
}  # fmt: skip


@pytest.mark.long(extended=True)
@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("tied", [True, False])
async def test_a_file_is_served_as_it_is_stored(tmp_path: Path, tied: bool) -> None:
    """Beside the same file, widened by torch."""
    fields = {**CONFIG, "tie_word_embeddings": tied}
    tensors = converted_checkpoint(write_checkpoint(tmp_path / "hf", fields), "llama")
    kinds = {**FORMATS, "output": "Q6_K"}
    file = write_gguf(
        tmp_path / "m.gguf", "llama", {**sizes(fields), "rope.dimension_count": 64}, tensors,
        lambda name: kinds[name.split(".")[-2]],
    )  # fmt: skip
    path = prepared(tmp_path / "served", file)
    found = {}
    for backend in ("triton", "torch"):
        executor = await start(
            path,
            dtype="float32",
            device=DEVICE.type if backend == "triton" else "cpu",
            attention=ExecutorAttentionConfig(block_size=16, backend=backend),
            max_model_len=128,
        )
        ids = list(range(5, 17))
        logits = (await executor.prefill(PrefillInput(Tensor.of([ids], "int32")))).last_token_logits()
        found[backend] = np.asarray(logits), executor.info().quantization, executor.status().notes
        await executor.shutdown()
    assert np.allclose(found["triton"][0], found["torch"][0], rtol=1e-3, atol=1e-3)
    notes = " ".join(found["triton"][2])
    assert "linear layers as the file holds them" in notes and "Q4_K" in notes and "Q6_K" in notes
    assert "as the file holds them" not in " ".join(found["torch"][2])
