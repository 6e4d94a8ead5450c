"""Launched steps share the keys of tiles of queries: by the interpreted kernels, call by call and in padded graphs, against steps
of the host; over KV in int8, cut anywhere and with drafts; by a fake that reads every word of the pieces; and where nothing is to
be shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executors.contract.batch import SamplingParams
from executors.contract.config import ExecutorAttentionConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.kernels.triton.shared_extend import tile_keys
from executors.kernels.triton.tuning import FLOAT32, HALF, choose, trying
from executors.llm.attention import check as check_module
from executors.llm.attention import triton_attention
from executors.llm.attention.key_pieces import WORDS
from executors.llm.attention.triton_attention import TritonAttention, tile_rule
from executors.llm.executor import LlmExecutor
from executors.llm.model.caches import KvSpec
from executors.llm.step.launched import captures
from executors.llm.step.launched.graphs import StepFacts, fits, mixed_shapes
from executors.llm.step.launched.inputs import HostStep
from tests.executors.checkpoints import write_checkpoint
from tests.executors.kernels.steps import spec as small_spec
from tests.executors.llm.driver import GREEDY, Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, FakeGraph
from tests.gpu.test_attention import DEVICE
from tests.gpu.test_shared_extend import cut_at_random
from tests.gpu.workloads import PLAIN, SMALL, Maker, play

pytestmark = [
    pytest.mark.long,
    # Rows of padding hold anything.
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]
KEY = ("shared_extend", FLOAT32, 32)
PROMPT = list(range(1, 130))


class PlayedGraph:
    """Runs what was captured: interpreted kernels cannot be recorded."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class PlayedDevice(FakeDevice):
    """Takes everything that is captured as it is."""

    def capture(self, run: Callable[[], None]) -> FakeGraph:
        run()
        graph: Any = PlayedGraph(run)
        return graph


class Interpreted(FakeDeviceExecutor):
    """Over the kernels."""

    order = ("triton",)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


@pytest.fixture
def cut() -> Iterator[None]:
    """Short pieces, also of float32."""
    with trying({KEY: replace(choose(*KEY), parts=5, least=32, depth=16)}):
        yield


class Spy:
    """`shared_extend_attention`, heard: pieces of the tiles of each call that shares some; `whole`: calls over KV in int8."""

    def __init__(self) -> None:
        self.calls = self.whole = 0
        self.counts: list[int] = []
        self._right = triton_attention.shared_extend_attention

    def __call__(self, *given: Any, **named: Any) -> torch.Tensor:
        self.calls += 1
        self.whole += named["peaks"] is not None
        self.counts += given[4][:, 5].tolist()
        return self._right(*given, **named)


async def warm(
    kind: type[LlmExecutor], path: Path, device: FakeDevice | None, eager: bool = False, max_drafts: int = 0, **changes: Any
) -> LlmExecutor:  # fmt: skip
    optimization = OptimizationConfig(num_threads=1, enforce_eager=eager, max_drafts=max_drafts)
    executor = kind.from_config(config(path, optimization=optimization, **changes))
    executor.device = device
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


async def answers(executor: LlmExecutor) -> list[list[int]]:
    """Tokens of a prompt in chunks behind a history, beside a decode step and a short prompt."""
    driver = Driver(executor)
    one, other = driver.add(PROMPT, GREEDY), driver.add([7, 8, 9], SamplingParams(temperature=0.75, seed=4))
    await driver.step([(one, PROMPT[:100], False, 0), (other, [7, 8, 9], True, 0)])
    await driver.step([(one, PROMPT[100:112], False, 0), (other, [other.tokens[-1]], True, 0)])
    await driver.step([(one, PROMPT[112:], True, 0)])
    for _ in range(2):
        await driver.step([(seq, [seq.tokens[-1]], True, 0) for seq in (one, other)])
    return [one.tokens, other.tokens]


@pytest.mark.interpreted
@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("eager", [True, False], ids=["calls", "graphs"])
async def test_the_kernels_share_the_keys_of_chunks(
    path: Path, eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy()
    monkeypatch.setattr(triton_attention, "shared_extend_attention", spy)
    monkeypatch.setattr(captures, "AT_START", 0)  # the interpreter takes seconds for each
    executor = await warm(Interpreted, path, PlayedDevice(captures=not eager), eager)
    assert isinstance(executor, Interpreted)
    attention = executor.launched.program.packed
    assert isinstance(attention, TritonAttention) and attention.tile_rule.cuts
    if not eager:
        graphs = executor.launched.graphs
        assert graphs is not None
        for shape in [shape for shape in graphs.shapes if shape.listed and shape.tokens == 24]:
            assert shape.tile_pieces >= shape.tiles
            graphs.capture(shape)
    before = spy.calls
    found = await answers(executor)
    assert spy.calls > before, "no step shares keys"
    assert max(spy.counts) > 1 and (not eager or min(spy.counts) >= 1), "no tile's keys are cut"
    assert eager or -1 in spy.counts, "a graph has room for more pieces than a step has"
    assert found == await answers(await warm(LlmExecutor, path, None))


class CutAnywhere(TritonAttention):
    """Cuts the keys of each tile anywhere, in up to five pieces."""

    def __init__(self, model: KvSpec) -> None:
        super().__init__(model)
        self.tile_rule = replace(self.tile_rule, count=2)  # room for all pieces
        self._rng = np.random.default_rng(7)

    def tile_pieces(self, tiles: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray) -> np.ndarray:
        keys = tile_keys(tiles, q_lens, pos_offsets, self.queries_per_tile)
        return cut_at_random(keys, 5, self._rng) if len(keys) else np.empty((0, WORDS), np.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("changes", [{}, {"windows": (30,), "softcap": 20.0}], ids=["all", "window"])
def test_random_cuts_over_int8_kv(
    dtype: torch.dtype, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys turned by the kernel that stores them, chunks behind histories beside decodes: the reference's softmax."""
    spy = Spy()
    monkeypatch.setattr(triton_attention, "shared_extend_attention", spy)
    monkeypatch.setattr(check_module, "PAST", (30, 0, 5, 60, 130))
    monkeypatch.setattr(check_module, "CHUNKS", (1, 9, 1, 20, 3))
    model = replace(small_spec(4, 2, 32, dtype, kv_dtype=torch.int8, **changes), device=DEVICE)
    assert check_module.fault(CutAnywhere(model), model, 16) is None
    assert spy.calls and spy.whole == spy.calls and max(spy.counts) > 2


async def verified(executor: LlmExecutor, guesses: list[int], spy: Spy) -> list[tuple[int, float | None]]:
    """The first four tokens behind a long prompt and their logprobs, `guesses` of those behind the first verified in one step,
    beside a decode step. `spy` hears of that step alone."""
    driver, asked = Driver(executor), SamplingParams(temperature=0.0, logprobs=1)
    one, other = driver.add(PROMPT[:75], asked), driver.add([7, 8], asked)
    output = await driver.step([(one, one.tokens, True, 0), (other, [7, 8], True, 0)])
    spy.calls, spy.whole, spy.counts = 0, 0, []
    found = []
    while True:
        assert output[0] is not None
        found += [(token.token_id, token.logprob) for token in output[0].tokens]
        if len(found) >= 4:
            return found
        output = await driver.step(
            [(one, [one.tokens[-1], *guesses], True, len(guesses)), (other, [other.tokens[-1]], True, 0)]
        )
        guesses = []


@pytest.mark.interpreted
@pytest.mark.timeout(180)  # three quarters of a minute each on a busy CPU of 2017
@pytest.mark.parametrize("way", ["calls", "calls, uncut", "graphs"])
async def test_drafts_behind_a_long_history_in_int8(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two right drafts and a wrong one, whose tile's keys are cut or not: tokens and logprobs of torch's attention over the same
    codes, one token a step."""
    spy = Spy()
    monkeypatch.setattr(triton_attention, "shared_extend_attention", spy)
    monkeypatch.setattr(captures, "AT_START", 0)
    path = write_checkpoint(tmp_path / "model", {**SMALL, "num_hidden_layers": 1})
    memory = ExecutorMemoryConfig(kv_cache_memory_bytes=1 << 20, kv_cache_dtype="int8")
    torchs = ExecutorAttentionConfig(block_size=16, backend="torch")
    expected = await verified(await warm(LlmExecutor, path, None, memory=memory, attention=torchs), [], spy)
    row, eager = choose(*KEY), way != "graphs"
    cuts = way != "calls, uncut"
    with trying({KEY: replace(row, parts=5, least=32, depth=16) if cuts else row}):
        ours = await warm(
            Interpreted, path, PlayedDevice(captures=not eager), eager, 3, memory=memory, block_size=16
        )
        assert isinstance(ours, Interpreted)
        if not eager:
            graphs = ours.launched.graphs
            assert graphs is not None
            for shape in [shape for shape in graphs.shapes if shape.listed and shape.tokens == 24]:
                graphs.capture(shape)
        wrong = (expected[3][0] + 1) % 200
        found = await verified(ours, [expected[1][0], expected[2][0], wrong], spy)
        assert not ours.launched.host_steps.counts, "a step went the host's way"
    assert (spy.calls > 0) is cuts and spy.whole == spy.calls
    if cuts:
        assert max(spy.counts) > 1, "no tile's keys are cut"
        assert eager or -1 in spy.counts, "a graph has room for more pieces than a step has"
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (_, by_triton), (_, by_torch) in zip(found, expected, strict=True):
        assert by_triton == pytest.approx(by_torch, abs=1e-3)


@pytest.mark.parametrize("captures", [True, False], ids=["graphs", "calls"])
@pytest.mark.parametrize("seed", [3, 4])
async def test_every_word_of_the_pieces_is_right(path: Path, captures: bool, seed: int) -> None:
    ours = await warm(FakeDeviceExecutor, path, FakeDevice(captures=captures))
    assert isinstance(ours, FakeDeviceExecutor)
    while ours.unified.capture_next():
        pass
    theirs = await warm(LlmExecutor, path, None)
    ops = Maker(theirs, seed, PLAIN).make(40)
    heard, expected = await play(ours, ops, 2), await play(theirs, ops)
    assert {seq: [token for token, _ in found] for seq, found in heard.items()} == {
        seq: [token for token, _ in found] for seq, found in expected.items()
    }


@pytest.mark.parametrize("fault", ["of the step before", "one is missing", "ends early"])
async def test_wrong_pieces_are_noticed(path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = HostStep.put

    def wrong(self: HostStep, name: str, values: np.ndarray, pad: float = 0) -> None:
        if name == "tile_pieces" and len(values):
            if fault == "of the step before":
                return
            values = values.copy()
            values[-6 if fault == "one is missing" else -4] = (
                -1 if fault == "one is missing" else values[-4] - 1
            )
        put(self, name, values, pad)

    ours = await warm(FakeDeviceExecutor, path, FakeDevice())
    assert isinstance(ours, FakeDeviceExecutor)
    while ours.unified.capture_next():
        pass
    right = await answers(await warm(LlmExecutor, path, None))
    monkeypatch.setattr(HostStep, "put", wrong)
    try:
        found = await answers(ours)
    except Exception:
        return
    assert found != right


def spec(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, windows: tuple[int | None, ...]) -> KvSpec:
    return KvSpec(
        len(windows), heads, kv_heads, dim, dtype, torch.device("cpu"), dim**-0.5, None, windows, None
    )


def test_the_rule_follows_device_and_model() -> None:
    """An H200 runs one program of 128 rows on each multiprocessor: 16 for each of 8 key heads, and all for a lonely one."""
    bf16 = torch.bfloat16
    assert choose("shared_extend", HALF, 128).parts == 16
    for kv_heads, programs in ((8, 16), (1, 132), (200, 1)):
        rule = tile_rule(spec(kv_heads, kv_heads, 128, bf16, (None,)), 132, 128, False)
        assert (rule.programs, rule.tile, rule.window, rule.parts) == (programs, 64, None, 16)
    assert tile_rule(spec(8, 8, 128, bf16, (512, 300)), 132, 128, False).window == 512 + 128
    assert tile_rule(spec(8, 8, 128, bf16, (512, None)), 132, 128, False).window is None
    # Whose kernels spill, and whose rows may not depend on what is beside them.
    assert not tile_rule(spec(8, 8, 512, bf16, (None,)), 132, 128, False).cuts
    assert not tile_rule(spec(8, 8, 128, torch.float32, (None,)), 132, 128, False).cuts
    assert not tile_rule(spec(8, 8, 128, bf16, (None,)), 132, 128, True).cuts


def test_a_graph_has_room_for_the_pieces_of_every_step_that_fits_it() -> None:
    rule = tile_rule(spec(16, 8, 128, torch.bfloat16, (None,)), 132, 64, False)
    longest, queries, rng = 40_960, 64, np.random.default_rng(2)
    shapes = mixed_shapes(256, 2048, queries, tile_pieces=lambda tiles: rule.most(tiles, longest))
    shared = 0
    for _ in range(400):
        tokens = int(rng.integers(2, 2_000))
        count = int(rng.integers(1, min(32, tokens // 2) + 1))
        lens = rng.multinomial(tokens - 2 * count, rng.dirichlet(np.ones(count))) + 2
        past = rng.integers(0, 10 ** rng.integers(1, 5), count)
        tiles = triton_attention.query_tiles(lens, past, np.arange(count), queries)
        pieces = rule.cut(triton_attention.tile_keys(tiles, lens, past, queries))
        shared += bool((pieces[:, 5] > 1).any())
        facts = StepFacts(tokens, count, len(tiles), 0, count, tile_pieces=len(pieces))
        without = replace(facts, tile_pieces=0)
        assert [fits(shape, facts) for shape in shapes] == [fits(shape, without) for shape in shapes]
    assert 50 < shared < 400
    assert not fits(replace(shapes[-1], tile_pieces=3), StepFacts(1_999, 1, 32, 0, 1, tile_pieces=32))
