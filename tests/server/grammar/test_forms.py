"""Every form of a constraint, and every refusal that needs no compiler."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from engine.errors import InvalidRequest
from server.grammar.compose import alone, compose
from server.grammar.forms import BOUNDED_WHITESPACE, Constraint, constraint_of
from server.grammar.schemas import prepared_schema
from server.schemas.base import parse
from server.schemas.structured import MAX_CONSTRAINT_BYTES, StructuredFields

BOUNDED = {"whitespace_pattern": BOUNDED_WHITESPACE, "json_allowed_escapes": 'nrbtf\\"'}


def read(**body: Any) -> Constraint | None:
    return constraint_of(parse(StructuredFields, json.dumps(body).encode()))


def outputs(**kinds: Any) -> dict[str, Any]:
    """The grammar of a `structured_outputs`."""
    constraint = read(structured_outputs=kinds)
    assert constraint is not None
    return constraint.grammar


def refusal(**body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    assert caught.value.status == 400
    return caught.value


def named(**schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("body", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_free_text(body: dict[str, Any]) -> None:
    assert read(**body) is None


def test_json_object() -> None:
    expected = {"json_schema": {"type": "object", "x-guidance": BOUNDED}}
    assert read(response_format={"type": "json_object"}) == Constraint("response_format", expected)
    assert outputs(json_object=True) == expected


@pytest.mark.parametrize("strict", [True, False, None])
def test_json_schema_is_always_kept(strict: bool | None) -> None:
    asked = named(type="object", properties={"a": {"type": "integer"}})
    asked["json_schema"] |= {"strict": strict, "description": "An answer."}
    constraint = read(response_format=asked)
    assert constraint is not None
    assert constraint.param == "response_format.json_schema.schema"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "x-guidance": BOUNDED}
    assert constraint.grammar == {"json_schema": schema}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        (
            {"type": "json_schema", "json_schema": {"name": "no spaces", "schema": {}}},
            "response_format.json_schema.name",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x" * 65, "schema": {}}},
            "response_format.json_schema.name",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": []}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "shcema": {}}},
            "response_format.json_schema.shcema",
        ),
        ({"type": "json_object", "schema": {}}, "response_format.schema"),
        ({"type": "json_object", "json_schema": {"name": "x"}}, "response_format.json_schema"),
        ({"type": "text", "json_schema": {"name": "x"}}, "response_format.json_schema"),
        ({"type": "structural_tag"}, "response_format.type"),
        ({"type": "regex"}, "response_format.type"),
        ({}, "response_format.type"),
        ("json", "response_format"),
    ],
)
def test_faults_of_response_format(asked: Any, param: str) -> None:
    assert refusal(response_format=asked).param == param


@pytest.mark.parametrize(
    "nothing",
    [
        {"propertyNames": {"type": "string"}}, {"propertyNames": {}}, {"propertyNames": True}, {"format": "password"},
        {"format": "path"}, {"format": "phone"}, {"format": None}, {"uniqueItems": False}, {"$schema": "mine"},
    ],
)  # fmt: skip
def test_keywords_that_say_nothing_are_left_out(nothing: dict[str, Any]) -> None:
    assert prepared_schema({"type": "object", **nothing}, "p") == {"type": "object"}
    inside = {"type": "object", "properties": {"a": {"type": "string", **nothing}}}
    assert prepared_schema(inside, "p")["properties"] == {"a": {"type": "string"}}


@pytest.mark.parametrize(
    "something",
    [{"propertyNames": {"maxLength": 3}}, {"propertyNames": False}, {"format": "uuid"}, {"format": 3}],
)
def test_keywords_that_say_something_are_the_compilers_to_judge(something: dict[str, Any]) -> None:
    assert prepared_schema({"type": "object", **something}, "p") == {"type": "object", **something}


def test_a_bound_that_is_no_number_is_not_hidden_by_one_that_is() -> None:
    wrong = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5, "minimum": "x"}
    assert prepared_schema(wrong, "p") == wrong


def test_a_schema_as_text_is_the_same() -> None:
    schema = {"type": "object", "properties": {"ü": {"const": 'a"b'}, "b": {}, "a": {}}}
    assert outputs(json=json.dumps(schema)) == outputs(json=schema)


@pytest.mark.parametrize(
    ("pattern", "lark"),
    [
        ("a+", "start: /a+/"),
        ("^a+$", "start: /a+/"),
        (r"^\$\$", r"start: /\$\$/"),
        (r"\\$", r"start: /\\/"),
        ("a/b", r"start: /a\/b/"),
        (r"a\/b", r"start: /a\/b/"),
        ("a\nb", r"start: /a\nb/"),
        ("", 'start: ""'),
        ("^$", 'start: ""'),
    ],
)
def test_regex(pattern: str, lark: str) -> None:
    assert outputs(regex=pattern) == {"lark_grammar": lark}


def test_choice() -> None:
    grammar = outputs(choice=["a", "é", 'a"b\n', ""])
    assert grammar == {"lark_grammar": 'start: "a" | "é" | "a\\"b\\n" | ""'}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('start: "a" b\nb: "::="', "lark_grammar"),
        ('start: "temperature=" a\na[max_tokens=3]: /[a-z=temperature]/', "lark_grammar"),
        ('root ::= "a" | b-c\nb-c ::= "x"', "gbnf_grammar"),
        ('# a comment\n\n  root::= "a"', "gbnf_grammar"),
    ],
)
def test_grammar(text: str, key: str) -> None:
    assert outputs(grammar=text) == {key: text}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (r"[ \n]?", r"[ \n]?"),
        (r"[\n\t ]*", r"[\n\t ]*"),
        (r"\s*", r"[ \t\n\r]*"),
        (r"[\s]{0,3}", r"[ \t\n\r]{0,3}"),
        (r"(?: |\n\x20{0,4})", r"(?: |\n\x20{0,4})"),
        ("", ""),
    ],
)
def test_whitespace_pattern(given: str, kept: str) -> None:
    asked = outputs(json_object=True, whitespace_pattern=given)
    assert asked["json_schema"]["x-guidance"]["whitespace_pattern"] == kept


@pytest.mark.parametrize("pattern", ["x", "[^ ]", ".", r"\d", "[ -~]", r"\x41", "5", r"\u0020", "[]", "\\"])
def test_a_whitespace_pattern_for_something_else(pattern: str) -> None:
    error = refusal(structured_outputs={"json_object": True, "whitespace_pattern": pattern})
    assert error.param == "structured_outputs.whitespace_pattern"


def test_no_whitespace() -> None:
    asked = outputs(json={"type": "object"}, disable_any_whitespace=True)["json_schema"]["x-guidance"]
    assert asked == {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"'}
    error = refusal(
        structured_outputs={"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}
    )
    assert error.param == "structured_outputs.whitespace_pattern"


def test_a_grammar_of_brackets_is_read_once() -> None:
    """Each opens what could be a rule's attributes: were each followed to the end of the text, it would take 15 s."""
    began = time.thread_time()
    assert "lark_grammar" in outputs(grammar="a[\n" * 21_845)
    assert time.thread_time() - began < 1


def test_disable_additional_properties() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"items": {"properties": {}}}, "properties": {"type": "string"}},
        "patternProperties": {"x": {"properties": {}, "additionalProperties": True}},
        "default": {"properties": {}},
    }
    kept = outputs(json=schema, disable_additional_properties=True)["json_schema"]
    assert kept["additionalProperties"] is False
    assert kept["properties"]["a"]["items"]["additionalProperties"] is False
    assert kept["properties"]["properties"] == {"type": "string"}
    assert kept["patternProperties"]["x"]["additionalProperties"] is True
    assert kept["default"] == {"properties": {}}


@pytest.mark.parametrize("value", [True, False])
def test_there_is_nothing_to_fall_back_to(value: bool) -> None:
    assert outputs(regex="a", disable_fallback=value) == {"lark_grammar": "start: /a/"}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"json": {}, "regex": "a"}, "structured_outputs"),
        ({"json_object": True, "choice": ["a"]}, "structured_outputs"),
        ({"json": "[1"}, "structured_outputs.json"),
        ({"json": "[1]"}, "structured_outputs.json"),
        ({"json": "[" * 5000}, "structured_outputs.json"),
        ({"json": '{"const": NaN}'}, "structured_outputs.json"),
        ({"json": 7}, "structured_outputs.json"),
        ({"regex": "a\\"}, "structured_outputs.regex"),
        ({"regex": "x" * (MAX_CONSTRAINT_BYTES + 1)}, "structured_outputs.regex"),
        ({"regex": "é" * (MAX_CONSTRAINT_BYTES // 2 + 1)}, "structured_outputs.regex"),
        ({"grammar": "é" * (MAX_CONSTRAINT_BYTES // 2 + 1)}, "structured_outputs.grammar"),
        ({"grammar": ""}, "structured_outputs.grammar"),
        ({"grammar": "start: a\na[lazy, temperature=0.5]: /x/"}, "structured_outputs.grammar"),
        ({"grammar": 'start: a\na[stop="[",\n temperature = 0.5]: /x/'}, "structured_outputs.grammar"),
        ({"grammar": "start: a /[x]/\na[lazy]: /x/\nb[temperature=1]: /y/"}, "structured_outputs.grammar"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": ["a"] * 1025}, "structured_outputs.choice"),
        ({"choice": ["x" * 1000] * 100}, "structured_outputs.choice"),
        ({"choice": ["a", 1]}, "structured_outputs.choice.1"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        ({"regex": "a", "disable_any_whitespace": True}, "structured_outputs.disable_any_whitespace"),
        ({"regex": "a", "structural_tag": "{}"}, "structured_outputs.structural_tag"),
        ({"regex": "a", "_backend": "x"}, "structured_outputs._backend"),
    ],
)
def test_faults_of_structured_outputs(asked: dict[str, Any], param: str) -> None:
    assert refusal(structured_outputs=asked).param == param


def test_one_of_the_two() -> None:
    error = refusal(response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
    assert error.param == "structured_outputs"
    constraint = read(response_format={"type": "text"}, structured_outputs={"regex": "a"})
    assert constraint is not None and constraint.param == "structured_outputs.regex"


NESTED: dict[str, Any] = {"type": "integer"}
for _ in range(60):
    NESTED = {"type": "array", "items": {"anyOf": [NESTED]}}


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"minimum": 2**53 + 1}, "minimum"),
        ({"properties": {"a": {"exclusiveMaximum": -(2**60) - 1}}}, "exclusiveMaximum"),
        ({"maximum": 2**70}, "maximum"),
        ({"$defs": {"a": {"exclusiveMinimum": True}}}, "exclusiveMinimum"),
        ({"x-parts": [{"minimum": 2**53 + 1}]}, "minimum"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"items": {"minProperties": 3, "required": ["a"]}}, "minProperties"),
        ({"minProperties": 3, "required": ["a", "a"]}, "minProperties"),
        ({"enum": list(range(1025))}, "enum"),
        ({"enum": ["a", "\x01"]}, "control"),
        ({"anyOf": [{"const": {"k": ["\x7f"]}}]}, "control"),
        ({"const": {"\x00": 1}}, "control"),
        ({"anyOf": {}}, "anyOf"),
        ({"divisibleBy": 2}, "divisibleBy"),
        ({"description": "x" * MAX_CONSTRAINT_BYTES}, "bytes"),
        ({"const": ["x" * 100] * 1000}, "bytes"),
        ({"enum": ["é" * 40000]}, "bytes"),
        (NESTED, "nested"),
    ],
)
def test_schemas_that_could_not_be_kept(schema: dict[str, Any], word: str) -> None:
    for error in (refusal(structured_outputs={"json": schema}), refusal(response_format=named(**schema))):
        assert error.param in ("structured_outputs.json", "response_format.json_schema.schema")
        assert word in error.message


@pytest.mark.parametrize(
    "schema",
    [
        {"minimum": 2**53, "maximum": 2**60},
        {"properties": {"minimum": {}, "enum": {}, "x-guidance": {}}, "default": {"minimum": True}},
        {"minProperties": 2, "required": ["a"]},
        {"enum": list(range(1024))},
        {"const": '\b\t\n\f\r"\\/'},
        {"title": "\x01"},
    ],
)
def test_schemas_that_can(schema: dict[str, Any]) -> None:
    kept = outputs(json=schema)["json_schema"]
    del kept["x-guidance"]
    assert kept == schema


def test_what_says_nothing_is_left_out() -> None:
    schema = {"uniqueItems": False, "items": {"uniqueItems": False}, "properties": {"uniqueItems": {}}}
    assert outputs(json=schema)["json_schema"] == {
        "items": {},
        "properties": {"uniqueItems": {}},
        "x-guidance": BOUNDED,
    }
    assert "uniqueItems" in outputs(json={"uniqueItems": True})["json_schema"]  # the compiler refuses it


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["x"] * 3_000_000},
        {"properties": {f"p{i}": {} for i in range(300_000)}},
        {"description": "x" * 10_000_000},
        {"items": [[0] * 1000] * 1000},
    ],
)
def test_a_huge_schema_is_not_walked(schema: dict[str, Any]) -> None:
    """The caps are checked on the event loop: the time they take must not grow with the data."""
    body = StructuredFields.model_construct(
        response_format=parse(
            StructuredFields, json.dumps({"response_format": named()}).encode()
        ).response_format
    )
    assert body.response_format is not None and body.response_format.json_schema is not None
    body.response_format.json_schema.schema_ = schema
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match="bytes"):
        constraint_of(body)
    assert time.thread_time() - began < 0.05


def test_compose() -> None:
    constraint = read(structured_outputs={"regex": "ü"})
    assert constraint is not None
    assert json.loads(alone(constraint)) == {"grammars": [{"name": "start", "lark_grammar": "start: /ü/"}]}
    text = compose('start: "<" @args ">"', {"args": constraint.grammar, "b": {"json_schema": {}}})
    assert json.loads(text) == {
        "grammars": [
            {"name": "start", "lark_grammar": 'start: "<" @args ">"'},
            {"name": "args", "lark_grammar": "start: /ü/"},
            {"name": "b", "json_schema": {}},
        ]
    }


@pytest.mark.parametrize(
    ("schema", "sides"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, (1, 0.25)),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.001}, (1, 0.0005)),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, (-1, -0.25)),
        ({"exclusiveMinimum": 0, "minimum": 0.2, "maximum": 0.5}, (1, 0.25)),
    ],
)
def test_a_bound_that_leaves_zero_out_does(schema: dict[str, Any], sides: tuple[int, float]) -> None:
    """The compiler would take 0 there."""
    import llguidance

    tokenizer = llguidance.LLTokenizer("executors/tiny/weights/tokenizer.json")
    constraint = read(response_format=named(type="number", **schema))
    assert constraint is not None

    def accepts(text: str) -> bool:
        matcher = llguidance.LLMatcher(tokenizer, alone(constraint), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        taken = matcher.try_consume_tokens(tokenizer.tokenize_str(text))
        return taken == len(tokenizer.tokenize_str(text)) and matcher.is_accepting()

    assert accepts(str(sides[1]))
    assert not any(accepts(zero) for zero in ("0", "-0", "0.0", "-0.0"))


def test_bounds_on_both_sides_of_zero_stay_as_they_are() -> None:
    for schema in (
        {"exclusiveMinimum": 0, "maximum": 5},
        {"exclusiveMinimum": 0},
        {"exclusiveMaximum": 0, "minimum": -2},
    ):
        constraint = read(response_format=named(type="number", **schema))
        assert constraint is not None
        assert schema.items() <= constraint.grammar["json_schema"].items()
