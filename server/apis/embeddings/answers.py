"""Answers of embeddings."""

from __future__ import annotations

from typing import Literal, TypedDict

from msgspec import Raw

from server.schemas.answers.common import Components, Count, PromptUsage


class Embedding(TypedDict):
    """A vector, as numbers or as base64 of little-endian float32."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class Embeddings(TypedDict):
    """The vectors of the inputs."""

    id: str
    object: Literal["list"]
    data: list[Embedding | Raw]
    model: str
    usage: PromptUsage


COMPONENTS: Components = {"Embeddings": (Embeddings, "")}
