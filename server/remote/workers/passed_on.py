"""The paths that API workers do not answer themselves: what they tell or change belongs to the server's process."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from server.apis.base.common import state_of

_INPUT_TOKENS = "/v1/responses/input_tokens"
"""Looks like the path of a stored response, and is answered by the worker."""


class _Route(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See Starlette's Route."""
        own = scope["path"] == _INPUT_TOKENS and scope["method"] == "POST"
        return (Match.NONE, {}) if own else super().matches(scope)


router = APIRouter(include_in_schema=False, route_class=_Route)

PATHS = (
    "/",
    "/live",
    "/ready",
    "/health",
    "/metrics",
    "/v1/executors",
    "/v1/requests",
    "/v1/requests/{request_id}",
    "/v1/settings",
    "/v1/steps",
    "/v1/kill_executor",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/responses/{response_id}",
    "/v1/responses/{response_id}/cancel",
    "/v1/responses/{response_id}/input_items",
)
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
"""All that are known: the server's process refuses those that a path does not take."""


async def _passed_on(request: Request) -> Response:
    elsewhere = state_of(request).elsewhere
    assert elsewhere is not None
    return elsewhere.response(request, await request.body())


for _path in PATHS:
    router.add_api_route(_path, _passed_on, methods=_METHODS)
