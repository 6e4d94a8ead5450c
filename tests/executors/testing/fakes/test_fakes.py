"""What the fakes detect, beyond what the conformance kit asks of every executor."""

import asyncio
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from executors.contract import ExecutorConfig, ExecutorDied, InvalidInput, NotReady, Pace, Skipped, StepFailed
from executors.contract.batch import SamplingParams, TableUpdates
from executors.contract.sampling_wrapper import SamplingWrapper
from executors.process.inline import InlineExecutor
from executors.registry import create
from executors.testing.driver import GREEDY, Driver, Feed
from executors.testing.fakes.base import FakeExecutor
from executors.testing.fakes.echo import EchoExecutor
from executors.testing.fakes.failures import Failure, parse_failures
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.paged import PagedFakeExecutor

BOTH = pytest.mark.parametrize("name", ["echo", "paged_fake"])
NATIVE = pytest.mark.parametrize("native", [True, False], ids=["native", "split"])


async def drive(name: str, **options: bool | int | float | str) -> Driver:
    executor = create(ExecutorConfig(name, max_num_seqs=8, max_model_len=128, options=options))
    return await Driver.start(executor)


def fake(driver: Driver) -> FakeExecutor:
    assert isinstance(driver.executor, FakeExecutor)
    return driver.executor


@BOTH
@NATIVE
async def test_tokens_are_the_oracles(name: str, native: bool) -> None:
    driver = await drive(name, native=native)
    prompts = [[1, 2, 3], list(range(40)), [7]]
    params = [GREEDY, SamplingParams(seed=5, top_p=0.9), SamplingParams(2.0, top_k=5, seed=6, choice=3)]
    seqs = [driver.add(prompt, chosen) for prompt, chosen in zip(prompts, params, strict=True)]
    await driver.prefill(*seqs)
    await driver.decode(20, *seqs)
    for seq, chosen in zip(seqs, params, strict=True):
        assert seq.output == expected_tokens(seq.prompt, 21, chosen)
        driver.release(seq)
    assert fake(driver).released == Counter({seq.seq_id: 1 for seq in seqs})


@BOTH
@NATIVE
async def test_adapters_change_the_tokens_by_their_digest(name: str, native: bool) -> None:
    driver = await drive(name, native=native)
    await fake(driver).load_adapter("a", "/nowhere", "digest")
    seq, plain = driver.add([1, 2, 3], adapter="a"), driver.add([1, 2, 3])
    await driver.prefill(seq, plain)
    await driver.decode(4, seq, plain)
    assert seq.output == expected_tokens([1, 2, 3], 5, adapter_digest="digest")
    assert plain.output == expected_tokens([1, 2, 3], 5)
    assert fake(driver).lora_metrics_snapshot() == {"loaded": 1, "names": "a"}
    with pytest.raises(InvalidInput, match="in use"):
        await fake(driver).unload_adapter("a")
    driver.release(seq)
    await fake(driver).unload_adapter("a")
    with pytest.raises(InvalidInput, match="not loaded"):
        await driver.step(Feed(driver.add([1], adapter="a")))


async def test_echo_refuses_positions_that_do_not_follow() -> None:
    driver = await drive("echo")
    seq = driver.add(list(range(10)))
    await driver.step(Feed(seq, 4))
    for wrong in (0, 3, 5):
        seq.num_computed = wrong
        with pytest.raises(InvalidInput, match="does not follow the 4 tokens held"):
            await driver.step(Feed(seq, 1))
    seq.num_computed = 4
    await driver.step(Feed(seq))
    assert seq.output == expected_tokens(seq.prompt, 1)


async def test_echo_keeps_to_its_kv_capacity() -> None:
    driver = await drive("echo", kv_capacity=8)
    assert driver.executor.kv_capacity() == 8
    seq = driver.add(list(range(8)))
    await driver.prefill(seq)
    with pytest.raises(InvalidInput, match="KV capacity"):
        await driver.decode(1, seq)


@BOTH
async def test_the_pace_is_what_steps_take_and_passes_through_wrappers(name: str) -> None:
    driver = await drive(name, step_delay_ms=20, prompt_token_ms=5)
    executor = fake(driver)
    assert executor.pace() == Pace(0.005, ((1, 0.02),))
    assert (await drive(name, step_delay_ms=20)).executor.pace() is None, "nothing is known of prompts"
    took = []
    for seq in (driver.add(list(range(20))), driver.add([1])):
        began = time.perf_counter()
        await driver.prefill(seq)
        took.append(time.perf_counter() - began)
    assert took[0] >= 0.12 and took[1] >= 0.02, "one token alone is a decode's"
    assert SamplingWrapper(executor).pace() == executor.pace()
    inline = InlineExecutor(executor.config, create(executor.config))
    with pytest.raises(NotReady):
        inline.pace()
    await inline.warmup()
    assert inline.pace() == executor.pace()
    await inline.shutdown()


async def test_paged_detects_reading_what_was_never_written() -> None:
    driver = await drive("paged_fake")
    seq = driver.add(list(range(20)), shared_blocks=[[3]], num_computed=16)
    with pytest.raises(InvalidInput, match="block 3: not written"):
        await driver.prefill(seq)


async def test_paged_detects_a_block_reused_while_it_is_read() -> None:
    driver = await drive("paged_fake")
    victim = driver.add(list(range(20)))
    await driver.prefill(victim)
    thief = driver.add([5, 6], shared_blocks=[[victim.blocks[0][0]]])
    await driver.prefill(thief)
    with pytest.raises(InvalidInput, match="not written"):  # the rest of the block was poisoned
        await driver.decode(1, victim)
    whole = driver.add(list(range(50, 66)), shared_blocks=[[victim.blocks[0][0]]])
    await driver.prefill(whole)
    await driver.decode(1, victim)
    assert victim.output != expected_tokens(victim.prompt, 2), "a block filled anew changes the tokens"


async def test_paged_detects_a_block_shared_by_different_histories() -> None:
    """The same tokens at the same positions, but after another first block: a hash that forgot its parent."""
    driver = await drive("paged_fake")
    tail = list(range(16))
    writer = driver.add([1] * 16 + tail)
    await driver.prefill(writer)
    reader = driver.add([2] * 16 + tail + [9])
    await driver.step(Feed(reader, 16))
    reader.blocks[0].append(writer.blocks[0][1])
    reader.num_computed = 32
    await driver.prefill(reader)
    assert reader.output != expected_tokens(reader.prompt, 1)


async def test_paged_refuses_two_writers_of_one_block() -> None:
    driver = await drive("paged_fake")
    a = driver.add([1, 2])
    b = driver.add([3, 4], shared_blocks=[[driver.free_blocks[0][0]]])
    with pytest.raises(InvalidInput, match="two sequences write to block"):
        await driver.prefill(b, a)


async def test_paged_poisons_a_released_partial_block_but_keeps_full_ones() -> None:
    driver = await drive("paged_fake")
    seq = driver.add(list(range(20)))
    await driver.prefill(seq)
    full, partial = seq.blocks[0]
    driver.release(seq)
    memory = driver.executor
    assert isinstance(memory, PagedFakeExecutor)
    assert memory.written[full].all() and not memory.written[partial].any()


async def test_pending_that_was_never_sampled_is_refused() -> None:
    for native in (True, False):
        driver = await drive("echo", native=native)
        seq = driver.add([1, 2, 3])
        with pytest.raises(InvalidInput, match="no token was sampled for position 2"):
            await driver.step(Feed(seq, pending=True))


async def test_a_batch_of_an_older_epoch_is_refused() -> None:
    driver = await drive("echo")
    await driver.executor.begin_epoch(2)
    with pytest.raises(InvalidInput, match="epoch 1 came in epoch 2"):
        await driver.step(Feed(driver.add([1])))


@BOTH
async def test_failures_happen_when_asked_for(name: str) -> None:
    driver = await drive(name, fail="step_failed@token=77,die@step=4")
    good, bad = driver.add([1, 2]), driver.add([77])
    await driver.prefill(good)
    with pytest.raises(StepFailed):
        await driver.step(Feed(bad), Feed(good))
    with pytest.raises(Skipped):
        await driver.step(Feed(good))
    assert not driver.executor.status().is_ready
    driver = await Driver.start(driver.executor, epoch=2)
    seq = driver.add([1, 2])
    await driver.prefill(seq)
    for _ in range(2):
        with pytest.raises(ExecutorDied):
            await driver.step(Feed(seq))
    driver = await Driver.start(driver.executor, epoch=3)
    seq = driver.add([1, 2])
    await driver.prefill(seq)
    assert seq.output == expected_tokens([1, 2], 1)
    assert driver.executor.metrics().failed_steps == 2


async def test_hang_and_delay() -> None:
    driver = await drive("echo", fail="hang@step=2", step_delay_ms=20)
    seq = driver.add([1])
    began = time.perf_counter()
    await driver.prefill(seq)
    assert time.perf_counter() - began >= 0.02
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(driver.decode(1, seq), 0.1)


def test_failures_are_parsed() -> None:
    assert parse_failures(" nan@seq=3 , exit@step=5*2 ") == [
        Failure("nan", seq=3),
        Failure("exit", step=5, times=2),
    ]
    assert parse_failures("") == []


async def test_facts_need_warmup_and_memory_is_counted() -> None:
    executor = create(ExecutorConfig("paged_fake", max_num_seqs=2, options={"num_blocks": 4}))
    with pytest.raises(NotReady):
        executor.kv_layout()
    driver = await Driver.start(executor)
    assert executor.kv_layout().capacity_tokens == 64
    await driver.prefill(driver.add(list(range(16))))
    memory = executor.status().memory
    assert (memory.used_bytes, memory.total_bytes) == (16 * 16, 64 * 16)


@BOTH
async def test_a_large_decode_step_is_fast(name: str) -> None:
    """About a millisecond for 1,024 sequences; the bound leaves room for a busy machine."""
    n = 1024
    executor = create(ExecutorConfig(name, max_num_seqs=n, max_model_len=64))
    driver = await Driver.start(executor)
    seqs = [driver.add([i % 900, 1, 2]) for i in range(n)]
    await driver.prefill(*seqs)
    batch = replace(driver.batch(*(Feed(seq) for seq in seqs)), tables=TableUpdates.empty())
    times = []
    for step in range(5):
        one = replace(batch, pos_offsets=batch.pos_offsets + step)
        began = time.perf_counter()
        output = await executor.unified_decode(one)
        times.append(time.perf_counter() - began)
        assert np.all(output.num_tokens == 1)
    assert min(times) < 0.02
    assert isinstance(executor, EchoExecutor | PagedFakeExecutor)
