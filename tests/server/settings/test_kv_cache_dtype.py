"""`--kv-cache-dtype` reaches the executor, which alone knows what can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from executors.contract import ConfigError
from executors.llm.factory import LlmFactory
from executors.tiny import weights_dir
from server.settings.load import load
from server.startup.core_configs import executor_config


@pytest.mark.parametrize(("given", "expected"), [({}, "auto"), ({"kv_cache_dtype": "fp8"}, "fp8")])
def test_the_setting_is_told_to_the_executor(given: dict[str, str], expected: str) -> None:
    settings, _ = load(given, {})
    assert executor_config(settings, Path("model")).memory.kv_cache_dtype == expected


def test_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    settings, _ = load({"kv_cache_dtype": "int4"}, {})
    with pytest.raises(
        ConfigError, match="kv_cache_dtype 'int4' is not supported; supported: auto, int8, fp8, fp8_e4m3"
    ):
        LlmFactory().validate_config(executor_config(settings, weights_dir()))
