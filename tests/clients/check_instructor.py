"""Instructor: typed answers in each of its modes that ask the server for one."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
import openai
import pytest
from instructor import Mode
from pydantic import Field

from tests.clients.samples import HUGO, HUGO_IS, Person

ASK: Any = {
    "messages": [{"role": "user", "content": HUGO}],
    "temperature": 0,
    "max_tokens": 200,
    "max_retries": 1,
}


class Adult(Person):
    """An adult"""

    age: int = Field(ge=60, le=99)


@pytest.fixture
def sdk(url: str, api_key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON, Mode.JSON_SCHEMA])
def test_mode(sdk: openai.OpenAI, model: str, mode: Mode) -> None:
    person = instructor.from_openai(sdk, mode=mode).chat.completions.create(
        model=model, response_model=Person, **ASK
    )
    assert isinstance(person, Person)
    assert person.name == "Hugo"
    if mode is Mode.JSON_SCHEMA:
        assert person.model_dump() == HUGO_IS.model_dump()


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA])
def test_the_schema_is_enforced(sdk: openai.OpenAI, model: str, mode: Mode) -> None:
    """No retry is needed for a value that the model would not write of itself."""
    asked = {**ASK, "max_retries": 0}
    client = instructor.from_openai(sdk, mode=mode)
    adult = client.chat.completions.create(model=model, response_model=Adult, **asked)
    assert 60 <= adult.age <= 99


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA])
def test_partial_stream(sdk: openai.OpenAI, model: str, mode: Mode) -> None:
    client = instructor.from_openai(sdk, mode=mode)
    parts = list(client.chat.completions.create_partial(model=model, response_model=Person, **ASK))
    assert parts[-1].name == "Hugo"
    assert len(parts) > 3


def test_the_answer_beside_its_completion(sdk: openai.OpenAI, model: str) -> None:
    client = instructor.from_openai(sdk, mode=Mode.JSON_SCHEMA)
    person, completion = client.chat.completions.create_with_completion(
        model=model, response_model=Person, **ASK
    )
    assert person.model_dump() == HUGO_IS.model_dump()
    assert completion.usage.completion_tokens > 0


def test_async(url: str, api_key: str, model: str) -> None:
    async def ask() -> Person:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0) as sdk:
            client = instructor.from_openai(sdk, mode=Mode.JSON_SCHEMA)
            return await client.chat.completions.create(model=model, response_model=Person, **ASK)

    assert asyncio.run(ask()).model_dump() == HUGO_IS.model_dump()
