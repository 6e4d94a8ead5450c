"""Constraints of an answer: OpenAI's `response_format`, and vLLM's `structured_outputs` and its older `guided_*`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from server.schemas.base import WireModel

MAX_CHOICE_ENTRIES = 1024
MAX_CONSTRAINT_BYTES = 64 * 1024
"""Greatest size of a schema, regular expression or grammar as text, in bytes."""


Pattern = Annotated[str, Field(max_length=MAX_CONSTRAINT_BYTES)]
Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_ENTRIES, fail_fast=True)]
Grammar = Annotated[str, Field(min_length=1, max_length=MAX_CONSTRAINT_BYTES)]
Whitespace = Annotated[str, Field(max_length=256)]


class JsonSchemaFormat(WireModel):
    """JSON schema with a name. The server enforces it, whatever `strict` is."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    """OpenAI: Name of the schema."""
    description: str | None = None
    """OpenAI: Purpose of the schema."""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """OpenAI: JSON schema that the answer follows."""
    strict: bool | None = None
    """OpenAI: Accepted and without effect: every answer follows the schema. Default: true."""


class ResponseFormat(WireModel):
    """OpenAI's format of an answer: free text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    """OpenAI: Kind of format: `text`, `json_object` (any JSON object) or `json_schema`."""
    json_schema: JsonSchemaFormat | None = None
    """OpenAI: The schema, with its name. Only with type `json_schema`."""


class StructuredOutputs(WireModel):
    """vLLM's constraint on an answer: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`. The other fields
    control how JSON is written."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    """vLLM: JSON schema that the answer follows, as an object or as JSON text."""
    regex: Pattern | None = None
    """vLLM: Regular expression that the whole answer matches."""
    choice: Choices | None = None
    """vLLM: Texts of which the answer is one."""
    grammar: Grammar | None = None
    """vLLM: Grammar that the answer follows, in Lark's notation or in GBNF (rules with `::=`)."""
    json_object: bool | None = None
    """vLLM: True if the answer is any JSON object."""
    whitespace_pattern: Whitespace | None = None
    """vLLM: Regular expression of the whitespace between parts of JSON. Default: a blank, or a line break with its
    indentation."""
    disable_any_whitespace: bool | None = None
    """vLLM: Whether JSON is written without whitespace. Default: false."""
    disable_additional_properties: bool | None = None
    """vLLM: Whether JSON objects contain only the properties that the schema names. Default: false."""
    disable_fallback: bool | None = None
    """vLLM: Accepted and without effect: there is one backend. Default: true."""


GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
"""vLLM's names of constraints before `structured_outputs`, as vLLM served them until 0.11."""


class StructuredFields(WireModel):
    """The constraint fields that chat and completions share."""

    response_format: ResponseFormat | None = None
    """OpenAI: Format of the answer: text, any JSON object, or JSON that follows a schema. It is enforced for texts;
    a forced call is no text, and the header `x-cohort-ignored` lists the format then. Default: text."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM: Constraint on the answer: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`. As with
    `response_format`, it does not concern forced calls."""
    guided_json: dict[str, Any] | str | None = None
    """vLLM: Older form of `structured_outputs.json`."""
    guided_regex: Pattern | None = None
    """vLLM: Older form of `structured_outputs.regex`."""
    guided_choice: Choices | None = None
    """vLLM: Older form of `structured_outputs.choice`."""
    guided_grammar: Grammar | None = None
    """vLLM: Older form of `structured_outputs.grammar`."""
    guided_whitespace_pattern: Whitespace | None = None
    """vLLM: Older form of `structured_outputs.whitespace_pattern`. Requires `guided_json`."""
