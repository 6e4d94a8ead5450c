"""Decode steps that are packed by what moved on, beside the same steps packed from the beginning: every word is the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executors.contract import InvalidInput
from executors.contract.batch import SamplingParams, UnifiedBatch
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.executor import LlmExecutor
from executors.llm.sampling.shaped_slots import Following, ShapedSlots
from executors.llm.step.launched import repeat
from executors.llm.step.launched.inputs import DeviceTables, StepShape, layout, num_words
from executors.llm.step.launched.queueing import QueuedStep
from executors.llm.step.launched.repeat import MOVING, STAYING, RepeatedStep
from executors.llm.step.launched.steps import LaunchedSteps
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import GREEDY, Driver, Sequence, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, IdleDevice
from tests.gpu.workloads import HOSTED, PLAIN, SHAPED, SMALL, Op, play

pytestmark = pytest.mark.long

LOGPROBS = (
    SamplingParams(temperature=0.5, seed=21, logprobs=0),
    SamplingParams(temperature=0.75, seed=22, logprobs=3),
    replace(SHAPED[0], logprobs=2),
)
SEEDS = range(8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def idle(path: Path, device: FakeDevice | None = None) -> FakeDeviceExecutor:
    """An executor with all graphs, whose device computes nothing where it is not given."""
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = device or IdleDevice()
    await executor.warmup()
    await executor.begin_epoch(1)
    while executor.unified.capture_next():
        pass
    return executor


class Streams:
    """Steps in which the same sequences decode again and again, and everything that may come between two of them."""

    def __init__(self, executor: FakeDeviceExecutor, seed: int, settings: tuple[SamplingParams, ...]) -> None:
        self._random = random.Random(seed)
        self._driver = Driver(executor, seed)
        self._settings = settings
        self._live: list[Sequence] = []
        self.ops: list[Op] = []

    def make(self, events: int) -> list[Op]:
        """So many events, each followed by some decode steps."""
        happen: list[Callable[[], None]] = [
            self._join, self._join, self._chunks, self._end, self._replace, self._change, self._preempt, self._rewind,
            self._rewind, self._shuffle, self._part,
        ]  # fmt: skip
        for _ in range(events):
            rng = self._random
            rng.choice(happen if self._live else [self._join])()
            known = rng.random() < 0.2
            for _ in range(rng.randrange(1, 7)):
                self._decode(self._live, known)
        return self.ops

    def _decode(self, seqs: list[Sequence], known: bool = False) -> None:
        """A token for each; with `known` the host has heard of the last one of some."""
        if not seqs:
            return
        told = [known and seq.seq_id % 2 == 0 for seq in seqs]
        items = [
            (seq, [7 + seq.computed % 9 if one else -1], True, 0) for seq, one in zip(seqs, told, strict=True)
        ]
        pending = None if all(told) else ~np.array(told)
        self._step(items, pending)

    def _step(self, items: list[tuple[Sequence, list[int], bool, int]], pending: np.ndarray | None) -> None:
        self.ops.append(self._driver.batch(items, pending=pending))
        for seq, tokens, _, _ in items:
            seq.computed += len(tokens)

    def _compute(self, seq: Sequence, length: int) -> None:
        """Chunks of a sequence's first tokens, beside the others' decodes."""
        while seq.computed < length:
            count = min(length - seq.computed, self._random.choice((1, 3, 30)))
            others = [one for one in self._live if one is not seq and self._random.random() < 0.8]
            chunk = (seq, [11] * count, seq.computed + count == length, 0)
            items = [(one, [-1], True, 0) for one in others] + [chunk]
            self._step(items, np.array([True] * len(others) + [False] * count))

    def _join(self, slot: int | None = None) -> None:
        if len(self._live) > 8:
            return
        rng, driver = self._random, self._driver
        if slot is not None:
            driver.slots.remove(slot)
            driver.slots.append(slot)
        seq = driver.add([11] * rng.choice((1, 2, 5, 17)), rng.choice(self._settings))
        self._compute(seq, seq.num_prompt)
        self._live.insert(rng.randrange(len(self._live) + 1), seq)

    def _chunks(self) -> None:
        """A prompt that is taken back before it gives a token."""
        seq = self._driver.add([11] * 9, self._random.choice(self._settings))
        self._compute(seq, 4)
        self._release(seq)

    def _release(self, seq: Sequence) -> None:
        self.ops.append(seq.seq_id)
        self._driver.free += seq.blocks
        self._driver.slots.append(seq.slot)

    def _end(self) -> None:
        self._release(self._live.pop(self._random.randrange(len(self._live))))

    def _replace(self) -> None:
        """One ends, and another gets its slot and its place."""
        at = self._random.randrange(len(self._live))
        old = self._live.pop(at)
        self._release(old)
        self._join(old.slot)
        self._live.insert(
            at, self._live.pop(next(i for i, one in enumerate(self._live) if one.slot == old.slot))
        )

    def _change(self) -> None:
        """A sequence starts once more where it was, with other settings: its next step is a decode, and tells all of them."""
        seq = self._random.choice(self._live)
        seq.sampling, seq.started = self._random.choice(self._settings), False
        seq.tokens = seq.tokens[: seq.num_prompt] + [7] * (seq.computed + 1 - seq.num_prompt)

    def _preempt(self) -> None:
        """It gives its blocks back and is computed again, in others."""
        seq = self._live.pop(self._random.randrange(len(self._live)))
        length, seq.computed = seq.computed, 0
        self._driver.free = seq.blocks + self._driver.free
        seq.blocks = []
        for _ in range(self._random.randrange(3)):
            self._decode(self._live)
        self._compute(seq, length)
        self._live.append(seq)

    def _rewind(self) -> None:
        """Some of its last tokens are computed again."""
        seq = self._random.choice(self._live)
        seq.computed = max(seq.num_prompt, seq.computed - self._random.randrange(1, 20))

    def _shuffle(self) -> None:
        self._random.shuffle(self._live)

    def _part(self) -> None:
        """A step without some of them."""
        self._decode(self._random.sample(self._live, self._random.randrange(1, len(self._live) + 1)))


class Record:
    """All that a runner packs: of each step its shape, its words and where its tail ends. `repeated` of them by what moved on."""

    def __init__(self, runner: LaunchedSteps, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[StepShape, int, bytes]] = []
        self.repeated = 0
        begin, again = runner.queue._begin, runner._launch_again

        def begun(batch: UnifiedBatch, step: QueuedStep) -> None:
            end = step.tail.end
            self.steps.append((step.shape, end, step.buffer.words[:end].tobytes()))
            begin(batch, step)

        def launched(batch: UnifiedBatch, last: RepeatedStep):  # type: ignore[no-untyped-def]
            self.repeated += 1
            return again(batch, last)

        monkeypatch.setattr(runner.queue, "_begin", begun)
        monkeypatch.setattr(runner, "_launch_again", launched)
        for buffer in runner.queue.ring._ring:  # what lies between sections is written by neither way
            buffer.words[:] = 0


def run(executor: FakeDeviceExecutor, ops: list[Op]) -> None:
    """With two steps out."""
    runner, launched = executor.unified, executor.launched
    runner.states.clear()
    launched.shaped._free.sort(reverse=True)  # rows of its table are given in the same order again
    for unsent in (*launched._tables, launched.shaped.sending):
        unsent.sent()
    # Steps that need the host compute with what is there.
    for tensor in (runner.states.pool, *runner.runner.cache.layers):
        tensor.zero_()
    out = []
    for op in ops:
        if isinstance(op, int):
            while out:
                out.pop(0).result()
            runner.states.release(op)
        else:
            out.append(runner.launch(op))
            if len(out) == 2:
                out.pop(0).result()
    while out:
        out.pop(0).result()


def packed(
    path_executor: FakeDeviceExecutor, ops: list[Op], repeat: bool
) -> tuple[list[tuple[StepShape, int, bytes]], int]:
    """What was packed for these steps, and how many by what moved on."""
    with pytest.MonkeyPatch.context() as patch:
        record = Record(path_executor.launched, patch)
        if not repeat:
            patch.setattr(RepeatedStep, "repeats", lambda *_: False)
        run(path_executor, ops)
    return record.steps, record.repeated


def difference(executor: FakeDeviceExecutor, ops: list[Op], share: float = 0.3) -> str | None:
    """The first section in which the two ways differ; None if they do not. At least such a `share` of the steps
    repeat."""
    slow, none = packed(executor, ops, False)
    fast, repeated = packed(executor, ops, True)
    assert none == 0 and len(fast) == len(slow)
    assert repeated >= share * len(slow), f"{repeated} of {len(slow)}"
    for (shape, end, words), (expected, expected_end, expected_words) in zip(fast, slow, strict=True):
        if shape != expected or end != expected_end:
            return "shape"
        ours, theirs = np.frombuffer(words, np.int32), np.frombuffer(expected_words, np.int32)
        for name, section in layout(shape).items():
            part = slice(section.begin, section.begin + section.words)
            if not np.array_equal(ours[part], theirs[part]):
                return name
        if not np.array_equal(ours[num_words(shape) :], theirs[num_words(shape) :]):
            return "tail"
    return None


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    ("settings", "share"),
    [
        (PLAIN, 0.35),
        (PLAIN + SHAPED, 0.35),
        (PLAIN + SHAPED + LOGPROBS, 0.35),
        (PLAIN * 3 + SHAPED + LOGPROBS + HOSTED[2:], 0.2),
    ],
    ids=["plain", "shaped", "logprobs", "host between"],
)
async def test_every_word_is_that_of_a_step_packed_from_the_beginning(
    path: Path, settings: tuple[SamplingParams, ...], share: float
) -> None:
    executor = await idle(path)
    for seed in SEEDS:
        ops = Streams(executor, seed, settings).make(40)
        assert difference(executor, ops, share) is None, f"seed {seed}"


async def test_steps_that_repeat_give_what_the_host_gives(path: Path) -> None:
    """Over a device that computes what was captured, and whose results come late."""
    ours, theirs = await idle(path, FakeDevice()), LlmExecutor.from_config(config(path))
    await theirs.warmup()
    await theirs.begin_epoch(1)
    ops = Streams(ours, 3, PLAIN + SHAPED + LOGPROBS).make(12)
    with pytest.MonkeyPatch.context() as patch:
        record = Record(ours.launched, patch)
        heard = await play(ours, ops, 3)
    expected = await play(theirs, ops)
    assert {seq: [token for token, _ in found] for seq, found in heard.items()} == {
        seq: [token for token, _ in found] for seq, found in expected.items()
    }
    assert record.repeated > 15 and ours.device.replays > record.repeated  # type: ignore[union-attr]


def _caught(executor: FakeDeviceExecutor) -> set[str]:
    """The sections in which some workloads differ."""
    found = set()
    for seed in SEEDS:
        if (where := difference(executor, Streams(executor, seed, PLAIN + SHAPED).make(25))) is not None:
            found.add(where)
    return found


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", MOVING)
async def test_a_word_that_is_not_written_anew_is_caught(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = await idle(path)
    move = RepeatedStep.move

    def stale(self: RepeatedStep, *args: object) -> None:
        before = self._of[name].copy()
        move(self, *args)  # type: ignore[arg-type]
        self._of[name][:] = before

    monkeypatch.setattr(RepeatedStep, "move", stale)
    assert _caught(executor) == {name}


async def test_a_list_of_pieces_that_is_kept_for_a_step_too_long_is_caught(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = await idle(path)
    lasts = PieceRule.lasts
    monkeypatch.setattr(PieceRule, "lasts", lambda self, lengths: lasts(self, lengths) + 1)
    assert _caught(executor) == {"pieces"}


def _rewound(executor: FakeDeviceExecutor) -> list[Op]:
    """Steps of a sequence with penalties that is rewound by some tokens again and again. All repeat the one before."""
    driver, ops = Driver(executor), list[Op]()
    seq = driver.add([11], SHAPED[0])
    ops.append(_next(driver, [seq], 11))
    for back in (0, 1, 3, 2):
        seq.computed -= back
        ops += [_next(driver, [seq], -1, pending=np.ones(1, np.bool_)) for _ in range(5)]
    return ops


async def test_most_steps_of_shaped_rows_are_prepared_by_what_moved_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, calls = await idle(path), []
    prepare = ShapedSlots.prepare
    monkeypatch.setattr(ShapedSlots, "prepare", lambda *args: calls.append(1) or prepare(*args))
    ops = _rewound(executor)
    run(executor, ops)
    # The first two, which do not repeat, and once behind each time that it was rewound.
    assert len(ops) == 21 and len(calls) == 5


async def test_a_shaped_row_that_is_taken_for_up_to_date_is_caught(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that does not ask what a row accounts for."""
    executor = await idle(path)
    ops = _rewound(executor)
    assert difference(executor, ops) is None
    advance = ShapedSlots.advance

    def careless(self: ShapedSlots, items: Following, positions: np.ndarray) -> bool:
        self._counted[items.slots] = positions
        return advance(self, items, positions)

    monkeypatch.setattr(ShapedSlots, "advance", careless)
    assert difference(executor, ops) == "shape"


async def test_settings_that_change_unnoticed_are_caught(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that takes a step with starts for one that repeats."""
    executor = await idle(path)
    repeats = RepeatedStep.repeats

    def careless(self: RepeatedStep, batch: UnifiedBatch, *limits: int) -> bool:
        return repeats(self, replace(batch, starts=()), *limits)

    monkeypatch.setattr(RepeatedStep, "repeats", careless)
    assert _caught(executor) & set(STAYING)


async def test_a_slot_given_to_another_sequence_unnoticed_is_caught(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that takes in what is new and looks at slots alone when it packs, and drops nothing at a release."""
    executor = await idle(path)
    driver, ops = Driver(executor), list[Op]()
    for settings in (
        SamplingParams(temperature=0.5, seed=1),
        SamplingParams(temperature=1.5, top_k=3, seed=2),
    ):
        seq = driver.add([11], settings)
        ops += [_next(driver, [seq], 11) for _ in range(5)]
        ops.append(seq.seq_id)
        driver.slots.append(seq.slot)
    assert difference(executor, ops) is None
    key, repeats, drop = repeat._key, RepeatedStep.repeats, LaunchedSteps.drop

    def careless(self: RepeatedStep, batch: UnifiedBatch, *limits: int) -> bool:
        return repeats(self, replace(batch, starts=()), *limits)

    def keeping(self: LaunchedSteps, slot: int) -> None:
        last = self._last
        drop(self, slot)
        self._last = last

    monkeypatch.setattr(repeat, "_key", lambda batch: key(batch)[1:])
    monkeypatch.setattr(RepeatedStep, "repeats", careless)
    monkeypatch.setattr(LaunchedSteps, "drop", keeping)

    def take_in(self: LaunchedSteps, batch: UnifiedBatch) -> None:
        executor.unified.stages.take_in(batch)
        DeviceTables.take_in(self._tables, batch.tables)

    monkeypatch.setattr(LaunchedSteps, "_take_in_tables", take_in)
    assert difference(executor, ops) == "temperature"


async def test_rows_whose_order_has_changed_are_caught(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that does not ask whether all moved on by as much."""
    executor = await idle(path)
    repeats = RepeatedStep.repeats

    def careless(self: RepeatedStep, batch: UnifiedBatch, *limits: int) -> bool:
        self._batch = replace(self._batch, pos_offsets=batch.pos_offsets)
        return repeats(self, batch, *limits)

    monkeypatch.setattr(RepeatedStep, "repeats", careless)
    assert _caught(executor)


def test_every_section_of_a_decode_step_moves_or_stays() -> None:
    """A new section has to be written anew with every step, or to depend on the sequences alone."""
    shape = StepShape(8, 8, 8, decodes=8, pieces=9, lora_tiles=1)
    assert {name for name, section in layout(shape).items() if section.count} == {*MOVING, *STAYING}
    assert not set(MOVING) & set(STAYING)


async def _decoding(path: Path) -> tuple[FakeDeviceExecutor, Driver, list[Sequence]]:
    """An executor with two sequences whose next step repeats the one before."""
    executor = await idle(path)
    driver = Driver(executor)
    seqs = [driver.add([11] * 3, GREEDY), driver.add([11] * 2, GREEDY)]
    executor.unified.launch(driver.batch([(seq, seq.tokens, True, 0) for seq in seqs]))
    for seq in seqs:
        seq.computed = seq.num_prompt
    executor.unified.launch(_next(driver, seqs))
    assert executor.launched._last is not None
    return executor, driver, seqs


def _next(driver: Driver, seqs: list[Sequence], token: int = 5, **fields: object) -> UnifiedBatch:
    batch = driver.batch([(seq, [token], True, 0) for seq in seqs], **fields)
    for seq in seqs:
        seq.computed += 1
    return batch


@pytest.mark.parametrize(
    "message",
    [
        "token id is outside",
        "a position is negative",
        "would exceed",
        "its table has",
        "names a block",
        "cannot write",
    ],
)
async def test_what_is_refused_is_refused_in_a_step_that_repeats(path: Path, message: str) -> None:
    executor, driver, seqs = await _decoding(path)
    batch = _next(driver, seqs)
    none = np.empty(0, np.int32)
    one = replace(
        batch.tables, slots=batch.slots[:1], groups=np.zeros(1, np.int32), counts=np.ones(1, np.int32)
    )
    wrong = {
        "token id is outside": {"token_ids": np.array([5, 211], np.int32)},
        "a position is negative": {"pos_offsets": batch.pos_offsets - 5},
        "would exceed": {"pos_offsets": batch.pos_offsets + executor.unified.states.max_model_len},
        "its table has": {
            "pos_offsets": batch.pos_offsets + 8,
            "tables": replace(one, slots=none, groups=none, starts=none, counts=none, block_ids=none),
        },
        "names a block": {
            "tables": replace(one, starts=np.ones(1, np.int32), block_ids=np.array([1 << 30], np.int32))
        },
        "cannot write": {
            "tables": replace(one, starts=np.full(1, 9, np.int32), block_ids=np.array([1], np.int32))
        },
    }
    with pytest.raises(InvalidInput, match=message):
        executor.unified.launch(replace(batch, **wrong[message]))
    executor.unified.launch(batch)


async def test_a_sequence_that_was_released_is_none_that_repeats(path: Path) -> None:
    executor, driver, seqs = await _decoding(path)
    executor.release_cache(seqs[0].seq_id)
    with pytest.raises(InvalidInput, match="never started"):
        executor.unified.launch(_next(driver, seqs))


async def test_a_new_epoch_repeats_nothing(path: Path) -> None:
    executor, driver, seqs = await _decoding(path)
    await executor.begin_epoch(2)
    with pytest.raises(InvalidInput, match="never started"):
        executor.unified.launch(_next(driver, seqs))
