"""Products of few rows with norm, activation and residual in them: against float64, and in layers and steps against torch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from executors.contract.batch import SamplingParams
from executors.contract.config import ExecutorAttentionConfig
from executors.kernels.triton import tuning
from executors.kernels.triton.activation import KINDS
from executors.kernels.triton.few_rows import (
    MOST_ROWS,
    FewRowsWorkspace,
    added_product,
    cut,
    normed_product,
)
from executors.llm.attention.triton_attention import TritonAttention
from executors.llm.executor import LlmExecutor
from executors.llm.fused import few_rows
from executors.llm.fused.few_rows import FewRows
from executors.llm.fused.triton_forward import TritonForward
from executors.llm.kernel_support import kernel_check
from executors.llm.kernel_support.kernel_choice import fuse
from executors.llm.model.decoder import Decoder
from executors.llm.model.fp8 import Fp8Weight
from executors.llm.model.layers.activations import ACTIVATIONS
from tests.executors.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.test_kernel_check import EXPERTS, GEMMA, MODEL, bent, decoder
from tests.tiers import sweep

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:overflow encountered in exp", "ignore:invalid value encountered"),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.2e-2}
"""Interpreted bf16 is cut where it should be rounded."""


@pytest.fixture(autouse=True)
def _bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bf16 as its bits, and multiplies those as if they were numbers: here they are widened first."""
    if DEVICE.type == "cuda":
        return
    create = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    def dot(self: Any, a: Any, b: Any, *given: Any) -> Any:
        return create(self, widened(a), widened(b), *given)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


@pytest.fixture(autouse=True)
def _small_parts() -> Iterator[None]:
    """Depths of tests are short, and are cut into parts all the same."""
    with tuning.trying(
        {("few_rows", tuning.HALF, ""): replace(tuning.choose("few_rows", tuning.HALF, ""), least=64)}
    ):
        yield


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Seeded by the caller."""
    return torch.randn(*shape, device=DEVICE).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype is dtype and found.isfinite().all()
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[dtype], float(error)


def norm(x: torch.Tensor, weight: torch.Tensor, plus_one: bool) -> torch.Tensor:
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (weight.double() + plus_one)


# -- kernels -----------------------------------------------------------------------------------------------------------------


@sweep(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("outputs", "columns", "bias", "plus_one"),
    [
        (96, 256, False, False), (50, 200, True, False), (33, 72, False, True), (1, 17, True, True),
        (30, 1024, True, False), (5, 1025, True, True), (9, 2048, False, False),
    ],
)  # fmt: skip
def test_a_norm_before(outputs: int, columns: int, bias: bool, plus_one: bool, dtype: torch.dtype) -> None:
    """Rows that a program reads at once, and deeper ones, that it reads step by step."""
    torch.manual_seed(columns)
    x, weight = 5 * random(1, columns, dtype=dtype), random(outputs, columns, dtype=dtype)
    scale = random(columns, dtype=dtype)
    added = random(outputs, dtype=dtype) if bias else None
    found = normed_product(x, scale, 1e-6, weight, bias=added, plus_one=plus_one)
    expected = norm(x, scale, plus_one) @ weight.double().T
    close(found, expected if added is None else expected + added.double(), dtype)


@pytest.mark.long(every=3)
@sweep(every=5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", sorted(KINDS))
@pytest.mark.parametrize(("inner", "columns", "bias"), [(48, 128, True), (35, 136, False), (13, 1100, True)])
def test_a_norm_before_and_an_activation_behind(
    inner: int, columns: int, bias: bool, activation: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(inner)
    x, weight = random(1, columns, dtype=dtype), random(2 * inner, columns, dtype=dtype) / 8
    scale = random(columns, dtype=dtype)
    added = random(2 * inner, dtype=dtype) if bias else None
    found = normed_product(x, scale, 1e-6, weight, bias=added, activation=activation)
    both = norm(x, scale, False) @ weight.double().T + (0.0 if added is None else added.double())
    gate, up = both.chunk(2, -1)
    close(found, ACTIVATIONS[activation](gate) * up, dtype)


@pytest.mark.long(every=3)
@sweep(every=7)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize(
    ("outputs", "columns", "bias", "scale", "how"),
    [
        (96, 640, True, 0.3, (3, 5, 128)),
        (50, 200, False, 1.0, (2, 2, 128)),
        (33, 90, True, 1.0, (2, 1, 128)),
        (40, 330, False, 2.0, (2, 3, 128)),
        (1100, 768, False, 1.0, (35, 3, 256)),  # four would leave one without anything
    ],
)
def test_a_sum_behind(
    rows: int,
    outputs: int,
    columns: int,
    bias: bool,
    scale: float,
    how: tuple[int, int, int],
    dtype: torch.dtype,
) -> None:
    """In one part and in several, the last of which may be short; the counters are as before."""
    torch.manual_seed(columns)
    assert cut(outputs, columns) == how
    x, weight = random(rows, columns, dtype=dtype), random(outputs, columns, dtype=dtype)
    residual, added = 5 * random(rows, outputs, dtype=dtype), random(outputs, dtype=dtype) if bias else None
    workspace = FewRowsWorkspace([(outputs, columns), (8, 8)], DEVICE)
    workspace.partial.fill_(torch.nan)
    product = x.double() @ weight.double().T + (0.0 if added is None else added.double())
    for _ in range(2):
        into = residual.clone()
        added_product(x, weight, into, workspace, bias=added, scale=scale)
        close(into, residual.double() + scale * product, dtype)
        assert not workspace.arrived.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_know_how_many_are_beside_it(dtype: torch.dtype) -> None:
    """Bit for bit from two rows on, and one that is no number stays alone: rows of padding are computed as well."""
    torch.manual_seed(0)
    x, weight = (random(*shape, dtype=dtype) for shape in ((16, 200), (96, 200)))
    residual, workspace = random(16, 96, dtype=dtype), FewRowsWorkspace([(96, 200)], DEVICE)

    def product(rows: slice, given: torch.Tensor) -> torch.Tensor:
        into = residual[rows].clone()
        added_product(given[rows], weight, into, workspace)
        return into

    # In NumPy's products, which interpret, a row's place matters; on a device it does not.
    margin = 0.0 if DEVICE.type == "cuda" else 1e-5 if dtype is torch.float32 else 2e-2
    whole = product(slice(None), x)
    for rows in (slice(2), slice(3), slice(7, 16), slice(14, 16)):
        torch.testing.assert_close(product(rows, x), whole[rows], rtol=margin, atol=margin)
    spoilt = x.clone()
    spoilt[4] = torch.nan
    others = torch.arange(16, device=DEVICE) != 4
    found = product(slice(None), spoilt)
    assert found[4].isnan().all() and torch.equal(found[others], whole[others])


def test_more_rows_are_refused_and_none_are_not_computed() -> None:
    weight, workspace = torch.ones(32, 64, device=DEVICE), FewRowsWorkspace([(32, 64)], DEVICE)
    many, none = torch.ones(MOST_ROWS + 1, 64, device=DEVICE), torch.ones(0, 64, device=DEVICE)
    with pytest.raises(ValueError, match="2 rows, and a product behind a norm takes one"):
        normed_product(many[:2], weight[0], 1e-6, weight)
    with pytest.raises(ValueError, match="17 rows, and a product takes 16"):
        added_product(many, weight, torch.ones(17, 32, device=DEVICE), workspace)
    added_product(none, weight, none[:, :32], workspace)


def in_e4m3(outputs: int, columns: int) -> tuple[Fp8Weight, torch.Tensor]:
    """A weight whose rows differ in size, and what it stands for, float64."""
    made = Fp8Weight(outputs, columns, DEVICE, False)
    made.fill(torch.randn(outputs, columns) * 2.0 ** torch.randint(-3, 4, (outputs, 1)), 0)
    return made, made.data.double() * made.scales.double()


@pytest.mark.long(every=3)
@sweep(every=5)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize(
    ("outputs", "columns", "bias"), [(96, 256, False), (50, 208, True), (30, 1024, True), (10, 2064, False)]
)
def test_a_norm_before_weights_in_e4m3(
    rows: int, outputs: int, columns: int, bias: bool, dtype: torch.dtype
) -> None:
    """With an activation behind and without."""
    torch.manual_seed(columns)
    (held, exact), x = in_e4m3(outputs, columns), 5 * random(rows, columns, dtype=dtype)
    scale = random(columns, dtype=dtype)
    added = random(outputs, dtype=dtype) if bias else None
    expected = norm(x, scale, False) @ exact.T + (0.0 if added is None else added.double())
    found = normed_product(x, scale, 1e-6, held.data, bias=added, scales=held.scales)
    close(found, expected, dtype)
    gate, up = expected.chunk(2, -1)
    found = normed_product(x, scale, 1e-6, held.data, bias=added, scales=held.scales, activation="silu")
    close(found, ACTIVATIONS["silu"](gate) * up, dtype)


@sweep(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_sum_behind_weights_in_e4m3(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    (held, exact), x = in_e4m3(50, 1104), random(rows, 1104, dtype=dtype)
    residual, added = 5 * random(rows, 50, dtype=dtype), random(50, dtype=dtype)
    into, workspace = residual.clone(), FewRowsWorkspace([(50, 1104)], DEVICE)
    added_product(x, held.data, into, workspace, bias=added, scale=0.3, scales=held.scales)
    close(into, residual.double() + 0.3 * (x.double() @ exact.T + added.double()), dtype)


def test_more_rows_of_e4m3_are_refused() -> None:
    held, _ = in_e4m3(32, 64)
    many, workspace = torch.ones(5, 64, device=DEVICE), FewRowsWorkspace([(32, 64)], DEVICE)
    with pytest.raises(ValueError, match="5 rows, and a product with e4m3 takes 4"):
        normed_product(many, many[0], 1e-6, held.data, scales=held.scales)
    with pytest.raises(ValueError, match="5 rows, and a product with e4m3 takes 4"):
        added_product(many, held.data, many[:, :32].contiguous(), workspace, scales=held.scales)


def test_every_multiprocessor_has_something_to_read() -> None:
    """Of the products that are cut, where the depth allows it: 0.6B, 1.7B, 4B and 8B shapes."""
    key = "few_rows", tuning.HALF, ""
    with tuning.trying({key: tuning.rows(tuning.TUNED_ON)[key]}):
        _check_cuts()


def _check_cuts() -> None:
    for shape in ((1024, 2048), (1024, 3072), (2048, 2048), (2560, 9728), (4096, 4096), (4096, 12288)):
        tiles, parts, share = cut(*shape)
        assert 120 <= tiles * parts <= 2 * 132 and share >= 512
    assert cut(576, 576) == (18, 1, 640) and cut(151936, 1024) == (4748, 1, 1024)
    for outputs in range(32, 4500, 32):
        for columns in range(64, 12_300, 292):
            _, parts, share = cut(outputs, columns)
            assert (parts - 1) * share < columns <= parts * share and share % 128 == 0


# -- layers and steps --------------------------------------------------------------------------------------------------------

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {**QWEN3, "hidden_size": 72, "intermediate_size": 136, "num_hidden_layers": 2, "num_attention_heads": 4},
    "qwen2, biases": {
        **QWEN3, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64,
    },
    "gemma": {
        **QWEN3, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh", "num_hidden_layers": 1,
    },
    "granite": {
        **LLAMA, "architectures": ["GraniteForCausalLM"], "model_type": "granite", "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2, "residual_multiplier": 0.3, "logits_scaling": 3.0, "num_hidden_layers": 2,
    },
}  # fmt: skip


@pytest.mark.long(every=3)
@sweep(every=3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_one_passes_its_check(family: str, dtype: torch.dtype) -> None:
    made = filled(FAMILIES[family], dtype)
    assert few_rows.why_not(made) is None
    assert kernel_check.few_rows_fault(made, FewRows(made)) is None


def filled(fields: dict[str, Any], dtype: torch.dtype) -> Decoder:
    """As `decoder`, with norms and biases that are random as well."""
    made = decoder(fields, dtype)
    for layer in made.layers:
        norms = [one.weight for one in (layer.attn_norm, layer.mlp_norm) if one is not None]
        for part in (*norms, *(linear.bias for linear in layer.linears)):
            if part is not None:
                part.normal_()
    return made


@pytest.mark.parametrize(
    ("fields", "dtype", "reason"),
    [
        (QWEN3, torch.float16, "float16"),
        (GEMMA, torch.float32, "norms after sublayers"),
        (EXPERTS, torch.float32, "experts"),
    ],
)
def test_others_are_computed_as_they_were(fields: dict[str, Any], dtype: torch.dtype, reason: str) -> None:
    made, backend = decoder(fields, dtype), TritonAttention(replace(MODEL, dtype=dtype))
    assert few_rows.why_not(made) == reason
    fuse(backend, made)
    assert isinstance(made._fused, TritonForward) and made._fused.few is None


def narrowed(fields: dict[str, Any], dtype: torch.dtype, first: int = 0) -> Decoder:
    """With all linear layers in e4m3, from layer `first` on."""
    made = filled(fields, dtype)
    for layer in made.layers[first:]:
        for linear in layer.linears:
            assert linear.weight is not None
            wide = linear.weight.float()
            linear.hold(Fp8Weight(*wide.shape, DEVICE, False, triton=True))
            linear.fill(wide, 0)
    return made


@pytest.fixture
def wide_narrow_tiles() -> Iterator[None]:
    """The interpreter takes its time for each program, however small."""
    names = ("short", "short gated", "long", "long gated")
    keys: list[tuning.Key] = [("one_row", tuning.E4M3, name) for name in names]
    with tuning.trying(
        {key: replace(tuning.choose(*key), outputs=128) for key in keys} if DEVICE.type == "cpu" else {}
    ):
        yield


@pytest.mark.long(every=2)
@pytest.mark.usefixtures("wide_narrow_tiles")
@pytest.mark.parametrize(("family", "first"), [("qwen3", 0), ("granite", 0), ("qwen3", 1)])
def test_weights_in_e4m3_of_four_tokens_are_computed_here(
    family: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a kernel that does not know their scales is named, also where the first layer has none."""
    made = narrowed(FAMILIES[family], torch.float32, first)
    assert few_rows.why_not(made) is None
    few = FewRows(made)
    assert [few.takes(tokens) for tokens in (0, 1, 4, 5)] == [False, True, True, False]
    assert kernel_check.few_rows_fault(made, few) is None
    for name, part in (("normed_product", "before attention"), ("added_product", "behind attention")):
        real = getattr(few_rows, name)

        def wrong(*given: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            scales = named.get("scales")
            return real(*given, **(named | ({} if scales is None else {"scales": torch.ones_like(scales)})))

        with monkeypatch.context() as patched:
            patched.setattr(few_rows, name, wrong)
            assert f"few_rows {part}" in str(kernel_check.few_rows_fault(made, few))


def test_blocks_of_e4m3_are_computed_as_they_were() -> None:
    made = decoder(QWEN3)
    made.layers[0].attention.o.hold(Fp8Weight(QWEN3["hidden_size"], 8, DEVICE, True))
    assert few_rows.why_not(made) == "weights in another form"


@pytest.mark.parametrize("deterministic", [False, True])
def test_where_bits_may_not_depend_on_the_step_there_is_one_way(deterministic: bool) -> None:
    made, backend = decoder(QWEN3), TritonAttention(replace(MODEL, dtype=torch.float32), deterministic)
    fuse(backend, made)
    assert isinstance(made._fused, TritonForward)
    assert (made._fused.few is None) is deterministic


def unfinished(function: Callable[..., Any]) -> Callable[..., Any]:
    """What adds up all but the last part of a product's depth."""

    def wrong(x: torch.Tensor, weight: torch.Tensor, *given: Any, **named: Any) -> None:
        parts = cut(*weight.shape)[1]
        assert parts > 1, "nothing would be left out"
        left = x.clone()
        left[:, x.shape[1] - x.shape[1] // parts :] = 0
        function(left, weight, *given, **named)

    return wrong


def without(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What knows nothing of an argument."""
    return lambda function: lambda *given, **named: function(*given, **{**named, name: None})


def upside_down(function: Callable[..., Any]) -> Callable[..., Any]:
    """What takes gate for up, and up for gate."""

    def wrong(x: Any, norm: Any, eps: float, weight: torch.Tensor, **named: Any) -> torch.Tensor:
        turned = weight if named["activation"] is None else torch.cat(weight.chunk(2)[::-1])
        found: torch.Tensor = function(x, norm, eps, turned, **named)
        return found

    return wrong


def forgetful(function: Callable[..., Any]) -> Callable[..., Any]:
    """What leaves its counters as they are."""

    def wrong(x: Any, weight: Any, residual: Any, workspace: FewRowsWorkspace, **named: Any) -> None:
        function(x, weight, residual, workspace, **named)
        workspace.arrived += 1

    return wrong


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("name", "mutant", "where"),
    [
        ("normed_product", bent, "before attention"),
        ("normed_product", without("bias"), "before attention"),
        ("normed_product", upside_down, "of the MLP"),
        ("added_product", unfinished, "behind attention"),
        ("added_product", forgetful, "behind attention"),
    ],
)
def test_a_wrong_one_is_named_and_others_take_its_place(
    name: str, mutant: Callable[..., Any], where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(kernel_check, "wanted", lambda device: True)
    monkeypatch.setattr(few_rows, name, mutant(getattr(few_rows, name)))
    fields = {**FAMILIES["qwen2, biases"], "num_attention_heads": 8, "intermediate_size": 128}
    made, backend = filled(fields, torch.float32), TritonAttention(replace(MODEL, dtype=torch.float32))
    with caplog.at_level(logging.WARNING):
        fuse(backend, made)
    assert isinstance(made._fused, TritonForward) and made._fused.few is None
    said = f"few_rows {where}: its results are wrong here: they differ from the reference by "
    assert f"forward: steps of few tokens take more launches than they need: {said}" in caplog.text
    assert (
        len(caplog.records) == 1 and f"; steps of few tokens by the general kernels: {said}" in backend.note
    )


# -- whole steps -------------------------------------------------------------------------------------------------------------


class OnTriton(FakeDeviceExecutor):
    """Interpreted kernels in graphs of the device that is played."""

    order = ()


async def started(path: Path, kind: type[LlmExecutor], graphs: int = 3) -> LlmExecutor:
    """With graphs of one, two and four sequences, or the first of them."""
    layout = ExecutorAttentionConfig(16, "triton" if kind is OnTriton else "torch")
    made = kind.from_config(config(path, max_num_seqs=4, max_num_batched_tokens=32, attention=layout))
    await made.warmup()
    await made.begin_epoch(1)
    if isinstance(made, OnTriton):
        made._idle.stop()
        assert made.launched.graphs is not None
        for shape in made.launched.graphs.shapes[:graphs]:
            made.launched.graphs.capture(shape)
    return made


async def heard(executor: LlmExecutor) -> list[tuple[int, float]]:
    """(token, logprob) of a prompt longer than few rows, then of one, three and four sequences a step."""
    driver, found = Driver(executor), []
    asked = SamplingParams(temperature=0.0, logprobs=2)
    seqs = [driver.add(prompt, asked) for prompt in ([5, 9, 60], list(range(20)), [7], [8, 9])]
    for some in (seqs[:1], seqs[:1], seqs[1:2], seqs[:2], seqs[2:], seqs[:3], seqs):
        output = await driver.step([(one, one.tokens[one.computed :], True, 0) for one in some])
        found += [(output[i].tokens[0].token_id, output[i].tokens[0].logprob) for i in range(len(some))]
    return found


@pytest.mark.long(extended=True)
@sweep(every=4)
@pytest.mark.interpreted
@pytest.mark.parametrize("family", FAMILIES)
async def test_steps_of_few_tokens_in_graphs(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of one, two and four rows, the last one with a row of padding, give what torch gives."""
    monkeypatch.setattr("executors.llm.step.launched.captures.AT_START", 0)
    path = write_checkpoint(tmp_path / "model", {**FAMILIES[family], "max_position_embeddings": 64})
    ours, theirs = await started(path, OnTriton), await started(path, LlmExecutor)
    tokens = Counter[bool]()
    takes = FewRows.takes

    def watched(self: FewRows, count: int) -> bool:
        tokens[takes(self, count)] += 1
        return takes(self, count)

    monkeypatch.setattr(FewRows, "takes", watched)
    found, expected = await heard(ours), await heard(theirs)
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], abs=1e-4)
    assert isinstance(ours, OnTriton) and isinstance(ours.device, FakeDevice)
    assert [graph.replays for graph in ours.device.graphs] == [1, 1, 1, 1, 2, 2]
    assert tokens == {True: 6, False: 1}


class Nodes(TorchDispatchMode):
    """What a graph would have a node for: kernels that are launched, ours and torch's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names = Counter[str]()
        self._within = False
        run = interpreter.GridExecutor.__call__

        def launched(executor: Any, *given: Any, **named: Any) -> None:
            self.names[executor.fn.__name__] += 1
            self._within = True  # what the interpreter does is no launch
            run(executor, *given, **named)
            self._within = False

        monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._within and not func.is_view and "empty" not in str(func):
            self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.long(extended=True)
@sweep(every=3)
@pytest.mark.interpreted
@pytest.mark.parametrize(("few", "rows"), [(False, 4), (True, 4), (True, 1)])
async def test_nodes_of_a_layer(
    few: bool, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the forward's graph of so many sequences, the last that was captured, whose padding lies ready: what a second layer
    adds."""
    monkeypatch.setattr("executors.llm.step.launched.captures.AT_START", 0)
    if not few:
        monkeypatch.setattr(few_rows, "why_not", lambda decoder: "not now")
    found = []
    for layers in (1, 2):
        fields = {**QWEN3, "num_hidden_layers": layers, "max_position_embeddings": 64}
        path = write_checkpoint(tmp_path / str(layers), fields)
        executor = await started(path, OnTriton, 3 if rows == 4 else 1)
        with monkeypatch.context() as patch, Nodes(patch) as nodes:
            executor.device.graphs[-2].replay()  # type: ignore[attr-defined]
        found.append(nodes.names)
    attention = {"_rotary_kernel": 1, "_split_kernel": 1}
    norms, gate = {"_rms_norm_kernel": 2}, {"_gated_kernel": 1}
    if few and rows == 1:
        others = {"_one_row_kernel": 4}
    elif few:
        others = norms | gate | {"aten.linear.default": 2, "_few_rows_kernel": 2}
    else:
        others = norms | gate | {"aten.linear.default": 4}
    assert found[1] - found[0] == attention | others
