"""What the operations and answers of all dialects are together: for /openapi.json, the docs and tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from server.apis.base.dialect import Dialect
from server.apis.dialects import DIALECTS
from server.openapi import shared
from server.openapi.document import document
from server.openapi.operation import Operation
from server.openapi.schema import Schema

TAGS = {
    "Generation": "Chat, completions and embeddings in OpenAI's form, and messages in Anthropic's.",
    "Retrieval": "Scores of queries and documents, in the form of vLLM, Jina and Cohere.",
    "Ollama": "Chat, generation and embeddings in Ollama's form.",
    "Models": "The served model and its executors.",
    "Tokens": "The model's tokenizer, in vLLM's form.",
    "Operation": "Health, metrics and version, for operators.",
}
"""Groups of operations."""


def operations_of(dialects: Sequence[Dialect]) -> tuple[Operation, ...]:
    """All operations, in the order of the dialects."""
    return tuple(operation for dialect in dialects for operation in dialect.described().OPERATIONS)


def answers_of(dialects: Sequence[Dialect]) -> dict[str, Schema]:
    """JSON schemas of all answers by their names, those that dialects share included."""
    answers = dict(shared.ANSWERS)
    for dialect in dialects:
        answers |= dialect.described().ANSWERS
    return answers


@functools.cache
def document_of(dialects: tuple[Dialect, ...]) -> dict[str, Any]:
    """/openapi.json, built once."""
    return document(operations_of(dialects), answers_of(dialects), TAGS)


OPERATIONS = operations_of(DIALECTS)
ANSWERS = answers_of(DIALECTS)
