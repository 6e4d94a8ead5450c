"""Ollama's API."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.ollama import model_routes, routes
from server.apis.ollama.errors import FORM

DIALECT = Dialect(
    package=__name__,
    routers=(routes.router, model_routes.router),
    form=FORM,
    spans=dict.fromkeys(("/api/embed", "/api/embeddings"), "embeddings"),
)
