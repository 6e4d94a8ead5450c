"""From a request's constraint to a grammar: every form of `response_format`, `structured_outputs` and `guided_*`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import FIELD, InvalidRequest
from server.grammar.schemas import prepared_schema, refusal
from server.schemas.base import WireModel
from server.schemas.structured import (
    GUIDED,
    MAX_CONSTRAINT_BYTES,
    ResponseFormat,
    StructuredFields,
    StructuredOutputs,
)

BOUNDED_WHITESPACE = r"\x20|\n(\x20{0,32}|\t{0,16})"
"""Regular expression for the whitespace between two parts of JSON: nothing (always allowed), one blank, or one line break with
its indentation. Without a bound, a small model that has begun with blanks continues with blanks."""
_ESCAPES = 'nrbtf\\"'
"""Letters after a backslash in JSON strings. Without `u` each string can be written in one way only: see schemas.py."""

_BLANK = r"(?:[ \t\n\r]|\\[ntrs]|\\x(?:20|0[9aAdD]))"
_WHITESPACE_PATTERN = re.compile(
    rf"(?:{_BLANK}|\[{_BLANK}+\]|\(\?:|[()|?*+]|\{{\d{{1,4}}(?:,\d{{0,4}})?\}})*"
)
"""Regular expressions that match only JSON's whitespace. A character class is matched as a whole, so that none is negated."""
_GBNF_RULE = re.compile(r"^[ \t]*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^[ \t]*[?!]?\w+[ \t]*\[", re.MULTILINE)
_TEMPERATURE = re.compile(r"\btemperature\s*=")
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_OF_JSON = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")


@dataclass(frozen=True, slots=True)
class Constraint:
    """The constraint of an answer. `param` is the request's field that requires it; `grammar` is one of llguidance's grammars
    without its name: `{"json_schema": {...}}` or `{"lark_grammar": "..."}`; or `{"gbnf_grammar": "..."}`, which the validator
    translates to Lark."""

    param: str
    grammar: dict[str, Any]


def constraint_of(body: StructuredFields) -> Constraint | None:
    """The constraint of the request; None for free text. Raises InvalidRequest naming the field."""
    of_format, guided = _of_format(body.response_format), _of_guided(body)
    outputs = None if body.structured_outputs is None else _of_outputs(body.structured_outputs)
    constraints = [constraint for constraint in (guided, outputs, of_format) if constraint is not None]
    if len(constraints) > 1:
        first, second = (one.param.partition(".")[0] for one in constraints[:2])
        other = "a 'response_format' that is not text" if second == "response_format" else f"'{second}'"
        raise _not_together(first, other)
    return constraints[0] if constraints else None


def json_part(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """A JSON schema as a grammar, with bounded whitespace. Raises InvalidRequest if it cannot be enforced."""
    return _json(prepared_schema(schema, param), {"whitespace_pattern": BOUNDED_WHITESPACE})


def lark_string(text: str) -> str:
    """A text as a Lark literal."""
    return json.dumps(text, ensure_ascii=False)


def _json(schema: dict[str, Any], writing: dict[str, Any]) -> dict[str, Any]:
    return {"json_schema": {**schema, "x-guidance": {**writing, "json_allowed_escapes": _ESCAPES}}}


def _of_format(response_format: ResponseFormat | None) -> Constraint | None:
    if response_format is None:
        return None
    _refuse_unknown(response_format, "response_format")
    if response_format.type != "json_schema":
        if response_format.json_schema is not None:
            message = f"'{FIELD}' is only allowed when 'response_format.type' is 'json_schema'."
            raise InvalidRequest(message, param="response_format.json_schema", code="invalid_value")
        if response_format.type == "text":
            return None
        return Constraint("response_format", json_part({"type": "object"}, "response_format"))
    json_schema = response_format.json_schema
    if json_schema is None:
        raise _missing("response_format.json_schema")
    _refuse_unknown(json_schema, "response_format.json_schema")
    param = "response_format.json_schema.schema"
    if json_schema.schema_ is None:
        raise _missing(param)
    return Constraint(param, json_part(json_schema.schema_, param))


def _of_guided(body: StructuredFields) -> Constraint | None:
    """The constraint of vLLM's older fields. Raises InvalidRequest naming the field."""
    names = [name for name in GUIDED if getattr(body, name) is not None]
    if len(names) > 1:
        raise _not_together(names[0], f"'{names[1]}'")
    pattern = body.guided_whitespace_pattern
    if pattern is not None and names != ["guided_json"]:
        message = f"'{FIELD}' only goes with 'guided_json'."
        raise InvalidRequest(message, param="guided_whitespace_pattern", code="invalid_value")
    if not names:
        return None
    outputs = StructuredOutputs.model_construct(
        json_=body.guided_json, regex=body.guided_regex, choice=body.guided_choice, grammar=body.guided_grammar,
        whitespace_pattern=pattern,
    )  # fmt: skip
    return _constraint(outputs, names[0].removeprefix("guided_"), "guided_")


def _not_together(param: str, other: str) -> InvalidRequest:
    message = f"'{FIELD}' and {other} cannot be combined; send only one."
    return InvalidRequest(message, param=param, code="invalid_value")


def _of_outputs(outputs: StructuredOutputs) -> Constraint:
    _refuse_unknown(outputs, "structured_outputs")
    kinds = [name for name in _KINDS if _value(outputs, name) not in (None, False)]
    if len(kinds) != 1:
        listed = ", ".join(f"'{name}'" for name in kinds) or "none"
        message = f"'{FIELD}' should have exactly one of {', '.join(map(repr, _KINDS))}; it has {listed}."
        raise InvalidRequest(message, param="structured_outputs", code="invalid_value")
    kind = kinds[0]
    if not kind.startswith("json"):
        for name in _OF_JSON:
            if _value(outputs, name):
                message = f"'{FIELD}' only goes with 'json' or 'json_object'."
                raise InvalidRequest(message, param=f"structured_outputs.{name}", code="invalid_value")
    return _constraint(outputs, kind, "structured_outputs.")


def _constraint(outputs: StructuredOutputs, kind: str, prefix: str) -> Constraint:
    """The constraint of the one kind that is given. `prefix` and a field's name make the client's name for it."""
    param = prefix + kind
    if outputs.regex is not None:
        return Constraint(param, {"lark_grammar": f"start: {_regex(outputs.regex, param)}"})
    if outputs.choice is not None:
        _check_bytes("".join(outputs.choice), param)
        return Constraint(param, {"lark_grammar": "start: " + " | ".join(map(lark_string, outputs.choice))})
    if outputs.grammar is not None:
        _check_bytes(outputs.grammar, param)
        if _gives_temperature(outputs.grammar):  # the compiler accepts it, and nothing would apply it
            raise refusal(param, "a rule's 'temperature' is not supported")
        key = "gbnf_grammar" if _GBNF_RULE.search(outputs.grammar) else "lark_grammar"
        return Constraint(param, {key: outputs.grammar})
    schema = {"type": "object"} if outputs.json_ is None else _schema(outputs.json_, param)
    closed = bool(outputs.disable_additional_properties)
    return Constraint(param, _json(prepared_schema(schema, param, closed), _writing(outputs, prefix)))


def _gives_temperature(grammar: str) -> bool:
    """Whether a Lark rule has the attribute. A single expression would read to the end of the text for each unclosed "[": this
    takes 15 s for a grammar of 64 KiB. Between one "]" and the next only the first "[" needs to be checked."""
    begin = 0
    while begin < len(grammar):
        end = grammar.find("]", begin)
        end = len(grammar) if end < 0 else end
        if (opened := _ATTRIBUTES.search(grammar, begin, end)) and _TEMPERATURE.search(
            grammar, opened.end(), end
        ):
            return True
        begin = end + 1
    return False


def _value(outputs: StructuredOutputs, name: str) -> Any:
    return outputs.json_ if name == "json" else getattr(outputs, name)


def _schema(schema_value: dict[str, Any] | str, param: str) -> dict[str, Any]:
    if isinstance(schema_value, dict):
        return schema_value
    _check_bytes(schema_value, param)
    try:
        schema = msgspec.json.decode(schema_value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise refusal(param, f"it should be a JSON schema, as an object or as JSON text: {error}") from None
    if not isinstance(schema, dict):
        raise refusal(param, "it should be a JSON schema, which is an object")
    return schema


def _writing(outputs: StructuredOutputs, prefix: str) -> dict[str, Any]:
    """llguidance's settings for whitespace."""
    pattern, param = outputs.whitespace_pattern, f"{prefix}whitespace_pattern"
    if outputs.disable_any_whitespace:
        if pattern is not None:
            raise refusal(param, "it contradicts 'disable_any_whitespace'")
        return {"whitespace_flexible": False}
    if pattern is None:
        return {"whitespace_pattern": BOUNDED_WHITESPACE}
    if not _WHITESPACE_PATTERN.fullmatch(pattern):
        raise refusal(param, "it should be a regular expression of blanks, tabs and line breaks alone")
    # In JSON, `\s` can only be these; to the compiler it is every blank of Unicode.
    classes = re.sub(r"\[[^\]]*\]", lambda match: match[0].replace(r"\s", r" \t\n\r"), pattern)
    return {"whitespace_pattern": classes.replace(r"\s", r"[ \t\n\r]")}


def _regex(pattern: str, param: str) -> str:
    """A regular expression that the whole answer matches, in Lark's notation. `^` at its beginning and `$` at its end are
    redundant, and are removed because the compiler does not support them."""
    _check_bytes(pattern, param)
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise refusal(param, "it ends with a backslash that escapes nothing")
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2:
        pattern = pattern[:-1]
    if not pattern:
        return '""'
    # A slash would end it, and so would a line break; both may stand there already escaped.
    escaped = re.sub(
        r"\\.|/|\n", lambda match: {"/": r"\/", "\n": r"\n"}.get(match[0], match[0]), pattern, flags=re.DOTALL
    )
    return f"/{escaped}/"


def _check_bytes(text: str, param: str) -> None:
    if len(text) > MAX_CONSTRAINT_BYTES or len(text.encode("utf-8", "replace")) > MAX_CONSTRAINT_BYTES:
        raise refusal(param, f"it should have at most {MAX_CONSTRAINT_BYTES} bytes")


def _refuse_unknown(part: WireModel, where: str) -> None:
    """Refuse unknown keys inside a constraint: their sender would believe that they constrain the answer."""
    for name, value in (part.model_extra or {}).items():
        if value is not None:
            param = f"{where}.{name[:100]}"
            raise InvalidRequest(f"'{FIELD}' is not supported.", param=param, code="unsupported_parameter")


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{FIELD}'.", param=param, code="missing_required_parameter"
    )
