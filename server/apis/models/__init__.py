"""The served names, in OpenAI's and Anthropic's forms."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.models.routes import router

DIALECT = Dialect(package=__name__, routers=(router,))
