"""The APIs that the server speaks: a line each. The order is that of the docs."""

from __future__ import annotations

from server.apis import (
    anthropic,
    chat,
    completions,
    embeddings,
    lora,
    models,
    ollama,
    operation,
    responses,
    scoring,
    tokens,
)
from server.apis.base.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (
    chat.DIALECT,
    completions.DIALECT,
    anthropic.DIALECT,
    responses.DIALECT,
    embeddings.DIALECT,
    scoring.DIALECT,
    ollama.DIALECT,
    tokens.DIALECT,
    models.DIALECT,
    lora.DIALECT,
    operation.DIALECT,
)
