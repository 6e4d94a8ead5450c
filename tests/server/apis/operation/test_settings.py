"""GET /v1/settings: what is in force, and no secret."""

from __future__ import annotations

import json

from server.settings.load import load
from server.settings.table import TABLE
from tests.server.api_schema import check_answer
from tests.server.fakes import House


async def test_settings_of_a_server(house: House) -> None:
    secrets = {"api_key": ["first-secret", "second-secret"], "metrics_key": "third-secret"}
    given = {**secrets, "max_num_seqs": "7", "recovery_timeout": "inf", "executor_option": ["a=1"]}
    house.state.settings = load({"model": "x", **given}, {"COHORT_ADMIN_KEY": "fourth-secret"})[0]
    answer = await house.get("/v1/settings")
    assert answer.status_code == 200 and "-secret" not in answer.text
    check_answer(answer)
    body = answer.json()
    settings = body["settings"]
    assert list(settings) == list(TABLE)
    assert settings["max_num_seqs"] == {"value": 7, "given": True}
    assert settings["max_queued_seqs"] == {"value": 4096, "given": False}
    assert settings["recovery_timeout"] == {"value": "inf", "given": True}
    assert settings["executor_option"] == {"value": {"a": 1}, "given": True}
    assert settings["api_key"] == {"value": None, "set": True, "given": True}
    assert settings["admin_key"] == {"value": None, "set": True, "given": True}
    assert settings["scheduling_policy"]["value"] is None
    assert body["in_force"]["scheduling_policy"] == "fair", "two keys"
    assert (body["in_force"]["num_blocks"], body["in_force"]["step_tokens"]) == (20, 64)
    assert body["in_force"]["step_sequences"] == 7, "the executor takes eight"
    json.dumps(body, allow_nan=False)


async def test_the_executor_says_how_many_sequences_a_step_has(house: House) -> None:
    house.state.settings = load({"model": "x"}, {})[0]
    body = (await house.get("/v1/settings")).json()
    assert body["settings"]["max_num_seqs"] == {"value": None, "given": False}
    assert body["in_force"]["step_sequences"] == 8


async def test_an_address_shows_no_secret(house: House) -> None:
    url = "https://user:a-secret@host:4318/v1/traces?api-key=b-secret&x=c-secret"
    origins = ["https://app.example"]
    house.state.settings = load({"model": "x", "otlp_traces_endpoint": url, "allowed_origins": origins}, {})[
        0
    ]
    settings = (await house.get("/v1/settings")).json()["settings"]
    assert settings["otlp_traces_endpoint"]["value"] == "https://(removed)@host:4318/v1/traces?(removed)"
    assert settings["allowed_origins"]["value"] == origins


async def test_settings_while_the_model_loads(house: House) -> None:
    house.state.model = None
    answer = await house.get("/v1/settings")
    assert answer.status_code == 200 and answer.json()["in_force"] is None
    check_answer(answer)
