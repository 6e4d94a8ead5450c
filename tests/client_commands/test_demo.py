"""`cohort demo` beside a fake: what it compares, when it kills, and how it looks."""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from clients.demo import prompts, session
from clients.demo.answer import Answer, difference
from clients.demo.server import DemoFault
from clients.demo.session import Demonstration, Outcome, compare
from clients.demo.view import View, around_last
from clients.own_server import Unserved
from tests.client_commands.demo_fake import FakeOwn

pytestmark = pytest.mark.long


def screen() -> Console:
    return Console(
        file=io.StringIO(), width=80, color_system=None, highlight=False, emoji=False, markup=False
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def shown(
    fake: FakeOwn, job: Demonstration | None = None, *, exact: bool = True
) -> tuple[Outcome, str]:
    console = screen()
    async with fake.running() as own:
        outcome = await compare(job or Demonstration("m", streams=4), View(console), own, exact=exact)
    return outcome, written(console)


# -- what is asked -------------------------------------------------------------------------------------------------------------


def test_a_seed_means_the_same_prompts() -> None:
    assert prompts.fields(20, 3, grammars=True) == prompts.fields(20, 3, grammars=True)
    assert prompts.fields(20, 3, grammars=True) != prompts.fields(20, 4, grammars=True)
    seeds = [one["seed"] for one in prompts.fields(200, 0, grammars=True)]
    assert len(set(seeds)) == 200


def test_what_is_asked_is_of_many_kinds() -> None:
    asked = prompts.fields(12, 0, grammars=True)
    assert {one["temperature"] for one in asked} >= {0, 1.0}
    assert {len(one["messages"]) for one in asked} == {1, 3}
    (pattern,) = {one["structured_outputs"]["regex"] for one in asked if "structured_outputs" in one}
    assert json.loads('{"numbers": [' + ", ".join(map(str, range(20))) + "]}")
    assert re.fullmatch(pattern, '{"numbers": [' + ", ".join(map(str, range(20))) + "]}")
    assert not any("structured_outputs" in one for one in prompts.fields(12, 0, grammars=False))


# -- one answer --------------------------------------------------------------------------------------------------------------


def event(text: str, position: int, finish: str | None = None, logprob: float = -0.5) -> bytes:
    told = {"content": [{"token": text, "logprob": logprob}]}
    choice = {"index": 0, "delta": {"content": text}, "logprobs": told, "finish_reason": finish}
    data = {"choices": [choice], "usage": {"completion_tokens": position}}
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


def answer(*words: str, finish: str | None = "stop", logprob: float = -0.5) -> Answer:
    one = Answer()
    for i, word in enumerate(words, 1):
        one.feed(event(word, i, finish if i == len(words) else None, logprob), float(i))
    one.feed(b"data: [DONE]\n\n" if finish else b"", len(words))
    return one


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_read_wherever_they_are_cut(size: int) -> None:
    body = b": keep-alive\n\n" + event("é", 1) + b": keep-alive\n\n" + event("\n\ndata: ", 2, "length")
    body += b"data: [DONE]\n\n"
    one = Answer()
    for i in range(0, len(body), size):
        one.feed(body[i : i + size], float(i))
    one.end()
    assert (one.text, one.position, one.finish, one.problem) == ("é\n\ndata: ", 2, "length", None)
    assert one.tokens == [("é", -0.5), ("\n\ndata: ", -0.5)] and one.over


def test_comments_do_not_shorten_a_pause() -> None:
    one = Answer()
    one.feed(event("a", 1), 1.0)
    for moment in (2.0, 3.0):
        one.feed(b": keep-alive\n\n", moment)
    one.feed(event("b", 2), 4.0)
    one.feed(event("c", 3, "stop"), 4.5)
    assert one.longest_pause() == 3.0


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the answer ended without [DONE]"),
        (b"data: {nonsense\n\n", "the server sent an event that no OpenAI-compatible API has"),
        (b'data: {"error": {"message": "it is\\nlost"}}\n\ndata: [DONE]\n\n', "it is lost"),
    ],
)
def test_an_answer_that_breaks_says_so(body: bytes, problem: str) -> None:
    one = Answer()
    one.feed(event("a", 1), 0.0)
    one.feed(body, 0.0)
    one.end()
    assert one.problem == problem and one.over
    assert difference(answer("a"), one, exact=True) == f"after 1 tokens: {problem}"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (answer("a", "b", "c"), None),
        (answer("a", "x", "c"), 'token 2 is "x", and was "b"'),
        (answer("a", "b"), "it has 2 tokens, and had 3"),
        (answer("a", "b", "c", "c"), "it has 4 tokens, and had 3"),
        (answer("a", "c", "b"), 'token 2 is "c", and was "b"'),
        (answer("a", "b", "c", finish="length"), "it ends with length, and ended with stop"),
        (answer("a", "b", "c", logprob=-0.75), "the logprob of token 1 is -0.75, and was -0.5"),
    ],
)
def test_the_first_difference_is_told(found: Answer, told: str | None) -> None:
    assert difference(answer("a", "b", "c"), found, exact=True) == told


def test_logprobs_count_only_where_they_can_be_exact() -> None:
    assert difference(answer("a"), answer("a", logprob=-0.75), exact=False) is None
    other = answer("a", "b")
    other.text = "a!"
    assert difference(answer("a", "b"), other, exact=False) == 'from character 1 it is "!", and was "b"'


# -- the session ---------------------------------------------------------------------------------------------------------------


async def test_all_are_equal() -> None:
    fake = FakeOwn(restart=0.3)
    outcome, text = await shown(fake)
    assert (outcome.equal, outcome.streams, outcome.first) == (4, 4, None)
    assert 0.3 <= outcome.pause < 5 and outcome.kills[0].seconds >= 0.3
    assert fake.killed == [1000] and outcome.kills[0].next_pid == 1001 and outcome.kills[0].cut == 4
    lines = text.splitlines()
    assert lines[-1] == f"4 of 4 equal, longest pause {outcome.pause:.1f} s"
    assert lines[-2] == f"Restarting the executor took {outcome.kills[0].seconds:.1f} s"
    assert "Executor 1000 killed by SIGKILL, 4 streams in mid-answer" in lines
    # The same requests twice, each with what is compared.
    assert len(fake.asked) == 8 and all(one["logprobs"] and one["stream"] for one in fake.asked)
    key = str
    assert sorted(map(key, fake.asked[:4])) == sorted(map(key, fake.asked[4:]))


async def test_the_kill_comes_in_the_middle_of_the_first_to_end() -> None:
    outcome, _ = await shown(FakeOwn(length=lambda number: 40 if number == 2 else 200))
    (kill,) = outcome.kills
    assert min(kill.positions) >= 20 and max(kill.positions) < 40


async def test_several_kills_are_of_several_processes() -> None:
    fake = FakeOwn(restart=0.05, word=lambda number, at, died: "abc"[number])
    outcome, text = await shown(fake, Demonstration("m", streams=3, kills=3))
    assert fake.killed == [1000, 1001, 1002] and outcome.equal == 3
    assert [kill.cut for kill in outcome.kills] == [3, 3, 3]
    first, second, third = (kill.positions for kill in outcome.kills)
    assert all(a < b < c for a, b, c in zip(first, second, third, strict=True))
    assert text.count("┃") == 9


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"length": None}, "it has 31 tokens, and had 32"),
        ({"word": lambda n, at, died: "x" if died and n == 1 and at == 25 else f"{n}.{at} "},
         'token 26 is "x", and was "1.25 "'),
        ({"logprob": lambda n, at, died: -0.5 if died and n == 1 and at == 25 else -0.25},
         "the logprob of token 26 is -0.5, and was -0.25"),
        ({"finish": lambda n, died: "length" if died and n == 1 else "stop"},
         "it ends with length, and ended with stop"),
        ({"breaks": lambda n, at, died: died and n == 1}, "the executor is lost"),
    ],
    ids=["short", "token", "logprob", "finish", "error"],
)  # fmt: skip
async def test_what_is_lost_is_seen(change: dict[str, Any], told: str) -> None:
    fake = FakeOwn(**{name: value for name, value in change.items() if value is not None})
    if change.get("length", 0) is None:  # as long as the executor lived when the answer began, or one less
        plain = 0

        def length(number: int) -> int:
            nonlocal plain
            plain += 1
            return 30 + number + (1 if plain <= 4 and number == 1 else 0)

        fake.length = length
    outcome, text = await shown(fake)
    assert outcome.equal == 3 and outcome.first is not None
    number, first = outcome.first
    assert number == 2 and told in first
    lines = text.splitlines()
    assert lines[-2] == f"Stream 2 is the first that differs: {first}"
    assert lines[-1].startswith("3 of 4 equal, longest pause ")


async def test_without_determinism_logprobs_may_differ() -> None:
    fake = FakeOwn(logprob=lambda number, at, died: -0.5 if died else -0.25)
    outcome, text = await shown(fake, exact=False)
    assert outcome.equal == 4 and "logprobs are not compared" in text


async def test_a_server_that_refuses_is_told_in_one_line() -> None:
    fake = FakeOwn(refuse={"error": {"message": "This model has no chat template."}})
    with pytest.raises(DemoFault, match=r"stream 1 of the undisturbed run: 400: This model has no chat temp"):
        await shown(fake)


async def test_answers_too_short_to_be_disturbed() -> None:
    with pytest.raises(DemoFault, match="all answers were over before the executor could be killed"):
        await shown(FakeOwn(length=lambda number: 2, restart=0.01), Demonstration("m", streams=2, kills=3))


async def test_a_server_that_ends_is_told() -> None:
    fake = FakeOwn(gone=DemoFault("the server ended with exit code 3"), restart=60)
    with pytest.raises(DemoFault, match="ended with exit code 3"):
        await shown(fake)


@pytest.mark.parametrize(
    ("complaint", "started"),
    [
        (None, [["m", "--max-num-seqs", "4", "--deterministic"]]),
        (
            "deterministic: needs Cohort's own attention kernel; this model gets torch",
            [
                ["m", "--max-num-seqs", "4", "--deterministic"],
                ["m", "--max-num-seqs", "4", "--dtype", "float32", "--no-enable-prefix-caching"],
            ],
        ),
        ("m: no such directory", [["m", "--max-num-seqs", "4", "--deterministic"]]),
    ],
)
async def test_deterministic_where_it_can_be_had(
    monkeypatch: pytest.MonkeyPatch, complaint: str | None, started: list[list[str]]
) -> None:
    tried: list[list[str]] = []

    @asynccontextmanager
    async def own_server(arguments: list[str], *_: object) -> AsyncIterator[FakeOwn]:
        tried.append(arguments)
        if complaint is not None and "--deterministic" in arguments:
            raise Unserved(complaint)
        async with FakeOwn().running() as own:
            yield own

    monkeypatch.setattr(session, "DemoServer", own_server)
    console = screen()
    job = Demonstration("m", streams=4)
    if len(started) == 1 and complaint is not None:
        with pytest.raises(Unserved, match=complaint):
            await session.demonstrate(job, View(console))
    else:
        assert (await session.demonstrate(job, View(console))).equal == 4
        assert ("logprobs are not compared" in written(console)) is (complaint is not None)
    assert tried == started


@pytest.mark.parametrize("grammars", [True, False])
async def test_grammars_are_asked_for_where_the_executor_knows_them(grammars: bool) -> None:
    fake = FakeOwn(grammars=grammars)
    await shown(fake, Demonstration("m", streams=6))
    assert any("structured_outputs" in one for one in fake.asked) is grammars


# -- what is printed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cuts", "line"),
    [
        ("abcdef", [3], "  abc┃def"),
        ("abcdef", [1, 3], " a┃bc┃def"),
        ("0123456789abcdefghij", [10], "56789┃abcd"),
        ("a\x1b[2J\nb", [6], "a [2J ┃b"[1:]),
        ("short", [], "short"),
        ("much longer than that", [], "much longe"),
    ],
)
def test_a_text_is_seen_on_both_sides_of_the_last_cut(text: str, cuts: list[int], line: str) -> None:
    assert around_last(text, cuts, 10) == line


async def test_each_stream_has_a_line_as_wide_as_the_terminal_at_most() -> None:
    fake = FakeOwn(word=lambda number, at, died: "界 \x1b[2J" if number else "x" * 40)
    _, text = await shown(fake)
    lines = [line for line in text.splitlines() if "┃" in line]
    assert [line[:4] for line in lines] == ["1 = ", "2 = ", "3 = ", "4 = "]
    assert max(map(cell_len, lines)) <= 80 and "\x1b" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_stream_without_unicode_gets_what_it_can_encode(encoding: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    view = View(Console(file=file, width=80, color_system=None, highlight=False, emoji=False, markup=False))
    answer = Answer()
    answer.text = "a \N{FOX FACE} in the woods"
    view.show_rows([answer], [[4]], ["token 2"])
    file.seek(0)
    assert re.search(r"1 # +a \? \|in the woods\n", file.read())
