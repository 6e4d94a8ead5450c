"""Routes found in a table: the same ones as by trying each, with the same answers, and without the layers in between."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from server.http.direct_routes import Application, direct_handlers
from server.http.plain_routes import simplify
from tests.server.fakes import House

router = APIRouter()


@router.get("/of/{name}")
async def of_a_pattern(request: Request) -> Response:
    """Comes first, so it takes /of/all, too."""
    return JSONResponse(request.path_params["name"])


@router.get("/of/all")
async def hidden(request: Request) -> Response:
    """Is never reached."""
    raise AssertionError


@router.api_route("/plain", methods=["GET", "POST"])
async def plain(request: Request) -> Response:
    """Takes the request alone."""
    return JSONResponse({"layers": sorted(name for name in request.scope if "astack" in name)})


@router.get("/plain")
async def second(request: Request) -> Response:
    """Is never reached."""
    raise AssertionError


@router.get("/with")
async def with_parameter(request: Request, count: int) -> Response:
    """Needs FastAPI."""
    return JSONResponse(count)


@router.get("/thread")
def on_a_thread(request: Request) -> Response:
    """Is no coroutine."""
    return JSONResponse("thread")


@router.get("/refused")
async def refused(request: Request) -> Response:
    """Raises what the application answers."""
    raise HTTPException(418)


class _Late(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise HTTPException(418)


@router.get("/late")
async def late(request: Request) -> Response:
    """Raises that when its answer has begun."""
    return _Late()


@router.get("/broken")
async def broken(request: Request) -> Response:
    """Raises what nothing answers."""
    raise KeyError("x")


def application() -> Application:
    app = Application()
    app.router.routes.extend(map(simplify, router.routes))
    return app


def client(**options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(application(), **options), base_url="http://test")


def test_the_table_has_what_a_search_would_find_and_no_more() -> None:
    found = {key: handler.__name__ for key, handler in direct_handlers(application().router.routes).items()}
    ours = {
        key: name for key, name in found.items() if not key[1].startswith(("/docs", "/redoc", "/openapi"))
    }
    assert ours == {
        ("GET", "/plain"): "plain",
        ("POST", "/plain"): "plain",
        ("GET", "/refused"): "refused",
        ("GET", "/late"): "late",
        ("GET", "/broken"): "broken",
    }


async def test_answers_are_those_of_the_search() -> None:
    async with client() as one:
        assert (await one.post("/plain")).json() == {"layers": []}
        assert (await one.delete("/plain")).status_code == 405
        assert (await one.get("/of/all")).json() == "all"
        assert (await one.get("/with", params={"count": 3})).json() == 3
        assert (await one.get("/thread")).json() == "thread"
        assert (await one.get("/refused")).status_code == 418
        assert (await one.get("/nope")).status_code == 404
        with pytest.raises(KeyError):
            await one.get("/broken")
        with pytest.raises(RuntimeError):
            await one.get("/late")


async def test_below_another_application_paths_are_its_own() -> None:
    async with client(root_path="/plain") as one:
        assert (await one.get("/plain/of/x")).json() == "x"
        assert (await one.get("/plain")).status_code == 404


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/chat/completions", "/v1/completions"]
)
def test_calls_of_models_are_in_the_table(path: str) -> None:
    assert ("POST", path) in direct_handlers(House().app.router.routes)
