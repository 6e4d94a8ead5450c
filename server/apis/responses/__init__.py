"""OpenAI's Responses API."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.responses.routes import router

DIALECT = Dialect(package=__name__, routers=(router,))
