"""Calls whose arguments stand between tags, each as bare text: the base of such notations.

    <tool_call><function=f><parameter=city>Rome</parameter><parameter=days>3</parameter></function></tool_call>

The notation says nothing of types, so an argument is read as the function's schema says (typed.py): Rome as the string "Rome", 3
as a number. A string flows on as it is written; other values are converted when they are complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from server.answer.tools.notation import (
    Arguments,
    NamedCall,
    OpenedNotation,
    Schema,
    json_string_piece,
    json_text,
)
from server.answer.tools.parser import NAME, Sink, ToolParser, Wait
from server.answer.tools.typed import (
    TEXT_ONLY,
    json_value,
    kinds,
    properties_of,
    resolved,
)
from server.grammar.lark import Lark, text_of

_REFERENCE = re.compile(r'"\$ref": "([^"]*)"')
_SHARED = ("#/$defs/", "#/definitions/")
"""Beginnings of references to what is shared; the whole schema need not go with a part that has no others."""
_PART_OF_OBJECT = frozenset(
    {
        "$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties",
        "patternProperties",
    }
)  # fmt: skip
STRING_KEYWORDS = frozenset({"pattern", "format", "minLength"})
"""Keywords of strings that a grammar of bare text does not enforce."""
MAX_COUNTED = 8192
"""Greatest `maxLength` that a grammar of bare text counts."""


@dataclass(frozen=True)
class Tags:
    """The tags of a notation: a block of calls, one call, one parameter. A function's name stands between `function` and
    `function_name_end`, and likewise a parameter's. `own_lines`: a value has a line break before and after it."""

    block: tuple[str, str]
    function: str
    function_name_end: str
    function_end: str
    parameter: str
    parameter_name_end: str
    parameter_end: str
    before_function: str = "\n"
    after_function_name: str = "\n"
    after_parameter: str = "\n"
    own_lines: bool = False

    @property
    def literals(self) -> tuple[str, ...]:
        """All tags, without what belongs to a name."""
        return (*self.block, self.function_end, self.parameter_end)


class TaggedParser(ToolParser):
    """Parser of such a notation. A block may hold several calls, and its closing tag may be missing."""

    tags: ClassVar[Tags]

    def _parse(self) -> Wait[None]:
        while opening := (yield from self._outside()):
            if opening == self.tags.block[0] and (yield from self._block()):
                continue
            self._no_call()

    def _block(self) -> Wait[bool]:
        """Read the calls of a block, after its opening tag. True if there was one."""
        if not (yield from self._function()):
            return False
        yield from self._rest_of_block()
        return True

    def _rest_of_block(self) -> Wait[None]:
        while True:
            self._stay()
            yield from self._blanks()
            if (yield from self._one_of(self.tags.block[1])):
                break
            if not (yield from self._function()):
                self._go_back()
                break
        self._mark = None

    def _function(self) -> Wait[bool]:
        yield from self._blanks()
        if not (yield from self._one_of(self.tags.function)):
            return False
        return (yield from self._rest_of_function())

    def _rest_of_function(self) -> Wait[bool]:
        """Read a call from its name on. True if it was one."""
        tags = self.tags
        name = yield from self._name(tags.function_name_end[0])
        if not NAME.fullmatch(name) or not (yield from self._one_of(tags.function_name_end)):
            return False
        yield from self._blanks()
        tag = yield from self._one_of(tags.parameter, tags.function_end, tags.block[1])
        if not tag:
            return False
        self._begin(name)
        if tag == tags.block[1]:
            self._at -= len(tag)  # it closes the block too
        yield from self._parameters(name, tag)
        return True

    def _parameters(self, name: str, tag: str) -> Wait[None]:
        """Read the parameters of a call that has begun, of which the tag `tag` has been read."""
        schema = self._functions.get(name)
        writer = ObjectWriter(self._argue)
        while tag == self.tags.parameter:
            key = (yield from self._word(self.tags.parameter_name_end[0])).strip()
            if not (yield from self._one_of(self.tags.parameter_name_end)):
                return
            if not (yield from self._argument(writer, key, schema)):
                return
            tag = yield from self._next_tag()
        if not tag and self._is_cut_off(*self._after_parameter):
            self._at = len(self._text)
            return
        writer.close()
        self.num_finished += 1

    def _next_tag(self) -> Wait[str]:
        """The tag behind a parameter. "" if text follows; the call counts as complete then."""
        self._stay()
        yield from self._blanks()
        tag = yield from self._one_of(*self._after_parameter)
        if tag == self.tags.block[1]:
            self._at -= len(tag)  # it closes the block too
        if not tag and not self._is_cut_off(*self._after_parameter):
            self._go_back()
        self._mark = None
        return tag

    @property
    def _after_parameter(self) -> tuple[str, str, str]:
        return self.tags.parameter, self.tags.function_end, self.tags.block[1]

    def _is_cut_off(self, *tags: str) -> bool:
        """Whether the text ends where one of these tags could have come."""
        rest = self._text[self._at :].lstrip()
        return self._ended and any(one.startswith(rest) for one in tags)

    def _argument(self, writer: ObjectWriter, key: str, schema: Schema | None) -> Wait[bool]:
        """Read one value, after its opening tag. False if the text ends within it."""
        allowed = kinds(properties_of(schema).get(key), schema)
        return (yield from self._typed_value(writer, key, allowed))

    def _typed_value(self, writer: ObjectWriter, key: str, allowed: frozenset[str]) -> Wait[bool]:
        sink = writer.string(key) if allowed == TEXT_ONLY else writer.value(key, allowed)
        if self.tags.own_lines:
            sink = OwnLines(sink)
        if not (yield from self._until(self.tags.parameter_end, sink)):
            return False
        writer.end_value()
        return True

    def _blanks(self) -> Wait[None]:
        char = yield from self._next()
        self._at -= len(char)


class ObjectWriter:
    """Writes the arguments of a call as JSON while they are read. One writer: the parser."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._keys = 0
        self._end: Callable[[], None] = lambda: None

    def string(self, key: str) -> Sink:
        """Begin a string; returns what takes its text in pieces."""
        self.key(key)
        self._sink('"')
        self._end = lambda: self._sink('"')
        return lambda text: self._sink(json_string_piece(text))

    def value(self, key: str, allowed: frozenset[str]) -> Sink:
        """Begin a value of one of these types; returns what takes its text in pieces."""
        pieces: list[str] = []

        def end() -> None:
            self.key(key)
            self._sink(json_value("".join(pieces), allowed))

        self._end = end
        return pieces.append

    def end_value(self) -> None:
        """End the value that was begun last."""
        self._end()

    def key(self, key: str) -> None:
        """Write a key."""
        self._sink(("{" if not self._keys else ", ") + json_text(key) + ": ")
        self._keys += 1

    def close(self) -> None:
        """End the object."""
        self._sink("}" if self._keys else "{}")


class OwnLines:
    """Removes the line break before a value and the one after it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._started = False
        self._pending = ""

    def __call__(self, text: str) -> None:
        if text and not self._started:
            self._started, text = True, text.removeprefix("\n")
        text = self._pending + text
        self._pending = "\n" if text.endswith("\n") else ""
        self._sink(text.removesuffix("\n"))


@dataclass(frozen=True)
class TaggedNotation(OpenedNotation):
    """A notation with such tags."""

    @property
    def tags(self) -> Tags:
        """Its tags."""
        raise NotImplementedError

    @property
    def opening(self) -> str:
        return self.tags.block[0]

    @property
    def between(self) -> str | None:
        return "\n"

    @property
    def literals(self) -> tuple[str, ...]:
        return self.tags.literals

    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        tags = self.tags
        end = self._end_of_block(lark)
        return f"{lark.literal(tags.before_function)} ({self._functions(lark, arguments)}) {end}"

    def _end_of_block(self, lark: Lark) -> str:
        # Apart: a lexer cannot tell a line break before the end from one before the next call.
        return f"{lark.literal(self.after_function)} {lark.literal(self.tags.block[1])}"

    @property
    def after_function(self) -> str:
        """Text between the end of a call and the end of the block."""
        return "\n"

    def written(self, calls: Sequence[NamedCall]) -> str:
        tags = self.tags
        return "\n".join(
            f"{tags.block[0]}{tags.before_function}{self._written(call)}{self.after_function}{tags.block[1]}"
            for call in calls
        )

    def _written(self, call: NamedCall) -> str:
        tags, (name, arguments) = self.tags, call
        line = "\n" if tags.own_lines else ""
        values = "".join(
            f"{self._key(key, value)}{line}{bare(value)}{line}{tags.parameter_end}{tags.after_parameter}"
            for key, value in arguments.items()
        )
        return f"{self._function_begin(name)}{values}{tags.function_end}"

    def _function_begin(self, name: str) -> str:
        return f"{self.tags.function}{name}{self.tags.function_name_end}{self.tags.after_function_name}"

    @property
    def around_key(self) -> tuple[str, str]:
        """Text between a parameter's beginning and its name, and between its name and its value."""
        return self.tags.parameter, self.tags.parameter_name_end

    def _key(self, key: str, value: Any) -> str:
        """Text before this value."""
        return key.join(self.around_key)

    def _functions(self, lark: Lark, arguments: Mapping[str, Arguments]) -> str:
        """Alternatives: a call of each function, without the block around it."""
        return " | ".join(
            lark.rule(f"call_{number}", self._function(lark, number, name, one))
            for number, (name, one) in enumerate(arguments.items())
        )

    def _function(self, lark: Lark, number: int, name: str, arguments: Arguments) -> str:
        values = " ".join(self._parameters(lark, number, arguments))
        return f"{lark.literal(self._function_begin(name))} {values} {lark.literal(self.tags.function_end)}"

    def _parameters(self, lark: Lark, number: int, arguments: Arguments) -> Iterator[str]:
        schema = arguments.schema
        check_object(schema, arguments)
        required = schema.get("required") or ()
        for place, (key, one) in enumerate(properties_of(schema).items()):
            if one is False:
                continue
            self._check_key(key, arguments)
            rule = lark.rule(
                f"p_{number}_{place}", self._parameter(lark, f"{number}_{place}", key, one, arguments)
            )
            yield rule if key in required else f"{rule}?"
        if schema.get("additionalProperties", True) is not False:
            yield "(" + lark.rule(f"p_{number}_any", self._any_parameter(lark, number, arguments)) + ")*"

    def _any_parameter(self, lark: Lark, number: int, arguments: Arguments) -> str:
        """A parameter that the schema does not list."""
        ends = re.escape(self.tags.parameter_name_end[0])
        before, after = map(lark.literal, self.around_key)
        return f"{before} /[^{ends}<\\s]+/ {after} {self._text_value(lark, f'any_{number}')}"

    def _parameter(self, lark: Lark, place: str, key: str, schema: Any, arguments: Arguments) -> str:
        return f"{lark.literal(key.join(self.around_key))} {self._value(lark, place, schema, arguments)}"

    def _value(self, lark: Lark, place: str, schema: Any, arguments: Arguments) -> str:
        """A value with its closing tag."""
        tags = self.tags
        line = "\n" if tags.own_lines else ""
        end = lark.literal(line + tags.parameter_end + tags.after_parameter)
        allowed = kinds(schema, arguments.schema)
        if (choices := listed_values(schema, arguments.schema)) is not None:
            texts = " | ".join(lark.literal(line + bare(value)) for value in choices)
            return f"({texts}) {end}"
        if "string" in allowed:
            return self._text_value(lark, place, most_characters(schema, arguments))
        return f"{lark.literal(line)} {arguments.part(standing_alone(schema, arguments.schema))} {end}"

    def _text_value(self, lark: Lark, place: str, most: int | None = None) -> str:
        """Text of at most `most` characters up to the closing tag, and the tag."""
        tags = self.tags
        line = "\n" if tags.own_lines else ""
        as_token = lark.is_token(tags.parameter_end)
        closing = tags.parameter_end if as_token else line + tags.parameter_end
        text = text_of(most)
        if most is not None and as_token and line:
            text += r"\n?"  # the line break before the tag is part of the text there, and does not count
        body = lark.text_before(f"v_{place}", closing, text=text)
        return f"{lark.literal(line)} {body} {lark.literal(tags.after_parameter)}"

    def _check_key(self, key: str, arguments: Arguments) -> None:
        if set(self.tags.parameter_name_end[0] + "<\n") & set(key):
            arguments.refuse(
                f"the parameter '{key[:100]}' cannot be written in the model's tool format '{self.name}'"
            )


def bare(value: Any) -> str:
    """A value as bare text."""
    return value if isinstance(value, str) else json_text(value)


def check_object(schema: Schema, arguments: Arguments) -> None:
    """Raises InvalidRequest for a strict function whose arguments depend on each other: a list of parameters cannot say so."""
    if arguments.strict and (keywords := sorted(_PART_OF_OBJECT & schema.keys())):
        arguments.refuse(f"'{keywords[0]}' of an object cannot be enforced in this model's tool format")
    if arguments.strict and schema.get("additionalProperties") and schema["additionalProperties"] is not True:
        arguments.refuse("'additionalProperties' of a type cannot be enforced in this model's tool format")


def most_characters(schema: Any, arguments: Arguments) -> int | None:
    """The greatest length of a string of this schema, None if its grammar need not count. Raises InvalidRequest if a strict
    function constrains the string in a way that bare text cannot be held to."""
    schema = resolved(schema, arguments.schema)
    if not isinstance(schema, Mapping):
        return None
    if arguments.strict and (keywords := sorted(STRING_KEYWORDS & schema.keys())):
        arguments.refuse(f"'{keywords[0]}' of a string cannot be enforced in this model's tool format")
    most = schema.get("maxLength")
    if not isinstance(most, int) or isinstance(most, bool) or most < 0:
        return None
    if most > MAX_COUNTED:
        if arguments.strict:
            arguments.refuse(
                f"'maxLength' of a string is {most}; this model's tool format counts to {MAX_COUNTED}"
            )
        return None
    return most


def listed_values(schema: Any, root: Any) -> list[Any] | None:
    """The values that a schema lists, None if it lists none."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def standing_alone(schema: Any, root: Schema) -> dict[str, Any]:
    """A part of a schema as a schema of its own: what references lead to goes with it."""
    if not isinstance(schema, Mapping):
        return {}
    if not _REFERENCE.search(json.dumps(schema, default=str)):
        return dict(schema)
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    if all(
        one[1].startswith(_SHARED) for one in _REFERENCE.finditer(json.dumps([schema, shared], default=str))
    ):
        return {**schema, **shared}
    return {**_moved(schema), "$defs": {"root": _moved(root)}}


def _moved(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_moved(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: "#/$defs/root" + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value)
        for key, value in schema.items()
    }
