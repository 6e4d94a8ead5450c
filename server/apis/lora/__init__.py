"""LoRA adapters that come and go while the server runs, in vLLM's form."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.lora.routes import router

DIALECT = Dialect(package=__name__, routers=(router,))
