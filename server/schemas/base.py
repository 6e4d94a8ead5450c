"""The base of all request bodies: strict types, and errors that name the field by its path in the client's JSON."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from engine.errors import InvalidRequest
from server.schemas.extras import Rules
from server.schemas.hints import names_of


class WireModel(BaseModel):
    """A request body or a part of one. Unknown keys are kept in `model_extra`, for `schemas/extras.py` to judge."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    rules: ClassVar[Rules] = Rules()
    """Rules for those keys."""


Model = TypeVar("Model", bound=WireModel)


_BOM = b"\xef\xbb\xbf"
"""Mark that editors and shells of Windows write before UTF-8. RFC 8259, 8.1, lets a reader of JSON skip it."""


def parse(model: type[Model], body: bytes) -> Model:
    """Validate a JSON body, with or without a byte order mark.

    Raises InvalidRequest naming `param` as a dotted path such as `messages.0.content`.
    """
    try:
        return model.model_validate_json(body.removeprefix(_BOM))
    except ValidationError as error:
        raise _explain(error) from None


_OF_TYPES = ("_type", "int_from_float")
"""Endings of Pydantic's names of errors for values of a wrong type."""
_MOST_MEANT, _MOST_REASONS = 64, 4
"""Numbers of faults that are examined in one place, and reported: an object has as many faults as wrong entries."""


def _explain(error: ValidationError) -> InvalidRequest:
    """The first fault in a client's terms. The list is short however large the body is: lists stop at their first bad
    element (`fail_fast`), so what is left is fields and members of unions."""
    details = error.errors(include_url=False, include_input=False)
    if details[0]["type"] == "json_invalid":
        reason = details[0]["msg"].removeprefix("Invalid JSON: ")
        return InvalidRequest(f"The request body is not valid JSON: {reason}.", code="invalid_json")
    located = [(_path(detail["loc"]), detail) for detail in details]
    # A union reports one error per member: those that got furthest into the data are about what was meant.
    depth = max(len(path) for path, _ in located)
    path = next(path for path, _ in located if len(path) == depth)
    there = [detail for where, detail in located if where == path]
    # Of those, a member whose type fits says what is wrong; the others only that they are of another type.
    likely = [detail for detail in there if not detail["type"].endswith("_type")] or there
    reasons = list(dict.fromkeys(map(_plain, likely[:_MOST_MEANT])))[:_MOST_REASONS]
    param = ".".join(str(part) for part in path) or None
    reason = " or ".join(reasons)
    if param is not None and all(detail["type"] == "missing" for detail in likely):
        return InvalidRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    message = f"Invalid value for '{param}': {reason}." if param else f"Invalid request body: {reason}."
    if all(detail["type"].endswith(_OF_TYPES) for detail in likely):
        return InvalidRequest(message, param=param, code="invalid_type")
    return InvalidRequest(message, param=param, code="invalid_value")


_WORDS = (("Field required", "it is required"), ("Input should", "it should"), ("String should", "it should"))


def _plain(detail: ErrorDetails) -> str:
    """Pydantic's words in a client's terms."""
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "too_short" | "string_too_short" if limits["min_length"] == 1:
            return "it should not be empty"
        case "too_long":
            return f"it should have at most {limits['max_length']} entries"
        case "string_pattern_mismatch" if (
            detail["loc"][-1] == "[key]"
        ):  # token ids are the keys with a pattern
            return f"its keys should be token ids, which {str(detail['loc'][-2])[:40]!r} is not"
    message = detail["msg"].removeprefix("Value error, ").rstrip(".")
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    return message


def _path(location: Sequence[int | str]) -> tuple[int | str, ...]:
    """The part of an error's location that lies in the client's JSON: names of fields and positions in lists. Pydantic's
    names of union members (`list[str]`, tags) are left out; none of them is the name of a field."""
    names = field_names()
    return tuple(part for part in location if isinstance(part, int) or part in names)


@functools.cache
def field_names() -> frozenset[str]:
    """The fields of all wire types. Called on the first bad request, when every schema has been imported."""
    return frozenset(
        one
        for model in wire_types()
        for name, field in model.model_fields.items()
        for one in names_of(name, field)
    )


def wire_types() -> Iterator[type[WireModel]]:
    """All wire types that have been imported, bases included; those with several bases come several times."""
    waiting: list[type[WireModel]] = [WireModel]
    while waiting:
        yield (model := waiting.pop())
        waiting.extend(model.__subclasses__())
