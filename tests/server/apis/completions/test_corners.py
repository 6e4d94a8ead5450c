"""POST /v1/completions: logprobs of the prompt, echo, best_of, suffix and truncation, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.text.generation import TextDelta, TextRequest, TokenText
from executors.contract import SampledToken
from tests.server.fakes import BOS, ByteTokenizer, House, error_of, events, says, steps

Script = Callable[[TextRequest], Iterable[TextDelta]]


def text_of(id_: int) -> str:
    return "<s>" if id_ == BOS else chr(id_)


def token(id_: int, logprob: float | None, offset: int, top: Sequence[tuple[int, float]] = ()) -> TokenText:
    sampled = SampledToken(id_, logprob, tuple(top), None if logprob is None else 3)
    listed = tuple((text_of(i), text_of(i).encode(), value) for i, value in top)
    return TokenText(sampled, text_of(id_), text_of(id_).encode(), offset, listed)


def prompt_side(ids: Sequence[int], count: int) -> tuple[TokenText, ...]:
    """Each token with the logprob -id/64 and `count` alternatives, better by 1 each: 65, 66, ..."""
    found, offset = [], 0
    for place, id_ in enumerate(ids):
        top = [(65 + k, -id_ / 64 + count - k) for k in range(count)] if place else []
        found.append(token(id_, -id_ / 64 if place else None, offset, top))
        offset += len(text_of(id_))
    return tuple(found)


def writes(text: str, finish: str = "length", sibling_first: bool = False) -> Script:
    """Every choice writes the same, a delta a character, with what was asked for; the first of each prompt tells of it."""

    def script(request: TextRequest) -> Iterable[TextDelta]:
        count = len(request.prompts) * request.n
        order = range(count)[::-1] if sibling_first else range(count)
        for number, char in enumerate(text):
            for index in order:
                prompt, choice = divmod(index, request.n)
                side = None
                if number == 0 and choice == 0 and request.prompt_logprobs is not None:
                    side = prompt_side(request.prompts[prompt], request.prompt_logprobs)
                told = None
                if request.sampling.logprobs is not None:
                    top = [(66, -0.5), (ord(char), -0.75)][: request.sampling.logprobs]
                    told = (token(ord(char), -0.75 - choice, number, top),)
                ends = finish if number == len(text) - 1 else None
                yield TextDelta(index, char, (ord(char),), told, ends, None, side)

    return script


def merged(response: Any) -> dict[str, Any]:
    """A stream's choices put together as a client would, in the form of the whole answer."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    *data, last = events(response)
    assert last == "[DONE]"
    for one in map(json.loads, data):
        usage = one.get("usage") or usage
        for piece in one["choices"]:
            index = piece["index"]
            whole = choices.setdefault(index, {"index": index, "text": "", "logprobs": None})
            whole["text"] += piece["text"]
            if piece["logprobs"] is not None:
                if whole["logprobs"] is None:
                    whole["logprobs"] = {name: [] for name in piece["logprobs"]}
                for name, values in piece["logprobs"].items():
                    whole["logprobs"][name] += values
            for name in ("token_ids", "prompt_token_ids"):
                if name in piece:
                    whole.setdefault(name, []).extend(piece[name])
            if piece["finish_reason"] is not None:
                whole["finish_reason"], whole["stop_reason"] = piece["finish_reason"], piece["stop_reason"]
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


async def both(house: House, **body: Any) -> dict[str, Any]:
    """The whole answer, after a look whether the stream says the same."""
    whole = (await house.complete(**body)).json()
    stream = merged(await house.complete(**body, stream=True, stream_options={"include_usage": True}))
    assert stream["choices"] == whole["choices"]
    assert stream["usage"] == whole["usage"]
    return dict(whole)


# -- echo and logprobs --------------------------------------------------------------------------------------------------


async def test_what_lm_eval_asks(house: House) -> None:
    house.engine.script = writes("b")
    asked = {"max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    answer = await both(house, prompt=[[72, 105], [97]], **asked)
    request = house.engine.requests[0]
    assert (request.sampling.logprobs, request.prompt_logprobs, request.max_tokens) == (1, 1, 1)
    first, second = answer["choices"]
    assert first["text"] == "Hib"
    assert first["logprobs"] == {
        "tokens": ["H", "i", "b"],
        "token_logprobs": [None, -1.640625, -0.75],
        "top_logprobs": [None, {"A": -0.640625, "i": -1.640625}, {"B": -0.5, "b": -0.75}],
        "text_offset": [0, 1, 2],
    }
    assert second["logprobs"]["token_logprobs"] == [None, -0.75]
    assert second["logprobs"]["text_offset"] == [0, 1]


async def test_offsets_lie_in_the_text_although_the_prompt_has_more_tokens(house: House) -> None:
    house.engine.script = writes("xyz")
    choice = (await both(house, prompt="Hi", echo=True, logprobs=0))["choices"][0]
    assert choice["text"] == "Hixyz"
    found = choice["logprobs"]
    assert found["tokens"] == ["<s>", "H", "i", "x", "y", "z"]
    assert found["text_offset"] == [0, 0, 1, 2, 3, 4]
    assert found["token_logprobs"][:2] == [None, -1.125]
    assert found["top_logprobs"][1] == {"H": -1.125}


@pytest.mark.parametrize("sibling_first", [False, True])
async def test_every_choice_begins_with_its_prompt(house: House, sibling_first: bool) -> None:
    house.engine.script = writes("ab", sibling_first=sibling_first)
    answer = await both(house, prompt=["Hi", "Yo"], n=3, echo=True, logprobs=2, return_token_ids=True)
    assert [choice["text"] for choice in answer["choices"]] == ["Hiab"] * 3 + ["Yoab"] * 3
    for index, choice in enumerate(answer["choices"]):
        prompt = b"Hi" if index < 3 else b"Yo"
        assert choice["prompt_token_ids"] == [BOS, *prompt]
        assert choice["token_ids"] == [97, 98]
        assert choice["logprobs"]["tokens"] == ["<s>", *prompt.decode(), "a", "b"]
        assert choice["logprobs"]["token_logprobs"][3:] == [-0.75 - index % 3] * 2


async def test_a_prompt_of_many_tokens_is_encoded_in_parts(house: House) -> None:
    assert house.state.model is not None
    house.state.model = replace(house.state.model, max_model_len=5000)
    house.engine.script = writes("b")
    prompt = [65 + i % 20 for i in range(2500)]
    choice = (await both(house, prompt=prompt, echo=True, logprobs=1))["choices"][0]
    found = choice["logprobs"]
    assert len(choice["text"]) == len(found["tokens"]) == len(found["top_logprobs"]) == 2501
    assert found["text_offset"] == list(range(2501))
    assert found["token_logprobs"][1:-1] == [-id_ / 64 for id_ in prompt[1:]]


async def test_no_logprobs_of_the_prompt_unless_asked(house: House) -> None:
    house.engine.script = writes("b")
    await both(house, echo=True)
    await both(house, logprobs=1)
    assert {asked.prompt_logprobs for asked in house.engine.requests} == {None}


async def test_a_token_that_cannot_be_has_a_finite_logprob(house: House) -> None:
    impossible = token(97, -float("inf"), 0, [(66, -0.5)])
    house.engine.script = steps(TextDelta(0, "a", (97,), (impossible,), "length"))
    found = (await both(house, logprobs=1))["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [-9999.0]
    assert found["top_logprobs"] == [{"B": -0.5, "a": -9999.0}]


# -- nothing generated --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_a_prompt_alone(house: House, finish: str) -> None:
    house.engine.script = writes("b", finish)
    answer = await both(house, prompt="Hi", echo=True, logprobs=1, max_tokens=0, n=2, return_token_ids=True)
    assert [asked.max_tokens for asked in house.engine.requests] == [1, 1]
    assert answer["usage"]["completion_tokens"] == 0
    for choice in answer["choices"]:
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hi", "length", None)
        assert choice["logprobs"]["tokens"] == ["<s>", "H", "i"]
        assert choice["token_ids"] == []
    answer = await both(house, prompt="Hi", echo=True, max_tokens=0)
    assert (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]) == ("Hi", None)


# -- prompt_logprobs ----------------------------------------------------------------------------------------------------


async def test_prompt_logprobs_in_vllms_form(house: House) -> None:
    house.engine.script = writes("b")
    answer = (await house.complete(prompt=[72, 65, 90], prompt_logprobs=2, n=2)).json()
    first, second = answer["choices"]
    assert first["logprobs"] is None
    assert first["prompt_logprobs"] == second["prompt_logprobs"]
    assert first["prompt_logprobs"] == [
        None,
        # The prompt's own token is the first alternative: one entry.
        {
            "65": {"logprob": 0.984375, "rank": 1, "decoded_token": "A"},
            "66": {"logprob": -0.015625, "rank": 2, "decoded_token": "B"},
        },
        {
            "90": {"logprob": -1.40625, "rank": 3, "decoded_token": "Z"},
            "65": {"logprob": 0.59375, "rank": 1, "decoded_token": "A"},
            "66": {"logprob": -0.40625, "rank": 2, "decoded_token": "B"},
        },
    ]
    assert "prompt_logprobs" not in (await house.complete()).json()["choices"][0]


async def test_prompt_logprobs_beside_echoed_ones(house: House) -> None:
    house.engine.script = writes("b")
    choice = (await house.complete(prompt=[72, 90], prompt_logprobs=0, echo=True, logprobs=2)).json()[
        "choices"
    ][0]
    assert house.asked().prompt_logprobs == 2
    assert list(choice["prompt_logprobs"][1]) == ["90"]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 3


async def test_tokens_by_their_ids(house: House) -> None:
    house.engine.script = writes("b")
    answer = await both(
        house, prompt=[72, 90], echo=True, logprobs=1, return_tokens_as_token_ids=True, max_tokens=1
    )
    found = answer["choices"][0]["logprobs"]
    assert found["tokens"] == ["token_id:72", "token_id:90", "token_id:98"]
    assert found["top_logprobs"][1] == {"token_id:65": -0.40625, "token_id:90": -1.40625}
    assert found["text_offset"] == [0, 1, 2]


# -- best_of ------------------------------------------------------------------------------------------------------------


def scored(scores: Sequence[Sequence[float]]) -> Script:
    """Choice i writes a letter for each of its scores, which are the tokens' logprobs."""

    def script(request: TextRequest) -> Iterable[TextDelta]:
        for index, logprobs in enumerate(scores):
            char = chr(97 + index)
            told = tuple(token(97 + index, value, place) for place, value in enumerate(logprobs))
            ids = (97 + index,) * len(logprobs)
            yield TextDelta(
                index,
                char * len(logprobs),
                ids,
                told if request.sampling.logprobs is not None else None,
                "stop",
            )

    return script


async def test_the_best_by_mean_logprob(house: House) -> None:
    house.engine.script = scored([[-3.0], [-1.0, -1.0, -1.0], [-0.5, -0.7], [-2.0], [-0.1, -4.0], [-1.5]])
    answer = (await house.complete(prompt=["x", "y"], n=2, best_of=3)).json()
    request = house.asked()
    assert (request.n, request.sampling.logprobs) == (3, 0)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "cc"),
        (1, "bbb"),
        (2, "f"),
        (3, "d"),
    ]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 1 + 3 + 2 + 1 + 2 + 1


async def test_logprobs_of_the_best_where_asked_for(house: House) -> None:
    house.engine.script = scored([[-3.0], [-1.0]])
    [choice] = (await house.complete(best_of=2, logprobs=0)).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-1.0]
    assert (choice["index"], choice["text"]) == (0, "b")


async def test_the_first_of_equals(house: House) -> None:
    house.engine.script = scored([[-1.0], [-1.0], [-1.0]])
    choices = (await house.complete(n=2, best_of=3)).json()["choices"]
    assert [choice["text"] for choice in choices] == ["a", "b"]


# -- suffix -------------------------------------------------------------------------------------------------------------

MARKS = {
    "qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "santacoder": ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    "code llama": ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    "deepseek": ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
}


def house_with(*added: str) -> House:
    house = House()
    assert house.state.model is not None
    house.state.model = replace(house.state.model, tokenizer=ByteTokenizer(added))
    return house


@pytest.mark.parametrize("family", MARKS)
async def test_a_suffix_goes_where_the_model_wants_it(family: str) -> None:
    house = house_with(*MARKS[family])
    before, behind, middle = range(BOS + 1, BOS + 4)
    response = await house.complete(prompt=["ab", "", "c"], suffix="yz", stop_token_ids=[7])
    assert response.status_code == 200
    assert house.asked().prompts == (
        (BOS, before, 97, 98, behind, 121, 122, middle),
        (BOS, before, behind, 121, 122, middle),
        (BOS, before, 99, behind, 121, 122, middle),
    )
    assert house.asked().stop_token_ids == (7, before, behind, middle)
    assert house.asked().continues_prompt


async def test_mistrals_notation_begins_with_the_suffix() -> None:
    house = house_with("[SUFFIX]", "[PREFIX]")
    behind, before = BOS + 1, BOS + 2
    await house.complete(prompt="ab", suffix="yz")
    await house.complete(prompt=[97, 98], suffix="yz", add_special_tokens=False, ignore_eos=True)
    ids = (behind, 121, 122, before, 97, 98)
    assert [asked.prompts for asked in house.engine.requests] == [((BOS, *ids),), (ids,)]
    assert house.engine.requests[1].stop_token_ids == ()


async def test_end_marks_of_the_family_stop_the_middle() -> None:
    house = house_with(*MARKS["qwen"], "<|fim_pad|>", "<|file_sep|>", "other")
    await house.complete(suffix="x")
    assert house.asked().stop_token_ids == tuple(range(BOS + 1, BOS + 6))


async def test_echo_with_a_suffix_is_the_prompt_alone() -> None:
    house = house_with(*MARKS["qwen"])
    for prompt in ("ab", [97, 98]):
        answer = await both(house, prompt=prompt, suffix="yz", echo=True)
        assert answer["choices"][0]["text"] == "abHello!"


async def test_without_the_tokens_a_suffix_is_refused() -> None:
    house = house_with("<|fim_prefix|>", "<|fim_suffix|>")
    response = await house.complete(suffix="x")
    assert response.status_code == 400
    assert error_of(response)["param"] == "suffix"
    assert "filling in the middle" in error_of(response)["message"]
    assert not house.engine.requests


# -- truncation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"truncate_prompt_tokens": 3}, (BOS, 101, 102)),
        ({"truncate_prompt_tokens": 3, "add_special_tokens": False}, (100, 101, 102)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, (BOS, 97, 98)),
        ({"truncate_prompt_tokens": 1}, (102,)),
        ({"truncate_prompt_tokens": 7}, (BOS, 97, 98, 99, 100, 101, 102)),
        ({"truncate_prompt_tokens": 512}, (BOS, 97, 98, 99, 100, 101, 102)),
        ({"truncation_side": "left"}, (BOS, 97, 98, 99, 100, 101, 102)),
    ],
)
async def test_truncation_keeps_the_end_and_what_the_tokenizer_adds(
    house: House, asked: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert (await house.complete(prompt="abcdef", **asked)).status_code == 200
    assert house.asked().prompts == (expected,)


async def test_truncation_to_what_fits(house: House) -> None:
    prompt = [65 + i % 20 for i in range(600)]
    await house.complete(prompt=prompt, truncate_prompt_tokens=-1)
    await house.complete(prompt=prompt, truncate_prompt_tokens=-1, max_tokens=100)
    await house.complete(prompt=prompt, truncate_prompt_tokens=-1, max_tokens=0, echo=True)
    text = "x" * 200_000
    await house.complete(prompt=text, truncate_prompt_tokens=-1, max_tokens=12)
    found = [asked.prompts[0] for asked in house.engine.requests]
    assert found[0] == tuple(prompt[-496:])
    assert found[1] == tuple(prompt[-412:])
    assert found[2] == tuple(prompt[-511:])
    assert found[3] == (BOS, *b"x" * 499)


async def test_an_echo_of_what_is_left(house: House) -> None:
    house.engine.script = writes("!")
    answer = await both(house, prompt=["abcdef", "xy"], truncate_prompt_tokens=4, echo=True, logprobs=0)
    assert [choice["text"] for choice in answer["choices"]] == ["def!", "xy!"]
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 7
    answer = await both(house, prompt=[97, 98, 99], truncate_prompt_tokens=2, echo=True)
    assert answer["choices"][0]["text"] == "bc!"


async def test_ids_are_judged_before_they_are_cut(house: House) -> None:
    response = await house.complete(prompt=[320, 65], truncate_prompt_tokens=1)
    assert (response.status_code, error_of(response)["param"]) == (400, "prompt")


async def test_stop_strings_split_over_chunks_change_nothing(house: House) -> None:
    house.engine.script = says("He", "llo", stop_reason="X")
    answer = await both(house, echo=True, prompt="<", stop=["X"])
    assert (answer["choices"][0]["text"], answer["choices"][0]["stop_reason"]) == ("<Hello", "X")


async def test_the_newer_name_of_max_tokens_counts_here_too(house: House) -> None:
    assert (await house.complete(max_completion_tokens=40)).status_code == 200
    assert (await house.complete(max_tokens=7, max_completion_tokens=40)).status_code == 200
    assert [asked.max_tokens for asked in house.engine.requests] == [40, 40]
    refused = await house.complete(top_logprobs=3)
    assert refused.status_code == 400 and error_of(refused)["param"] == "top_logprobs"
