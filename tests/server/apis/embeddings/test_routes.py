"""POST /v1/embeddings over a scripted engine: forms of input, what the engine is asked, and how vectors are written."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ContextLengthExceeded, ExecutorFailed, Overloaded
from engine.text.embedding import EmbeddingRequest
from engine.text.generation import Usage
from executors.contract import ConfigError
from server.model_defaults.pooling import DefaultPooling, default_pooling
from tests.server.fakes import AS_JSON, BOS, House, error_of


async def embed(house: House, **body: Any) -> Any:
    return await house.post("/v1/embeddings", {"model": "fake", "input": "Hi", **body})


def vectors(response: Any) -> list[Any]:
    assert response.status_code == 200, response.text
    return [one["embedding"] for one in response.json()["data"]]


def unit(*numbers: float) -> list[float]:
    vector = np.array(numbers, np.float64)
    found: list[float] = (vector / np.linalg.norm(vector)).astype(np.float32).tolist()
    return found


async def test_answer_has_openais_shape(house: House) -> None:
    answer = (await embed(house)).json()
    assert answer.pop("id").startswith("embd-")
    assert answer == {
        "object": "list",
        "model": "fake",
        "data": [{"object": "embedding", "index": 0, "embedding": unit(3, BOS, 105, 0)}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}},
    }


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("Hi", ((BOS, 72, 105),)),
        (["Hi", "a"], ((BOS, 72, 105), (BOS, 97))),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1], [2, 319]], ((1,), (2, 319))),
        ("x" * 511, ((BOS, *b"x" * 511),)),
        ([65] * 512, ((65,) * 512,)),  # nothing is generated: the whole context is for the input
        (["x" * 100] * 50, ((BOS, *b"x" * 100),) * 50),
    ],
    ids=["text", "texts", "ids", "lists of ids", "long", "full", "many"],
)
async def test_input_forms(house: House, given: Any, prompts: Any) -> None:
    response = await embed(house, input=given)
    [asked] = house.engine.embedded
    assert asked.prompts == prompts
    data = response.json()["data"]
    assert [one["index"] for one in data] == list(range(len(prompts)))
    for one, prompt in zip(data, prompts, strict=True):
        assert one["embedding"] == unit(len(prompt), prompt[0], prompt[-1], 0)


async def test_base64_is_little_endian_float32(house: House) -> None:
    [text] = vectors(await embed(house, encoding_format="base64"))
    assert np.frombuffer(base64.b64decode(text), "<f4").tolist() == unit(3, BOS, 105, 0)


async def test_what_the_engine_is_asked(house: House) -> None:
    await embed(house, pooling="mean", priority=-3, cache_salt="tenant", add_special_tokens=False)
    await embed(house, user="me", encoding_format=None, dimensions=None)
    first, second = house.engine.embedded
    assert (first.pooling, first.context.priority, first.context.cache_salt, first.prompts) == (
        "mean",
        -3,
        "tenant",
        ((72, 105),),
    )
    assert (second.pooling, second.context.priority, second.context.cache_salt) == ("last", 0, None)
    assert second.context.request_id != first.context.request_id


async def test_dimensions_are_cut_and_made_one_long_again(house: House) -> None:
    assert vectors(await embed(house, dimensions=2)) == [unit(3, BOS)]
    assert vectors(await embed(house, dimensions=2.0, use_activation=True)) == [unit(3, BOS)]
    assert vectors(await embed(house, dimensions=2, use_activation=False)) == [[3, BOS]]
    assert vectors(await embed(house, use_activation=False)) == [[3, BOS, 105, 0]]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"truncate_prompt_tokens": 2}, (BOS, 102)),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, (BOS, 97)),
        ({"truncate_prompt_tokens": -1, "input": [66] * 600}, (66,) * 512),
        ({"truncate_prompt_tokens": -1, "input": "x" * 600}, (BOS, *b"x" * 511)),
    ],
)
async def test_truncation(house: House, asked: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert (await embed(house, **{"input": "abcdef", **asked})).status_code == 200
    assert house.engine.embedded[0].prompts == (expected,)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input.1"),
        ({"input": [[]]}, "input.0"),
        ({"input": [[1], []]}, "input.1"),
        ({"input": [1, "a"]}, "input.1"),
        ({"input": [-1]}, "input.0"),
        ({"input": [320]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [65] * 513}, "input"),
        ({"input": "\ud800"}, None),
        ({"encoding_format": "bytes"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 9}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"pooling": "cls"}, "pooling"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": "high"}, "priority"),
        ({"normalize": False}, "normalize"),
        ({"embed_dtype": "float16"}, "embed_dtype"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"dimension": 4}, "dimension"),
        ({"model": "other"}, "model"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_bad_input(house: House, body: dict[str, Any], param: str | None) -> None:
    async with house.client() as client:
        content = json.dumps({"model": "fake", "input": "Hi", **body})
        response = await client.post("/v1/embeddings", content=content, headers=AS_JSON)
    assert response.status_code == (404 if param == "model" else 400), response.text
    assert error_of(response)["param"] == param
    assert not house.engine.embedded


async def test_an_input_that_is_too_long(house: House) -> None:
    response = await embed(house, input=[65] * 513)
    assert error_of(response)["code"] == "context_length_exceeded"
    house.engine.refusal = ContextLengthExceeded("too long", "input")
    response = await embed(house, input="x" * 600)
    assert (response.status_code, error_of(response)["param"]) == (400, "input")


@pytest.mark.parametrize(("error", "status"), [(Overloaded("full"), 429), (ExecutorFailed("died"), 500)])
async def test_errors_of_the_engine(house: House, error: Exception, status: int) -> None:
    house.engine.refusal = error
    assert (await embed(house)).status_code == status


async def test_numbers_that_are_none_are_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    made = np.array([1.0, np.nan], np.float32)

    async def broken(request: EmbeddingRequest) -> tuple[list[Any], Usage]:
        return [made], Usage()

    monkeypatch.setattr(house.engine, "embed", broken)
    response = await embed(house)
    assert (response.status_code, error_of(response)["code"]) == (500, "sequence_failed")
    made = np.zeros(2, np.float32)  # of no length at all, and no reason to divide by it
    assert vectors(await embed(house)) == [[0.0, 0.0]]


# -- the model's own pooling --------------------------------------------------------------------------------------------


def write(directory: Path, pooling: dict[str, Any] | None, modules: list[str] | None = None) -> Path:
    if modules is not None:
        listed = [{"idx": i, "type": f"sentence_transformers.models.{one}"} for i, one in enumerate(modules)]
        (directory / "modules.json").write_text(json.dumps(listed))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


USUAL = ["Transformer", "Pooling", "Normalize"]


@pytest.mark.parametrize(
    ("pooling", "modules", "kind"),
    [
        (None, None, "last"),
        (None, USUAL, None),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, USUAL, "last"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, None, "mean"),
        ({"pooling_mode": "mean"}, USUAL, "mean"),
        ({"pooling_mode_cls_token": True}, USUAL, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, USUAL, None),
        ({"pooling_mode_mean_tokens": False}, USUAL, "mean"),
        ({"pooling_mode_mean_tokens": True}, ["Transformer", "Pooling", "Dense", "Normalize"], None),
    ],
)
def test_a_directory_says_how_to_pool(
    tmp_path: Path, pooling: dict[str, Any] | None, modules: list[str] | None, kind: str | None
) -> None:
    found = default_pooling(write(tmp_path, pooling, modules))
    assert found.kind == kind
    assert bool(found.reason) == (kind is None)


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_a_file_that_says_nothing_readable_names_itself(tmp_path: Path, text: str) -> None:
    write(tmp_path, {})
    (tmp_path / "1_Pooling" / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="1_Pooling"):
        default_pooling(tmp_path)


async def test_a_kind_that_does_not_exist_here_is_refused_when_it_is_asked_for(house: House) -> None:
    assert house.state.model is not None
    house.state.model = replace(house.state.model, pooling=DefaultPooling(None, "it is cls_token"))
    response = await embed(house)
    assert (response.status_code, error_of(response)["param"]) == (400, "pooling")
    assert "cls_token" in error_of(response)["message"]
    await embed(house, pooling="mean")
    house.state.model = replace(house.state.model, pooling=DefaultPooling("mean"))
    await embed(house)
    assert [asked.pooling for asked in house.engine.embedded] == ["mean", "mean"]
