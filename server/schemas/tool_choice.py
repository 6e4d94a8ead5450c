"""The tools of a request: which are offered, which may be called, whether one must be called, and how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import FIELD, InvalidRequest, field

Mode = Literal["none", "auto", "required", "named"]

_NAMED_FORMS = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _NAMED_FORMS, "minItems": 1},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}
TOOL_CHOICE = {
    "anyOf": [{"enum": ["none", "auto", "required", "any"]}, _NAMED_FORMS, _ALLOWED, {"type": "null"}]
}
"""JSON schema of what `tool_choice()` accepts."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """An offered function. `place` is its number in the request's `tools`; `parameters` is the JSON schema of its arguments,
    None for a function without any; `strict` requires that the arguments follow it."""

    place: int
    name: str
    parameters: Mapping[str, Any] | None
    strict: bool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`functions` are those that may be called: a single one if it is named. `several`: one answer may have several calls."""

    mode: Mode = "none"
    functions: tuple[Function, ...] = ()
    several: bool = True

    @property
    def forced(self) -> bool:
        """True if the answer must be a call."""
        return self.mode in ("required", "named")

    @property
    def names(self) -> Mapping[str, Mapping[str, Any] | None]:
        """Names of the functions that may be called, each with the JSON schema of its arguments."""
        return {function.name: function.parameters for function in self.functions}


def tool_choice(
    functions: Sequence[Function], choice: str | Mapping[str, Any] | None, parallel: bool
) -> ToolChoice:
    """The choice that `tools`, `tool_choice` and `parallel_tool_calls` express. Raises InvalidRequest naming the field.

    `{"type": "allowed_tools"}` removes the other tools: the model does not see tools that it must not call.
    """
    if not functions:
        if choice in (None, "none"):
            return ToolChoice()
        raise _invalid("tool_choice", f"'{FIELD}' is only allowed when '{field('tools')}' are given.")
    match choice:
        case "none":
            return ToolChoice()
        case None | "auto":
            return ToolChoice("auto", tuple(functions), parallel)
        case "required" | "any":  # Mistral's name for it
            return ToolChoice("required", tuple(functions), parallel)
        case {"function": {"name": str(name)}, **others} if others.get("type", "function") == "function":
            chosen = _functions([name], functions, "tool_choice.function.name")
            return ToolChoice("named", chosen, several=False)
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*tools]},
        }:
            return ToolChoice(mode, _allowed(tools, functions), parallel)
    message = (
        f'Invalid value for \'{FIELD}\': it should be "none", "auto", "required", '
        '{"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or '
        '"required", "tools": [...]}}.'
    )
    raise _invalid("tool_choice", message)


def _allowed(tools: Sequence[Any], functions: Sequence[Function]) -> tuple[Function, ...]:
    names = []
    for number, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case _:
                where = f"tool_choice.allowed_tools.tools.{number}"
                message = f'\'{FIELD}\' should be {{"type": "function", "function": {{"name": ...}}}}.'
                raise _invalid(where, message)
    if not names:
        where = "tool_choice.allowed_tools.tools"
        raise _invalid(where, f"Invalid value for '{FIELD}': it should not be empty.")
    return _functions(names, functions, "tool_choice.allowed_tools.tools")


def _functions(names: Sequence[str], functions: Sequence[Function], param: str) -> tuple[Function, ...]:
    names_known, chosen_names = {function.name for function in functions}, set(names)
    for name in names:
        if name not in names_known:
            raise _invalid(
                param, f"'{FIELD}' names the function '{name[:100]}', which is not in '{field('tools')}'."
            )
    return tuple(function for function in functions if function.name in chosen_names)


def _invalid(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_value")
