"""Arguments of calls: whatever a model writes, clients get one JSON object, however it is cut into pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pydantic_core
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.answer.json_object import JSONObject
from tests.tiers import examples

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)
BITS = st.sampled_from(
    [
        "{", "}", "[", "]", '"', ":", ",", " ", "\n", "\\", "\\u", "d83d", "\\ude00", "\\ud83d", "\\n", "\\x", "a", "1", "-",
        ".", "e", "true", "Tru", "None", "null", '"a"', '{"a": ', "1.5e3", "é", "\x00", "'", "//", "00", "\\\\", "\\u12",
    ]
)  # fmt: skip


def written(text: str, cuts: list[int] | None = None) -> str:
    made = JSONObject()
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts or ()), len(text)]
    return "".join(made.push(text[a:b]) for a, b in pairwise(edges)) + made.finish()


CUTS = st.lists(st.integers(0, 10_000), max_size=6)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 2]), CUTS)
def test_valid_objects_pass_unchanged(
    value: dict[str, Any], ascii_: bool, indent: int | None, cuts: list[int]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    assert written(text, cuts) == text


@settings(max_examples=examples(1000))
@given(st.lists(BITS, max_size=24).map("".join), CUTS)
def test_anything_becomes_an_object_however_it_is_cut(text: str, cuts: list[int]) -> None:
    whole = written(text)
    assert written(text, cuts) == whole == written(text, list(range(len(text))))
    assert isinstance(pydantic_core.from_json(whole), dict)
    assert isinstance(json.loads(whole), dict)
    whole.encode()


@settings(max_examples=examples(1000))
@given(OBJECTS.map(json.dumps), st.integers(0, 10_000), BITS, CUTS)
def test_an_object_with_a_fault_keeps_what_came_before(
    text: str, place: int, bit: str, cuts: list[int]
) -> None:
    place %= len(text)
    whole = written(text[:place] + bit + text[place + 1 :], cuts)
    assert isinstance(pydantic_core.from_json(whole), dict)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("", {}),
        ("  \n", {}),
        ("no object", {}),
        ('{"a": "x\ny\t"}', {"a": "x\ny\t"}),
        ('{"a": "C:\\dir\\x"}', {"a": "C:\\dir\\x"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "\\ud83d!"}', {"a": "\ufffd!"}),
        ('{"a": "\\ude00"}', {"a": "\ufffd"}),
        ('{"a": "\\ud83d', {"a": "\ufffd"}),
        ('{"a": "\\ud83d\\n"}', {"a": "\ufffd\n"}),
        ('{"a": "\\ud83d\\ud83d\\ude00"}', {"a": "\ufffd😀"}),
        ('{"a": "\\u12x"}', {"a": "\\u12x"}),
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ("{\"a\": 'x', \"b\": 1}", {"a": None}),
        ('{"a": 1, b: 2}', {"a": 1}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": [1, ', {"a": [1]}),
        ('{"a": 1.', {"a": None}),
        ('{"a', {"a": None}),
        ('{"a": {"b": "c', {"a": {"b": "c"}}),
        ('{"a": 1} and more', {"a": 1}),
        ('{"a": ' + "9" * 5000 + "}", {"a": None}),
        ('{"a": ' + "[" * 5000, None),
    ],
)  # fmt: skip
def test_mended(text: str, mended: dict[str, Any] | None) -> None:
    found = json.loads(written(text))
    assert isinstance(found, dict) and (mended is None or found == mended)


def test_text_is_given_as_soon_as_it_is_certain() -> None:
    made = JSONObject()
    given_ = [made.push(piece) for piece in ['{"a"', ': "b', "c\\", "n", '"', ",", ' "d": 1', "2", "}"]]
    assert given_ == ['{"a"', ': "b', "c", "\\n", '"', "", ', "d": ', "", "12}"]
    assert made.finish() == ""
