"""The console at `/`, its files, the API reference at `/docs`, the feed of steps, and the kill button."""

from __future__ import annotations

import textwrap

import structlog
from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from engine.errors import InvalidRequest, Unavailable
from executors.contract import NotReady
from server import __version__
from server.apis.base.common import READ, json_response, state_of
from server.console import assets
from server.console.feed import StepFeed
from server.console.prefix import HEADER, prefix_of, with_prefix
from server.http.errors import http_error_response
from server.http.event_stream import EventStream
from server.http.media import check_media

log = structlog.get_logger("server")

router = APIRouter()


@router.api_route("/", methods=READ)
async def console(request: Request) -> Response:
    """The console for a browser, a few lines of text for other clients."""
    if not _wants_html(request):
        state = state_of(request)
        stage, _ = state.stage()
        # Keys may be limited to some of several models, and this page needs no key.
        served = f"Model: {', '.join(state.names)}" if state.models is None else "It serves several models."
        return _text(f"""
            Cohort {__version__} ({stage.value}), an inference server with OpenAI's API. {served}

              POST /v1/chat/completions   answer a conversation
              GET  /v1/models             the names of the model
              GET  /metrics               figures for Prometheus
              GET  /openapi.json          every endpoint; /docs shows it in a browser

            In a browser, this address is the console: a chat, and a live picture of every step.
        """)
    return _file(request, assets.INDEX)


@router.api_route("/docs", methods=READ)
async def reference(request: Request) -> Response:
    """The API reference for a browser, a pointer to /openapi.json for other clients."""
    if not _wants_html(request):
        return _text(
            "In a browser, this address is the API reference. GET /openapi.json has the same as JSON."
        )
    return _file(request, assets.REFERENCE)


@router.api_route("/console/{path:path}", methods=READ)
async def file(request: Request, path: str) -> Response:
    """A file of the console."""
    if path not in assets.assets():
        return http_error_response(404, "The console has no such file.")
    return _file(request, path)


@router.api_route("/v1/steps", methods=READ)
async def steps(request: Request) -> Response:
    """Every step, the sequences and the KV blocks, as events."""
    feed = _feed_of(request)
    stream = EventStream(feed.frames())
    if request.method != "HEAD":
        return stream
    head = Response(headers=dict(stream.headers))
    del head.headers["content-length"]
    return head


@router.post("/v1/kill_executor")
async def kill_executor(request: Request) -> Response:
    """SIGKILL to the executor's process. The body, if there is one, means nothing."""
    check_media(request.scope, request.app.state.cors)
    feed = _feed_of(request)
    if not feed.kill_button:
        return http_error_response(404, "This server was started without --enable-kill-button.")
    state = feed.state
    core = state.core
    # The end of the first executor before it is ready ends the server: there is nothing to recover yet.
    if core is None or state.model is None:
        raise Unavailable("The model is still loading.")
    kill = getattr(core.executor, "kill", None)
    if not callable(kill):
        message = "The executor has no process of its own (--executor-mode inline)."
        raise InvalidRequest(message, code="unsupported_value")
    try:
        pid = kill()
    except NotReady as error:
        raise Unavailable(f"Nothing was killed: {error}.") from None
    log.warning("the executor was killed on request", pid=pid)
    return json_response({"killed": pid})


def _feed_of(request: Request) -> StepFeed:
    """The feed of the model; of several the one that the query names, else the first that is loaded. Raises ModelNotFound."""
    feed: StepFeed = request.app.state.step_feed
    models = state_of(request).models
    if models is None:
        return feed
    name = request.query_params.get("model")
    loaded = (row for row in models.rows() if row.status == "loaded")
    row = models.find(name) if name else next(loaded, models.rows()[0])
    feeds: dict[str, StepFeed] = request.app.state.step_feeds
    if row.name not in feeds:
        feeds[row.name] = StepFeed(row.state, kill_button=feed.kill_button)
    return feeds[row.name]


def _wants_html(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _text(text: str) -> Response:
    plain = textwrap.dedent(text).strip() + "\n"
    return PlainTextResponse(plain, headers={"Vary": "Accept", "X-Content-Type-Options": "nosniff"})


def _file(request: Request, path: str) -> Response:
    asset = assets.assets()[path]
    headers = {**assets.HEADERS, "ETag": asset.etag, "Vary": "Accept"}
    body = asset.body
    if path in (assets.INDEX, assets.REFERENCE):
        headers["Vary"] = f"Accept, {HEADER}"
        if prefix := prefix_of(", ".join(request.headers.getlist(HEADER))):
            body = with_prefix(body, prefix)
            headers["ETag"] = assets.etag_of(body)
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, headers={**headers, "Content-Type": asset.media_type})
