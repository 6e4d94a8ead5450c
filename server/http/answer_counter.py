"""Counts every answer by endpoint and status: `cohort_http_requests_total`."""

from __future__ import annotations

from prometheus_client import Counter

from server.http.endpoints import Endpoints
from server.telemetry.metrics import Metrics

_FROM_THE_START = ("200", "400", "429", "500", "503")
"""Statuses that exist for the endpoints below /v1/ before the first such answer: a rate over a counter that appears at its
first event misses that event."""


class AnswerCounter:
    """Counts into the registry of `metrics`. All paths that are not endpoints share one label, so a client cannot add labels."""

    def __init__(self, metrics: Metrics, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._counted = Counter(
            "cohort_http_requests",
            "HTTP requests answered, by endpoint (/v1/models/{name}; other for what is none, or ended before its path was "
            "complete) and status; a stream that fails counts with the status of its error, a client that left as 499, and "
            "refusals before the API sees a request (400, 408, 431, 501, 503, 505) count too.",
            ["route", "status"],
            registry=metrics.registry,
        )
        self._children: dict[tuple[str, int], Counter] = {}
        """What counts each endpoint and status: finding it by its labels takes longer than counting."""
        for template in endpoints.templates:
            for status in _FROM_THE_START if template.startswith("/v1/") else ():
                self._counted.labels(template, status)

    def __call__(self, path: str | None, status: int) -> None:
        """Count one answer."""
        self.add(self._endpoints.template_of(path), status, 1)

    def add(self, template: str, status: int, count: int) -> None:
        """Count answers of another process."""
        child = self._children.get((template, status))
        if child is None:
            child = self._children[template, status] = self._counted.labels(template, str(status))
        child.inc(count)
