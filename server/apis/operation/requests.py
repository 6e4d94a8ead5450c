"""GET /v1/requests and /v1/requests/{id}: what became of the last calls, for the admin."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import InvalidRequest
from server.apis.base.common import READ, json_response, query_number, state_of
from server.telemetry.stories.ring import OUTCOMES, SORTS, RequestNotFound

router = APIRouter()

_DEFAULT_LIMIT, _MAX_LIMIT = 100, 1000
_ORDERS = ("desc", "asc")
_PARAMETERS = ("sort", "order", "outcome", "key", "model", "client_request_id", "limit")


@router.api_route("/v1/requests", methods=READ)
async def list_requests(request: Request) -> Response:
    """Calls under way and the last ones that ended, sorted and chosen by the query."""
    query = request.query_params
    for name in query:
        if name not in _PARAMETERS:
            message = f"Unknown query parameter '{name[:100]}'; there are {', '.join(_PARAMETERS)}."
            raise InvalidRequest(message, name[:100], "unknown_parameter")
    outcomes = [one for value in query.getlist("outcome") for one in value.split(",") if one]
    for outcome in outcomes:
        _check("outcome", outcome, OUTCOMES)
    sort, order = query.get("sort", "received"), query.get("order", "desc")
    rows, has_more = state_of(request).stories.list(
        _check("sort", sort, SORTS),
        descending=_check("order", order, _ORDERS) == "desc",
        outcomes=frozenset(outcomes),
        key=query.get("key"),
        model=query.get("model"),
        client_request_id=query.get("client_request_id"),
        limit=query_number(request, "limit", _DEFAULT_LIMIT, least=1, most=_MAX_LIMIT),
    )
    return json_response({"object": "list", "data": rows, "has_more": has_more})


@router.api_route("/v1/requests/{request_id}", methods=READ)
async def get_request(request: Request, request_id: str) -> Response:
    """One call with its events, by the id of its answer or by its x-request-id: the answer's, or the one that the client sent."""
    story = state_of(request).stories.get(request_id)
    if story is None:
        message = f"No call '{request_id[:100]}': no such id is known, or too many calls have ended since (--stories)."
        raise RequestNotFound(message, "request_id")
    return json_response(story)


def _check(name: str, value: str, allowed: Iterable[str]) -> str:
    allowed = tuple(allowed)
    if value not in allowed:
        raise InvalidRequest(f"'{name}' should be one of {', '.join(allowed)}.", name, "invalid_value")
    return value
