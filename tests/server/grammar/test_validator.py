"""The queue before the judge's process, and what becomes of questions that it dies of."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from engine.errors import InvalidRequest, Overloaded, Unavailable
from server.grammar import validator as judging
from server.grammar.validator import GrammarJudge
from tests.executors.process.helpers import state_of

MakeJudge = Callable[..., GrammarJudge]


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
async def make(notes: Path) -> AsyncIterator[MakeJudge]:
    made = []

    def make(mood: str = "", deadline: float = 20.0, clock: Clock | None = None) -> GrammarJudge:
        command = [sys.executable, "-m", "tests.server.grammar.validator_stub", str(notes), mood]
        judge = GrammarJudge(Path(), 10, command=command, deadline=deadline, clock=clock or Clock())
        made.append(judge)
        return judge

    yield make
    for judge in made:
        pid = judge.pid
        await judge.close()
        assert judge.pid is None
        assert pid is None or state_of(pid) is None


def asked(notes: Path) -> list[str]:
    return [line for line in notes.read_text().splitlines() if line != "born"]


def births(notes: Path) -> int:
    return notes.read_text().count("born")


async def noted(notes: Path, line: str) -> None:
    """Until the process has been asked that."""
    await until(lambda: notes.exists() and line in asked(notes))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def refused(judge: GrammarJudge, grammar: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await judge.check(grammar)
    return caught.value.message


async def test_no_process_before_the_first_question_and_one_for_all(make: MakeJudge, notes: Path) -> None:
    judge = make()
    assert judge.pid is None
    assert await judge.check("a") == "a"
    pid = judge.pid
    assert await judge.check("b") == "b"
    assert judge.pid == pid and births(notes) == 1


async def test_what_is_known_is_not_asked_again(make: MakeJudge, notes: Path) -> None:
    judge = make()
    for _ in range(3):
        assert await judge.check("a") == "a"
        assert await refused(judge, "bad one") == "no good"
    assert asked(notes) == ["a", "bad one"]


async def test_the_same_question_at_the_same_time_is_asked_once(make: MakeJudge, notes: Path) -> None:
    judge = make()
    assert await asyncio.gather(*(judge.check("sleep 0.1") for _ in range(5))) == ["sleep 0.1"] * 5
    assert asked(notes) == ["sleep 0.1"]


async def test_memory_is_bounded(make: MakeJudge, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_KNOWN", 2)
    judge = make()
    for question in ("a", "b", "a", "c", "a", "b"):
        await judge.check(question)
    assert asked(notes) == ["a", "b", "c", "b"]  # "b" was the least recently asked when "c" came


def test_memory_counts_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_KNOWN_BYTES", 10)
    memory = judging._Memory(Clock())
    for key in (b"1", b"2", b"3"):
        memory.put(key, judging.Validation(grammar="x" * 4), 10)
    assert list(memory.entries) == [b"2", b"3"] and memory.size == 8
    memory.put(b"3", judging.Validation(grammar="y"), 10)
    assert list(memory.entries) == [b"2", b"3"] and memory.size == 5


@pytest.mark.long
async def test_a_bomb_is_refused_and_those_behind_it_are_served(make: MakeJudge, notes: Path) -> None:
    """Each has its own time, from its own turn: two bombs in a row take more than one deadline."""
    judge = make(deadline=1.0)
    bombs = [asyncio.create_task(refused(judge, f"for-ever {i}")) for i in range(2)]
    await asyncio.sleep(0)
    others = [asyncio.create_task(judge.check(f"ok {i}")) for i in range(3)]
    assert await asyncio.gather(*others) == ["ok 0", "ok 1", "ok 2"]
    assert await asyncio.gather(*bombs) == ["it took longer than 1 seconds to compile"] * 2
    assert asked(notes) == [*(f"for-ever {i}" for i in range(2)), *(f"ok {i}" for i in range(3))]


async def test_a_bomb_is_remembered_for_a_while(make: MakeJudge, notes: Path) -> None:
    clock = Clock()
    judge = make(deadline=0.2, clock=clock)
    for now, count in ((0.0, 1), (59.0, 1), (61.0, 2)):
        clock.now = now
        await refused(judge, "for-ever")
        assert len(asked(notes)) == count


@pytest.mark.parametrize(
    ("question", "times"),
    [("segfault", 1), ("exit", 1), ("garbage", 1), ("huge", 1), ("killed-always", 2)],
)
async def test_a_process_that_dies_of_a_grammar(
    make: MakeJudge, notes: Path, question: str, times: int
) -> None:
    judge = make()
    assert "crashed" in await refused(judge, question)
    assert asked(notes) == [question] * times
    assert await judge.check("next") == "next"
    assert births(notes) == times + 1


async def somebody_else_kills_it(judge: GrammarJudge, notes: Path) -> None:
    """Which says nothing about the grammar."""
    assert await judge.check("killed-once") == "killed-once"
    await judge.check("a")
    waiting = asyncio.create_task(judge.check("sleep 0.3"))
    await noted(notes, "sleep 0.3")
    assert judge.pid is not None
    os.kill(judge.pid, signal.SIGKILL)
    assert await waiting == "sleep 0.3"
    assert judge.pid is not None
    os.kill(judge.pid, signal.SIGKILL)  # while it has nothing to do
    assert await judge.check("b") == "b"


async def test_somebody_else_kills_it(make: MakeJudge, notes: Path) -> None:
    await somebody_else_kills_it(make(), notes)


@pytest.mark.long
def test_the_same_on_the_servers_event_loop(notes: Path) -> None:
    """It sees the ends of processes and pipes in another order than asyncio's own."""

    async def main() -> None:
        command = [sys.executable, "-m", "tests.server.grammar.validator_stub", str(notes), ""]
        judge = GrammarJudge(Path(), 10, command=command, deadline=1.0)
        await somebody_else_kills_it(judge, notes)
        assert "crashed" in await refused(judge, "segfault")
        assert "longer" in await refused(judge, "for-ever")
        assert await judge.check("next") == "next"
        pid = judge.pid
        waiting = asyncio.create_task(judge.check("sleep 60"))
        await noted(notes, "sleep 60")
        await judge.close()
        with pytest.raises(Unavailable):
            await waiting
        assert pid is not None and state_of(pid) is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_who_goes_away_leaves_the_others_alone(make: MakeJudge, notes: Path) -> None:
    judge = make()
    gone = asyncio.create_task(judge.check("sleep 0.2"))
    stays = asyncio.create_task(judge.check("sleep 0.2"))
    dropped = asyncio.create_task(judge.check("nobody wants this"))
    last = asyncio.create_task(judge.check("last"))
    await noted(notes, "sleep 0.2")
    for task in (gone, dropped):
        task.cancel()
    await asyncio.gather(gone, dropped, return_exceptions=True)
    assert gone.cancelled() and dropped.cancelled()
    assert await stays == "sleep 0.2" and await last == "last"
    assert asked(notes) == ["sleep 0.2", "last"]
    assert await judge.check("nobody wants this") == "nobody wants this"


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_await(make: MakeJudge, notes: Path, turns: int) -> None:
    """However far the question has got, cancelling it leaves a judge that answers."""
    judge = make()
    task = asyncio.create_task(judge.check("sleep 0.05"))
    for _ in range(turns):
        await asyncio.sleep(0.02 if turns > 6 else 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await judge.check("next") == "next"
    assert births(notes) == 1


async def test_a_tokenizer_that_goes_with_no_grammar(make: MakeJudge, notes: Path) -> None:
    judge = make("unusable")
    for question in ("a", "b"):
        with pytest.raises(InvalidRequest, match="not with this one") as caught:
            await judge.check(question)
        assert caught.value.code == "unsupported_parameter"
    assert births(notes) == 1 and judge.pid is None


async def test_a_process_that_cannot_be_started(make: MakeJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    for judge in (make("dies"), GrammarJudge(Path(), 10, command=["/nowhere/at/all"])):
        for _ in range(2):
            with pytest.raises(Unavailable):
                await judge.check("a")
        await judge.close()
    monkeypatch.setattr(judging, "START_DEADLINE", 0.3)
    with pytest.raises(Unavailable):
        await make("slow to start").check("a")


async def test_too_many_wait(make: MakeJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_WAITING", 2)
    judge = make()
    two = [asyncio.create_task(judge.check(f"sleep 0.1{i}")) for i in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await judge.check("third")
    await asyncio.gather(*two)
    assert await judge.check("third") == "third"


async def test_tenants_take_turns(make: MakeJudge, notes: Path) -> None:
    judge = make()
    await judge.check("first")
    one = [asyncio.create_task(judge.check(f"sleep 0.0{i}", "one")) for i in range(5)]
    other = [asyncio.create_task(judge.check(f"other {i}", "other")) for i in range(2)]
    await asyncio.gather(*one, *other)
    assert asked(notes)[1:] == [
        "sleep 0.00", "other 0", "sleep 0.01", "other 1", "sleep 0.02", "sleep 0.03", "sleep 0.04",
    ]  # fmt: skip


async def test_a_full_line_is_one_tenants_own(make: MakeJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_WAITING", 2)
    monkeypatch.setattr(judging, "MAX_WAITING_IN_ALL", 5)
    judge = make()
    two = [asyncio.create_task(judge.check(f"sleep 0.1{i}", "one")) for i in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await judge.check("third", "one")
    assert caught.value.retry_after == 20
    assert await judge.check("third", "other") == "third"
    three = [asyncio.create_task(judge.check(f"sleep 0.2{i}", str(i))) for i in range(3)]
    await asyncio.sleep(0)
    left = [task for task in two if not task.done()]
    full = [asyncio.create_task(judge.check(f"sleep 0.3{i}", str(i))) for i in range(2 - len(left))]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await judge.check("fourth", "a third one")
    await asyncio.gather(*two, *three, *full)


async def test_who_goes_away_takes_no_room(
    make: MakeJudge, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "MAX_WAITING", 2)
    judge = make()
    judged = asyncio.create_task(judge.check("sleep 0.3"))
    await noted(notes, "sleep 0.3")
    dropped = [asyncio.create_task(judge.check(f"nobody wants {i}")) for i in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await judge.check("third")
    for task in dropped:
        task.cancel()
    await asyncio.gather(*dropped, return_exceptions=True)
    assert await judge.check("third") == "third"
    assert await judged and asked(notes) == ["sleep 0.3", "third"]


@pytest.mark.parametrize("question", ["for-ever", "ok"])
async def test_closing(make: MakeJudge, notes: Path, question: str) -> None:
    """Whoever waits gets an answer, nothing is left, and nothing is begun again."""
    judge = make()
    await judge.check("a")
    pid = judge.pid
    waiting = [asyncio.create_task(judge.check(question)), asyncio.create_task(judge.check("behind"))]
    if question == "for-ever":
        await noted(notes, question)
    await judge.close()
    for task in waiting:
        with pytest.raises(Unavailable):
            await task
    assert pid is not None and state_of(pid) is None
    with pytest.raises(Unavailable):
        await judge.check("later")
    await judge.close()


async def test_closing_while_it_starts(make: MakeJudge, notes: Path) -> None:
    judge = make("slow to start")
    waiting = asyncio.create_task(judge.check("a"))
    await until(notes.exists)
    await judge.close()
    with pytest.raises(Unavailable):
        await waiting
