"""KV of a device with memory of its own: sized by what the largest steps leave, whatever others free or take meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from executors.contract.batch import SamplingParams, UnifiedBatch
from executors.contract.checks import check_arrays
from executors.contract.config import ExecutorConfig, ExecutorMemoryConfig
from executors.contract.errors import ConfigError, OutOfMemory, Unavailable
from executors.llm.assembly import device_sizing
from executors.llm.assembly.device_sizing import ATTEMPTS, PROFILE_TOKENS, DeviceSizing, graph_bytes
from executors.llm.assembly.full_steps import full_steps
from executors.llm.device.cpu import CpuDevice
from executors.llm.device.cuda import CudaMemory
from executors.llm.device.table import device_of
from executors.llm.executor import LlmExecutor
from executors.llm.memory import device_memory as seam
from executors.llm.memory.device_memory import CONTEXT_BYTES, look, margin
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.model.caches import KvSpec
from executors.llm.step import sampling
from executors.llm.step.launched.graphs import LaunchLimits
from executors.llm.tools import describe
from tests.executors.llm.devices import GIB, WEIGHTS, Device, Once
from tests.executors.llm.driver import Driver, config, start

POOL = GIB // 4
PER_TOKEN, PER_ROW = 100_000, 1_000_000
SPEC = KvSpec(4, 8, 4, 128, torch.bfloat16, torch.device("cpu"), 1.0, None, (None,) * 4)  # 8 KiB a token
SEQS, TOKENS, LENGTH, BLOCKS = 64, 2048, 4096, 100
LIMITS = ExecutorConfig("llm", max_num_seqs=SEQS, max_num_batched_tokens=TOKENS)
STEP = POOL + TOKENS * PER_TOKEN + SEQS * PER_ROW
"""The largest step, and what is made beside KV once and for all."""


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap of a test run is large, and nothing here refers to itself in a circle."""
    monkeypatch.setattr(seam, "gc", SimpleNamespace(collect=lambda: 0))


@dataclass
class Made:
    """Stands for runners and their KV."""

    plan: KvPlan
    steps: list[int] = field(default_factory=list)
    closed: bool = False


class Sizing:
    """`DeviceSizing` over a `Device`."""

    def __init__(self, device: Device, **changes: Any) -> None:
        self.device = device
        memory = {
            name: changes.pop(name)
            for name in ("kv_cache_memory_bytes", "gpu_memory_utilization", "kv_on_demand", "standby_context")
            if name in changes
        }
        context = changes.pop("context", LENGTH)
        self.config = replace(LIMITS, memory=ExecutorMemoryConfig(**memory), **changes)
        info = SimpleNamespace(max_model_len=self.config.max_model_len or context)
        source: Any = SimpleNamespace(model=SimpleNamespace(cache_specs=(SPEC,)), info=info)
        self.made: list[Made] = []
        self.pauses: list[float] = []
        self.while_paused: Callable[[], None] = lambda: None
        self.sizing = DeviceSizing(
            source, self.config, device, self.assemble, self.run, self.close, self.sleep
        )

    def size(self, plan: KvPlan) -> int:
        return POOL + plan.layout.num_bytes

    def assemble(self, plan: KvPlan) -> Made:
        self.device.take(self.size(plan))
        self.made.append(Made(plan))
        return self.made[-1]

    def run(self, made: Made, batch: UnifiedBatch) -> None:
        needed = batch.total_q_tokens() * PER_TOKEN + len(batch) * PER_ROW
        self.device.take(needed)
        self.device.release(needed)
        made.steps.append(batch.total_q_tokens())

    def close(self, made: Made) -> None:
        made.closed = True
        self.device.release(self.size(made.plan))

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.while_paused()


def pool_bytes(made: Made) -> int:
    return made.plan.layout.num_bytes


def expected(device: Device, share: float = 0.9) -> int:
    """KV bytes by the rule, of a device as it was before anything but weights was there; whole blocks."""
    ours = CONTEXT_BYTES + WEIGHTS
    free = device.total - device.others - ours
    room = min(int(share * device.total) - ours, free) - margin(device.total)
    return (room - STEP - graph_bytes(LIMITS)) // (16 * SPEC.bytes_per_token()) * 16 * SPEC.bytes_per_token()


# Few sequences of usual length would not use all: these are as long as it takes.
LONG = {"max_model_len": 1 << 20}
CONTEXT = {"context": 1 << 21}


@pytest.mark.parametrize(
    ("total", "others", "share"),
    [(80, 0, 0.9), (80, 0, 1.0), (80, 0, 0.3), (80, 40, 0.9), (80, 40, 0.45), (141, 1, 0.9)],
)
def test_kv_takes_what_is_really_free_and_no_more_than_the_share(
    total: int, others: int, share: float
) -> None:
    device = Device(total * GIB, others * GIB)
    wanted = expected(device, share)
    sizing = Sizing(device, gpu_memory_utilization=share, **LONG)
    made = sizing.sizing.make()
    assert pool_bytes(made) == wanted
    profile, kept = sizing.made
    assert kept is made and not made.closed and profile.closed
    assert profile.plan.layout.capacity_tokens == PROFILE_TOKENS
    assert made.steps == profile.steps and made.steps[0] == TOKENS, "it was tried with the largest steps"
    ours = device.reserved() + device.context + graph_bytes(LIMITS)
    assert ours <= share * device.total and device.total - device.others - ours >= margin(device.total)


@pytest.mark.parametrize("others", [0, 40])
def test_kv_leaves_room_for_the_context_of_a_process_that_stands_by(
    others: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Within the share, and within what others leave."""
    caplog.set_level(logging.INFO)
    device = Device(others=others * GIB)
    wanted = expected(device) - CONTEXT_BYTES  # whole blocks
    made = Sizing(device, standby_context=True, **LONG).sizing.make()
    assert pool_bytes(made) == wanted
    assert "0.50 for a process that stands by (standby_executor)" in caplog.text
    again = Sizing(Device(others=others * GIB), standby_context=True, kv_cache_memory_bytes=wanted, **LONG)
    assert pool_bytes(again.sizing.make()) == wanted, "a later life gets as much"


def test_no_more_than_all_sequences_can_use() -> None:
    made = Sizing(Device()).sizing.make()
    assert made.plan.layout.capacity_tokens == SEQS * LENGTH


def test_what_others_free_meanwhile_is_no_mistake_and_not_ours() -> None:
    """Half of the device is given back while the profile runs. vLLM ends there; counted as ours it would be negative."""
    device = Device(others=40 * GIB)
    alone = expected(Device(), 0.9)
    device.events[1] = lambda: setattr(device, "others", 0)
    assert pool_bytes(Sizing(device, **LONG).sizing.make()) == alone


def test_the_share_holds_though_others_free_more(caplog: pytest.LogCaptureFixture) -> None:
    device = Device(others=40 * GIB)
    device.events[1] = lambda: setattr(device, "others", 0)
    caplog.set_level(logging.INFO)
    made = Sizing(device, gpu_memory_utilization=0.4, **LONG).sizing.make()
    assert device.reserved() + device.context + graph_bytes(LIMITS) <= 0.4 * device.total
    assert f"KV pool of {pool_bytes(made):,} bytes" in caplog.text
    assert "times 0.4 (gpu_memory_utilization)" in caplog.text


@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_others_take_just_before_us_is_done_without(
    times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the look and the allocation, several times: each attempt looks anew."""
    device = Device()

    def take() -> None:
        device.others += 12 * GIB

    device.events = dict.fromkeys(range(2, 2 + times), take)
    sizing = Sizing(device, gpu_memory_utilization=1.0, **LONG)
    made = sizing.sizing.make()
    assert len([one for one in caplog.records if "no memory for a KV pool" in one.message]) == times
    assert device.free + device.cached >= margin(device.total)
    assert pool_bytes(made) == expected(device, 1.0) or times > 1
    assert sum(not one.closed for one in sizing.made) == 1


def test_what_is_taken_while_it_is_tried_counts_too() -> None:
    """The pool was there, the largest step was not: less, and not the same again."""
    device = Device()
    sizing = Sizing(device, **LONG)
    assemble = sizing.assemble

    def late(plan: KvPlan) -> Made:
        made = assemble(plan)
        if len(sizing.made) == 2:
            device.others = device.free - TOKENS
        return made

    sizing.sizing._assemble = late
    made = sizing.sizing.make()
    first, last = sizing.made[1:]
    assert first.closed and last is made
    assert pool_bytes(made) <= device_sizing.SHARE_OF_EARLIER_SIZE * pool_bytes(first)


def test_who_is_robbed_each_time_gives_up_with_all_figures() -> None:
    device = Device()

    def rob() -> None:
        device.others += device.free // 2 + margin(device.total)

    device.events = dict.fromkeys(range(2, 20), rob)
    with pytest.raises(ConfigError) as caught:
        Sizing(device, **LONG).sizing.make()
    said = str(caught.value)
    assert "KV" in said and "gpu_memory_utilization" in said and "max_num_batched_tokens" in said
    assert "\n" not in said
    assert device.looks <= 2 + 2 * ATTEMPTS


def test_a_step_that_does_not_fit_beside_the_weights_is_refused() -> None:
    device = Device(total=4 * GIB, context=GIB // 2)
    with pytest.raises(
        ConfigError, match=r"max_num_batched_tokens 2048 and max_num_seqs 64 beside the weights"
    ) as caught:
        Sizing(device).sizing.make()
    assert not isinstance(caught.value, Unavailable), "it is the device that is too small"


def test_memory_that_others_hold_may_come_back() -> None:
    """The process that is replaced may not have ended yet: whoever started this one starts it again."""
    with pytest.raises(Unavailable, match="max_num_batched_tokens 2048"):
        Sizing(Device(others=79 * GIB)).sizing.make()
    with pytest.raises(Unavailable, match="max_model_len 4194304"):
        Sizing(Device(others=60 * GIB), max_model_len=1 << 22).sizing.make()


def test_a_length_that_was_asked_for_and_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len 4194304: one sequence needs .* GiB for KV: 8\.00"):
        Sizing(Device(total=8 * GIB), max_model_len=1 << 22).sizing.make()


def test_a_length_that_was_reduced_is_the_next_lifes_too() -> None:
    """Which is told the size of the pool, and would refuse a longer sequence than fits: so it is told the length as well."""
    device = Device(total=8 * GIB)
    made = Sizing(device, max_num_seqs=1, **CONTEXT).sizing.make()
    assert made.plan.max_model_len < CONTEXT["context"] and "max_model_len reduced" in str(made.plan.note)
    pinned = {
        "kv_cache_memory_bytes": pool_bytes(made), "max_model_len": made.plan.max_model_len,
        "kv_on_demand": made.plan.layout.on_demand,
    }  # fmt: skip
    again = Sizing(Device(total=8 * GIB), max_num_seqs=1, **pinned, **CONTEXT).sizing.make()
    assert (again.plan.layout, again.plan.max_model_len) == (made.plan.layout, made.plan.max_model_len)


def test_other_errors_are_what_they_are() -> None:
    sizing = Sizing(Device())

    def broken(plan: KvPlan) -> Made:
        raise RuntimeError("illegal memory access")

    sizing.sizing._assemble = broken
    with pytest.raises(RuntimeError, match="illegal"):
        sizing.sizing.make()


# -- a size that is given ------------------------------------------------------------------------------------------------


def test_a_given_size_is_taken_as_it_is() -> None:
    """Beyond the share, too: the executor's next life is told what its first one took."""
    device = Device()
    made = Sizing(device, kv_cache_memory_bytes=2 * GIB, gpu_memory_utilization=0.05).sizing.make()
    assert pool_bytes(made) == 2 * GIB and made.steps[0] == TOKENS


def test_a_given_size_waits_for_a_process_that_is_ending() -> None:
    device = Device(others=75 * GIB)
    sizing = Sizing(device, kv_cache_memory_bytes=2 * GIB)
    sizing.while_paused = lambda: setattr(device, "others", 0) if len(sizing.pauses) == 2 else None
    assert pool_bytes(sizing.sizing.make()) == 2 * GIB
    assert len(sizing.pauses) == 2


def test_memory_that_returns_slowly_after_a_kill_is_waited_for() -> None:
    """The first life's pool to the byte, though its memory comes back piece by piece for longer than the attempts last; the
    runners are built once, and weights are not loaded again."""
    device = Device(total=141 * GIB, others=122 * GIB)
    sizing = Sizing(device, kv_cache_memory_bytes=100 * GIB, **LONG)

    def slowly() -> None:
        device.others = max(0, device.others - 10 * GIB)

    sizing.while_paused = slowly
    stages: list[str] = []
    sizing.sizing._report = lambda stage, done, total: stages.append(stage)
    made = sizing.sizing.make()
    assert pool_bytes(made) == 100 * GIB and sizing.made == [made]
    assert ATTEMPTS < len(sizing.pauses) <= 12 and len(set(stages)) == 1
    assert sum(sizing.pauses) <= device_sizing.WAIT_S


def test_a_given_size_that_is_not_there_is_refused() -> None:
    """In bounded time: a load that fails is tried again by the engine, for as long as its recovery may take."""
    sizing = Sizing(Device(others=75 * GIB), kv_cache_memory_bytes=2 * GIB)
    with pytest.raises(
        Unavailable, match=r"kv_cache_memory_bytes 2,147,483,648: no memory for it .* bytes are free"
    ):
        sizing.sizing.make()
    waited = device_sizing.WAIT_S + (ATTEMPTS - 1) * device_sizing.PAUSE
    assert sum(sizing.pauses) == pytest.approx(waited)
    assert 2 * waited < EngineConfig().recovery_timeout


def test_figures_that_say_too_little_are_not_believed_for_ever() -> None:
    """An attempt tells in the end."""
    device = Device()
    sizing = Sizing(device, kv_cache_memory_bytes=2 * GIB)
    device.others = device.free - GIB
    sizing.sizing._assemble = lambda plan: Made(plan)
    assert pool_bytes(sizing.sizing.make()) == 2 * GIB
    assert sum(sizing.pauses) == pytest.approx(device_sizing.WAIT_S)


def test_a_given_size_that_leaves_no_room_for_the_largest_step_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = Device()
    device.others = device.free - 2 * GIB - POOL - STEP // 4
    made = Sizing(device, kv_cache_memory_bytes=2 * GIB).sizing.make()
    assert pool_bytes(made) == 2 * GIB and not made.closed
    assert "steps will be smaller than max_num_batched_tokens 2048" in caplog.text


# -- the steps, and the whole executor -----------------------------------------------------------------------------------


def test_the_largest_steps() -> None:
    config = replace(LIMITS, max_num_seqs=60)
    prompts, described, hosted, decodes, others, more, last = full_steps(config, LENGTH, [BLOCKS], 100_000)
    assert (len(prompts), prompts.total_q_tokens()) == (60, TOKENS)
    assert (len(decodes), decodes.total_q_tokens()) == (60, 60)
    assert set(decodes.pos_offsets.tolist()) == {100_000 // 60 - 1}
    assert (last.total_q_tokens(), int(last.pos_offsets[0])) == (TOKENS, LENGTH - TOKENS)
    assert {(len(one), one.total_q_tokens()) for one in (described, hosted)} == {(60, TOKENS)}
    assert {(len(one), one.total_q_tokens()) for one in (others, more)} == {(60, 60)}
    for one in (described, others, hosted, more):
        assert all(start.sampling is not None and start.sampling.logprobs for start in one.starts)
        typical = {start.sampling.typical_p < 1.0 for start in one.starts if start.sampling is not None}
        assert typical == {one is hosted or one is more}
    for step in (prompts, decodes, last):
        assert step.num_sampled_items() == len(step)
        assert step.tables.block_ids.max() < BLOCKS
    short = next(full_steps(config, 10, [BLOCKS], 100_000))
    assert short.num_q_tokens.max() == 10


def test_the_largest_steps_verify_as_many_drafts_as_there_is_room_for() -> None:
    for num_seqs, drafts in ((60, 2), (200, 5)):
        config = replace(
            LIMITS, max_num_seqs=num_seqs, optimization=replace(LIMITS.optimization, max_drafts=drafts)
        )
        *_, last = full_steps(config, LENGTH, [BLOCKS], 100_000)
        check_arrays(last)
        limits = LaunchLimits(num_seqs, TOKENS, max_drafts=drafts)
        sampled = len(last) + int(last.num_draft_tokens.sum())
        assert (
            sampled == last.total_q_tokens() == limits.max_samples == num_seqs + min(num_seqs * drafts, 256)
        )
        assert last.num_draft_tokens.max() == drafts
        ends = last.pos_offsets + last.num_q_tokens
        assert ends.max() == 100_000 // num_seqs


class OnDevice(LlmExecutor):
    """An executor on a CPU that believes to have a device's memory."""

    memory = Device()

    async def warmup(self) -> None:
        self.device = CpuDevice(torch.device("cpu"))
        self.device.memory = self.memory
        await super().warmup()


async def test_an_executor_is_made_twice_and_computes_what_it_should(qwen3: Path) -> None:
    plain = await start(qwen3)
    chosen = replace(config(qwen3, max_num_batched_tokens=64), memory=ExecutorMemoryConfig())
    executor = OnDevice.from_config(chosen)
    await executor.warmup()
    await executor.begin_epoch(1)
    assert executor.kv_layout().capacity_tokens == 16 * executor.info().max_model_len
    results = []
    for made in (plain, executor):
        driver = Driver(made)
        results.append(await driver.generate([driver.add([5, 9, 100, 3, 17]), driver.add([1])], 6))
    assert results[0] == results[1]
    await executor.shutdown()


def test_torch_is_asked_about_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(name: str, value: Any) -> None:
        monkeypatch.setattr(torch.cuda, name, lambda *args: asked.append((name, *args)) or value)

    answer("mem_get_info", (6 * GIB, 8 * GIB))
    answer("memory_reserved", GIB)
    for name in ("max_memory_reserved", "reset_peak_memory_stats", "synchronize", "empty_cache"):
        answer(name, 7)
    cuda = torch.device("cuda:1")
    memory = device_of(cuda).memory
    assert isinstance(memory, CudaMemory) and device_of(torch.device("cpu")).memory is None
    room = look(memory, LIMITS)
    assert (room.total, room.free, room.ours) == (8 * GIB, 6 * GIB, GIB + CONTEXT_BYTES)
    memory.reset_peak()
    memory.empty_cache()
    assert memory.peak() == 7
    assert {name for name, *_ in asked} == {
        "mem_get_info", "memory_reserved", "max_memory_reserved", "reset_peak_memory_stats", "synchronize",
        "empty_cache",
    }  # fmt: skip
    assert all(args == [cuda] for name, *args in asked if name != "empty_cache")


@pytest.mark.parametrize("where", ["forward", "logits_for_sampling", "sample"])
async def test_a_step_that_finds_no_memory_is_tried_again_with_an_empty_cache(
    where: str, qwen3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the executor: the engine never hears of it, and the tokens are the same. Twice in vain is an error of its kind."""
    penalty = SamplingParams(temperature=0.0, repetition_penalty=1.2)
    plain = Driver(await start(qwen3))
    wanted = await plain.generate([plain.add([5, 9, 100], penalty)], 3)
    executor = OnDevice.from_config(config(qwen3))
    executor.memory = device = Device()
    await executor.warmup()
    await executor.begin_epoch(1)
    owner: Any = sampling if where == "sample" else executor._ready().runner
    driver, emptied = Driver(executor), device.emptied
    once = Once(getattr(owner, where), 1)
    monkeypatch.setattr(owner, where, once)
    found = await driver.generate([driver.add([5, 9, 100], penalty)], 3)
    assert found == wanted
    assert once.calls == 4 and device.emptied == emptied + 1

    once.calls, once.failing = 0, 2
    with pytest.raises(OutOfMemory, match=r"^CUDA out of memory\. Tried to allocate a lot$"):
        await driver.generate([driver.add([1])], 1)


def test_the_verb_reckons_by_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cohort info` knows the weights without loading them, and has only an estimate of a step to take off."""
    device = Device(total=80 * GIB, others=8 * GIB, used=0)
    monkeypatch.setattr(describe, "device_of", lambda asked: SimpleNamespace(memory=device))
    spec = replace(SPEC, device=torch.device("cuda"))
    sketch: Any = SimpleNamespace(model=SimpleNamespace(cache_specs=(spec,)), parameter_bytes=WEIGHTS)
    for share in (0.3, 1.0):
        chosen = replace(LIMITS, memory=ExecutorMemoryConfig(gpu_memory_utilization=share))
        free, part = describe.free_after_loading(chosen, sketch, describe.Budget())
        assert part == 1.0 and free - STEP == pytest.approx(
            expected(device, share), abs=16 * SPEC.bytes_per_token()
        )
    given, _ = describe.free_after_loading(chosen, sketch, describe.Budget(10 * GIB))
    assert given == 10 * GIB - CONTEXT_BYTES - margin(10 * GIB) - WEIGHTS - graph_bytes(LIMITS)


def test_what_is_ours_is_never_more_than_is_in_use() -> None:
    room = look(Device(total=GIB, context=1000, used=0), LIMITS)
    assert room.ours == 1000
