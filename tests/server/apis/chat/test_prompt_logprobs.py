"""What a chat makes of its prompt and tells of it: prompt_logprobs, truncation, tokens by their ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.text.generation import TextDelta
from tests.server.apis.completions.test_corners import prompt_side, token, writes
from tests.server.fakes import House, error_of, events, steps

PROMPT = b"<s>[user:Hi][assistant:"


async def test_prompt_logprobs_at_the_top(house: House) -> None:
    house.engine.script = writes("b")
    answer = (await house.chat(prompt_logprobs=1, n=2)).json()
    assert house.asked().prompt_logprobs == 1
    listed = answer["prompt_logprobs"]
    assert len(listed) == len(PROMPT)
    assert listed[0] is None
    assert listed[1] == {
        "115": {"logprob": -115 / 64, "rank": 3, "decoded_token": "s"},
        "65": {"logprob": -115 / 64 + 1, "rank": 1, "decoded_token": "A"},
    }
    assert all("prompt_logprobs" not in choice for choice in answer["choices"])
    assert "prompt_logprobs" not in (await house.chat()).json()


async def test_they_change_nothing_of_the_answers_own(house: House) -> None:
    house.engine.script = writes("ab")
    plain = (await house.chat(logprobs=True, top_logprobs=1)).json()
    told = (await house.chat(logprobs=True, top_logprobs=1, prompt_logprobs=0)).json()
    assert told["choices"] == plain["choices"]
    assert told["usage"] == plain["usage"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"truncate_prompt_tokens": 5}, PROMPT[-5:]),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, PROMPT[:5]),
        ({"truncate_prompt_tokens": -1}, PROMPT),
        ({"truncate_prompt_tokens": -1, "max_tokens": 500}, PROMPT[-12:]),
        ({"truncate_prompt_tokens": -1, "max_completion_tokens": 500}, PROMPT[-12:]),
    ],
)
async def test_truncation(house: House, asked: dict[str, Any], expected: bytes) -> None:
    assert (await house.chat(**asked)).status_code == 200
    assert bytes(house.asked().prompts[0]) == expected


async def test_what_fits_leaves_room_for_a_token(house: House) -> None:
    messages = [{"role": "user", "content": "x" * 1000}]
    await house.chat(messages=messages, truncate_prompt_tokens=-1)
    assert len(house.asked().prompts[0]) == 511


async def test_what_is_to_be_cut_may_have_any_length(house: House) -> None:
    """More characters than the context could ever hold, which without cutting are not even tokenized."""
    messages = [{"role": "user", "content": "x" * 200_000}]
    assert (await house.chat(messages=messages)).status_code == 400
    assert (await house.chat(messages=messages, truncate_prompt_tokens=-1)).status_code == 200
    assert len(house.asked().prompts[0]) == 511


@pytest.mark.parametrize("as_ids", [False, True])
async def test_tokens_by_their_ids(house: House, as_ids: bool) -> None:
    told = token(98, -0.75, 0, [(66, -0.5)])
    house.engine.script = steps(TextDelta(0, "b", (98,), (told,), "length"))
    asked = {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": as_ids}
    whole = (await house.chat(**asked)).json()["choices"][0]["logprobs"]["content"]
    assert whole == [
        {
            "token": "token_id:98" if as_ids else "b",
            "logprob": -0.75,
            "bytes": [98],
            "top_logprobs": [
                {"token": "token_id:66" if as_ids else "B", "logprob": -0.5, "bytes": [66]},
            ],
        }
    ]
    data = events(await house.chat(**asked, stream=True))[:-1]
    chunks = [choice["logprobs"] for one in data for choice in json.loads(one)["choices"]]
    assert [entry for chunk in chunks if chunk for entry in chunk["content"]] == whole


async def test_too_much_to_tell(house: House) -> None:
    assert len(prompt_side(PROMPT, 20)) * 21 < 2**19, "what the fake's context holds can always be told"
    house.engine.script = writes("b")
    assert (await house.chat(prompt_logprobs=20)).status_code == 200
    response = await house.chat(prompt_logprobs=21)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt_logprobs")
