"""Routes that call their handlers directly: those that take the request alone, and no others."""

from __future__ import annotations

import httpx
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from server.apis import dialects
from server.http.plain_routes import simplify

router = APIRouter()


@router.post("/plain/{name}")
async def plain(request: Request) -> Response:
    """Takes the request alone."""
    assert "fastapi_inner_astack" not in request.scope
    return JSONResponse({"name": request.path_params["name"], "size": len(await request.body())})


@router.get("/number")
async def number(request: Request, count: int) -> Response:
    """Has a parameter."""
    return JSONResponse({"count": count})


@router.get("/object")
async def an_object(request: Request) -> dict[str, int]:
    """Returns no response."""
    return {"a": 1}


@router.get("/refused")
async def refused(request: Request) -> Response:
    """Raises what an application answers."""
    raise HTTPException(418)


async def test_handlers_that_need_more_keep_it() -> None:
    app = FastAPI()
    app.router.routes.extend(map(simplify, router.routes))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.post("/plain/x", content=b"abc")
        assert answer.json() == {"name": "x", "size": 3}
        assert (await client.get("/plain/x")).status_code == 405
        assert (await client.get("/number", params={"count": "7"})).json() == {"count": 7}
        assert (await client.get("/number", params={"count": "x"})).status_code == 422
        assert (await client.get("/object")).json() == {"a": 1}
        assert (await client.get("/refused")).status_code == 418


def test_routes_of_the_server_without_a_part_in_their_path_take_the_request_alone() -> None:
    """Or they cost what this is for, and are to be looked at. Handlers take such parts as parameters."""
    slow = []
    for dialect in dialects.DIALECTS:
        for own in dialect.routers:
            for route in own.routes:
                before = route.app
                if simplify(route).app is before and "{" not in route.path:
                    slow.append(route.path)
                route.app = before
    assert slow == []
