"""LoRA adapters on a device: in graphs and without, fused and layer by layer, beside merged models and beside a CPU's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from executors.contract import InvalidInput, OutOfMemory, PrefillInput, Tensor
from executors.contract.batch import SamplingParams
from executors.contract.config import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorMemoryConfig,
    OptimizationConfig,
)
from executors.kernels import triton_build
from executors.kernels.lora_tiles import FEW_ROWS, LoraMatrix, LoraTiles, tile_rows
from executors.kernels.triton import lora
from executors.kernels.triton.lora import splits_of
from executors.llm.executor import LlmExecutor, LlmLoraExecutor
from executors.llm.kernel_support import kernel_check
from executors.llm.lora.device import DeviceWeights, add_by_torch
from executors.llm.lora.host import HostWeights
from executors.llm.lora.loaded import LoadedLora
from executors.llm.step.launched.graphs import (
    ADAPTED_ROWS,
    AT_START,
    CLOSE_TO,
    Phases,
    StepFacts,
    StepGraphs,
    adapted_shapes,
    decode_shapes,
    fits,
    mixed_shapes,
)
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.steps import LaunchedSteps
from executors.lora import PackedLora, pack
from executors.testing.conformance import CASES, run_case
from tests.executors.checkpoints import write_checkpoint
from tests.executors.gguf_files import converted_checkpoint, prepared, sizes, write_gguf
from tests.executors.grammar_tokenizers import write_tokenizer
from tests.executors.llm.checkpoint.quantized_checkpoints import FORMS, write_quantized
from tests.executors.llm.checkpoint.test_fp8_weights import SMALL as FP8_SMALL
from tests.executors.llm.checkpoint.test_fp8_weights import write_fp8
from tests.executors.llm.devices import Device
from tests.executors.llm.driver import Driver, config
from tests.executors.llm.driver import Sequence as Driven
from tests.executors.llm.lora.test_loras import merged
from tests.executors.llm.test_conformance import write_adapters
from tests.executors.lora.peft_files import write_peft
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor
from tests.gpu.test_executor import FAMILIES
from tests.gpu.test_stored import CONFIG, FORMATS, large_tiles  # noqa: F401 (a fixture)
from tests.gpu.workloads import SMALL
from tests.tiers import sweep

pytestmark = [
    pytest.mark.long,
    # In rows of padding any numbers may lie.
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RANKS = (1, 4, 8, 16, 3, 64, 2, 5)
MODEL = {**SMALL, "max_position_embeddings": 64}
HEARD = SamplingParams(temperature=0.0, logprobs=1)
Weights = dict[str, tuple[torch.Tensor, torch.Tensor]]


class OnDevice(FakeDeviceExecutor, LlmLoraExecutor):
    """Torch's attention in graphs of a device that is played, layer by layer."""


class OnTriton(OnDevice):
    """Our attention, and the fused layers."""

    order = ()


class Sized(OnDevice):
    """With memory of its own."""

    memory = Device()


@pytest.fixture(autouse=True)
def _few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture computes a step three times: those that are captured at the start are not all needed."""
    monkeypatch.setattr("executors.llm.step.launched.captures.AT_START", 0)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels compute is computed by torch: interpreted they take most of a test's time."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(lora, "add_lora", lambda *given: add_by_torch(*given))


def linears(path: Path) -> dict[str, tuple[int, int]]:
    """Shapes of the weights that adapters change, by module."""
    tensors = load_file(path / "model.safetensors")
    return {
        name.removesuffix(".weight"): tuple(tensor.shape)  # type: ignore[misc]
        for name, tensor in tensors.items()
        if name.endswith("_proj.weight") and ".experts." not in name
    }


def adapters_of(
    path: Path, folder: Path, ranks: tuple[int, ...] = RANKS
) -> tuple[list[PackedLora], list[Weights]]:
    """Adapters of these ranks, of which some leave a linear or a layer out."""
    shapes, packed, made = linears(path), [], []
    (folder / "packed").mkdir(parents=True)
    for number, rank in enumerate(ranks):
        left_out = ("layers.1.", "q_proj", "gate_proj", "none")[number % 4]
        chosen = {name: shape for name, shape in shapes.items() if left_out not in name}
        made.append(write_peft(folder / f"a{number}", chosen, rank=rank, seed=number))
        packed.append(pack(folder / f"a{number}", folder / "packed", 256))
    return packed, made


def settings(
    path: Path, most: int, backend: str = "auto", eager: bool = False, **changes: Any
) -> ExecutorConfig:
    return config(
        path, dtype="float32", attention=ExecutorAttentionConfig(16, backend), device=DEVICE.type,
        optimization=OptimizationConfig(num_threads=1, max_loras=most, enforce_eager=eager),
        **{"max_num_seqs": 12, "max_num_batched_tokens": 32, **changes},
    )  # fmt: skip


async def started(
    kind: type[LlmExecutor],
    given: ExecutorConfig,
    packed: list[PackedLora] | None = None,
    graphs: bool = True,
) -> LlmExecutor:
    """With adapters a0, a1, ... loaded, and graphs captured: those with adapters, or all if no adapter is given."""
    executor = kind.from_config(given)
    if isinstance(executor, FakeDeviceExecutor):
        executor.device = FakeDevice(captures=graphs)
    await executor.warmup()
    await executor.begin_epoch(1)
    for number, one in enumerate(packed or ()):
        await executor.load_adapter(f"a{number}", str(one.path), one.digest)  # type: ignore[attr-defined]
    if isinstance(executor, FakeDeviceExecutor):
        executor._idle.stop()
        shapes = executor.launched.graphs.shapes if executor.launched.graphs else []
        for shape in shapes:
            if bool(shape.lora_tiles) == bool(packed) and shape.tokens in (2, 4, 12, 24, 40):
                executor.launched.graphs.capture(shape)  # type: ignore[union-attr]
    return executor


def prompt(number: int, length: int) -> list[int]:
    return [(7 * number + 3 * i) % 120 for i in range(length)]


Heard = list[list[tuple[int, float]]]


async def heard(executor: LlmExecutor, asked: list[tuple[int, str | None]], tokens: int = 3) -> Heard:
    """(token, logprob) of sequences side by side: prompts in chunks beside decode steps, then decode steps alone."""
    driver = Driver(executor)
    seqs = [driver.add(prompt(number, 3 + number), HEARD, adapter=adapter) for number, adapter in asked]
    found: Heard = [[] for _ in seqs]
    while any(len(one) < tokens for one in found):
        items: list[tuple[Driven, list[int], bool, int]] = []
        for seq, got in zip(seqs, found, strict=True):
            if len(got) < tokens:
                taken = seq.tokens[seq.computed : seq.computed + 3]
                items.append((seq, taken, seq.computed + len(taken) == len(seq.tokens), 0))
        live = [number for number, got in enumerate(found) if len(got) < tokens]
        output = await driver.step(items)
        for number, item in zip(live, range(len(items)), strict=True):
            if (one := output[item]) is not None:
                found[number] += [(t.token_id, t.logprob) for t in one.tokens]
    for seq in seqs:
        driver.release(seq)
    return found


def same(found: Heard, expected: Heard, tolerance: float = 1e-4) -> None:
    """Tokens, and logprobs within a tolerance."""
    assert [[token for token, _ in one] for one in found] == [[token for token, _ in one] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert [value for _, value in one] == pytest.approx([value for _, value in other], abs=tolerance)


MIXED = [*((number, f"a{number}") for number in range(8)), (8, None), (2, "a5")]
"""Eight adapters, the model alone, and an adapter a second time."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), MODEL)


# -- what they compute -------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
@pytest.mark.long(extended=True)
@pytest.mark.timeout(180)  # interpreted kernels of many sizes: a minute on a CPU of 2017
@pytest.mark.parametrize(
    ("kind", "graphs", "asked"),
    [
        (OnTriton, True, MIXED[2:4] + MIXED[8:9]),
        (OnTriton, False, MIXED[2:4] + MIXED[8:]),
        (OnDevice, True, MIXED),
    ],
    ids=["fused, graphs", "fused", "layer by layer, graphs"],
)
async def test_adapters_and_the_base_in_one_batch_equal_each_merged_model(
    kind: type[OnDevice], graphs: bool, asked: list[tuple[int, str | None]], model: Path, tmp_path: Path
) -> None:
    """Eight of them, but for a few where attention is interpreted as well."""
    packed, made = adapters_of(model, tmp_path)
    backend = "triton" if kind is OnTriton else "auto"
    executor = await started(kind, settings(model, 8, backend), packed, graphs)
    assert "adapters: cohort-triton" in executor.status().notes
    found = await heard(executor, asked)
    assert isinstance(executor.device, FakeDevice) and (executor.device.replays > 3) is graphs  # type: ignore[attr-defined]
    await executor.shutdown()
    expected: Heard = []
    for i, (number, adapter) in enumerate(asked):
        path = model if adapter is None else merged(model, made[int(adapter[1:])], 2.0, tmp_path / f"m{i}")
        alone = await started(LlmExecutor, settings(path, 0))
        expected += await heard(alone, [(number, None)])
        await alone.shutdown()
    same(found, expected)


@pytest.mark.long(every=4)
@pytest.mark.interpreted
@sweep(every=2)
@pytest.mark.parametrize("family", FAMILIES)
async def test_families(family: str, tmp_path: Path) -> None:
    """Fused, beside a CPU's own way: norms after sublayers, scaled residuals, layers with experts."""
    path = write_checkpoint(tmp_path / "model", {**FAMILIES[family], "max_position_embeddings": 64})
    packed, _ = adapters_of(path, tmp_path, (3, 16))
    asked = [(0, "a0"), (1, None), (2, "a1")]
    found = []
    for kind, backend in ((LlmLoraExecutor, "triton"), (LlmLoraExecutor, "torch")):
        executor = await started(kind, settings(path, 2, backend), packed)
        table = executor._ready().unified.states.adapters
        assert table is not None
        assert isinstance(table.weights, DeviceWeights if backend == "triton" else HostWeights)
        # Steps that the host packs, as with several ranks, say what computes as well.
        assert ("adapters: cohort-triton" in executor.status().notes) is (backend == "triton")
        found.append(await heard(executor, asked, 2))
        await executor.shutdown()
    same(*found)


def write_file(folder: Path) -> tuple[Path, Path]:
    """A checkpoint, and a GGUF file of it in several formats as it is served."""
    source = write_checkpoint(folder / "hf", CONFIG)
    fields = {**sizes(CONFIG), "rope.dimension_count": 64}
    tensors = converted_checkpoint(source, "llama")
    file = write_gguf(folder / "m.gguf", "llama", fields, tensors, lambda name: FORMATS[name.split(".")[-2]])
    return source, prepared(folder / "served", file)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.long(every=6)
@pytest.mark.parametrize("base", ["awq-32", "gptq-8-zeros", "gguf", "fp8 blocks", "fp8 rows"])
async def test_over_quantized_models(base: str, tmp_path: Path) -> None:
    """What it adds is what it adds over the same numbers in float32."""
    if base.startswith("fp8"):
        source = write_checkpoint(tmp_path / "source", {**FP8_SMALL, "num_hidden_layers": 1})
        quantized, wide = write_fp8(source, tmp_path, base.partition(" ")[2])
    elif base == "gguf":
        source, quantized = write_file(tmp_path)
        wide = quantized  # which torch's attention widens
    else:
        quantized, wide = write_quantized(tmp_path, FORMS[base])
    packed, _ = adapters_of(source if base == "gguf" else wide, tmp_path, (8,))
    results = []
    for path, backend in ((quantized, "triton"), (wide, "torch")):
        given = settings(path, 1, backend, kv_bytes=1 << 20, max_model_len=64)
        if backend == "torch":
            given = replace(given, device="cpu")
        executor = await started(LlmLoraExecutor, given, packed)
        asked = [PrefillInput(Tensor.of([prompt(1, 9)], "int32"), adapter=one) for one in (None, "a0")]
        outputs = await executor.batch_prefill(asked)
        results.append([np.asarray(one.last_token_logits()) for one in outputs])
        await executor.shutdown()
    (plain, adapted), (exact_plain, exact) = results
    added, wanted = adapted - plain, exact - exact_plain
    assert np.abs(wanted).mean() > 0.05
    assert np.abs(added - wanted).mean() < (0.25 if base.startswith("fp8") else 1e-3) * np.abs(wanted).mean()


@pytest.mark.long(every=3)
@pytest.mark.interpreted
@sweep(every=2)
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("case", [one for one in CASES if "adapter" in one])
async def test_conformance(case: str, captures: bool, model: Path, tmp_path: Path) -> None:
    adapters, tokenizer = write_adapters(model, tmp_path), str(write_tokenizer(tmp_path, 200))

    def make() -> LlmExecutor:
        executor = OnDevice.from_config(
            settings(model, 2, max_num_seqs=16, block_size=4, tokenizer=tokenizer)
        )
        executor.device = FakeDevice(captures=captures)
        return executor

    assert await run_case(case, make, tolerance=1e-3, adapters=adapters) is None


@pytest.mark.interpreted
@pytest.mark.parametrize("why", ["no triton", "a wrong kernel"])
async def test_torch_computes_where_the_kernels_cannot_be_used(
    why: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packed, _ = adapters_of(model, tmp_path)
    expected = await heard(await started(LlmLoraExecutor, settings(model, 8), packed), MIXED)
    if why == "no triton":
        monkeypatch.setattr(triton_build, "missing", lambda: "triton is not installed")
    else:
        monkeypatch.setattr(kernel_check, "wanted", lambda device: True)
        monkeypatch.setattr(kernel_check, "_LORA_ROWS", (1, 40))
        real = lora.add_lora
        monkeypatch.setattr(
            lora, "add_lora", lambda m, t, x, out: real(replace(m, scales=1.1 * m.scales), t, x, out)
        )
    with caplog.at_level(logging.WARNING):
        executor = await started(OnDevice, settings(model, 8), packed)
    [note] = [note for note in executor.status().notes if note.startswith("adapters: torch, which is slower")]
    assert ("lora of qkv: its results are wrong here" in note) is (why != "no triton")
    assert ("adapters: torch" in caplog.text) is (why != "no triton")
    graphs = executor.launched.graphs  # type: ignore[attr-defined]
    assert graphs.shapes and not any(shape.lora_tiles for shape in graphs.shapes), "launches for all places"
    same(await heard(executor, MIXED), expected)
    await executor.shutdown()


@pytest.mark.interpreted
@pytest.mark.parametrize("splits", [1, 2, 4])
async def test_each_way_to_share_the_depth_is_checked(
    splits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compiled on its own, and how many tiles a graph has decides which it gets."""

    def wrong(matrix: LoraMatrix, tiles: LoraTiles, x: torch.Tensor, out: torch.Tensor) -> None:
        few = tiles.tile_rows == FEW_ROWS
        if splits_of(tiles.count, len(matrix.begins), matrix.inputs, few) == splits and matrix.inputs == 1024:
            matrix = replace(matrix, scales=1.1 * matrix.scales)
        add_by_torch(matrix, tiles, x, out)

    path = write_checkpoint(tmp_path / "model", {**MODEL, "intermediate_size": 1024, "num_hidden_layers": 1})
    monkeypatch.setattr(kernel_check, "wanted", lambda device: True)
    monkeypatch.setattr(kernel_check, "_LORA_ROWS", (1,))
    monkeypatch.setattr(lora, "add_lora", wrong)
    executor = await started(OnDevice, settings(path, 2))
    [note] = [note for note in executor.status().notes if note.startswith("adapters: ")]
    assert "lora of down: its results are wrong here" in note
    await executor.shutdown()


@pytest.mark.interpreted
async def test_right_kernels_pass_their_check_and_leave_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_check, "wanted", lambda device: True)
    monkeypatch.setattr(kernel_check, "_LORA_ROWS", (1, 40))
    executor = await started(OnDevice, settings(model, 2))
    assert "adapters: cohort-triton" in executor.status().notes
    weights = executor.launched.program.adapters  # type: ignore[attr-defined]
    assert not weights._ranks.any()
    await executor.shutdown()


# -- graphs ------------------------------------------------------------------------------------------------------------------


def test_shapes_with_adapters() -> None:
    plain = [*decode_shapes(200), *mixed_shapes(200, 8192, 16)]
    adapted = adapted_shapes(plain, 8)
    assert adapted_shapes(plain, 0) == []
    assert all(shape.lora_tiles and replace(shape, lora_tiles=0) in plain for shape in adapted)
    assert {shape.tokens for shape in adapted if not shape.listed} == {
        r for r in ADAPTED_ROWS if r <= 192
    } | {200}
    assert len(adapted) < len(plain)
    facts = StepFacts(3, 3, 0, 3, 3)
    for shape in (StepShape(4, 4, 4, decodes=4), StepShape(4, 4, 4, decodes=4, lora_tiles=4)):
        assert fits(shape, facts) is not bool(shape.lora_tiles)
        assert fits(shape, replace(facts, adapted=True)) is bool(shape.lora_tiles)


@pytest.mark.parametrize("chunks", [0, 1])
def test_steps_with_adapters_have_a_graph_where_others_have_one(chunks: int) -> None:
    plain = mixed_shapes(256, 8192, 16) if chunks else decode_shapes(1024)
    adapted = adapted_shapes(decode_shapes(256) + plain if chunks else plain, 8)
    lacking = []
    for tokens in range(1, 2100):
        items, tiles = (2, -(-tokens // 16) + 1) if chunks else (tokens, 0)
        facts = StepFacts(tokens, items, tiles, items - chunks, 1)
        there = [any(fits(shape, one) for shape in shapes) for shapes, one in (
            (plain, facts), (adapted, replace(facts, adapted=True)),
        )]  # fmt: skip
        if there[0] != there[1]:
            lacking.append(tokens)
    assert not lacking


def test_graphs_of_up_to_512_tokens_have_small_tiles() -> None:
    """With their padding."""
    shapes = adapted_shapes([*decode_shapes(1024), *mixed_shapes(64, 8192, 16)], 8)
    few = {shape for shape in shapes if shape.tokens <= CLOSE_TO + 8 * shape.listed}
    assert {shape for shape in shapes if tile_rows(shape.tokens) == FEW_ROWS} == few


def test_graphs_of_the_start_are_those_without_adapters() -> None:
    """The requests that come first have none, and who has one finds a graph soon after."""
    plain = decode_shapes(16)
    graphs = StepGraphs(
        FakeDevice(), [*plain, *adapted_shapes(plain, 8)], lambda shape: Phases(lambda: None, lambda: None)
    )
    order: list[StepShape] = []
    while (shape := graphs.missing) is not None:
        graphs.capture(shape)
        order.append(shape)
    assert order[:AT_START] == plain[:AT_START]
    assert order[AT_START:] == [shape for shape in graphs.shapes if shape not in order[:AT_START]]


@pytest.mark.interpreted
@pytest.mark.usefixtures("quickly")
async def test_rows_without_an_adapter_cost_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps in which no row has one are the graphs of an executor without adapters, loaded ones or not."""
    packed, _ = adapters_of(model, tmp_path, (4, 2))
    executor: Any = await started(OnDevice, settings(model, 2), packed)
    for shape in executor.launched.graphs.shapes[::-1]:
        if not shape.lora_tiles and shape.tokens in (2, 24):
            executor.launched.graphs.capture(shape)
    used: list[int] = []
    put, again = LaunchedSteps._put, LaunchedSteps._launch_again

    def watched(self: LaunchedSteps, batch: Any, plan: Any, found: Any) -> Any:
        assert found is not None
        used.append(found[0].lora_tiles)
        return put(self, batch, plan, found)

    def repeated(self: LaunchedSteps, batch: Any, last: Any) -> Any:
        used.append(last.shape.lora_tiles)
        return again(self, batch, last)

    monkeypatch.setattr(LaunchedSteps, "_put", watched)
    monkeypatch.setattr(LaunchedSteps, "_launch_again", repeated)
    bound: list[int] = []
    bind = DeviceWeights.bind
    monkeypatch.setattr(DeviceWeights, "bind", lambda *given: bound.append(1) or bind(*given))
    alone = await heard(executor, [(1, None), (2, None)])
    assert len(used) >= 4 and not any(used) and not bound
    used.clear()
    beside = await heard(executor, [(1, None), (2, None), (3, "a1")])
    assert all(used[:4]) and bound
    same(beside[:2], alone)
    plain = await started(FakeDeviceExecutor, settings(model, 0))
    same(await heard(plain, [(1, None), (2, None)]), alone, 0.0)
    await executor.shutdown()
    await plain.shutdown()


@pytest.mark.interpreted
@pytest.mark.usefixtures("quickly")
async def test_memory_is_taken_before_kv_is_sized(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest steps have as many adapters as there may be, of the highest rank, and leave none."""
    seen: list[tuple[int, bool]] = []
    put = LaunchedSteps._put

    def watched(self: LaunchedSteps, batch: Any, plan: Any, found: Any) -> Any:
        weights = self.program.adapters
        assert weights is not None and weights._ranks.max() == weights.max_rank == 64
        seen.append((len(np.unique(plan.places)), plan.facts.adapted))
        return put(self, batch, plan, found)

    monkeypatch.setattr(LaunchedSteps, "_put", watched)
    given = settings(model, 3, max_num_batched_tokens=16, max_num_seqs=4, max_model_len=32)
    executor = Sized.from_config(replace(given, memory=ExecutorMemoryConfig()))
    await executor.warmup()
    assert seen[:5] == [(3, True)] * 4 + [(1, True)]
    assert executor.lora_metrics_snapshot() == {"loaded": 0, "bytes": 0, "highest_rank": 0}
    await executor.shutdown()


# -- loading -----------------------------------------------------------------------------------------------------------------


async def reloaded(executor: Any, packed: list[PackedLora]) -> Heard:
    """What a name gives before and after other content was loaded under it, and what is beside it."""
    first = await heard(executor, [(1, "a0"), (2, "a1")])
    await executor.unload_adapter("a0")
    await executor.load_adapter("a0", str(packed[2].path), packed[2].digest)
    return first + await heard(executor, [(1, "a0"), (2, "a1")])


@pytest.mark.interpreted
@pytest.mark.usefixtures("quickly")
async def test_a_name_with_other_content(model: Path, tmp_path: Path) -> None:
    """The place is the same, and so are the graphs."""
    packed, _ = adapters_of(model, tmp_path, (16, 2, 3))
    expected = await reloaded(await started(LlmLoraExecutor, settings(model, 2), packed[:2]), packed)
    executor = await started(OnDevice, settings(model, 2), packed[:2])
    table = executor._ready().unified.states.adapters
    assert table is not None
    same(await reloaded(executor, packed), expected)
    assert [place for place, _ in table._loaded.values()] == [1, 0]
    await executor.shutdown()


def stale_ranks(copy: Callable[..., None]) -> Callable[..., None]:
    """Leaves the ranks of the adapter before."""

    def wrong(self: DeviceWeights, found: LoadedLora, place: int) -> None:
        before = self._ranks[place].clone()
        copy(self, found, place)
        if before.any():
            self._ranks[place] = before

    return wrong


def stale_scales(copy: Callable[..., None]) -> Callable[..., None]:
    """Leaves no scale."""

    def wrong(self: DeviceWeights, found: LoadedLora, place: int) -> None:
        copy(self, found, place)
        self._scales[place] = 1.0

    return wrong


def stale_weights(copy: Callable[..., None]) -> Callable[..., None]:
    """Leaves the numbers of the adapter before."""

    def wrong(self: DeviceWeights, found: LoadedLora, place: int) -> None:
        before = self._weights[place].clone()
        copy(self, found, place)
        if before.any():
            self._weights[place] = before

    return wrong


def wrong_place(copy: Callable[..., None]) -> Callable[..., None]:
    """Writes to the next place."""
    return lambda self, found, place: copy(self, found, (place + 1) % len(self._weights))


@pytest.mark.interpreted
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("mutant", [stale_ranks, stale_scales, stale_weights, wrong_place])
async def test_what_is_stale_after_a_reload_is_caught(
    mutant: Callable[..., Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = adapters_of(model, tmp_path, (16, 2, 3))
    expected = await reloaded(await started(LlmLoraExecutor, settings(model, 2), packed[:2]), packed)
    monkeypatch.setattr(DeviceWeights, "_copy", mutant(DeviceWeights._copy))
    executor = await started(OnDevice, settings(model, 2), packed[:2], graphs=False)
    with pytest.raises(AssertionError):
        same(await reloaded(executor, packed), expected)
    await executor.shutdown()


@pytest.mark.interpreted
@pytest.mark.usefixtures("quickly")
async def test_a_step_with_another_adapter_does_not_repeat_the_one_before(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sequence in the slot of one that had another adapter; a mutant whose table forgets to say so is caught."""
    packed, _ = adapters_of(model, tmp_path, (8, 16))

    async def played(executor: LlmExecutor) -> Heard:
        driver, found = Driver(executor), []
        for adapter in ("a0", "a1", None, "a0"):
            seq = driver.add(prompt(3, 4), HEARD, adapter=adapter)
            found += [[(token, 0.0) for token in (await driver.generate([seq], 6))[0]]]
            driver.release(seq)
            assert driver.slots[-1] == seq.slot
        return found

    expected = await played(await started(LlmLoraExecutor, settings(model, 2), packed))
    assert len({str(one) for one in expected}) == 3
    executor = await started(OnDevice, settings(model, 2), packed)
    same(await played(executor), expected)
    table = executor._ready().unified.states.adapters
    begin = type(table).begin

    def forgets(self: Any, slot: int, name: str | None) -> None:
        before = self._places[slot]
        begin(self, slot, name)
        self._places[slot] = before if before >= 0 else self._places[slot]

    monkeypatch.setattr(type(table), "begin", forgets)
    monkeypatch.setattr(type(table), "drop", lambda self, slot: None)
    with pytest.raises(AssertionError):
        same(await played(executor), expected)


@pytest.mark.interpreted
@pytest.mark.usefixtures("quickly")
async def test_an_adapter_is_read_beside_steps_and_never_over_one_in_use(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, _ = adapters_of(model, tmp_path, (4, 2, 3))
    executor: Any = await started(OnDevice, settings(model, 3), packed[:2])
    expected = await heard(executor, [(1, "a0"), (2, "a1")])
    reading, may_go_on = threading.Event(), threading.Event()
    copy = DeviceWeights._copy

    def slowly(self: DeviceWeights, found: LoadedLora, place: int) -> None:
        reading.set()
        assert may_go_on.wait(30)
        copy(self, found, place)

    monkeypatch.setattr(DeviceWeights, "_copy", slowly)
    loading = asyncio.create_task(executor.load_adapter("a2", str(packed[2].path), packed[2].digest))
    assert await asyncio.to_thread(reading.wait, 30)
    same(await heard(executor, [(1, "a0"), (2, "a1")]), expected)
    may_go_on.set()
    await loading
    found = await heard(executor, [(1, "a0"), (3, "a2"), (2, "a1")])
    same(found[::2], expected)
    with pytest.raises(OutOfMemory):
        await executor.load_adapter("a3", str(packed[0].path), packed[0].digest)
    # A place that is free again is taken by the next; one that was prepared only is taken from it.
    await executor.unload_adapter("a1")
    await executor.prepare_adapter("a9", str(packed[0].path), packed[0].digest)
    await executor.load_adapter("a1", str(packed[1].path), packed[1].digest)
    same(await heard(executor, [(1, "a0"), (2, "a1")]), expected)
    with pytest.raises(InvalidInput):
        await heard(executor, [(1, "a9")])
    await executor.shutdown()


@pytest.mark.interpreted
async def test_a_rank_above_the_highest_is_refused(model: Path, tmp_path: Path) -> None:
    packed, _ = adapters_of(model, tmp_path, (65,))
    executor: Any = await started(OnDevice, settings(model, 1))
    with pytest.raises(Exception, match="rank 65; max_lora_rank is 64"):
        await executor.load_adapter("a0", str(packed[0].path), packed[0].digest)
    await executor.shutdown()
