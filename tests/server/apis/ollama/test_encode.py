"""Lines of Ollama's API: a stream adds up to the whole answer, whatever the parts and however the text is cut."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.generation import TextDelta
from server.answer.choice import Choice
from server.answer.reasoning import Place
from server.answer.tools.events import CallArguments, CallBegun
from server.apis.ollama.durations import seconds_of
from server.apis.ollama.encode import CallCollector, OllamaAnswer, OllamaStream, OllamaWhole, written_time
from tests.server.api_schema import check
from tests.server.apis.anthropic.test_encode import WORDS, deltas, generation, reading
from tests.tiers import examples

COMPONENTS = {True: "OllamaGeneration", False: "OllamaChat"}
TIMES = ("created_at", "total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def streamed(
    as_text: bool, place: Place, said: Sequence[TextDelta], alive: bool = False
) -> list[dict[str, Any]]:
    encoder, call = OllamaStream(OllamaAnswer("m", 0.0, as_text), Choice(0, reading(place))), generation()
    encoder.begin(call)
    out = b""
    for delta in said:
        out += encoder.keep_alive() if alive else b""
        call.usage.completion_tokens += len(delta.token_ids)
        out += encoder.delta(delta)
    out += encoder.end()
    assert out.endswith(b"\n")
    return [json.loads(line) for line in out.splitlines()]


def whole(as_text: bool, place: Place, said: Sequence[TextDelta]) -> dict[str, Any]:
    encoder, call = (
        OllamaWhole(OllamaAnswer("m", 0.0, as_text), Choice(0, reading(place)), False),
        generation(),
    )
    for delta in said:
        call.usage.completion_tokens += len(delta.token_ids)
        assert encoder.take(delta) == 0
    body: dict[str, Any] = json.loads(msgspec.json.encode(encoder.body(call)))
    return body


def comparable(body: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run."""
    kept = {name: value for name, value in copy.deepcopy(body).items() if name not in TIMES}
    for call in kept.get("message", {}).get("tool_calls", ()):
        assert call.pop("id").startswith("call_")
    return kept


def added_up(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream: texts are concatenated, calls collected."""
    *some, last = copy.deepcopy(list(lines))
    assert last["done"] and not any(line["done"] for line in some)
    for line in some:
        into, part = (last["message"], line["message"]) if "message" in line else (last, line)
        for name in ("content", "response", "thinking"):
            if name in part:
                into[name] = into.get(name, "") + part[name]
        if "tool_calls" in part:
            into.setdefault("tool_calls", []).extend(part["tool_calls"])
    return comparable(last)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(WORDS, max_size=9).map("".join),
    st.lists(st.integers(0, 10_000), max_size=6),
    st.sampled_from([("stop", None), ("stop", "END"), ("length", None)]),
    st.sampled_from(Place),
    st.booleans(),
)
def test_a_stream_adds_up_to_the_whole(
    text: str, cuts: list[int], end: tuple[str, str | None], place: Place, alive: bool
) -> None:
    said = deltas(text, cuts, *end)
    expected = whole(False, place, said)
    lines = streamed(False, place, said, alive)
    assert added_up(lines) == comparable(expected)
    for one in (expected, *lines[:3], lines[-1]):
        check("OllamaChat", one)


@pytest.mark.parametrize("as_text", [False, True])
def test_a_stream_without_parts_to_parse(as_text: bool) -> None:
    """Text goes the short way, and has the same form."""
    said = deltas('Hé"llo\n', [1, 3], "length", None)
    lines = streamed(as_text, Place.AFTER, said)
    for one in lines:
        check(COMPONENTS[as_text], one)
    assert added_up(lines) == comparable(whole(as_text, Place.AFTER, said))
    assert lines[-1]["done_reason"] == "length" and lines[-1]["prompt_eval_count"] == 40


def test_a_call_that_is_cut_off_is_not_told() -> None:
    """A client would carry it out: nothing in the form says that it is not complete."""
    call = '<tool_call>{"name": "%s", "arguments": {"a": 1}}</tool_call>'
    text = call % "f" + (call % "g").partition("1")[0]
    told = whole(False, Place.AFTER, deltas(text, [], "length", None))
    assert [one["function"]["name"] for one in told["message"]["tool_calls"]] == ["f"]
    assert told["done_reason"] == "length"


def test_a_call_is_told_once_it_is_complete() -> None:
    calls = CallCollector()
    assert not calls.take([CallBegun(0, "call_1", "f"), CallArguments(0, '{"a": Tr')], False)
    assert not calls.take([CallArguments(0, "ue}")], False)
    [first] = calls.take([CallBegun(1, "call_2", "g")], False).calls
    assert json.loads(msgspec.json.encode(first["function"])) == {
        "index": 0,
        "name": "f",
        "arguments": {"a": True},
    }
    [second] = calls.take([], True).calls
    assert json.loads(msgspec.json.encode(second["function"])) == {"index": 1, "name": "g", "arguments": {}}
    assert not calls.take([], True)


def test_durations_add_up() -> None:
    now = [10.0]
    answer = OllamaAnswer("m", 9.0, False, clock=lambda: now[0])
    answer.begin()
    now[0] = 12.0
    answer.first_delta()
    now[0] = 15.5
    ending = answer.ending("stop", generation().usage)
    spans = {name: ending[f"{name}_duration"] for name in ("total", "load", "prompt_eval", "eval")}
    assert spans == {"total": 6_500_000_000, "load": 10**9, "prompt_eval": 2 * 10**9, "eval": 3_500_000_000}


@pytest.mark.parametrize("keep", [1e300, "9" * 60 + "h", "99999999999h", -1, "-5m"])
def test_a_model_is_kept_for_ever(keep: float | str) -> None:
    """Also for times that `GET /api/ps` could not write."""
    assert seconds_of(keep) == math.inf


def test_times_are_utc() -> None:
    assert written_time(1.25) == "1970-01-01T00:00:01.250000Z"


def test_lines_have_the_time_at_which_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, times = OllamaStream(OllamaAnswer("m", 0.0, True), Choice(0, reading(Place.UNDECIDED))), []
    for now in (1.25, 1.25, 1.251, 59.9999, 60.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        times.append(json.loads(encoder.keep_alive())["created_at"])
    assert times == [
        f"1970-01-01T00:{end}Z" for end in ("00:01.250", "00:01.250", "00:01.251", "00:59.999", "01:00.000")
    ]
