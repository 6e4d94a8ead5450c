"""Steps that are packed, launched and answered later give what steps give that the host computes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from executors.contract import InvalidInput, Skipped, StepFailed, noise
from executors.contract.batch import SamplingParams
from executors.llm.attention.packed import StepMeta
from executors.llm.executor import LlmExecutor
from executors.llm.memory.kv_cache import KvCache
from executors.llm.sampling.columns import SamplingColumns
from executors.llm.sampling.device_sampler import TorchDeviceSampler
from executors.llm.sampling.sampler import SamplingRows, sample
from executors.llm.step.launched.inputs import (
    BufferRing,
    DeviceStep,
    DeviceTables,
    HostStep,
    StepBuffer,
    StepShape,
    num_words,
    result_views,
    result_words,
)
from executors.process.client import RemoteExecutor
from executors.process.inline import InlineExecutor
from tests.engine import harness
from tests.executors.checkpoints import write_checkpoint
from tests.executors.llm.driver import GREEDY, Driver, config
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, LateEvent, PagedTorch
from tests.gpu.workloads import HOSTED, PLAIN, SHAPED, SMALL, Maker, play

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), SMALL)


async def plain(path: Path) -> LlmExecutor:
    executor = LlmExecutor.from_config(config(path))
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


async def faked(path: Path, device: FakeDevice, packed: bool = True) -> FakeDeviceExecutor:
    executor = FakeDeviceExecutor.from_config(config(path))
    executor.device = device
    if not packed:
        executor.order = ()
    await executor.warmup()
    await executor.begin_epoch(1)
    return executor


async def without_idle_work(path: Path) -> FakeDeviceExecutor:
    """One that captures nothing on this thread, for steps that are computed on another one."""
    executor = await faked(path, FakeDevice())
    executor._idle.stop()
    return executor


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    "settings",
    [PLAIN, PLAIN + SHAPED, SHAPED + HOSTED, PLAIN + SHAPED + HOSTED],
    ids=["device", "shaped", "shaped, host between", "host between"],
)
@pytest.mark.parametrize("out", [1, 2])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "attention of its own"])
async def test_eager_steps_give_what_the_host_gives(
    path: Path, settings: tuple[SamplingParams, ...], out: int, packed: bool
) -> None:
    ours, theirs = await faked(path, FakeDevice(captures=False), packed), await plain(path)
    ops = Maker(theirs, 17 * out + packed, settings).make(40)
    heard = await play(ours, ops, out)
    expected = await play(theirs, ops)
    assert {seq: [token for token, _ in found] for seq, found in heard.items()} == {
        seq: [token for token, _ in found] for seq, found in expected.items()
    }
    assert len(heard) > 5 and ours.capabilities().max_in_flight == 3


@pytest.mark.long(extended=True)
async def test_two_steps_are_out_and_the_loop_turns(path: Path) -> None:
    executor = await faked(path, FakeDevice(lateness=50))
    driver = Driver(executor)
    seq = driver.add([1, 2, 3])
    first = driver.batch([(seq, [1, 2, 3], True, 0)])
    seq.computed = 3
    second = driver.batch([(seq, [-1], True, 0)], pending=np.array([True]))
    one, two = (asyncio.create_task(executor.unified_decode(batch)) for batch in (first, second))
    await asyncio.sleep(0)
    assert executor.status().state == "Busy" and not one.done() and executor._steps._out == 2
    assert [event.asked for event in executor.device.events].count(0) == 1  # type: ignore[union-attr]
    done: list[str] = []
    one.add_done_callback(lambda _: done.append("one"))
    two.add_done_callback(lambda _: done.append("two"))
    await asyncio.gather(one, two)
    assert done == ["one", "two"] and executor.status().state == "Ready"
    assert executor.status().current_batch_size == 0


async def test_a_pending_token_is_read_on_the_device(path: Path) -> None:
    """Whatever lies in the pool is taken, and what a bad row left there is no token outside the vocabulary."""
    executor = await faked(path, FakeDevice())
    driver = Driver(executor)
    seq, known = driver.add([1, 2, 3]), driver.add([1, 2, 3])
    await driver.step([(seq, [1, 2, 3], True, 0), (known, [1, 2, 3], True, 0)])
    assert int(executor.unified.states.pool[seq.slot, 3]) == seq.tokens[3]
    for planted, stands_for in ((77, 77), (2**31 - 1, 210), (-5, 0)):
        seq.computed = known.computed = 3
        executor.unified.states.pool[seq.slot, 3] = planted
        output = await driver.step(
            [(seq, [-1], True, 0), (known, [stands_for], True, 0)], pending=np.array([True, False])
        )
        assert output[0] == output[1]


@pytest.mark.parametrize("chunk", [False, True])
async def test_those_with_most_keys_are_computed_first(
    path: Path, chunk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs begin in the order of rows: the longest must not begin last."""
    executor = await faked(path, FakeDevice(captures=False))
    driver = Driver(executor)
    seqs = [driver.add(list(range(1, 1 + count))) for count in (2, 9, 4, 7)]
    for seq in seqs:
        await driver.step([(seq, seq.tokens, True, 0)])
    new = [driver.add([5, 6, 7])] if chunk else []
    found = list[list[int]]()
    bind = PagedTorch.bind

    def heard(self: PagedTorch, meta: StepMeta, cache: KvCache) -> object:
        items = range(4) if meta.decodes is None else meta.decodes[:4, 0].tolist()
        found.append([int(meta.lengths[item]) for item in items])
        return bind(self, meta, cache)

    monkeypatch.setattr(PagedTorch, "bind", heard)
    await driver.step([(seq, seq.tokens[seq.computed :], True, 0) for seq in (*new, *seqs)])
    assert found == [[10, 8, 5, 3]]


@pytest.mark.parametrize("captures", [False, True])
async def test_pieces_that_leave_out_a_tile_are_noticed(
    path: Path, captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device that is played: keys in no piece are not seen."""
    executor = await faked(path, FakeDevice(captures=captures))
    driver = Driver(executor)
    seqs = [driver.add(list(range(1, 1 + count))) for count in (40, 3)]
    for seq in seqs:
        await driver.step([(seq, seq.tokens, True, 0)])
    pieces = PagedTorch.pieces

    def short(self: PagedTorch, lengths: np.ndarray) -> np.ndarray:
        made: np.ndarray = pieces(self, lengths)
        assert made[:, 5].max() > 1
        last = (made[:, 0] == 0) & (made[:, 3] - made[:, 4] == made[:, 5] - 1)
        made[last, 2] -= self.rule.tile
        return made

    monkeypatch.setattr(PagedTorch, "pieces", short)
    with pytest.raises(StepFailed, match="a row's pieces end before its keys"):
        await driver.step([(seq, seq.tokens[seq.computed :], True, 0) for seq in seqs])


async def test_nan_fails_its_item_alone(path: Path) -> None:
    executor = await faked(path, FakeDevice())
    driver = Driver(executor)
    seqs = [driver.add([i, 2, 3]) for i in range(3)]
    await driver.step([(s, s.tokens, True, 0) for s in seqs])
    for layer in executor._ready().runner.cache.layers:
        layer[:, seqs[1].blocks] = torch.nan
    output = await driver.step([(s, s.tokens[-1:], True, 0) for s in seqs])
    assert (
        output[1] is not None and "not finite" in output[1].error and output.num_tokens.tolist() == [1, 0, 1]
    )
    assert len(output[0].tokens) == len(output[2].tokens) == 1


@pytest.mark.parametrize("when", ["launched", "done"])
async def test_a_failed_step_with_one_behind_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    inner = await without_idle_work(path)
    executor = InlineExecutor(inner.config, inner)
    await executor.warmup()
    await executor.begin_epoch(1)
    driver = Driver(inner)
    a, b = driver.add([1, 2, 3]), driver.add([4, 5])
    batches = [driver.batch([(one, one.tokens, True, 0)]) for one in (a, b)]

    def fail(*_: object) -> None:
        raise RuntimeError("an odd thing")

    with monkeypatch.context() as patch:
        if when == "launched":
            patch.setattr(inner.launched.program, "forward", fail)
        else:
            patch.setattr(LateEvent, "query", fail)
            patch.setattr("executors.llm.step.launched.inputs.BufferRing._free", lambda buffer: None)
        found = await asyncio.gather(
            *(executor.unified_decode(batch) for batch in batches), return_exceptions=True
        )
    assert [type(one) for one in found] == [StepFailed, Skipped]
    for event in inner.device.events:  # type: ignore[union-attr]
        event.synchronize()
    await executor.begin_epoch(2)
    fresh = Driver(inner, epoch=2)
    seq = fresh.add([1, 2, 3])
    output = await executor.unified_decode(fresh.batch([(seq, [1, 2, 3], True, 0)]))
    assert len(output[0].tokens) == 1 and executor.metrics().failed_steps == 1
    await executor.shutdown()


async def test_a_refused_step_stops_nobody(path: Path) -> None:
    inner = await without_idle_work(path)
    executor = InlineExecutor(inner.config, inner)
    await executor.warmup()
    await executor.begin_epoch(1)
    driver = Driver(inner)
    a, b = driver.add([1, 2, 3]), driver.add([4, 5])
    good = driver.batch([(a, a.tokens, True, 0)])
    bad = driver.batch([(b, [211, 5], True, 0)])
    a.computed = 3
    after = driver.batch([(a, [-1], True, 0)], pending=np.array([True]))
    found = await asyncio.gather(
        *(executor.unified_decode(batch) for batch in (good, bad, after)), return_exceptions=True
    )
    assert isinstance(found[1], InvalidInput) and [len(found[i].token_ids) for i in (0, 2)] == [1, 1]  # type: ignore[union-attr]
    await executor.shutdown()


async def test_a_child_process_begins_a_step_while_another_is_out(path: Path) -> None:
    remote = RemoteExecutor(config(path, executor="tests.gpu.device_fakes:Factory"))
    theirs = await plain(path)
    ops = Maker(theirs, 5, PLAIN + SHAPED + HOSTED).make(30)
    try:
        await remote.warmup()
        await remote.begin_epoch(1)
        assert any(note.startswith("graphs: ") for note in remote.status().notes)
        assert remote.capabilities().max_in_flight == 3
        heard = await play(remote, ops, 3)
    finally:
        await remote.shutdown()
    expected = await play(theirs, ops)
    assert {seq: [one[0] for one in found] for seq, found in heard.items()} == {
        seq: [one[0] for one in found] for seq, found in expected.items()
    }


@pytest.mark.parametrize("most", [2, 3])
async def test_an_engine_with_several_steps_out_gives_what_it_gives_with_one(path: Path, most: int) -> None:
    prompts = [[i] * (1 + 5 * i) for i in range(9)]
    found = []
    for inner, out in ((await without_idle_work(path), most), (await plain(path), 1)):
        executor = InlineExecutor(inner.config, inner)
        async with harness.engine(executor, max_in_flight=out, max_num_batched_tokens=24) as core:  # type: ignore[arg-type]
            asked = [
                harness.request(prompt, 9, (*SHAPED, *HOSTED, *PLAIN)[number])
                for number, prompt in enumerate(prompts)
            ]
            found.append(await asyncio.gather(*(harness.run(core, one) for one in asked)))
    assert found[0] == found[1]


async def test_steps_of_more_table_changes_than_there_is_room_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executors.llm.step.launched.queueing._CHANGES", 0)
    ours, theirs = await faked(path, FakeDevice()), await plain(path)
    while ours.unified.capture_next():
        pass
    # Hundreds of blocks that are cached already, and one token to compute.
    found = []
    for executor in (ours, theirs):
        driver = Driver(executor)
        seq = driver.add(list(range(200)) * 2)
        await driver.step([(seq, seq.tokens[:399], False, 0)])
        executor.release_cache(seq.seq_id)
        seq.started, seq.computed = False, 399
        await driver.step([(seq, seq.tokens[399:], True, 0)])
        found.append(seq.tokens[400:])
    assert found[0] == found[1] and ours.device.replays > 0  # type: ignore[union-attr]


# -- the parts -----------------------------------------------------------------------------------------------------------


def test_a_buffer_is_not_used_again_before_its_event() -> None:
    buffers = [StepBuffer(8, 4, False, LateEvent(2)) for _ in range(3)]
    for buffer in buffers:
        buffer.event.buffer = buffer  # type: ignore[attr-defined]
    ring, taken = BufferRing(buffers), []

    class Owner:
        def __init__(self, buffer: StepBuffer) -> None:
            self.buffer = buffer

        def settle(self) -> None:
            taken.append(self.buffer.result.tolist())

    for number in range(7):
        buffer = ring.take()
        buffer.words[:] = number
        buffer.result.fill_(number)
        buffer.event.record()
        buffer.owner = Owner(buffer)
    assert [buffer.event.waited for buffer in buffers] == [2, 1, 1]  # type: ignore[attr-defined]
    assert taken == [[number] * 4 for number in range(4)], "results were lost"
    ring.drain()
    assert len(taken) == 7 and all(buffer.owner is None for buffer in buffers)


def test_the_fake_event_notices_a_buffer_that_is_written_too_early() -> None:
    event = LateEvent(5)
    buffer = event.buffer = StepBuffer(8, 4, False, event)
    event.record()
    buffer.words[3] = 1
    with pytest.raises(AssertionError, match="written while"):
        event.synchronize()


@pytest.mark.parametrize("listed", [False, True])
def test_what_is_written_is_what_is_read(listed: bool) -> None:
    shape = StepShape(9, 7, 7, 5 if listed else 0, 6, listed)
    words = np.full(num_words(shape), -1, np.int32)
    host, rng = HostStep(words, shape), np.random.default_rng(0)
    given = {
        "token_ids": rng.integers(0, 99, 9), "source": rng.integers(0, 2**40, 4), "temperature": rng.random(7),
        "dest": rng.integers(0, 2**40, 2), "lengths": rng.integers(0, 9, 3),
    }  # fmt: skip
    for name, values in given.items():
        host.put(name, np.asarray(values), -1)
    step = DeviceStep(torch.from_numpy(words), shape)
    for name, values in given.items():
        found = step[name].tolist()
        assert found[: len(values)] == np.asarray(values).tolist()
        assert all(one == -1 for one in found[len(values) :])
        assert step[name].data_ptr() % 16 == words.ctypes.data % 16
    if listed:
        host.put_pairs("tiles", np.array([[1, 2]]), (8, 9))
        assert step.pairs("tiles").tolist() == [[1, 2], *[[8, 9]] * 4]
        assert step.pairs("decodes").shape == (6, 2)


def test_results_share_one_copy() -> None:
    for samples in (0, 1, 4, 5, 13):
        result = torch.zeros(result_words(samples), dtype=torch.int32)
        tokens, bad = result_views(result, samples)
        tokens.fill_(7)
        bad.fill_(1)
        again, flags = result_views(result.clone(), samples)
        assert again.tolist() == [7] * samples and flags.tolist() == [1] * samples


def test_tables_follow_the_hosts() -> None:
    host = np.zeros((4, 6), np.int32)
    tables, rng = DeviceTables(host, torch.device("cpu")), np.random.default_rng(1)
    for number in range(30):
        for _ in range(
            200 if number == 7 else int(rng.integers(0, 3))
        ):  # some need the host, and send nothing
            slots = rng.permutation(4)[:3].astype(np.int32)
            starts = rng.integers(0, 3, 3).astype(np.int32)
            counts = rng.integers(0, 4, 3).astype(np.int32)
            for slot, start, count in zip(slots, starts, counts, strict=True):
                host[slot, start : start + count] = rng.integers(1, 99, count)
            tables.changed(slots, starts, counts)
        places, values = tables.unsent()
        assert len(np.unique(places)) == len(places)
        tables.tensor.view(-1)[torch.from_numpy(places)] = torch.from_numpy(values)
        tables.sent()
        assert np.array_equal(tables.tensor[:4].numpy(), host)
    assert not tables.tensor[tables.padding_slot].any()


@pytest.mark.parametrize("width", [1, 50, 700])
def test_the_device_samples_what_the_host_samples(width: int) -> None:
    rng = np.random.default_rng(width)
    n = 70
    logits = torch.from_numpy(rng.normal(0, 3, (n, width)).round(1).astype(np.float32))  # with ties
    logits[3], logits[4, 0], logits[5], logits[6] = 1.0, torch.nan, -torch.inf, torch.inf
    logits[7, 1:] = -torch.inf
    asked = {
        "temperature": rng.choice([0.0, 0.3, 1.0, 4.0], n), "top_k": rng.choice([0, 1, 5, 5000], n),
        "top_p": rng.choice([1.0, 0.9, 0.2, 1e-6], n), "min_p": rng.choice([0.0, 0.1, 1.0], n),
        "seed": rng.integers(0, 2**64, n, np.uint64), "choice": np.ones(n, np.uint64), "positions": np.arange(n),
    }  # fmt: skip
    expected = sample(
        logits.clone(),
        SamplingRows(**asked, logprobs=np.full(n, -1), typical_p=np.ones(n)),
    )
    u = noise.uniform(asked["seed"], asked["choice"], asked["positions"].astype(np.uint64))
    columns = [torch.from_numpy(asked[name]) for name in ("temperature", "top_k", "top_p", "min_p")]
    tokens, bad = torch.full((n,), -9, dtype=torch.int32), torch.full((n,), -9, dtype=torch.int8)
    TorchDeviceSampler().sample(logits, SamplingColumns(*columns, torch.from_numpy(u)), tokens, bad)
    assert (bad.numpy() != 0).tolist() == expected.bad.tolist() and expected.bad.sum() == 3
    good = ~expected.bad
    assert tokens.numpy()[good].tolist() == expected.tokens[good].tolist()
    assert GREEDY.greedy and int(tokens.min()) >= 0 and int(tokens.max()) < width
