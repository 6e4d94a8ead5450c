"""The grammar of a chat's answer: reasoning as the model marks it, then text, a constrained answer, or calls.

requested                          the answer, after the reasoning
response_format                    as it says
tool_choice required or named      calls (one, if named), arguments by each function's schema, whatever the format of a text
auto, a strict function            text with calls in it, arguments of strict functions by their schemas
auto and response_format           as it says, or calls
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from engine.errors import FIELD, InvalidRequest
from server.answer.notation import ModelNotation
from server.answer.reasoning import Place
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.notation import Arguments, Schema, ToolNotation
from server.grammar.closing import closed_by_name
from server.grammar.compose import alone, compose
from server.grammar.forms import Constraint, json_part
from server.grammar.lark import Lark
from server.grammar.schemas import MAX_GRAMMAR_LENGTH, check_size, refusal
from server.schemas.tool_choice import Function, ToolChoice

ANSWER = "answer"
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""Schema of a function without `parameters`: as with OpenAI, it takes none."""


def chat_grammar(
    choice: ToolChoice, constraint: Constraint | None, notation: ModelNotation, place: Place
) -> tuple[str, str] | None:
    """The grammar and the request's field that requires it; None if the answer is free. `place` says where the answer
    begins. Raises InvalidRequest naming the field."""
    if choice.forced:
        constraint = None
    tools = notation.tools
    if tools is None:
        _check_unparsed(choice, notation)
    calls = writes_calls(choice, constraint, notation)
    if constraint is not None and not calls and place is Place.AFTER:
        return alone(constraint), constraint.param
    parts: dict[str, Mapping[str, Any]] = {}
    lark = Lark(notation.tokens)
    answer = ""
    if constraint is not None:
        parts[ANSWER] = constraint.grammar
        answer = f"@{ANSWER}"
        if notation.reasoning is not None:
            answer = notation.reasoning.answer(lark, place, answer)
    if calls and tools is not None:
        answer = _with_calls(answer, tools, choice, lark, parts)
    if not answer:
        return None
    if notation.reasoning is not None:
        answer = notation.reasoning.lark(lark, place, answer)
    param = constraint.param if constraint is not None else "tools"
    return compose(lark.source(answer), parts), param


def writes_calls(choice: ToolChoice, constraint: Constraint | None, notation: ModelNotation) -> bool:
    """True if the grammar, if there is one, determines the form of calls."""
    strict = any(function.strict for function in choice.functions)
    beside = choice.mode == "auto" and constraint is not None
    return notation.tools is not None and (choice.forced or strict or beside)


def _check_unparsed(choice: ToolChoice, notation: ModelNotation) -> None:
    """Refuse a constraint on calls if calls stay text, where it cannot be enforced. Raises InvalidRequest."""
    place = next((one.place for one in choice.functions if one.strict), None)
    if choice.forced:
        param = "tool_choice"
    elif place is not None:
        param = f"tools.{place}.function.strict"
    elif choice.mode == "auto" and not choice.several:
        param = "parallel_tool_calls"
    else:
        return
    reason = (
        "this server does not know the model's format of tool calls, which stay text; --tool-call-parser can name it"
        if notation.unknown
        else "this server runs with --tool-call-parser none"
    )
    message = f"'{FIELD}' cannot be enforced: {reason}."
    raise InvalidRequest(message, param=param, code="unsupported_value")


def _with_calls(
    answer: str, tools: ToolNotation, choice: ToolChoice, lark: Lark, parts: dict[str, Mapping[str, Any]]
) -> str:
    """A Lark expression for the calls of `choice`, and `answer` beside them if there is one. Adds the arguments' grammars."""
    _check_sizes([one for one in choice.functions if choice.forced or one.strict])
    budget = _Budget()
    arguments = {
        one.name: _arguments(parts, one, choice.forced or one.strict, budget) for one in choice.functions
    }
    if answer and isinstance(tools, Llama3Json):
        calls = [one.part(tools.as_schema(name, one.schema)) for name, one in arguments.items()]
        call = lark.rule("call", " | ".join(calls))
        return f"{answer} | {call}" + (f' ("; " {call})*' if choice.several else "")
    if choice.forced:
        return tools.calls(lark, arguments, choice.several)
    if answer:
        return f"{answer} | {tools.calls(lark, arguments, choice.several)}"
    return tools.calls_in_text(lark, arguments, choice.several)


def _check_sizes(functions: Sequence[Function]) -> None:
    """Raises InvalidRequest for schemas that are too large, singly or together, before they are traversed."""
    budget = _Budget()
    for one in functions:
        budget.take(one.parameters, f"tools.{one.place}.function.parameters")


class _Budget:
    """Bounds the schemas of a request's grammar. A notation may ask for parts of one schema several times."""

    def __init__(self) -> None:
        self._size = 0

    def take(self, schema: Schema | None, param: str) -> None:
        """Count a schema. Raises InvalidRequest if it is too large, alone or with the others."""
        self._size += check_size(schema, param)
        if self._size > MAX_GRAMMAR_LENGTH:
            raise refusal(
                "tools", f"the schemas of a request should have at most {MAX_GRAMMAR_LENGTH} characters"
            )


def _arguments(
    parts: dict[str, Mapping[str, Any]], function: Function, by_schema: bool, budget: _Budget
) -> Arguments:
    """The arguments of a function. Parts of a grammar are added to `parts` when the notation asks for them."""
    param = f"tools.{function.place}.function.parameters"
    numbers = count()

    def part(schema: Schema) -> str:
        budget.take(schema, param)
        number = next(numbers)
        name = f"f{function.place}" + (f"_{number}" if number else "")
        parts[name] = json_part(dict(schema), param)
        return f"@{name}"

    def refuse(reason: str) -> None:
        raise refusal(param, reason)

    return Arguments(_schema(function, by_schema), part, refuse, by_schema and function.strict)


def _schema(function: Function, by_schema: bool) -> dict[str, Any]:
    """The JSON schema of a function's arguments. Raises InvalidRequest if it does not describe an object."""
    if not by_schema:
        return {"type": "object"}
    if function.parameters is None:
        return _NO_ARGUMENTS
    param = f"tools.{function.place}.function.parameters"
    if function.parameters.get("type", "object") != "object":
        message = f"Invalid value for '{FIELD}': arguments are an object, so its 'type' should be 'object'."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return closed_by_name({**function.parameters, "type": "object"})
