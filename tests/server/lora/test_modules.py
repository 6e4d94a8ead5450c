"""`--lora-modules` in both of vLLM's forms."""

from __future__ import annotations

from typing import Any

import pytest

from cohort_server.command_line import _each_named
from server.lora.modules import LoraModule, read_modules
from server.settings.load import SettingsError
from server.settings.readers import Unfit
from server.settings.table import TABLE


def test_both_forms() -> None:
    said = [
        "sql=/adapters/sql",
        '{"name": "poet", "path": "org/poet", "base_model_name": "org/base"}',
        "eq=/a=b",
    ]
    assert read_modules(said) == (
        LoraModule("sql", "/adapters/sql"),
        LoraModule("poet", "org/poet", "org/base"),
        LoraModule("eq", "/a=b"),
    )


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("sql", "NAME=PATH"),
        ("=/x", "NAME=PATH"),
        ("x=", "NAME=PATH"),
        ("{", "not valid JSON"),
        ('{"name": "x"}', "'name' and 'path'"),
        ('{"name": 1, "path": "/x"}', "'name' and 'path'"),
        ('{"name": "x", "path": "/x", "base_model_name": 1}', "'name' and 'path'"),
        ('{"name": "x", "path": "/x", "rank": 4}', "'rank' is unknown"),
    ],
)
def test_what_is_neither(said: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        read_modules([said])


def test_a_name_twice() -> None:
    with pytest.raises(SettingsError, match="'a' is named twice"):
        read_modules(["a=/x", "a=/y"])


JSON = '{"name": "b", "path": "/y, z"}'


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("a=/x,c=/z", ("a=/x", "c=/z")),
        (["a=/x", JSON], ("a=/x", JSON)),
        (JSON, (JSON,)),
        (f"[{JSON}]", (JSON,)),
        ([{"name": "b", "path": "/y, z"}, "a=/x"], (JSON, "a=/x")),
    ],
)
def test_flags_variables_and_files(said: Any, expected: tuple[str, ...]) -> None:
    assert TABLE["lora_modules"].value_of(said) == expected


@pytest.mark.parametrize("said", [5, [5], "[", "[5]", [None]])
def test_values_that_are_no_modules(said: Any) -> None:
    with pytest.raises(Unfit):
        TABLE["lora_modules"].value_of(said)


def test_several_behind_one_flag() -> None:
    """As vLLM takes them; other words go where they went before."""
    argv = ["serve", "--lora-modules", "a=/x", JSON, "model", "--lora-modules", "c=/z", "--port", "1"]
    flag = "--lora-modules"
    assert _each_named(argv) == ["serve", flag, "a=/x", flag, JSON, "model", flag, "c=/z", "--port", "1"]
    assert _each_named(["serve", "a=b", "--seed", "1"]) == ["serve", "a=b", "--seed", "1"]
