"""The body of POST /models/load and /models/unload."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from server.schemas.base import WireModel


class ModelName(WireModel):
    """Name of a model."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    """llama.cpp: Name of the model, as GET /v1/models lists it."""
