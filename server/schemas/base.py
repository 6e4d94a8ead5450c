"""What all request bodies share: strict types, and errors that name the field by its path in the client's JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from engine.errors import InvalidRequest


class WireModel(BaseModel):
    """A request body or a part of one. Unknown keys are kept in `model_extra`, for `schemas/extras.py` to judge."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


Model = TypeVar("Model", bound=WireModel)


def parse(model: type[Model], body: bytes) -> Model:
    """Validate a JSON body, whatever its content type says (OpenAI does not mind either).

    Raises InvalidRequest naming `param` as a dotted path such as `messages.0.content`.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error, body) from None


def _explain(error: ValidationError, body: bytes) -> InvalidRequest:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        reason = details[0]["msg"].removeprefix("Invalid JSON: ")
        return InvalidRequest(f"The request body is not valid JSON: {reason}.", code="invalid_json")
    try:
        data = json.loads(body)
    except ValueError:  # integers of thousands of digits: Pydantic's parser takes them, this one does not
        data = None
    located = [(_path(detail["loc"], data, detail["type"] == "missing"), detail["msg"]) for detail in details]
    # A union reports one error per member: those that got furthest into the data are about what was meant.
    depth = max(len(path) for path, _ in located)
    path = next(path for path, _ in located if len(path) == depth)
    reasons = list(dict.fromkeys(_plain(message) for where, message in located if where == path))
    param = ".".join(str(part) for part in path) or None
    reason = " or ".join(reasons)
    message = f"Invalid value for '{param}': {reason}." if param else f"Invalid request body: {reason}."
    return InvalidRequest(message, param=param, code="invalid_value")


def _plain(message: str) -> str:
    """Pydantic's words in a client's terms."""
    message = message.removeprefix("Value error, ").rstrip(".")
    return message.replace("Field required", "it is required").replace("Input should", "it should")


def _path(location: Sequence[int | str], data: Any, missing: bool) -> tuple[int | str, ...]:
    """The part of an error's location that lies in the client's JSON (or should: `missing`); Pydantic's names of union
    members are left out."""
    path: list[int | str] = []
    for position, part in enumerate(location):
        absent = missing and position == len(location) - 1
        if isinstance(data, dict) and isinstance(part, str) and (part in data or absent):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int):
            path.append(part)
            data = data[part] if part < len(data) else None
    return tuple(path)
