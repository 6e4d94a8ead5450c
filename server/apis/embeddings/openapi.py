"""Operations and answers of OpenAI's embeddings, for /openapi.json."""

from __future__ import annotations

from server.apis.embeddings.answers import COMPONENTS
from server.openapi.components import derived
from server.openapi.operation import OF_WORK, Operation
from server.openapi.schema import Schema
from server.schemas.embeddings import EmbeddingRequest

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/embeddings", "createEmbedding", "Generation", "Turn texts into vectors",
        "Embeddings", OF_WORK,
        "Vectors have length 1 unless `use_activation` is false. They come in the order of the inputs.",
        EmbeddingRequest,
        {"texts": {"input": ["Hello", "Good morning"]}, "base64": {"input": "Hello", "encoding_format": "base64"}},
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = derived(COMPONENTS)
