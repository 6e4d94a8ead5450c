"""One operation of the API: its name, its request, its answer, and one or two examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from server.schemas.base import WireModel

OF_BODIES = (400, 401, 403, 404, 408, 413, 415, 431, 500, 503)
"""Errors of operations with a body that compute nothing."""
OF_WORK = (*OF_BODIES, 429)
"""Errors of operations that the engine computes."""
HELLO = {"model": "cohort-tiny", "messages": [{"role": "user", "content": "Count from 3 to 9."}]}
"""An example that most conversations begin with."""
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
"""A function in OpenAI's form, for examples."""


@dataclass(frozen=True)
class Operation:
    """One method of one path. `answer` names a component of the answers, None for text; `chunk` names the component that the
    events of its stream contain; `errors` lists the other statuses that an answer may have."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    answer: str | None
    errors: tuple[int, ...] = (401, 403, 431, 500)
    description: str = ""
    request: type[WireModel] | None = None
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    chunk: str | None = None
    media: tuple[str, ...] = ("text/plain",)
    """Media types of an answer that is no JSON; none for one that is only a stream."""
    keyless: bool = False
    own_key: bool = False
    """True if the path needs no key unless it has one of its own."""
    not_ready: bool = False
    """True if a 503 has the same body as the 200."""
    error: str = "Error"
    """Component of errors."""
    query: tuple[tuple[str, dict[str, Any], str], ...] = ()
    """Parameters of the query: names, schemas and descriptions."""
    events: Literal["data", "typed", "lines"] = "data"
    """What a stream consists of: events with data alone and a last one `[DONE]`, events whose type has a line, lines of JSON."""
    failing_events: bool = False
    """True if a failure within a stream of typed events is an event with the component of errors."""
    id_header: str | None = None
    """Another header with the request's id, beside `x-request-id`."""
