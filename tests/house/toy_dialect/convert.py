"""A body as the chat that the engine's request is made of."""

from __future__ import annotations

from server.prepare.field_names import FieldNames
from server.schemas.chat import ChatRequest
from tests.house.toy_dialect.schema import ToyRequest

FIELD_NAMES = FieldNames({"prompt": "messages"})
"""Names of its fields by their roles."""


def chat_of(body: ToyRequest) -> ChatRequest:
    """The same conversation, with the fields of the queue."""
    return ChatRequest.model_validate(body.model_dump(exclude_unset=True))
