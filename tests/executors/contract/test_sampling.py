"""What SamplingParams takes, refuses, and tells of itself."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from executors.contract.batch import SamplingParams
from executors.contract.errors import InvalidInput


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan), ("typical_p", 0.0), ("typical_p", 1.5),
        ("repetition_penalty", 0.009), ("repetition_penalty", 101),
        ("repetition_penalty", math.inf), ("presence_penalty", "1"), ("frequency_penalty", math.nan), ("logit_bias", 5),
        ("logit_bias", ((1,),)), ("logit_bias", ((-1, 1.0),)), ("logit_bias", ((1, math.inf),)),
        ("logit_bias", ((1, 1.0), (1, 2.0))),
        ("bad_words", "ab"), ("bad_words", ((),)), ("bad_words", ((1, -1),)), ("bad_words", (5,)), ("allowed_token_ids", ()),
        ("allowed_token_ids", (1.5,)), ("min_tokens", -1), ("min_tokens", True), ("stop_token_ids", (2**31,)),
    ],
)  # fmt: skip
def test_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        SamplingParams(**{name: value})


def test_plain_values_are_kept_and_travel() -> None:
    given = SamplingParams(
        min_p=np.float32(0.5), repetition_penalty=2, logit_bias=[[np.int64(3), 1]], bad_words=[[1, 2]],
        allowed_token_ids=[4], min_tokens=np.int32(2), stop_token_ids=[9], seed=1,
    )  # type: ignore[arg-type]  # fmt: skip
    assert given == SamplingParams(
        min_p=0.5, repetition_penalty=2.0, logit_bias=((3, 1.0),), bad_words=((1, 2),), allowed_token_ids=(4,),
        min_tokens=2, stop_token_ids=(9,), seed=1,
    )  # fmt: skip
    assert hash(given) == hash(given) and type(given.logit_bias[0][0]) is int
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=SamplingParams) == given


@pytest.mark.parametrize(
    ("settings", "history", "edits"),
    [
        ({}, False, False), ({"min_p": 0.1, "typical_p": 0.5}, False, False), ({"logit_bias": ((1, 1.0),)}, False, True),
        ({"bad_words": ((1,),)}, False, True), ({"bad_words": ((1, 2),)}, True, True), ({"presence_penalty": 0.1}, True, True),
        ({"repetition_penalty": 1.1}, True, True), ({"allowed_token_ids": (1,)}, False, True), ({"min_tokens": 3}, False, False),
        ({"min_tokens": 3, "stop_token_ids": (1,)}, True, True), ({"stop_token_ids": (1,)}, False, False),
    ],
)  # fmt: skip
def test_what_a_sampler_must_do(settings: dict[str, Any], history: bool, edits: bool) -> None:
    params = SamplingParams(**settings)
    assert (params.needs_history, params.edits_logits) == (history, edits)


def test_ids_past_the_logits() -> None:
    for name, value in (
        ("logit_bias", ((8, 1.0),)), ("bad_words", ((1, 8),)), ("allowed_token_ids", (8,)), ("stop_token_ids", (8,)),
    ):  # fmt: skip
        params = SamplingParams(**{name: value})  # type: ignore[arg-type]
        params.check_ids(9)
        with pytest.raises(InvalidInput, match=f"{name} holds 8"):
            params.check_ids(8)


def test_of_choice_differs_in_nothing_else_and_shares_what_it_holds() -> None:
    first = SamplingParams(temperature=0.5, seed=7, logit_bias=((3, 1.0),), bad_words=((1, 2),))
    second = first.of_choice(5)
    assert second == replace(first, choice=5) and first.choice == 0
    assert second.logit_bias is first.logit_bias and second.bad_words is first.bad_words
