"""What `cohort demo` asks: things that small models can do and that take them a while."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

MAX_TOKENS = 128
"""Length limit of an answer in tokens."""

_HEROES = "fox cat dog bear owl rabbit dragon mouse horse bird".split()
_HINTS = (
    "Tell me a short story about a {}.",
    "Write a story about a {}.",
    "A bedtime story about a {}, please.",
)
_QUESTIONS = (
    "What is the meaning of life?", "Who wrote Hamlet?", "How do I fix a bicycle?", "Explain how rain is made.",
    "What will the weather be tomorrow?", "Which film should I watch?",
)  # fmt: skip
_COUNTED = 15
"""Numbers that are counted: what the embedded model was taught."""
_LIST = r'\{"numbers": \[[1-9]?[0-9](, [1-9]?[0-9]){19}\]\}'
"""JSON, written as an expression: a schema leaves the white space to the model."""

Fields = dict[str, Any]


def fields(count: int, seed: int, *, grammars: bool) -> list[Fields]:
    """The bodies of `count` chat requests, without what all have in common: greedy ones, sampled ones with seeds of their own,
    later turns of conversations, and with `grammars` some whose form is enforced. The same `seed` gives the same ones."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], Fields]] = [_story, _count_up, _after_a_sum, _count_down, _question]
    if grammars:
        kinds.insert(3, _list_of_numbers)
    return [{**kinds[i % len(kinds)](rng), "seed": rng.randrange(1 << 31)} for i in range(count)]


def _story(rng: random.Random) -> Fields:
    return {"messages": [_user(rng.choice(_HINTS).format(rng.choice(_HEROES)))], "temperature": 1.0}


def _count_up(rng: random.Random) -> Fields:
    first = rng.randint(10, 99 - _COUNTED)
    return {"messages": [_user(f"Count from {first} to {first + _COUNTED - 1}.")], "temperature": 0}


def _count_down(rng: random.Random) -> Fields:
    first = rng.randint(10 + _COUNTED, 99)
    return {"messages": [_user(f"Count from {first} down to {first - _COUNTED + 1}.")], "temperature": 0}


def _after_a_sum(rng: random.Random) -> Fields:
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    answer = {"role": "assistant", "content": str(a + b)}
    return {**_story(rng), "messages": [_user(f"What is {a} + {b}?"), answer, *_story(rng)["messages"]]}


def _question(rng: random.Random) -> Fields:
    return {"messages": [_user(rng.choice(_QUESTIONS))], "temperature": 0.7}


def _list_of_numbers(rng: random.Random) -> Fields:
    first = rng.randint(1, 80)
    return {
        "messages": [_user(f"Count from {first} to {first + 9}.")], "temperature": 0.2,
        "structured_outputs": {"regex": _LIST},
    }  # fmt: skip


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
