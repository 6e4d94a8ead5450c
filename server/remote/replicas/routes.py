"""Paths of an ingress that concern its replicas: what they tell is put together, what changes one is passed on to it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import InvalidRequest, Unavailable
from server.apis.base.common import READ, json_response, state_of
from server.remote.replicas.fleet import Fleet, Member
from server.remote.replicas.node import PASSED_ON

_PASSED_HEADERS = frozenset(
    {b"accept", b"content-length", b"content-type", b"last-event-id", b"x-request-id"}
)
"""What a replica is told of a client's headers: no key, whatever header it came in."""
_TIMEOUT = 2.0
"""Seconds to wait for a replica's answer."""


def router_of(fleet: Fleet) -> APIRouter:
    """These paths over a fleet; they come before the ones of a server that has one engine."""
    router = APIRouter()

    @router.api_route("/v1/executors", methods=READ)
    async def list_executors(request: Request) -> Response:
        """The executors of all replicas. One whose replica does not answer is named in `missing`."""
        if state_of(request).model is None:
            raise Unavailable("The model is still loading.")
        return json_response(await _executors(fleet))

    @router.post("/v1/kill_executor")
    async def kill_executor(request: Request) -> Response:
        """Kill the executor of one replica: that which `?replica=` names, else the busiest."""
        return await _pass_on(fleet, request)

    @router.api_route("/v1/steps", methods=READ)
    async def steps(request: Request) -> Response:
        """The steps of one replica: that which `?replica=` names, else the busiest."""
        return await _pass_on(fleet, request)

    @router.post("/v1/load_lora_adapter")
    @router.post("/v1/unload_lora_adapter")
    async def adapters_are_fixed(request: Request) -> Response:
        """Refused: an adapter must be the same at all replicas, those of later included."""
        message = "Adapters of several replicas are named at the start (--lora-modules): every replica loads the same ones."
        raise InvalidRequest(message, "lora_name", "unsupported_value")

    return router


async def _executors(fleet: Fleet) -> dict[str, Any]:
    cards: list[dict[str, Any]] = []
    registered: list[str] = []
    missing: list[str] = []

    async def ask(member: Member) -> tuple[Member, dict[str, Any] | None]:
        try:
            return member, msgspec.json.decode(await member.fetch("/v1/executors", _TIMEOUT))
        except (TimeoutError, LookupError):
            return member, None

    for member, listing in await asyncio.gather(*(ask(member) for member in fleet.present)):
        if listing is None:
            missing.append(member.name)
            continue
        registered = listing["registered"]
        cards += [{**card, "replica": member.name} for card in listing["data"]]
    answer = {"object": "list", "data": cards, "registered": registered}
    return {**answer, "missing": missing} if missing else answer


async def _pass_on(fleet: Fleet, request: Request) -> Response:
    present = fleet.present
    name = request.query_params.get("replica")
    if name is not None and name not in (names := [member.name for member in present]):
        message = f"'replica' should be one of {', '.join(names) or 'none: no replica is ready'}."
        raise InvalidRequest(message, "replica", "invalid_value")
    if not present:
        raise Unavailable("No replica is ready.")
    chosen = next((one for one in present if one.name == name), None) or max(present, key=_running)
    headers = [(key, value) for key, value in request.scope["headers"] if key in _PASSED_HEADERS]
    request.scope["headers"] = [*headers, (b"authorization", f"Bearer {PASSED_ON}".encode())]
    return chosen.forwarding.response(request, await request.body())


def _running(member: Member) -> int:
    return 0 if member.stats is None else member.stats.running
