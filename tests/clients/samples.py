"""What the checks ask the tiny model: standard library and Pydantic alone, for every client's environment reads this."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

COUNT = "Count from 3 to 9."
COUNTED = [3, 4, 5, 6, 7, 8, 9]
HUGO = "Hugo, 51, is a baker. Return a JSON object with the fields name, age and job."
PARIS = "What is the weather in Paris?"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
"""The function that the tiny model calls when it is asked about the weather."""


class Person(BaseModel):
    """A person"""

    name: str
    age: int
    job: str


HUGO_IS = Person(name="Hugo", age=51, job="baker")


def numbers(text: Any) -> list[int]:
    """The numbers of a text, in order; none without a text."""
    return [int(number) for number in re.findall(r"\d+", text or "")]
