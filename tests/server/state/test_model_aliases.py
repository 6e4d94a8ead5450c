"""`--model-alias` at the start: what is served, and what is a mistake."""

from __future__ import annotations

import dataclasses

import pytest

from executors.contract import ConfigError
from server.settings.load import SettingsError, load
from server.settings.table import DEFAULTS
from server.startup.model_loader import model_aliases


def test_patterns_and_names() -> None:
    settings = load({"model": "x", "model_alias": ["claude-*=my", " gpt = org/m=1 "]}, {})[0]
    assert model_aliases(settings, ("my", "org/m=1")) == (("claude-*", "my"), ("gpt", "org/m=1"))
    assert model_aliases(DEFAULTS, ("my",)) == ()


def test_a_name_that_is_not_served_is_a_mistake_unless_it_may_be_an_adapter() -> None:
    settings = dataclasses.replace(DEFAULTS, model_alias=("claude-*=other",))
    with pytest.raises(ConfigError, match="--model-alias: 'other' is not served; this server has my"):
        model_aliases(settings, ("my",))
    assert model_aliases(dataclasses.replace(settings, enable_lora=True), ("my",)) == (("claude-*", "other"),)


@pytest.mark.parametrize("value", ["claude", "=my", "claude-*=", " = "])
def test_what_is_no_pair_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="PATTERN=NAME"):
        load({"model": "x", "model_alias": [value]}, {})
