"""Which graphs are captured and when, and that steps replayed give what steps give that the host computes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from executors.contract.config import ExecutorAttentionConfig, OptimizationConfig
from executors.contract.status import ExecutorState
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.executor import LlmExecutor
from executors.llm.step.idle import IdleWork
from executors.llm.step.launched.graphs import (
    AT_START,
    MISSES,
    MIXED_TOKENS,
    PER_STANDSTILL,
    STARVED_S,
    STARVED_TRIES,
    LaunchLimits,
    Phases,
    StepFacts,
    StepGraphs,
    affordable,
    decode_shapes,
    fits,
    mixed_shapes,
)
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, FakeQwen3, PagedTorch
from tests.gpu.workloads import HOSTED, PLAIN, SHAPED, SMALL, Maker, play

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in exp")]


NOTHING = Phases(lambda: None, lambda: None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def plain(path: Path) -> LlmExecutor:
    executor = LlmExecutor.from_config(config(path))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


async def faked(
    path: Path, kind: type[FakeDeviceExecutor] = FakeDeviceExecutor, **changes
) -> FakeDeviceExecutor:  # type: ignore[no-untyped-def]
    executor = kind.from_config(config(path, **changes))
    executor.device = FakeDevice()
    await executor.warmup()
    executor._idle.stop()
    await executor.begin_epoch(1)
    return executor


def capture_all(executor: FakeDeviceExecutor) -> None:
    while executor.unified.capture_next():
        pass
    graphs = executor.launched.graphs
    assert graphs is not None and not graphs.failure and graphs.missing is None


def tokens_of(heard: dict[int, list]) -> dict[int, list[int]]:
    return {seq: [one[0] for one in found] for seq, found in heard.items()}


@pytest.mark.long(every=5)
@pytest.mark.parametrize(
    ("seed", "settings", "out"),
    [
        (1, PLAIN, 1),
        (2, PLAIN, 2),
        (4, SHAPED, 2),
        (5, PLAIN + SHAPED, 1),
        (3, PLAIN * 2 + SHAPED + HOSTED[:1], 2),
    ],
)
async def test_replayed_steps_give_what_the_host_gives(
    path: Path, seed: int, settings: tuple, out: int
) -> None:
    ours, theirs = await faked(path), await plain(path)
    capture_all(ours)
    ops = Maker(theirs, seed, settings).make(50)
    heard = await play(ours, ops, out)
    assert tokens_of(heard) == tokens_of(await play(theirs, ops))
    assert ours.device is not None
    by_kind = {shape.listed: 0 for shape in ours.launched.graphs.shapes}  # type: ignore[union-attr]
    for shape, graph in ours.launched.graphs._graphs.items():  # type: ignore[union-attr]
        by_kind[shape.listed] += graph._forward.replays  # type: ignore[attr-defined]
    alone = not set(settings) & set(HOSTED)
    assert by_kind[False] >= 3 and by_kind[True] >= (10 if alone else 2), "chunks and decode steps alone"
    if alone:
        assert ours.device.replays == 2 * sum(not isinstance(op, int) for op in ops)


async def test_steps_are_the_same_while_graphs_are_still_captured(path: Path) -> None:
    """Between the steps of two that are out, too: what a capture computes is nobody's."""
    ours, theirs = await faked(path), await plain(path)
    ops = Maker(theirs, 9, PLAIN).make(40)
    found: dict[int, list] = {}
    for begin in range(0, len(ops), 3):
        for seq, heard in (await play(ours, ops[begin : begin + 3], 2)).items():
            found.setdefault(seq, []).extend(heard)
        ours.unified.capture_next()
    assert tokens_of(found) == tokens_of(await play(theirs, ops))
    assert 0 < ours.device.replays < 2 * len(ops) and not ours.launched.graphs.failure  # type: ignore[union-attr]


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # in rows that are nobody's
async def test_triton_kernels_in_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernels interpreted: padding computes nothing, keys are in several pieces, tables are as wide as they can be."""
    from executors.llm.attention import triton_attention

    monkeypatch.setattr("executors.llm.step.launched.captures.AT_START", 0)
    monkeypatch.setattr(triton_attention, "piece_rule", lambda *given: PieceRule(4, 1, least=2))
    small = {
        **SMALL, "num_hidden_layers": 1, "max_position_embeddings": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "vocab_size": 64,
    }  # fmt: skip
    path = write_checkpoint(tmp_path / "model", small)

    class OnTriton(FakeDeviceExecutor):
        order = ()

    heard = []
    for kind, backend in ((OnTriton, "triton"), (LlmExecutor, "torch")):
        layout = ExecutorAttentionConfig(block_size=16, backend=backend)
        executor = kind.from_config(config(path, max_num_seqs=2, max_num_batched_tokens=16, attention=layout))
        await executor.warmup()
        executor._idle.stop()
        await executor.begin_epoch(1)
        if isinstance(executor, OnTriton):
            graphs, device = executor.launched.graphs, executor.device
            assert graphs is not None
            graphs.capture(graphs.shapes[1])
            graphs.capture(graphs.shapes[-1])
        driver = Driver(executor)
        a, b = (driver.add(prompt, one) for prompt, one in zip(([5, 9, 60], [7, 1, 2]), PLAIN, strict=False))
        await driver.step([(a, a.tokens, True, 0), (b, b.tokens[:1], False, 0)])
        await driver.step([(b, b.tokens[1:], True, 0), (a, a.tokens[3:], True, 0)])
        await driver.step([(a, a.tokens[4:], True, 0), (b, b.tokens[3:], True, 0)])
        heard.append([one.tokens for one in (a, b)])
    assert heard[0] == heard[1]
    assert (
        not graphs.failure and device is not None and [graph.replays for graph in device.graphs] == [1, 3, 2]
    )
    rule = triton_attention.piece_rule()
    assert [rule.cut(np.array(lengths))[:, 5].max() for lengths in ([4], [5, 4])] == [2, 2]


# -- when ------------------------------------------------------------------------------------------------------------------


async def test_the_smallest_come_first_and_the_others_when_nobody_computes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = FakeDevice()
    log = executor.device.log
    executor.set_progress(lambda stage, done, total: log.append(f"{stage} {done}/{total}"))
    monkeypatch.setattr("executors.llm.step.idle.QUIET_S", 3600)
    await executor.warmup()
    graphs = executor.launched.graphs
    assert graphs is not None
    assert log.count("capture") == 2 * AT_START and executor.status().is_ready
    assert [replace(shape, pieces=0) for shape in graphs._graphs] == decode_shapes(16)[:AT_START]
    assert f"graphs: {AT_START} of {len(graphs.shapes)} captured" in executor.status().notes
    await executor.begin_epoch(1)

    driver = Driver(executor)
    seq = driver.add([1, 2, 3])
    await driver.step([(seq, seq.tokens, True, 0)])
    executor._idle._look()  # it is not quiet for long enough
    monkeypatch.setattr("executors.llm.step.idle.QUIET_S", 0)
    out = asyncio.create_task(driver.step([(seq, seq.tokens[3:], True, 0)]))
    await asyncio.sleep(0)
    executor._idle._look()
    assert not out.done() and log.count("capture") == 2 * AT_START, "captured beside a step"
    await out
    done = asyncio.Event()
    executor.set_progress(
        lambda stage, now, total: (
            log.append(f"{stage} {now}/{total}") or (graphs.missing is None and done.set())
        )  # type: ignore[func-returns-value]
    )
    async with asyncio.timeout(30):
        await done.wait()
    sizes = [shape.tokens for shape in graphs._graphs]
    assert sizes == sorted(sizes) and len(sizes) == len(graphs.shapes) and not graphs.failure
    assert log.count("capture") == len(sizes) + len({shape.samples for shape in graphs._graphs})
    stages = [line for line in log if line != "capture"]
    captures = [log[i - 1] for i, line in enumerate(log) if line == "capture" and log[i - 1] != line]
    assert all(stages[stages.index(one) + 1] == one.replace("0/1", "1/1") for one in captures), (
        "a stage stood open"
    )
    await executor.shutdown()


async def test_under_load_what_is_missed_often_is_captured_between_two_steps(path: Path) -> None:
    executor = await faked(path)
    assert executor.device is not None
    driver = Driver(executor)
    seqs = [driver.add([i]) for i in range(11)]
    stages: list[str] = []
    executor.set_progress(lambda stage, done, total: stages.append(stage))
    for number in range(MISSES + 3):
        await driver.step([(one, one.tokens[one.computed :], True, 0) for one in seqs])
        assert len(executor.device.graphs) == 2 * (AT_START + (number >= MISSES))
    assert executor.device.replays == 6 and stages == ["CUDA graph for 16 sequences"] * 2


def test_a_larger_graph_does_where_the_best_is_missing() -> None:
    graphs = StepGraphs(FakeDevice(), decode_shapes(24), lambda shape: NOTHING)
    facts = StepFacts(9, 9, 0, 9, 9)
    graphs.capture(graphs.shapes[3])
    assert graphs.shapes[3].items == 8 and graphs.find(facts) is None
    graphs.capture(graphs.shapes[-1])
    for _ in range(MISSES - 1):
        found = graphs.find(facts)
        assert found is not None and found[0].items == 24
    assert graphs.overdue(facts) == [graphs.shapes[4]]
    graphs.capture(graphs.shapes[4])
    found = graphs.find(facts)
    assert found is not None and found[0].items == 16 and graphs.overdue(facts) == []


def test_what_is_missed_often_is_captured_together() -> None:
    """The steps out have to end before each capture: not for each shape anew."""
    graphs = StepGraphs(FakeDevice(), decode_shapes(64), lambda shape: NOTHING)
    for rows, count in ((20, MISSES), (60, MISSES - 1), (30, MISSES // 2), (40, MISSES // 2), (50, 1)):
        for _ in range(count):
            assert graphs.find(StepFacts(rows, rows, 0, rows, rows)) is None
    due = graphs.overdue(StepFacts(20, 20, 0, 20, 20))
    assert [shape.items for shape in due] == [24, 64, 32] and len(due) == PER_STANDSTILL
    assert graphs.overdue(StepFacts(60, 60, 0, 60, 60)) == [], "not yet"


async def test_a_standstill_ends_with_a_capture_that_fails(path: Path) -> None:
    executor = await faked(path)
    graphs, device = executor.launched.graphs, executor.device
    assert graphs is not None and device is not None
    driver = Driver(executor)
    seqs = [driver.add([i]) for i in range(14)]
    for number in range(MISSES):
        some = seqs if number % 2 else seqs[:9]
        graphs._misses[graphs.shapes[5]] += 1  # another that is wanted
        await driver.step([(one, one.tokens[one.computed :], True, 0) for one in some])
    device.broken, tried = "CUDA error: out of memory", len(device.graphs)
    await driver.step([(one, one.tokens[one.computed :], True, 0) for one in seqs])
    assert graphs._starved == 1 and len(device.graphs) == tried, "tried on where there was no memory"


def test_large_graphs_take_only_steps_that_nearly_fill_them() -> None:
    shapes = [*decode_shapes(1024), *mixed_shapes(1024, 2048, 32)]
    for shape in shapes:
        if shape.tokens > 512 + 8:
            own = shape.tokens - 8 * shape.listed
            least = -(-3 * own // 4)
            tiles = -(-least // 32) if shape.listed else 0
            rows = 1 if shape.listed else least
            decodes = 0 if shape.listed else least
            assert fits(shape, StepFacts(least, rows, tiles, decodes, rows))
            assert not fits(shape, StepFacts(least - 1, rows - (not shape.listed), tiles, decodes, rows))
    for tokens in range(513, 2049):  # so every one has a graph, of a third more tokens at most
        wanted = min(
            shape.tokens for shape in shapes if fits(shape, StepFacts(tokens, 1, -(-tokens // 32), 0, 1))
        )
        assert wanted - 8 <= 4 * tokens / 3
    for rows in range(257, 1025):
        assert any(fits(shape, StepFacts(rows, rows, 0, rows, rows)) for shape in shapes if not shape.listed)


def test_large_graphs_that_take_too_much_memory_are_left_out() -> None:
    shapes = sorted(mixed_shapes(64, 2048, 32), key=lambda shape: shape.tokens)
    kept = affordable(shapes, lambda shape: 1000 * shape.tokens, 1_100_000)
    assert [shape.tokens - 8 for shape in kept] == [16, 32, 64, 128, 256, 512, 640, 768, 1024]
    assert [shape.tokens - 8 for shape in affordable(shapes, lambda shape: 1 << 40, 1)][-1] == 512


def test_nothing_is_captured_within_a_step() -> None:
    graphs = StepGraphs(FakeDevice(), decode_shapes(4), lambda shape: NOTHING)
    graphs.in_step = True
    with pytest.raises(RuntimeError, match="within a step"):
        graphs.capture(graphs.shapes[0])
    graphs.in_step = False
    graphs.capture(graphs.shapes[0])
    assert graphs.missing == graphs.shapes[1]


async def test_a_capture_that_fails_is_the_last_and_steps_go_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = await faked(path)
    assert executor.device is not None
    executor.device.broken = "operation not permitted\nwhen stream is capturing"
    assert executor.unified.capture_next() and not executor.unified.capture_next()
    notes = " ".join(executor.status().notes)
    assert (
        "no more: RuntimeError: operation not permitted when stream" in notes and "one by one" in caplog.text
    )
    ops = Maker(executor, 4, PLAIN).make(20)
    assert tokens_of(await play(executor, ops)) == tokens_of(await play(await plain(path), ops))


async def test_a_capture_that_finds_no_memory_is_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes it may only be starting. Meanwhile nobody tries, not even under load."""
    executor = await faked(path)
    graphs, device, unified = executor.launched.graphs, executor.device, executor.unified
    assert graphs is not None and device is not None
    now = [1000.0]
    monkeypatch.setattr("executors.llm.step.launched.graphs.monotonic", lambda: now[0])
    device.broken = "CUDA error: out of memory"
    smallest = graphs.missing
    assert unified.capture_next() and unified.capture_wait == STARVED_S and graphs.missing == smallest
    notes = " ".join(executor.status().notes)
    assert "no memory for the next, retrying in 30 s" in notes and "no memory for a graph" in caplog.text
    driver = Driver(executor)
    seqs = [driver.add([i]) for i in range(11)]
    for _ in range(MISSES + 3):
        await driver.step([(one, one.tokens[one.computed :], True, 0) for one in seqs])
    assert len(device.graphs) == 2 * AT_START, "tried while it was to wait"
    device.broken = ""
    now[0] += STARVED_S
    await driver.step([(one, one.tokens[one.computed :], True, 0) for one in seqs])
    assert len(device.graphs) == 2 * AT_START + 2 and not graphs.failure and not unified.capture_wait

    device.broken = "CUDA error: out of memory"
    for number in range(1, STARVED_TRIES + 1):
        assert not graphs.failure
        unified.capture_next()
        now[0] += STARVED_S * 2**number
    assert "out of memory" in graphs.failure and graphs.missing is None


async def test_idle_work_waits_until_there_may_be_memory() -> None:
    waits, done = [0.0, 0.03, 0.0], list[str]()
    turns = SimpleNamespace(busy=False, ended_at=-1e9)
    idle = IdleWork(turns, lambda: bool(done.append("piece")) or len(done) < 2, lambda: waits.pop(0))  # type: ignore[arg-type]
    began = time.perf_counter()
    idle._look()
    while len(done) < 2:
        assert time.perf_counter() - began < 10
        await asyncio.sleep(0.001)
    assert time.perf_counter() - began >= 0.03 and not waits
    idle.stop()


async def test_where_nothing_can_be_captured_it_starts_without(path: Path) -> None:
    """As with compute-sanitizer, or `PYTORCH_NO_CUDA_MEMORY_CACHING`."""
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = FakeDevice()
    executor.device.broken = "no capture here"
    await executor.warmup()
    assert executor.status().is_ready and "no more: RuntimeError: no capture here" in " ".join(
        executor.status().notes
    )
    await executor.shutdown()
    starved = FakeDeviceExecutor.from_config(config(path))
    starved.device = FakeDevice()
    starved.device.broken = "CUDA error: out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):  # less is tried then
        await starved.warmup()
    await starved.shutdown()


async def test_enforce_eager_captures_nothing(path: Path) -> None:
    executor = await faked(path, optimization=OptimizationConfig(num_threads=1, enforce_eager=True))
    assert executor.launched.graphs is None and not executor.unified.can_capture
    assert "graphs: none" in executor.status().notes and not executor.device.graphs  # type: ignore[union-attr]
    ops = Maker(executor, 4, PLAIN).make(10)
    assert tokens_of(await play(executor, ops)) == tokens_of(await play(await plain(path), ops))


async def test_the_specialised_executor_has_them_too(path: Path) -> None:
    ours = await faked(path, FakeQwen3, executor="qwen3")
    capture_all(ours)
    ops = Maker(ours, 6, PLAIN).make(20)
    assert tokens_of(await play(ours, ops)) == tokens_of(await play(await plain(path), ops))
    notes = ours.status().notes
    assert any(note.startswith("graphs: ") for note in notes)
    await ours.shutdown()
    assert ours.status().state is ExecutorState.SHUTDOWN


# -- shapes ----------------------------------------------------------------------------------------------------------------


def test_sizes_of_decode_graphs() -> None:
    assert [shape.tokens for shape in decode_shapes(256)] == [1, 2, 4, *range(8, 257, 8)]
    assert [shape.tokens for shape in decode_shapes(1000)][35:] == [320, 384, 448, 512, 640, 768, 896, 1000]
    assert decode_shapes(5000)[-1].items == 1024
    assert [shape.tokens for shape in decode_shapes(3)] == [1, 2, 3]
    assert [shape.tokens for shape in decode_shapes(20)] == [1, 2, 4, 8, 16, 20]


@pytest.mark.parametrize(("rows", "drafts"), [(64, 4), (256, 1), (256, 5), (8, 32)])
def test_steps_with_drafts_have_mixed_graphs(rows: int, drafts: int) -> None:
    """Whatever their sequences verify; without room for drafts some of them have none."""
    limits = LaunchLimits(rows, 2048, max_drafts=drafts)
    shapes = mixed_shapes(rows, 2048, 16, max_drafts=drafts)
    assert max(shape.samples for shape in shapes) <= limits.max_samples
    rng, missed = np.random.default_rng(0), 0
    for _ in range(500):
        each = np.sort(rng.integers(0, drafts + 1, rng.integers(1, rows + 1)))
        lens = 1 + each[np.cumsum(each) <= limits.max_samples - rows]
        if not len(lens) or lens.sum() > 512:
            continue
        tiles, decodes = int((-(-lens[lens > 1] // 16)).sum()), int((lens == 1).sum())
        facts = StepFacts(int(lens.sum()), len(lens), tiles, decodes, int(lens.sum()))
        best = min((shape for shape in shapes if fits(shape, facts)), key=lambda shape: shape.tokens)
        assert best.tokens - 8 == min(tokens for tokens in MIXED_TOKENS if tokens >= facts.tokens)
        missed += not any(fits(shape, facts) for shape in mixed_shapes(rows, 2048, 16))
    assert missed


def test_without_drafts_shapes_are_what_they_were() -> None:
    """More sampled rows would be padding of lm_head."""
    assert all(shape.samples == shape.decodes for shape in mixed_shapes(64, 2048, 16))


def test_a_mixed_graph_always_has_padding_to_name() -> None:
    shapes = mixed_shapes(64, 2048, 32)
    for tokens, shape in zip(MIXED_TOKENS, shapes, strict=True):
        # A prompt of just that length, and as many decodes as there are rows.
        assert fits(shape, StepFacts(tokens, 1, -(-tokens // 32), 0, 1))
        assert not fits(shape, StepFacts(shape.tokens, 1, -(-tokens // 32), 0, 1))
        rows = min(tokens, 64)
        assert tokens > 512 or fits(shape, StepFacts(rows, rows, 0, rows, rows))
    rng = np.random.default_rng(0)
    for _ in range(500):
        lens = rng.choice([1, 1, 1, 2, 40], rng.integers(1, 60))
        tiles = int((-(-lens[lens > 1] // 32)).sum())
        decodes = int((lens == 1).sum())
        facts = StepFacts(int(lens.sum()), len(lens), tiles, decodes, len(lens))
        for shape in shapes:
            if fits(shape, facts):
                assert facts.tokens < shape.tokens and facts.items < shape.items
                assert facts.tiles <= shape.tiles and facts.decodes <= shape.decodes


# -- the fake's teeth ------------------------------------------------------------------------------------------------------


def test_the_fake_notices_what_a_gpu_would_not_forgive() -> None:
    device, static = FakeDevice(), torch.ones(4)
    grown = [torch.ones(4)]

    def moved() -> None:
        static.add_(grown[0])

    graph = device.capture(moved)
    graph.replay()
    grown[0] = torch.ones(4)
    with pytest.raises(AssertionError, match="not what was captured"):
        graph.replay()
    width = [4]
    graph = device.capture(lambda: (static[: width[0]].add_(1), None)[1])
    width[0] = 3
    with pytest.raises(AssertionError, match="not what was captured"):
        graph.replay()
    with pytest.raises(AssertionError, match="waits for the device"):
        device.capture(lambda: (static.sum().item(), None)[1])
    with pytest.raises(AssertionError, match="not in static memory"):
        device.capture(lambda: (static.add_(torch.from_numpy(np.ones(4, np.float32))), None)[1])
    with pytest.raises(AssertionError, match="no memory for so many pieces"):
        reserved = PagedTorch()
        reserved.reserve(1, 0, None)  # type: ignore[arg-type]
        reserved.bind(SimpleNamespace(pieces=range(2), tile_pieces=()), None)  # type: ignore[arg-type]
