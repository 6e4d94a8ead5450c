"""Anthropic's messages."""

from __future__ import annotations

from server.apis.anthropic.errors import FORM
from server.apis.anthropic.routes import router
from server.apis.base.dialect import Dialect

DIALECT = Dialect(package=__name__, routers=(router,), form=FORM)
