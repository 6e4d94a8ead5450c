"""OpenAI's embeddings."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.embeddings.routes import router

DIALECT = Dialect(package=__name__, routers=(router,), spans={"/v1/embeddings": "embeddings"})
