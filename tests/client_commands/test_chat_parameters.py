"""/set of `cohort chat`: what is sent, what is shown, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from clients.chat.parameters import PARAMETERS, SOFT, Parameters
from server.schemas.chat import ChatRequest
from server.schemas.sampling import MAX_STOPS

CARD = {"id": "m", "max_model_len": 100, "generates": True, "sampling_defaults": {}}


def in_force(parameters: Parameters, name: str) -> str:
    [line] = parameters.lines([name])
    return " ".join(line.split())


def test_every_parameter_has_the_limits_of_the_servers_requests() -> None:
    assert MAX_STOPS >= 4
    for name, one in PARAMETERS.items():
        if one.kind is list:
            continue
        for value, fits in ((one.low, True), (one.high, True), (one.low - 1, False), (one.high + 1, False)):
            body = {"messages": [{"role": "user", "content": "x"}], name: value}
            accepted = True
            try:
                ChatRequest.model_validate(body)
            except ValueError:
                accepted = False
            assert accepted == fits, (name, value)
            try:
                assert Parameters({}).set(f"{name} {value}") and fits
            except ValueError as error:
                assert not fits and name in str(error)


def test_a_value_is_sent_until_it_is_unset() -> None:
    parameters = Parameters({"temperature": 0.5, "seed": None})
    assert parameters.options == {"temperature": 0.5}
    assert parameters.set("temperature 0.25") == "temperature 0.25 set here"
    assert parameters.set("max-tokens 7") == "max_tokens 7 set here"
    assert parameters.options == {"temperature": 0.25, "max_tokens": 7}
    assert parameters.set("temperature") == "temperature - the server's"
    assert parameters.options == {"max_tokens": 7}


def test_ollamas_names() -> None:
    parameters = Parameters({})
    parameters.set("num_predict 5")
    parameters.set("repeat_penalty 1.1")
    assert parameters.options == {"max_tokens": 5, "repetition_penalty": 1.1}
    with pytest.raises(ValueError, match="num_ctx is set when the server starts: --max-model-len"):
        parameters.set("num_ctx 4096")


@pytest.mark.parametrize(
    ("typed", "stops"),
    [("END", ["END"]), ("two words", ["two words"]), ('"\\n\\n"', ["\n\n"]), ('["a", "b"]', ["a", "b"]), ("[x", ["[x"])],
)  # fmt: skip
def test_stop_strings(typed: str, stops: list[str]) -> None:
    parameters = Parameters({})
    parameters.set(f"stop {typed}")
    assert parameters.options == {"stop": stops}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("warmth 1", "there is no parameter 'warmth': there are temperature, top_p"),
        ("temperature hot", "temperature should be a number from 0 to 100, not 'hot'"),
        ("temperature nan", "temperature should be a number from 0 to 100"),
        ("top_p 1.5", "top_p should be a number from 0 to 1, not '1.5'"),
        ("max_tokens 2.5", "max_tokens should be an integer from 1"),
        ("stop [3]", "stop should be a text, or JSON"),
        ('stop ""', "stop should be a text, or JSON"),
    ],
)
def test_what_is_wrong_changes_nothing(typed: str, words: str) -> None:
    parameters = Parameters({"seed": 3})
    with pytest.raises(ValueError, match=words):
        parameters.set(typed)
    assert parameters.options == {"seed": 3}


def test_a_model_without_sampling_defaults_gets_a_soft_one() -> None:
    parameters = Parameters({})
    parameters.take_card(CARD)
    assert parameters.options == SOFT == {"min_p": 0.1}
    assert in_force(parameters, "min_p") == "min_p 0.1 cohort chat's: the model has no sampling defaults"
    parameters.set("min_p 0")
    assert parameters.options == {"min_p": 0.0} and in_force(parameters, "min_p") == "min_p 0 set here"
    parameters.set("min_p")
    assert parameters.options == SOFT


@pytest.mark.parametrize(
    "card",
    [
        {},
        {"id": "m", "max_model_len": 100},
        {**CARD, "sampling_defaults": None},
        {**CARD, "generates": False},
        {**CARD, "sampling_defaults": {"temperature": 0.6, "min_p": 0.0}},
    ],
)
def test_no_soft_default_where_there_are_others_or_none_are_known(card: dict[str, Any]) -> None:
    parameters = Parameters({})
    parameters.take_card(card)
    assert parameters.options == {}
    if card.get("sampling_defaults"):
        assert in_force(parameters, "temperature") == "temperature 0.6 the model's default at this server"
