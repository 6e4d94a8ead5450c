"""The model's tokenizer, in vLLM's form."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.tokens.routes import router

DIALECT = Dialect(package=__name__, routers=(router,))
