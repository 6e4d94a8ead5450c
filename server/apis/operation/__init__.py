"""Paths for operators: health, metrics, executors, requests, settings."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.operation import executors, health, requests, settings

DIALECT = Dialect(
    package=__name__,
    routers=(executors.router, requests.router, settings.router, health.router),
)
