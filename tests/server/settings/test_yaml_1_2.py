"""YAML files by the core schema of YAML 1.2.2, and no key twice."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.settings.load import SettingsError, load
from server.settings.yaml_1_2 import KeyTwice, load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # The table and the example of section 10.3.2.
        ("null", None), ("Null", None), ("NULL", None), ("~", None), ("", None), ("nULL", "nULL"),
        ("true", True), ("True", True), ("TRUE", True), ("false", False), ("False", False), ("FALSE", False),
        ("0", 0), ("0o7", 7), ("0x3A", 58), ("-19", -19), ("+12", 12), ("010", 10), ("-010", -10), ("08", 8),
        ("0.", 0.0), ("-0.0", -0.0), (".5", 0.5), ("+12e03", 12000.0), ("-2E+05", -200000.0), ("1e3", 1000.0),
        (".inf", math.inf), ("-.Inf", -math.inf), ("+.INF", math.inf),
        # Strings, of which YAML 1.1 makes something else.
        ("12:30", "12:30"), ("190:20:30", "190:20:30"), ("1:0.5", "1:0.5"), ("1_000", "1_000"), ("0b1", "0b1"),
        ("0o8", "0o8"), ("-0o7", "-0o7"), ("0X3A", "0X3A"), ("on", "on"), ("off", "off"), ("yes", "yes"), ("No", "No"),
        ("y", "y"), ("n", "n"), ("tRUE", "tRUE"), ("2001-12-14", "2001-12-14"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("2024-13-45", "2024-13-45"), (".", "."), ("+", "+"), (".e5", ".e5"), ("=", "="), ("<<", "<<"), ("0x", "0x"),
        ("1e", "1e"),
        # Quotes and tags decide.
        ("'010'", "010"), ('"true"', "true"), ("!!str 010", "010"), ("!!int '010'", 10), ("!!float 1", 1.0),
        ("!!bool TRUE", True),
    ],
)  # fmt: skip
def test_scalars(text: str, value: Any) -> None:
    for document, read in ((f"x: {text}", lambda found: found["x"]), (f"- {text}", lambda found: found[0])):
        found = read(load_yaml(document))
        assert type(found) is type(value) and found == value
        assert not isinstance(value, float) or math.copysign(1, found) == math.copysign(1, value)


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_not_a_number(text: str) -> None:
    assert math.isnan(load_yaml(text))


@pytest.mark.parametrize(
    "text", ["!!int 12:30", "!!bool on", "!!float x", "x: " + "1" * 5000, "!!python/name:os.system", "a: ["]
)
def test_what_is_no_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        load_yaml(text)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("port: 1\nhost: x\nport: 2", "port", 3),
        ("port: 1\n'port': 1", "port", 2),
        ("{port: 1, port: 1}", "port", 1),
        ("executor_option:\n  a: 1\n  b: 2\n  a: 3", "a", 4),
        ("lora_modules:\n- {name: x,\n   name: y}", "name", 3),
    ],
)
def test_a_key_twice_is_refused_with_file_line_and_key(
    tmp_path: Path, text: str, key: str, line: int
) -> None:
    with pytest.raises(KeyTwice):
        load_yaml(text)
    file = tmp_path / "my.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load({"config": str(file)}, {})
    assert str(error.value).startswith(f"{file}, line {line}: {key} stands twice, first in line ")


def test_aliases_and_merges() -> None:
    assert load_yaml("a: &x {b: 1}\nc: *x") == {"a": {"b": 1}, "c": {"b": 1}}
    assert load_yaml("a: &x {b: 1}\nc:\n  <<: *x") == {"a": {"b": 1}, "c": {"<<": {"b": 1}}}


def test_settings_read_the_new_way(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(
        "port: 010\nrevision: 12:30\nserved_model_name: [on, 'no', 1e]\nenable_prefix_caching: off\nlog_prompts: on\n"
    )
    settings, _ = load({"config": str(file)}, {})
    assert (settings.port, settings.revision, settings.served_model_name) == (10, "12:30", ("on", "no", "1e"))
    assert settings.enable_prefix_caching is False and settings.log_prompts is True
    options = load({"executor_option": ["a=010", "b=12:30", "c=on"]}, {})[0].executor_option
    assert options == {"a": 10, "b": "12:30", "c": "on"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: 12:30", "port: it should be a valid integer"),
        ("revision: 010", "revision: it should be a valid string, in quotes (not '10')"),
        ("enable_prefix_caching: maybe", "enable_prefix_caching: it should be true or false (not 'maybe')"),
    ],
)
def test_the_cure_is_in_the_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load({"config": str(file)}, {})
    assert words in str(error.value)
