"""Constraints of an answer: OpenAI's `response_format`, and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from server.schemas.base import WireModel

MAX_CHOICE_ENTRIES = 1024
MAX_CONSTRAINT_BYTES = 64 * 1024
"""Greatest size of a schema, regular expression or grammar as text, in bytes."""


class JsonSchemaFormat(WireModel):
    """A named JSON schema. The server always enforces it, whether `strict` is true, false or null."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    """OpenAI: A name for the schema."""
    description: str | None = None
    """OpenAI: What it is for."""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """OpenAI: The schema."""
    strict: bool | None = None
    """OpenAI: Answers follow the schema whatever this says. Default: true."""


class ResponseFormat(WireModel):
    """OpenAI's form: free text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    """OpenAI: text, json_object or json_schema."""
    json_schema: JsonSchemaFormat | None = None
    """OpenAI: The schema, with its name."""


class StructuredOutputs(WireModel):
    """vLLM's form: exactly one kind of constraint. `json` is a schema, as an object or as JSON text; `grammar` is Lark, or
    GBNF (rules with `::=`). The last three fields say how the JSON of `json` and `json_object` is written. There is one
    backend, so `disable_fallback` always holds."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    """vLLM: A JSON schema, as an object or as text."""
    regex: Annotated[str, Field(max_length=MAX_CONSTRAINT_BYTES)] | None = None
    """vLLM: A regular expression that the whole answer matches."""
    choice: (
        Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_ENTRIES, fail_fast=True)] | None
    ) = None
    """vLLM: Texts of which the answer is one."""
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_CONSTRAINT_BYTES)] | None = None
    """vLLM: A grammar, in Lark's notation or GBNF."""
    json_object: bool | None = None
    """vLLM: Any JSON object."""
    whitespace_pattern: Annotated[str, Field(max_length=256)] | None = None
    """vLLM: Whitespace in JSON. Default: a blank or a line break."""
    disable_any_whitespace: bool | None = None
    """vLLM: No whitespace in JSON. Default: false."""
    disable_additional_properties: bool | None = None
    """vLLM: Objects hold only the properties that the schema names. Default: false."""
    disable_fallback: bool | None = None
    """vLLM: There is one backend, and nothing to fall back to. Default: true."""


class StructuredFields(WireModel):
    """The constraint fields that chat and completions share."""

    response_format: ResponseFormat | None = None
    """OpenAI: Text, any JSON object, or JSON that follows a schema, always strictly. Default: text."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM: One of json, regex, choice, grammar (Lark or GBNF) and json_object that the answer follows."""
