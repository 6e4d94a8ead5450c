"""POST /v1/completions, not streamed."""

from typing import Any

import pytest

from engine.errors import FIELD, ContextLengthExceeded
from engine.text.generation import TextDelta, TokenText
from executors.contract import SampledToken
from tests.server.fakes import BOS, House, error_of, says, steps


async def test_answer_has_openais_shape(house: House) -> None:
    answer = (await house.complete()).json()
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    choice = {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert answer == {
        "object": "text_completion",
        "model": "fake",
        "system_fingerprint": "fp_fake",
        "seed": 7,
        "choices": [choice],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert (house.asked().max_tokens, house.asked().default_tokens) == (None, 16)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ((BOS, 72, 105),)),
        (["Hi", "a"], ((BOS, 72, 105), (BOS, 97))),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1], [2, 319]], ((1,), (2, 319))),
        ("x" * 3000, None),
    ],
    ids=["text", "texts", "ids", "lists of ids", "long"],
)
async def test_prompt_forms(house: House, prompt: Any, prompts: Any) -> None:
    assert (await house.complete(prompt=prompt)).status_code == 200
    expected = prompts or ((BOS, *prompt.encode()),)
    assert house.asked().prompts == expected


async def test_priority_and_salt_reach_the_engine(house: House) -> None:
    await house.complete(priority=2.0, cache_salt="tenant")
    await house.complete()
    assert [(asked.context.priority, asked.context.cache_salt) for asked in house.engine.requests] == [
        (2, "tenant"),
        (0, None),
    ]


async def test_choices_are_ordered_by_index(house: House) -> None:
    choices = (await house.complete(prompt=["a", "b"], n=2)).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]


async def test_echo_repeats_the_prompt(house: House) -> None:
    choices = (await house.complete(prompt=["Hi ", "Yo "], echo=True)).json()["choices"]
    assert [choice["text"] for choice in choices] == ["Hi Hello!", "Yo Hello!"]
    choices = (await house.complete(prompt=[72, 105], echo=True)).json()["choices"]
    assert choices[0]["text"] == "HiHello!"


async def test_legacy_logprobs(house: House) -> None:
    def token(text: str, logprob: float, offset: int) -> TokenText:
        top = (("a", b"a", -0.1), ("a", b"\xff", -0.3))
        sampled = SampledToken(1, logprob, ((97, -0.1), (98, -0.3)))
        return TokenText(sampled, text, text.encode(), offset, top)

    tokens = (token("a", -0.1, 0), token("z", -5.0, 1))
    house.engine.script = steps(TextDelta(0, "az", (1, 2), tokens, "length"))
    choice = (await house.complete(logprobs=2)).json()["choices"][0]
    assert house.asked().sampling.logprobs == 2
    assert choice["logprobs"] == {
        "tokens": ["a", "z"],
        "token_logprobs": [-0.1, -5.0],
        "top_logprobs": [{"a": -0.1}, {"a": -0.1, "z": -5.0}],
        "text_offset": [0, 1],
    }


async def test_token_ids_on_request(house: House) -> None:
    choice = (await house.complete(return_token_ids=True)).json()["choices"][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([BOS, 72, 105], [0, 1, 2, 3])


async def test_best_of_that_asks_for_nothing_more_is_fine(house: House) -> None:
    assert (await house.complete(n=2, best_of=2, suffix="")).status_code == 200


async def test_empty_prompts_are_refused_without_the_tokenizers_help(house: House) -> None:
    response = await house.complete(prompt="", add_special_tokens=False)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


async def test_texts_that_cannot_fit_are_not_even_tokenized(house: House) -> None:
    response = await house.complete(prompt="x" * 200_000)
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"


async def test_stop_reason(house: House) -> None:
    house.engine.script = says("x", stop_reason=5)
    choice = (await house.complete(stop_token_ids=[5])).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 5)


async def test_a_limit_that_was_asked_for_is_the_engines_to_refuse(house: House) -> None:
    await house.complete(prompt=[65] * 510, max_tokens=16)
    assert house.engine.requests[-1].max_tokens == 16


async def test_the_newer_limit_wins_also_over_none_at_all(house: House) -> None:
    answer = await house.complete(max_tokens=0, max_completion_tokens=5, echo=True)
    assert (house.asked().max_tokens, answer.json()["choices"][0]["text"]) == (5, "HiHello!")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_refusal_names_the_limit_as_the_client_does(house: House, name: str) -> None:
    house.engine.refusal = ContextLengthExceeded(f"the prompt has 3 and {FIELD} is 9", "max_tokens")
    error = error_of(await house.complete(**{name: 9}))
    assert (error["param"], error["message"]) == (name, f"the prompt has 3 and {name} is 9")
    error = error_of(await house.complete(**{name: 5000, "truncate_prompt_tokens": -1}))
    assert error["param"] == name and error["message"].startswith(f"'{name}' is 5000")
