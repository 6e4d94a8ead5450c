"""RemoteExecutor in its good days: calls, order, cancellation, facts, progress, loading."""

import asyncio
import subprocess
import sys
from typing import Literal

import numpy as np
import pytest

from executors.contract import (
    ConfigError,
    DecodeInput,
    ExecutorConfig,
    ExecutorDied,
    ExecutorState,
    InvalidInput,
    KvCacheHandle,
    NotReady,
    OutOfMemory,
    Pace,
    PrefillInput,
    SequenceStart,
    Skipped,
    StepFailed,
    Tensor,
    Unsupported,
)
from executors.process import connect
from executors.process.children import child_environment
from executors.process.client import RemoteExecutor
from executors.testing.conformance import check
from executors.testing.driver import GREEDY
from tests.executors.process import stub
from tests.executors.process.helpers import (
    QUICK,
    SHORT,
    Make,
    config,
    living_children,
    log_of,
    step,
    title_of,
)

pytestmark = pytest.mark.long

HANDLE = KvCacheHandle(5, (np.arange(3, dtype=np.int32),), 3)


def ids(*tokens: int) -> Tensor:
    return Tensor.of([list(tokens)], "int32")


async def test_steps_are_answered_in_order_with_several_outstanding(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    calls = [asyncio.ensure_future(executor.unified_decode(step(i, i + 1, step_id=i))) for i in range(20)]
    finished: list[int] = []
    for i, call in enumerate(calls):
        call.add_done_callback(lambda _, i=i: finished.append(i))
    outputs = await asyncio.gather(*calls)
    assert [output.token_ids.tolist() for output in outputs] == [[i + 1, i + 2] for i in range(20)]
    assert finished == list(range(20))


async def test_all_members_are_forwarded(remote: Make) -> None:
    executor = remote(limits=QUICK, adapters=True)
    await executor.warmup()
    await executor.warmup()
    await executor.begin_epoch(3)
    request = DecodeInput(ids(9), HANDLE, 3, sampling=GREEDY)
    prefilled = await executor.prefill(PrefillInput(ids(1, 2)))
    assert prefilled.last_token_logits().tolist() == [0, 1, 2, 3]
    assert prefilled.sampled is not None and prefilled.sampled.top_logprobs == ((7, -0.5),)
    assert len(await executor.batch_prefill([PrefillInput(ids(1))] * 3)) == 3
    decoded = await executor.decode(request)
    assert decoded.sampled is not None and decoded.sampled.token_id == 10
    assert np.array_equal(decoded.kv_cache.block_tables[0], HANDLE.block_tables[0])
    assert len(await executor.batch_decode([request] * 2)) == 2
    assert len(await executor.forward_verify([request] * 3)) == 3
    verified = await executor.speculative_decode(request, [10, 77, 5])
    assert [token.token_id for token in verified.accepted_tokens] == [10, 11]
    assert verified.acceptance_count == 1
    with pytest.raises(Unsupported, match=r"1\.0"):
        await executor.speculative_decode(request, [10], 0.5)
    assert (await executor.forward(Tensor.of(np.ones(3, np.float32)))).numpy().tolist() == [2, 2, 2]
    executor.release_cache(4)
    await executor.load_adapter("a", "/p", "d")
    executor.truncate_kv(HANDLE, 2)
    executor.release_memory(1, np.array([2, 3, 7], np.int32))
    await executor.unload_adapter("a")
    expected = "epoch3 prefill prefill prefill prefill decode batch2 decode decode decode decode decode decode decode"
    assert await log_of(executor) == expected + " release4 load:a:/p:d truncate5:2:1 memory1[2,3,7] unload:a"


async def test_facts(remote: Make) -> None:
    executor = remote(limits=QUICK)
    for member in (
        executor.info,
        executor.capabilities,
        executor.kv_layout,
        executor.kv_capacity,
        executor.pace,
    ):
        with pytest.raises(NotReady):
            member()
    with pytest.raises(NotReady):
        await executor.unified_decode(step(1))
    assert executor.status().state is ExecutorState.INITIALIZING and executor.metrics().total_steps == 0
    assert executor.pid is None
    await executor.warmup()
    assert (
        executor.info().name == "stub"
        and executor.kv_layout().num_blocks == 8
        and executor.kv_capacity() == 99
        and executor.pace() == Pace(0.25, ((1, 0.5), (8, 1.5)))
    )
    assert executor.capabilities().paged and executor.supports_native_unified_decode()
    assert executor.optimal_batch_size() == 4 and executor.supports_batch_size(8)
    assert not executor.supports_batch_size(9) and not executor.supports_adapters()
    with pytest.raises(Unsupported, match="Stub loads no adapters"):
        await executor.load_adapter("a", "p", "d")
    with pytest.raises(Unsupported, match="no plain forward"):
        await executor.forward(Tensor.of([1.0]))
    with pytest.raises(Unsupported):
        executor.slot_table()
    assert executor.status().is_ready and executor.snapshot_age() < 1.0
    assert (
        executor.cache_metrics_snapshot() == {"log": "", "rss": 0.5}
        and executor.lora_metrics_snapshot() is None
    )
    await executor.shutdown()
    await executor.shutdown()
    assert executor.status().state is ExecutorState.SHUTDOWN and not executor.status().is_ready
    for coroutine in (executor.warmup(), executor.begin_epoch(1), executor.unified_decode(step(1))):
        with pytest.raises(NotReady):
            await coroutine
    executor.release_cache(1)


async def test_the_title_is_what_ps_shows(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    assert title_of(executor) == "cohort: executor rank 0"


def test_keys_stay_in_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_API_KEY", "secret")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")
    environment = child_environment()
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE" and environment["KMP_BLOCKTIME"] == "7"
    assert "secret" not in environment.values()


async def test_progress(remote: Make) -> None:
    executor = remote()
    seen: list[tuple[str, int, int]] = []
    executor.set_progress(lambda *report: seen.append(report))
    await executor.warmup()
    loading = [
        ("starting", 0, 0),
        ("importing", 0, 0),
        ("loading", 0, 0),
        ("weights", 0, 2),
        ("weights", 2, 2),
    ]
    # A fork server imports, and then its child.
    assert list(dict.fromkeys(seen)) == loading
    assert executor.stage() == ""


async def test_a_second_life_tells_its_stages_again(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    seen: list[str] = []
    executor.set_progress(lambda stage, done, total: seen.append(stage))
    executor.kill()
    await executor.wait_dead()
    assert seen == []
    await executor.begin_epoch(1)
    assert seen == ["starting", "importing", "loading", "weights", "weights"]


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("load", "error", "message"),
    [
        ("config", ConfigError, "^model: no such folder$"),
        ("crash", ExecutorDied, "^KeyError: 'unforeseen'$"),
        ("exit", ExecutorDied, "ended with exit code 7"),
    ],
)
async def test_a_failed_load_is_typed(remote: Make, load: str, error: type[Exception], message: str) -> None:
    executor = remote(load=load)
    with pytest.raises(error, match=message) as caught:
        await executor.warmup()
    if isinstance(caught.value, ExecutorDied):
        assert caught.value.cause == "load"
    assert executor.status().state is ExecutorState.ERROR
    death = await executor.wait_dead()
    assert death is not None and death.cause == "load"
    with pytest.raises(error):
        await executor.begin_epoch(1)
    assert executor.restarts == {"load": 1}


async def test_an_unknown_executor_is_a_config_error() -> None:
    executor = RemoteExecutor(ExecutorConfig("no_such_executor"))
    with pytest.raises(ConfigError, match="unknown executor"):
        await executor.warmup()
    await executor.shutdown()


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (stub.STEP_FAILED, StepFailed, "asked for"),
        (stub.NO_MEMORY, OutOfMemory, "asked for"),
        (stub.CRASH, StepFailed, "ZeroDivisionError: one by nought"),
    ],
)
async def test_after_a_failed_step_come_skipped_until_the_next_epoch(
    remote: Make, action: int, error: type[Exception], message: str
) -> None:
    executor = remote()
    await executor.warmup()
    calls = [executor.unified_decode(step(token)) for token in (1, action, 2)]
    good, failed, after = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(good, BaseException)
    assert type(failed) is error and str(failed) == message
    assert isinstance(after, Skipped)
    with pytest.raises(Skipped):
        await executor.unified_decode(step(2))
    await executor.begin_epoch(2)
    assert (await executor.unified_decode(step(2))).token_ids.tolist() == [3]
    assert executor.restarts == {}


async def test_a_refusal_stops_nothing(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    with pytest.raises(InvalidInput):
        await executor.unified_decode(step(stub.INVALID))
    wrong = step(1)
    wrong.slots = wrong.slots.astype(np.int64)  # type: ignore[assignment]
    with pytest.raises(InvalidInput):  # nothing was sent, and the numbers of calls are not out of step
        await executor.unified_decode(wrong)
    assert (await executor.unified_decode(step(2))).token_ids.tolist() == [3]


async def test_a_failure_that_has_no_answer_stops_the_epoch(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    executor.release_cache(666)
    with pytest.raises(Skipped, match="release_cache"):
        await executor.unified_decode(step(1))


async def test_a_cancelled_call_is_carried_out_and_its_answer_dropped(remote: Make) -> None:
    executor = remote(limits=QUICK, adapters=True)
    await executor.warmup()
    request = DecodeInput(ids(9), HANDLE, 3, sampling=GREEDY)
    for make in (
        lambda: executor.unified_decode(step(1)),
        lambda: executor.begin_epoch(2),
        lambda: executor.prefill(PrefillInput(ids(1))),
        lambda: executor.decode(request),
        lambda: executor.speculative_decode(request, [1]),
        lambda: executor.load_adapter("a", "p", "d"),
        lambda: executor.unified_decode(step(stub.STEP_FAILED)),
    ):
        task = asyncio.ensure_future(make())
        await asyncio.sleep(0)  # it has sent and waits
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await executor.forward(Tensor.of([4.0]))
        assert answer.numpy().tolist() == [8.0]
    assert await log_of(executor) == "step0 epoch2 prefill decode decode load:a:p:d step0"


@pytest.mark.parametrize("remote", ["command"], indirect=True)
async def test_a_cancelled_warmup_goes_on(remote: Make) -> None:
    executor = remote()
    first = asyncio.ensure_future(executor.warmup())
    await asyncio.sleep(0.01)
    pid = executor.pid
    assert executor.status().state is ExecutorState.INITIALIZING
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.gather(executor.warmup(), executor.warmup())
    assert executor.pid == pid and executor.restarts == {}


async def test_a_shutdown_while_loading_is_quick_and_answers_who_waits(remote: Make) -> None:
    executor = remote(load="slow")
    loading = asyncio.ensure_future(executor.warmup())
    await asyncio.sleep(0.1)
    async with asyncio.timeout(1.5):
        await executor.shutdown()
    with pytest.raises(NotReady, match="shut down"):
        await loading


async def test_a_stubborn_child_is_killed_at_shutdown(remote: Make) -> None:
    executor = remote(limits=SHORT, stubborn=True)
    await executor.warmup()
    waiting = asyncio.ensure_future(executor.unified_decode(step(stub.SLEEP)))
    watching = asyncio.ensure_future(executor.wait_dead())
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5.0):
        await executor.shutdown()
    with pytest.raises(NotReady):
        await waiting
    assert await watching is None
    assert executor.pid not in living_children()


async def test_a_cancelled_shutdown_goes_on(remote: Make) -> None:
    executor = remote(limits=SHORT, stubborn=True)
    await executor.warmup()
    ending = asyncio.ensure_future(executor.shutdown())
    await asyncio.sleep(0.01)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await executor.shutdown()
    assert executor.pid not in living_children()


async def test_large_answers_and_questions(remote: Make) -> None:
    executor = remote(adapters=True)
    await executor.warmup()
    large = np.arange(3_000_000, dtype=np.float32)
    answers = await asyncio.gather(*(executor.forward(Tensor.of(large)) for _ in range(3)))
    assert all(np.array_equal(answer.numpy(), large * 2) for answer in answers)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", ["echo", "paged_fake"])
@pytest.mark.parametrize("mode", ["process", "inline"])
async def test_an_executor_keeps_the_contract_from_afar(
    name: str, mode: Literal["process", "inline"]
) -> None:
    far = ExecutorConfig(name, max_num_seqs=16, options={"native": name == "echo"})
    report = await check(lambda: connect(far, mode))
    report.raise_for_failures()
    assert len(report.passed) > 20


def test_the_parents_half_imports_no_torch() -> None:
    code = (
        "import sys, executors.process.client;"
        "print([n for n in ('torch', 'pydantic', 'fastapi', 'executors.registry') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_another_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="process or inline"):
        connect(config(), "thread")  # type: ignore[arg-type]


async def test_odd_fields_fail_their_call_and_nobody_else(remote: Make) -> None:
    executor = remote(limits=QUICK, adapters=True)
    await executor.warmup()
    pid = executor.pid
    none = np.empty(0, np.int32)
    odd = [
        SequenceStart(1, 0, none, none, prompt_logprobs=2.5),  # type: ignore[arg-type]
        SequenceStart(1, 0, [1, 2], none),  # type: ignore[arg-type]
        SequenceStart(1, "0", none, none),  # type: ignore[arg-type]
        SequenceStart(1, 0, none, none, adapter=7),  # type: ignore[arg-type]
    ]
    calls = []
    for start in odd:
        batch = step(5)
        batch.starts = (start,)
        calls += [executor.unified_decode(batch), executor.unified_decode(step(5))]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers[::2]] == [InvalidInput] * len(odd)
    assert [answer.token_ids.tolist() for answer in answers[1::2]] == [[6]] * len(odd)  # type: ignore[union-attr]
    with pytest.raises(InvalidInput):
        await executor.load_adapter(1, "p", "d")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await executor.speculative_decode(DecodeInput(ids(9), HANDLE, 3), [1], "much")  # type: ignore[arg-type]
    executor.release_cache(1.5)  # type: ignore[arg-type]
    with pytest.raises(Skipped, match="release_cache"):
        await executor.unified_decode(step(5))
    await executor.begin_epoch(2)
    assert (await executor.unified_decode(step(5, epoch=2))).token_ids.tolist() == [6]
    assert executor.pid == pid and not executor.restarts


async def test_a_failure_whose_text_cannot_travel_is_told_all_the_same(remote: Make) -> None:
    executor = remote()
    await executor.warmup()
    with pytest.raises(StepFailed, match=r"no file \?"):
        await executor.unified_decode(step(stub.SURROGATE))
    assert not executor.restarts and executor.status().is_ready


def test_the_thread_that_waits_for_steps_sleeps_no_longer_than_it_says() -> None:
    code = "from executors.process import child; import ctypes; child._wake_in_time(); print(ctypes.CDLL(None).prctl(30))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"  # PR_GET_TIMERSLACK
