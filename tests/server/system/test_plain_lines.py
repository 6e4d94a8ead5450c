"""Lines without colors: the same as structlog's, whatever is in them."""

from __future__ import annotations

import enum
import random
from typing import Any

import pytest
import structlog

from server.system.plain_lines import PlainLines

CONSOLE = structlog.dev.ConsoleRenderer(
    colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
)


class Word(enum.StrEnum):
    ONE = "one"
    TWO = "two words"


class Text(str):
    def __str__(self) -> str:
        return "another"


VALUES = [
    "plain", "two words", "", " ", "a=b", "it's", 'a"b', "a\nb", "tab\there", "é日本", "\x1b[31m", "\u2028", Word.ONE, Word.TWO,
    Text("text"), Text("a text"), 0, 1.5, -3, True, None, [1, "a"], {"a": 1}, b"bytes", ("x",), float("nan"), 10**20,
]  # fmt: skip
LEADING = ["POST /v1/embeddings", "", " ", "ends with blanks  ", "a=b", "two\nlines", "\x1b"]


def line(renderer: Any, fields: dict[str, Any]) -> str:
    return str(renderer(None, "info", dict(fields)))


def test_lines_are_those_of_structlog() -> None:
    rng, ours = random.Random(5), PlainLines(CONSOLE)
    for _ in range(2000):
        fields: dict[str, Any] = {
            "timestamp": "2026-11-29T07:47:45.605769Z",
            "level": rng.choice(["info", "warning", "critical", "debug", "error", "notice", ""]),
            "event": rng.choice([*LEADING, *VALUES]),
        }
        keys = rng.sample(
            ["a", "b", "Z", "status", "ms", "key=x", "two words", "é", "logger", "_"], rng.randint(0, 6)
        )
        fields |= {key: rng.choice(VALUES) for key in keys}
        if rng.random() < 0.1:
            del fields[rng.choice(list(fields))]
        assert line(ours, fields) == line(CONSOLE, fields), fields


@pytest.mark.parametrize(
    "more",
    [
        {"exc_info": ValueError("x")},
        {"exc_info": None},
        {"exception": "Traceback"},
        {"stack": "frames"},
        {"logger": "x"},
        {"logger_name": "y"},
    ],
)
def test_exceptions_are_left_to_structlog(more: dict[str, Any]) -> None:
    fields = {"timestamp": "now", "level": "error", "event": "it failed", "a": 1, **more}
    assert line(PlainLines(CONSOLE), fields) == line(CONSOLE, fields)


def test_the_usual_line_needs_nothing_of_structlog() -> None:
    def never(*_: Any) -> str:
        raise AssertionError

    fields = {"timestamp": "now", "level": "info", "event": "ready", "port": 8000, "name": "a b"}
    assert line(PlainLines(never), fields) == "now [info     ] ready name='a b' port=8000"  # type: ignore[arg-type]
