"""Routes that call their handlers with the request alone, without FastAPI's work for parameters and models.

FastAPI collects a handler's parameters from its signature, keeps two stacks of what is to be closed behind it, and looks at what
it returns. Handlers here take the request and return the response, so nothing of that has an effect.
"""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, request_response


def simplify(route: BaseRoute) -> BaseRoute:
    """Let a route call its handler directly, if the handler takes the request alone and returns a response. Returns the route."""
    if isinstance(route, APIRoute) and is_simple(route):
        route.app = request_response(route.endpoint)
    return route


def is_simple(route: APIRoute) -> bool:
    """Whether the handler takes the request alone and returns a response."""
    needs = route.dependant
    others = (
        needs.path_params, needs.query_params, needs.header_params, needs.cookie_params, needs.body_params, needs.dependencies,
        needs.websocket_param_name, needs.http_connection_param_name, needs.response_param_name,
        needs.background_tasks_param_name, needs.security_scopes_param_name, route.response_field, route.body_field,
    )  # fmt: skip
    return needs.request_param_name is not None and not any(others)
