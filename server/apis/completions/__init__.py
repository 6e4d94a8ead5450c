"""OpenAI's completions: texts that are continued."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.completions.routes import router

DIALECT = Dialect(package=__name__, routers=(router,), spans={"/v1/completions": "text_completion"})
