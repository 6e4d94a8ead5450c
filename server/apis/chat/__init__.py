"""OpenAI's chat completions. Other dialects' conversations are converted to their body, `server.schemas.chat`."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.chat.routes import router

DIALECT = Dialect(package=__name__, routers=(router,))
