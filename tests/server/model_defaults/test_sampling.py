"""generation_config.json: what it may say, and that nothing else gets as far as the executor."""

from typing import Any

import pytest

from executors.contract import ConfigError
from server.model_defaults.sampling import SamplingDefaults
from tests.server.fakes import House


@pytest.mark.parametrize(
    ("config", "defaults"),
    [
        ({}, SamplingDefaults()),
        ({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "other": "x"}, SamplingDefaults(0.6, 0.95, 20)),
        ({"top_k": 50.0}, SamplingDefaults(top_k=50)),
        ({"top_k": -1, "temperature": None}, SamplingDefaults(top_k=-1)),
        ({"do_sample": False, "temperature": 0.7}, SamplingDefaults(temperature=0.0)),
        ({"do_sample": True, "temperature": 0.7}, SamplingDefaults(temperature=0.7)),
    ],
)
def test_values(config: dict[str, Any], defaults: SamplingDefaults) -> None:
    found = SamplingDefaults.of(config)
    assert found == defaults
    assert isinstance(found.top_k, int)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", True), ("temperature", "0.5"), ("temperature", float("nan")), ("temperature", -1),
        ("temperature", 101), ("temperature", float("inf")), ("top_p", 1.5), ("top_p", [1]), ("top_k", 1.5),
        ("top_k", -2), ("top_k", False), ("top_k", 2**40), ("do_sample", 0),
        ("repetition_penalty", 0), ("repetition_penalty", 1e-3), ("repetition_penalty", -1), ("min_p", 1.1), ("typical_p", "x"),
    ],
)  # fmt: skip
def test_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^/m/generation_config.json: {name}: it should be "):
        SamplingDefaults.of({name: value}, "/m/generation_config.json")


async def test_a_request_may_sample_from_a_model_that_does_not() -> None:
    house = House(defaults=SamplingDefaults.of({"do_sample": False}))
    await house.chat()
    await house.chat(temperature=0.5)
    assert [request.sampling.temperature for request in house.engine.requests] == [0.0, 0.5]
    house.state.threads.close()
