"""An ingress over engines in this process: placing, refusals, and replicas that are lost in mid-stream."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import DeadlinePassed, EngineError, ExecutorFailed, InvalidRequest, Overloaded, Unavailable
from engine.mailbox import Mailbox
from engine.request import FinishReason, Request, RequestContext, Stage, TokenDelta
from executors.contract import SampledToken, SamplingParams
from server.ray_serve.ingress import Ingress
from server.remote.replicas.core import FleetCore
from server.remote.replicas.fleet import Member
from server.settings.load import load
from server.telemetry.stories.record import CallStory
from tests.e2e.checkpoints import VOCAB_SIZE, write_tokenizer
from tests.server.ray_serve.local import LocalTransport
from tests.tiers import sweep

pytestmark = pytest.mark.timeout(60)


@dataclass
class World:
    ingress: Ingress
    transport: LocalTransport

    @property
    def core(self) -> FleetCore:
        assert self.ingress.core is not None
        return self.ingress.core


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("echo-model"))


@asynccontextmanager
async def world(model_dir: Path, count: int = 2, delay: float = 0.5, **flags: Any) -> AsyncIterator[World]:
    given: dict[str, Any] = {
        "model": str(model_dir),
        "executor": "echo",
        "executor_mode": "inline",
        "executor_option": [f"vocab_size={VOCAB_SIZE}", f"step_delay_ms={delay}"],
        **flags,
    }
    settings, _ = load(given, {})
    transport = LocalTransport(settings)
    ingress = Ingress(settings, transport)
    loading = asyncio.create_task(ingress.load())
    try:
        for number in range(count):
            await transport.start(f"r{number}")
        await loading
        await until(lambda: len(ingress.fleet.present) == count)
        yield World(ingress, transport)
    finally:
        await ingress.stop()
        await transport.close()
        if ingress.state.judge is not None:
            await ingress.state.judge.close()
        ingress.state.threads.close()


async def until(true: Callable[[], object], within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110  # what it waits for has no event
            await asyncio.sleep(0.005)


_IDS = itertools.count()


def asked(
    count: int = 40, prompt: tuple[int, ...] = (1, 2, 3), logprobs: int | None = None, **fields: Any
) -> Request:
    sampling = SamplingParams(temperature=0.0, logprobs=logprobs)
    story = CallStory(0.0, f"r{next(_IDS)}", "/v1/completions")
    context = RequestContext(story.request_id, 0.0, story=story, deadline=fields.pop("deadline", None))
    return Request(context, np.array(prompt, np.int32), sampling, count, **fields)


@dataclass
class Stream:
    """What one reader has been given."""

    tokens: dict[int, list[SampledToken]]
    ends: dict[int, TokenDelta]


async def read(mailbox: Mailbox, keys: int, on_token: Callable[[Stream], None] = lambda _: None) -> Stream:
    found = Stream({}, {})
    while len(found.ends) < keys:
        for key, delta in (await mailbox.take()).items():
            found.tokens.setdefault(key, []).extend(delta.tokens)
            if delta.finish_reason is not None:
                found.ends[key] = delta
        on_token(found)
    return found


def ids(stream: Stream, key: int = 0) -> list[int]:
    return [token.token_id for token in stream.tokens[key]]


async def whole(core: FleetCore, request: Request) -> list[int]:
    mailbox = Mailbox()
    core.submit(request, mailbox)
    return ids(await read(mailbox, 1))


def holder(w: World) -> str:
    """The one replica that has sequences."""
    [name] = [name for name in w.core.router.names if w.core.router.load(name)]
    return name


@pytest.mark.parametrize("logprobs", [None, 3])
async def test_a_lost_replica_loses_nothing(model_dir: Path, logprobs: int | None) -> None:
    """Choices of a call in mid-stream go on elsewhere: the same tokens, none twice, none missing. The story says so."""
    async with world(model_dir) as w:
        requests = [asked(60, logprobs=logprobs) for _ in range(3)]
        whole_one = await whole(w.core, asked(60, logprobs=logprobs))
        context = requests[0].context
        requests = [Request(context, one.prompt_token_ids, one.sampling, 60) for one in requests]
        mailbox, killed = Mailbox(), asyncio.Event()
        w.core.submit_choices(requests, mailbox)

        def look(found: Stream) -> None:
            if len(found.tokens.get(2, ())) >= 10 and not killed.is_set():
                killed.set()

        reading = asyncio.create_task(read(mailbox, 3, look))
        await killed.wait()
        first = holder(w)
        await w.transport.kill(first)
        stream = await reading
        assert [ids(stream, key) for key in range(3)] == [whole_one] * 3
        assert {end.finish_reason for end in stream.ends.values()} == {FinishReason.LENGTH}
        if logprobs is not None:
            assert all(token.logprob is not None for token in stream.tokens[0])
        story = context.story
        assert story.resumed == 0 and story.output_tokens == 180 and not story.parts
        names = [event.name for event in story.events]
        assert names.count("restart") == 3 and names.count("resumed") == 3
        assert w.core.moved == 3 and w.core.num_lost == 1
        assert w.core.router.names == [name for name in ("r0", "r1") if name != first]


async def test_all_lost_wait_until_one_is_back(model_dir: Path) -> None:
    async with world(model_dir) as w:
        expected = await whole(w.core, asked(80))
        mailboxes = [Mailbox() for _ in range(4)]
        for mailbox in mailboxes:
            w.core.submit(asked(80), mailbox)
        streams = [asyncio.create_task(read(mailbox, 1)) for mailbox in mailboxes]
        await until(lambda: all(entry.output_token_ids for entry in w.core._entries.values()))
        await w.transport.kill("r0")
        await w.transport.kill("r1")
        await until(lambda: w.core.num_unplaced == 4)
        assert w.ingress.state.stage()[0] is Stage.RECOVERING
        late = Mailbox()
        w.core.submit(asked(80), late)
        await w.transport.start("r2")
        for stream in streams:
            assert ids(await stream) == expected
        assert ids(await read(late, 1)) == expected
        assert w.ingress.state.stage()[0] is Stage.READY


async def test_a_deadline_is_one_for_the_start(model_dir: Path) -> None:
    """A stream that was begun in time goes on elsewhere, although its deadline has passed by then."""
    async with world(model_dir, delay=4) as w:
        mailbox = Mailbox()
        w.core.submit(asked(200, deadline=(deadline := w.core._clock() + 0.4)), mailbox)
        reading = asyncio.create_task(read(mailbox, 1))
        await until(lambda: any(len(entry.output_token_ids) > 5 for entry in w.core._entries.values()))
        await until(lambda: w.core._clock() > deadline)
        await w.transport.kill(holder(w))
        stream = await reading
        assert len(ids(stream)) == 200 and w.core.moved == 1, stream.ends


@sweep(every=2)
@pytest.mark.parametrize(
    ("limit", "delay"), [("deadline", 4), ("patience", 10)], ids=["deadline", "patience"]
)
async def test_what_moves_is_never_late(model_dir: Path, limit: str, delay: float) -> None:
    """Of two choices one has tokens, the other one waits; its replica dies. No limit for its start applies at the next one."""
    flags = {"max_queue_wait": "2"} if limit == "patience" else {}
    async with world(model_dir, delay=delay, max_num_seqs="1", **flags) as w:
        began = w.core._clock()
        deadline = began + 0.3 if limit == "deadline" else None
        first = asked(150, deadline=deadline)
        requests = [first, Request(first.context, first.prompt_token_ids, first.sampling, 20)]
        w.core.submit_choices(requests, mailbox := Mailbox())
        reading = asyncio.create_task(read(mailbox, 2))
        await until(lambda: any(len(entry.output_token_ids) > 5 for entry in w.core._entries.values()))
        taken = w.core._entries[2].sink
        assert taken is not None
        other = next(name for name in w.core.router.names if name != taken.replica)
        w.core.router.begin(taken.replica, 1000)
        w.core.submit(asked(250), busy := Mailbox())  # at the other one: what moves has to wait
        await until(lambda: w.core.router.load(other) == 1 and w.core._clock() > began + 0.3)
        await w.transport.kill(taken.replica)
        found = await reading
        assert [end.error for end in found.ends.values()] == [None, None]
        assert [len(ids(found, key)) for key in (0, 1)] == [150, 20] and w.core.moved == 2
        await read(busy, 1)


async def test_too_long_without_a_replica(model_dir: Path) -> None:
    """What was begun waits for the recovery's time, what was not for the queue's, or for its own deadline."""
    async with world(model_dir, 1, recovery_timeout="1", max_queue_wait="2", max_queued_seqs="3") as w:
        begun, fresh, hurried = Mailbox(), Mailbox(), Mailbox()
        w.core.submit(asked(500), begun)
        await until(lambda: all(entry.output_token_ids for entry in w.core._entries.values()))
        await w.transport.kill("r0")
        await until(lambda: w.core.num_unplaced == 1)
        w.core.submit(asked(5), fresh)
        w.core.submit(asked(5, deadline=w.core._clock() + 0.1), hurried)
        with pytest.raises(Overloaded):
            w.core.submit(asked(5), Mailbox())
        assert (
            str((await read(hurried, 1)).ends[0].error)
            == "the deadline passed before this request was started"
        )
        error = (await read(begun, 1)).ends[0].error
        assert isinstance(error, ExecutorFailed)
        assert isinstance((await read(fresh, 1)).ends[0].error, Overloaded)


async def test_refused_by_one_taken_by_the_other(model_dir: Path) -> None:
    """A full queue at one replica is not the client's to know while another one has room; when none has, it is a 429."""
    async with world(model_dir, max_num_seqs="1", max_queued_seqs="1", delay=5) as w:
        w.core.router._load_factor = 100.0  # affinity alone: everything goes to one replica first
        mailboxes = [Mailbox() for _ in range(4)]
        for mailbox in mailboxes:
            w.core.submit(asked(60), mailbox)
            await asyncio.sleep(0.05)
        assert {w.core.router.load("r0"), w.core.router.load("r1")} == {2}
        refused = Mailbox()
        w.core.submit_choices([asked(60), asked(60)], refused)
        ends = (await read(refused, 2)).ends
        assert all(isinstance(end.error, Overloaded) and end.error.retry_after >= 1 for end in ends.values())
        texts = [ids(await read(mailbox, 1)) for mailbox in mailboxes]
        assert texts == [texts[0]] * 4 and len(texts[0]) == 60


async def test_an_early_refusal_does_not_bind_a_stream(model_dir: Path) -> None:
    """The replica that refused it is the only one left when the other dies: there it goes on."""
    async with world(model_dir, max_num_seqs="1", max_queued_seqs="1", delay=5) as w:
        w.core.router._load_factor = 100.0
        streams = []
        for _ in range(3):
            w.core.submit(asked(60), mailbox := Mailbox())
            streams.append(asyncio.create_task(read(mailbox, 1)))
            await asyncio.sleep(0.05)
        [refused] = [entry for entry in w.core._entries.values() if entry.seq_id == 3]
        await until(lambda: refused.output_token_ids)
        assert refused.sink is not None
        await w.transport.kill(refused.sink.replica)
        async with asyncio.timeout(10):
            texts = [ids(await stream) for stream in streams]
        assert texts == [texts[0]] * 3 and len(texts[0]) == 60 and w.core.moved == 1


async def test_errors_of_the_request_stay_with_it(model_dir: Path) -> None:
    async with world(model_dir) as w:
        mailbox = Mailbox()
        w.core.submit(asked(40, prompt=(VOCAB_SIZE + 7,)), mailbox)
        error = (await read(mailbox, 1)).ends[0].error
        assert isinstance(error, InvalidRequest) and w.core.moved == 0
        with pytest.raises(EngineError):
            await w.core.prepare_grammar("nonsense")


async def test_what_kills_every_replica_is_failed(model_dir: Path) -> None:
    """A sequence that loses one replica after the other without a token in between does not get a sixth one."""
    async with world(model_dir, 1, delay=1500) as w:
        mailbox = Mailbox()
        w.core.submit(asked(5), mailbox)
        reading = asyncio.create_task(read(mailbox, 1))
        for number in range(5):
            name = f"r{number}"
            await until(lambda name=name: w.core.router.load(name) == 1)
            if number < 4:
                await w.transport.start(f"r{number + 1}")
                await until(lambda: len(w.core.router.names) == 2)
            await w.transport.kill(name, wait=False)
        error = (await reading).ends[0].error
        assert isinstance(error, ExecutorFailed) and error.repeats


async def test_abort_finish_and_drain(model_dir: Path) -> None:
    async with world(model_dir) as w:
        aborted, finished, kept = Mailbox(), Mailbox(), Mailbox()
        number = w.core.submit(asked(2000), aborted)
        other = w.core.submit(request := asked(2000), finished)
        w.core.submit(asked(100), kept)
        await until(lambda: all(len(entry.output_token_ids) > 5 for entry in w.core._entries.values()))
        w.core.abort(number)
        w.core.finish(other, 3)
        assert request.context.story.output_tokens == 3
        assert await w.core.drain(20)
        assert len(ids(await read(kept, 1))) == 100
        with pytest.raises(Unavailable):
            w.core.submit(asked(5), Mailbox())
        engines = [engine._core.core for engine in w.transport.engines.values()]
        await until(lambda: not any(core.stats().running or core.num_waiting for core in engines))


async def test_a_replica_that_serves_something_else_gets_nothing(model_dir: Path) -> None:
    async with world(model_dir, 1) as w:
        await w.transport.start("other", max_model_len=512)
        await until(lambda: len(w.ingress.fleet.present) == 2)
        assert w.core.router.names == ["r0"]
        assert "another model" in w.ingress.fleet.members["other"].why_not


async def test_a_replica_that_is_to_leave_finishes_what_it_has(model_dir: Path) -> None:
    """Ray takes a replica from its list before it ends it: no new requests, and the link ends with its last sequence."""
    async with world(model_dir, delay=2) as w:
        mailbox = Mailbox()
        w.core.submit(asked(200), mailbox)
        reading = asyncio.create_task(read(mailbox, 1))
        await until(lambda: any(entry.output_token_ids for entry in w.core._entries.values()))
        name = holder(w)
        engine = w.transport.engines.pop(name)
        w.transport.listed = set(w.transport.engines)
        w.transport.engines[name] = engine
        w.transport._changed()
        await asyncio.sleep(0.05)
        assert len(await whole(w.core, asked(20))) == 20
        assert w.core.router.load(name) == 1
        assert len(ids(await reading)) == 200 and w.core.moved == 0
        await until(lambda: name not in w.ingress.fleet.members)


async def test_what_a_leaving_replica_has_not_heard_waits_for_another(model_dir: Path) -> None:
    """A single replica leaves: its stream ends there, what comes then and what it has queued waits for the next one."""
    async with world(model_dir, 1, delay=6, max_num_seqs="1", recovery_timeout="20") as w:
        w.core.submit(asked(150), running := Mailbox())
        await until(lambda: any(entry.output_token_ids for entry in w.core._entries.values()))
        w.core.submit(asked(20), queued := Mailbox())
        await until(lambda: w.transport.engines["r0"]._core.core.num_waiting == 1)
        w.transport.listed = set()
        w.transport._changed()
        await until(lambda: "r0" in w.core._leaving)
        w.core.submit(asked(20), late := Mailbox())
        w.core.submit(asked(20), aborted := Mailbox())
        await until(lambda: w.core.num_unplaced == 3)
        assert w.core.num_placed == 1
        w.core.abort(max(w.core._entries))
        await w.core.prepare_grammar("nonsense")  # nobody is asked
        await w.transport.start("r1")
        w.transport.listed = {"r1"}
        w.transport._changed()
        texts = [ids(await read(mailbox, 1)) for mailbox in (queued, late)]
        assert [len(text) for text in texts] == [20, 20] and aborted is not None
        assert len(ids(await read(running, 1))) == 150 and w.core.moved == 0
        await until(lambda: "r0" not in w.ingress.fleet.members)


async def test_the_session_of_a_silent_ingress_is_closed(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of an ingress that was killed may stay open for ever: its sequences do not. An ingress that is well and has nothing
    to say keeps its session; one that was asleep gets a new one, and its stream goes on."""
    monkeypatch.setattr("server.ray_serve.replica.INGRESS_SILENCE", 0.4)
    monkeypatch.setattr("server.remote.replicas.fleet.LIFE_SIGN", 0.1)
    async with world(model_dir, 1, delay=4, drain_timeout="0") as w:
        [engine] = w.transport.engines.values()
        [member] = w.ingress.fleet.present
        await asyncio.sleep(0.8)
        assert list(engine._sessions) == [member._session]
        w.core.submit(asked(300), mailbox := Mailbox())
        reading = asyncio.create_task(read(mailbox, 1))
        await until(lambda: any(len(entry.output_token_ids) > 5 for entry in w.core._entries.values()))
        w.transport.ingress_hangs = True
        await until(lambda: not engine._sessions, within=2)
        await until(lambda: not engine._core.core.stats().running, within=1)
        w.transport.ingress_hangs = False
        assert len(ids(await reading)) == 300
        # Once, and again whenever this process stands still for longer than the silence.
        assert w.core.moved >= 1
        assert len(engine._sessions) == 1 and member._session not in engine._sessions


async def test_another_machine_s_clock(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica on a machine whose clock is 1,000 s ahead: deadlines reach it in its time, and times come back in ours."""
    ahead, here = 1000.0, time.monotonic
    monkeypatch.setattr("server.remote.replicas.fleet.boot_id", lambda: "another")
    monkeypatch.setattr(
        "server.remote.replicas.fleet.time", SimpleNamespace(monotonic=lambda: here() - ahead)
    )
    async with world(model_dir, 1, delay=5) as w:
        w.core._clock = lambda: here() - ahead
        [member] = w.ingress.fleet.present
        assert ahead - 1 < member.clock_offset <= ahead
        request = asked(20, deadline=w.core._clock() + 5)
        begun = w.core._clock()
        assert len(await whole(w.core, request)) == 20
        story = request.context.story
        assert story.queued is not None and story.admitted is not None and story.first_token is not None
        assert begun <= story.queued <= story.admitted + 0.1 <= story.first_token + 0.2 <= begun + 5
        late = Mailbox()
        w.core.submit(asked(5, deadline=w.core._clock() - 0.5), late)
        assert isinstance((await read(late, 1)).ends[0].error, DeadlinePassed)
        await w.transport.kill("r0")
        await until(lambda: not w.core.router.names)
        waiting = asked(5, deadline=w.core._clock() + 5)
        w.core.submit(waiting, mailbox := Mailbox())
        await w.transport.start("r1")
        assert len(ids(await read(mailbox, 1))) == 5, "what waits is placed before the replica reports"


async def test_a_clock_that_falls_behind_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.remote.replicas.fleet.time", SimpleNamespace(monotonic=lambda: 0.0))
    member = Member("r", EngineConfig(), lambda _: None, lambda _: None)
    for number in range(500):
        member._compare_clocks(1000.0 - number * 0.001 - (0.05 if number % 10 else 0.0))
    assert 999.5 <= member.clock_offset < 999.63
