"""Parts served-0.6b and served-0.6b-e4m3kv of gpu-check: stages that fail, replays over the device that is played, figures."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import replayed, served, served_text, shapes
from benchmarks.gpu.lent import borrowed
from benchmarks.gpu.made_tokenizer import ids_of, write_tokenizer
from benchmarks.gpu.part import Failed, Figures, Options
from benchmarks.gpu.serving import Crowd
from benchmarks.gpu.timing import Limits
from engine.config import EngineConfig
from engine.text.tokenizer import Tokenizer
from executors.contract import ExecutorConfig
from executors.llm.executor import LlmExecutor
from executors.llm.step.launched.graphs import decode_shapes
from executors.process import connect
from tests.gpu.device_fakes import LateOnce

LIMITS = Limits(4e12, 8e14, "copy_")


class HostEvent:
    """A mark on the host's clock."""

    at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: HostEvent) -> float:
        return 1e3 * (other.at - self.at)


class ReplayedFake(replayed.ReplayedExecutor, LateOnce):
    """A CPU that takes itself for a GPU, replayed."""

    def _event(self) -> Any:
        return HostEvent()


class Factory(replayed.ReplayedFactory):
    """Named by `PLAYED`."""

    def executor_class(self) -> type[LlmExecutor]:
        return ReplayedFake


PLAYED = Options("cpu", tiny=True, executor=f"{__name__}:Factory", mode="inline")


async def texts(stages: served.Stages, replays: int) -> list[list[int]]:
    """Of four sequences, a step of which is replayed so often."""
    async with stages.engine(prefix_caching=False) as core:
        crowd = Crowd(core, keep=True)
        crowd.ask([[i, 2, 3] for i in range(4)], [40] * 4)
        reading = asyncio.create_task(crowd.read())
        if replays:
            assert await stages.asking.replay(4, replays, 20.0) > 0.0
        await reading
    return crowd.tokens


@pytest.mark.long(extended=True)
@pytest.mark.timeout(240)
def test_replays_take_time_and_change_no_text() -> None:
    found: Figures = {}

    async def play() -> None:
        async with served.started(PLAYED, found.update) as (stages, _):
            assert stages.launches
            plain = await texts(stages, 0)
            device: Any = stages.executor
            before = device.inner.device.replays
            assert await texts(stages, 50) == plain
            assert device.inner.device.replays - before >= 2 * (50 + 39)
            await stages.run("steps", 60.0, served.steps)
            stages.end()

    asyncio.run(play())
    assert set(found["device_ms_by_rows"]) == {1, 4}
    assert all(0 < one < 1e4 for one in found["device_ms_by_rows"].values())


def test_replays_are_those_of_the_step_that_was_asked_for() -> None:
    class Graph:
        captured, replays = True, 0

        def replay(self) -> None:
            self.replays += 1

    replays, graph = replayed.Replays(HostEvent), Graph()
    one, two = decode_shapes(2)
    replays.after(one, graph)
    assert replays.seconds_each() is None and not graph.replays, "no replay was asked for"
    replays.asked = two.tokens, 7
    replays.after(one, graph)
    replays.after(two, SimpleNamespace(captured=False))  # launched call by call
    assert replays.seconds_each() is None and not graph.replays
    replays.after(two, graph)
    seconds = replays.seconds_each()
    assert graph.replays == 7 and seconds is not None and 0 < seconds < 1 and replays.asked is None
    replays.after(two, graph)
    assert graph.replays == 7


def test_each_number_of_rows_has_a_graph() -> None:
    assert set(served.WHOLE.rows) <= {shape.tokens for shape in decode_shapes(256)}
    assert max(served.WHOLE.cached) + max(served.WHOLE.new) < served.WHOLE.max_model_len
    assert all(cached % 64 == 0 for cached in served.WHOLE.cached)


async def test_engines_follow_each_other_over_one_executor() -> None:
    executor = connect(ExecutorConfig("paged_fake"), "inline")
    await executor.warmup()
    texts = []
    try:
        for _ in range(2):
            async with borrowed(executor, EngineConfig(max_num_seqs=4)) as core:
                crowd = Crowd(core, keep=True)
                crowd.ask([[1, 2, 3], [4, 5]], [6, 7])
                await crowd.read()
                texts.append(crowd.tokens)
        assert texts[0] == texts[1] and [len(text) for text in texts[0]] == [6, 7]
        with pytest.raises(Failed, match="restarted or reset 1 times meanwhile"):
            async with borrowed(executor, EngineConfig()) as core:
                core.journal.open_epoch()
    finally:
        await executor.shutdown()


# -- stages ------------------------------------------------------------------------------------------------------------------


def test_a_stage_that_fails_is_named_and_the_next_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[Figures] = []
    nothing: Any = None
    stages = served.Stages(Options("cpu", tiny=True), nothing, nothing, LIMITS, lines.append)
    ran = []

    async def hangs(stages: served.Stages) -> None:
        await asyncio.sleep(60)

    async def fails(stages: served.Stages) -> None:
        raise Failed("wrong numbers")

    async def breaks(stages: served.Stages) -> None:
        raise ValueError("a bug")

    async def works(stages: served.Stages) -> None:
        ran.append(1)

    async def all_of_them() -> None:
        for work in (hangs, fails, breaks, works):
            await stages.run(work.__name__, 0.01 if work is hangs else 5.0, work)

    stages.end()
    asyncio.run(all_of_them())
    assert ran and lines[-1]["wrong"] == {
        "hangs": "not over after 0.01 s", "fails": "wrong numbers", "breaks": "ValueError: a bug",
    }  # fmt: skip
    with pytest.raises(Failed, match=r"hangs: not over .*; fails: wrong numbers; breaks: ValueError"):
        stages.end()
    assert "a bug" in capsys.readouterr().err


class Engine:
    """Finds so many tokens of each prompt in its cache."""

    def __init__(self, cached: int) -> None:
        self.cached = cached


async def test_a_prompt_that_was_not_found_in_the_cache_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(core: Any, prompts: Any, outputs: Any) -> Crowd:
        crowd = Crowd(core)
        crowd.counts, crowd.first, crowd.cached = [1], [0.5], [core.cached]
        return crowd

    monkeypatch.setattr(served, "ask_all", asked)
    core: Any = Engine(7040)
    assert await served.first_tokens(core, [[1]], 7040) == 0.5
    with pytest.raises(Failed, match=r"\[7040\] tokens were found in the prefix cache, not 0 each"):
        await served.first_tokens(core, [[1]])


@pytest.mark.parametrize(("rate", "wrong"), [(1000.0, False), (1090.0, False), (1110.0, True)])
def test_no_rate_is_above_the_measured_bandwidth(rate: float, wrong: bool) -> None:
    if not wrong:
        served.check_possible("one stream", rate, 1000.0)
        return
    with pytest.raises(
        Failed, match=r"one stream: 1,110\.0 a second, and the measured bandwidth allows 1,000\.0"
    ):
        served.check_possible("one stream", rate, 1000.0)


def test_keys_in_bf16_are_not_reported_as_e4m3() -> None:
    found: Figures = {}
    served.check_small_keys(shapes.kv_bytes(shapes.SMALL) / 2, shapes.SMALL, found.update)
    assert found == {"kv_bytes_per_token": 57_344}
    with pytest.raises(Failed, match=r"114,688 bytes, 1\.00 times those of bf16"):
        served.check_small_keys(shapes.kv_bytes(shapes.SMALL), shapes.SMALL, found.update)


# -- figures -----------------------------------------------------------------------------------------------------------------


def test_the_least_time_of_smaller_keys() -> None:
    work = shapes.offline(8, 100, 1024, 10_000)
    whole = shapes.least_seconds(shapes.SMALL, work, LIMITS.copy, LIMITS.products)
    assert served.least_seconds(shapes.SMALL, work, LIMITS, 1.0) == pytest.approx(whole)
    read = sum(
        shapes.kv_bytes(shapes.SMALL) * sum(len(prompt) + i + 1 for i in range(count))
        for prompt, count in zip(work.prompts, work.outputs, strict=True)
    )
    half = served.least_seconds(shapes.SMALL, work, LIMITS, 0.5)
    assert half == pytest.approx(whole - read / 2 / LIMITS.copy)


def test_steps_by_events() -> None:
    pairs = [(0.010 * i, 0.010 * i + 0.009) for i in range(20)]
    found = served.device_steps(pairs)
    assert found["offline_device_ms"] == pytest.approx(9.0) and found["offline_steps_seen"] == 20
    assert found["offline_idle_share_by_events"] == pytest.approx(19 / 199)
    with pytest.raises(Failed, match="9 steps were seen"):
        served.device_steps(pairs[:9])


def test_a_made_tokenizer_shows_each_token_as_a_word(tmp_path: Path) -> None:
    shapes.write(shapes.TINY, tmp_path)
    write_tokenizer(tmp_path, 1500, 255)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == 1500 and tokenizer.eos_token_ids == {255}
    text = tokenizer.decode(list(range(257, 1500)))
    assert text.count(" ") == 1500 - 257 and len(set(text.split())) == 1500 - 257
    assert tokenizer.decode(tokenizer.encode("plain text: ä")) == "plain text: ä"


def test_a_grammar_does_not_end_early() -> None:
    assert '"minItems": 40' in served_text.long_array(40)


@pytest.mark.parametrize("end", [0, 20, 255])
def test_a_stream_that_no_grammar_holds_is_no_measurement_of_one(end: int, tmp_path: Path) -> None:
    shapes.write(shapes.TINY, tmp_path)
    write_tokenizer(tmp_path, 1500, end)
    tokenizer = Tokenizer.load(tmp_path)
    for text in ("[1, -2,30", " [\n4"):
        assert ids_of(text, end) == tokenizer.encode(text)
        served_text.check_array(tokenizer.encode(text), end)
    for text in ("12, 3", "[1, x"):
        with pytest.raises(Failed, match="left its grammar"):
            served_text.check_array(tokenizer.encode(text), end)
