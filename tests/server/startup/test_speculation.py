"""`--speculative-config`: what it may say, what is refused and by which name, and `speculative` of a request."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from executors.tiny import weights_dir
from server.settings.load import SettingsError, load
from server.startup.core_configs import engine_config, executor_config
from server.startup.speculation import Speculation, check_vocabularies, read_speculation
from tests.server.fakes import House


def read(config: object = None, **flags: Any) -> Speculation:
    said = {} if config is None else {"speculative_config": json.dumps(config)}
    settings, _ = load({**said, **flags}, {})
    return read_speculation(settings)


def test_what_it_may_say() -> None:
    assert read() == Speculation("mtp", 2, if_usable=True)
    assert read(num_speculative_tokens=0) == Speculation(num_tokens=0)
    assert read(num_speculative_tokens=4) == Speculation("ngram", 4)
    assert read({"method": "ngram", "num_speculative_tokens": 4}) == Speculation("ngram", 4)
    lookup = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5}
    assert read(lookup) == Speculation("ngram", 4, prompt_lookup_max=5, prompt_lookup_min=5)
    assert read({**lookup, "prompt_lookup_min": 2}).prompt_lookup_min == 2
    small = {"model": "a/small", "num_speculative_tokens": 3}
    assert read(small) == read({**small, "method": "draft_model"}) == Speculation("draft_model", 3, "a/small")
    assert read({"model": "a/small"}).num_tokens == 5
    assert read({"model": "a/small"}, num_speculative_tokens=2).num_tokens == 2
    for method in ("mtp", "qwen3_next_mtp", "qwen3_5_mtp"):
        assert read({"method": method}) == Speculation("mtp", 2)
    assert read({"method": "mtp", "num_speculative_tokens": 3}).num_tokens == 3
    assert read({"method": "mtp"}, num_speculative_tokens=1).num_tokens == 1


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"method": "eagle", "model": "x"},
            "method 'eagle' is not supported; supported: ngram, draft_model, mtp",
        ),
        ({"num_speculative_tokens": 3}, "method None"),
        ({"method": "ngram"}, "method ngram needs num_speculative_tokens"),
        (
            {"method": "ngram", "num_speculative_tokens": 0},
            "num_speculative_tokens should be an integer from 1 to 32",
        ),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens should be"),
        ({"method": "ngram", "num_speculative_tokens": 2, "model": "x"}, "takes no model"),
        (
            {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min 4 is more than prompt_lookup_max 3",
        ),
        ({"method": "draft_model"}, "needs a model"),
        ({"method": "mtp", "model": "x"}, "method mtp takes no model"),
        ({"method": "mtp", "num_speculative_tokens": 4}, "an MTP head makes at most 3 drafts"),
        ({"method": "qwen3_next_mtp", "prompt_lookup_max": 3}, "prompt_lookup_max belongs to method ngram"),
        ({"model": "x", "prompt_lookup_max": 3}, "prompt_lookup_max belongs to method ngram"),
        ({"model": "x", "draft_tensor_parallel_size": 2}, "'draft_tensor_parallel_size' is not supported"),
        (
            {"model": "x", "disable_by_batch_size": 4},
            "'disable_by_batch_size' is not supported; supported: method",
        ),
    ],
)
def test_what_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=r"^--speculative-config") as refused:
        read(config)
    assert why in str(refused.value)


def test_two_numbers_are_refused() -> None:
    with pytest.raises(SettingsError, match="leave one of them out"):
        read({"model": "x", "num_speculative_tokens": 3}, num_speculative_tokens=4)


def test_it_reaches_the_engine() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 6, "prompt_lookup_min": 2}
    settings, _ = load({"speculative_config": json.dumps(config)}, {})
    made = engine_config(settings)
    assert (made.num_speculative_tokens, made.speculative_method) == (4, "ngram")
    assert (made.prompt_lookup_max, made.prompt_lookup_min) == (6, 2)


@pytest.mark.parametrize("method", ["mtp", "qwen3_5_mtp"])
def test_an_mtp_head_reaches_the_engine_and_the_executor(method: str) -> None:
    settings, _ = load({"speculative_config": json.dumps({"method": method})}, {})
    made = engine_config(settings)
    assert (made.num_speculative_tokens, made.speculative_method) == (2, "mtp")
    assert executor_config(settings, weights_dir()).optimization.mtp
    without, _ = load({"num_speculative_tokens": 2}, {})
    assert not executor_config(without, weights_dir()).optimization.mtp


def test_a_device_keeps_room_for_drafts_that_it_verifies() -> None:
    """What it cannot compute takes no memory from KV: heads are the default where a model has one."""
    rooms = []
    of_model = json.dumps({"model": str(weights_dir()), "num_speculative_tokens": 3})
    for flags in (
        {},
        {"num_speculative_tokens": 4},
        {"speculative_config": json.dumps({"method": "mtp"})},
        {"speculative_config": of_model},
    ):
        settings, _ = load(flags, {})
        rooms.append(executor_config(settings, weights_dir()).optimization.max_drafts)
    assert rooms == [0, 4, 0, 3]


def test_other_tokens_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(weights_dir())
    check_vocabularies(tokenizer, weights_dir(), "same")
    check_vocabularies(tokenizer, tmp_path, "without a tokenizer")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(weights_dir() / file, tmp_path)
    path = tmp_path / "tokenizer.json"
    said = json.loads(path.read_text("utf-8"))
    vocabulary = said["model"]["vocab"]
    one, other = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    path.write_text(json.dumps(said), "utf-8")
    with pytest.raises(ConfigError, match="model small has another vocabulary"):
        check_vocabularies(tokenizer, tmp_path, "small")


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_a_request_may_go_without(endpoint: str) -> None:
    house = House()
    ask = house.chat if endpoint == "chat" else house.complete
    for said, meant in ((None, True), (False, False)):
        assert (await ask(speculative=said)).status_code == 200
        assert house.engine.requests[-1].speculative is meant
    refused = await ask(speculative=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "speculative")
    assert "--speculative-config" in refused.json()["error"]["message"]
    assert house.state.model is not None
    house.state.model = replace(house.state.model, drafts=True)
    assert (await ask(speculative=True)).status_code == 200
    house.state.threads.close()
