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
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(WireModel):
    """OpenAI's form: free text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(WireModel):
    """vLLM's form: exactly one kind of constraint. `json` is a schema, as an object or as JSON text; `grammar` is Lark, or
    GBNF (rules with `::=`). The last three fields say how the JSON of `json` and `json_object` is written. There is one
    backend, so `disable_fallback` always holds."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: Annotated[str, Field(max_length=MAX_CONSTRAINT_BYTES)] | None = None
    choice: (
        Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_ENTRIES, fail_fast=True)] | None
    ) = None
    grammar: Annotated[str, Field(min_length=1, max_length=MAX_CONSTRAINT_BYTES)] | None = None
    json_object: bool | None = None
    whitespace_pattern: Annotated[str, Field(max_length=256)] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None


class StructuredFields(WireModel):
    """The constraint fields that chat and completions share."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
