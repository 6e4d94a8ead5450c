"""The FastAPI application: routes, error handlers and middleware. It receives its state and starts nothing itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI

from server import __version__
from server.apis import dialects as apis
from server.apis.base.dialect import Dialect
from server.console import routes as console
from server.console.assets import assets
from server.console.feed import StepFeed
from server.console.redirects import redirect_page
from server.http.answer_counter import AnswerCounter
from server.http.auth import KeyAuth
from server.http.checks import Check, Checks, take_off_slash
from server.http.cors import Cors
from server.http.direct_routes import Application
from server.http.endpoints import Answered, Endpoints, paths_of
from server.http.errors import install_handlers
from server.http.form import Forms
from server.http.holds import ReleaseHolds
from server.http.hosts import HostCheck, Hosts, hosts_of
from server.http.keys import Keys
from server.http.middleware import AnswerFailures, BodyLimit, RequestLogging, log_call
from server.http.plain_routes import simplify
from server.remote.workers import passed_on
from server.settings.table import Settings
from server.startup.key_files import ServerKeys
from server.state.server_state import ServerState

MAX_BODY_BYTES = 16 * 1024 * 1024


def create_app(
    state: ServerState,
    *,
    api_keys: Keys | Sequence[str] = (),
    metrics_key: str | None = None,
    admin_key: Keys | str | None = None,
    cors: Cors | None = None,
    hosts: Hosts | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    kill_button: bool = False,
    counting: Callable[[Endpoints], Answered] | None = None,
    inner: bool = False,
    first: Sequence[APIRouter] = (),
) -> FastAPI:
    """An application over `state`. Without `hosts` it accepts every host name; without `admin_key` the administrator's paths are
    404. `kill_button`: the admin may kill the executor. `counting`: makes what counts answers, if not the metrics of `state`.
    `inner`: it answers what API workers pass on, which have checked, counted and logged the request. `first`: routes that come
    before all others."""
    app = Application(
        title="Cohort",
        version=__version__,
        # The interactive pages load scripts from a CDN: no page of this server reaches out.
        docs_url=None,
        redoc_url=None,
        # A redirect would turn a POST into a GET in some clients.
        redirect_slashes=False,
        # It would look for providers at each request. Spans of calls are made of their stories (server/telemetry/traces.py).
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.server = state
    app.state.cors = cors = cors or Cors()
    state.stories.on_end(log_call)
    state.stories.on_end(state.metrics.tell)
    app.state.step_feed = StepFeed(state, kill_button=kill_button)
    app.state.step_feeds = {}
    dialects = apis.DIALECTS
    app.openapi = functools.partial(_document, dialects)  # type: ignore[method-assign]
    routers = [*first, *([passed_on.router] if state.elsewhere is not None else [])]
    routers += [router for dialect in dialects for router in dialect.routers]
    for router in (*routers, console.router):
        # `include_router` would build each route again at the first request, and match every request twice.
        app.router.routes.extend(map(simplify, router.routes))
    app.state.forms = Forms(dialect.form for dialect in dialects)
    endpoints = Endpoints(paths_of(app.routes))
    install_handlers(app, endpoints)
    answered = counting(endpoints) if counting is not None else AnswerCounter(state.metrics, endpoints)
    app.state.answered = answered
    # The last one added is the outermost: ids, log and preflights first, then hosts, then keys, and only then is a body
    # looked at.
    if state.models is not None:
        app.add_middleware(ReleaseHolds)
    if not inner:
        app.add_middleware(BodyLimit, max_bytes=max_body_bytes)
    checks: list[Check] = [] if inner else [HostCheck(hosts or Hosts()), redirect_page]
    admin_keys = Keys((admin_key,), label="admin") if isinstance(admin_key, str) else admin_key
    files = [f"/console/{name}" for name in assets()]
    checks += [KeyAuth(api_keys, metrics_key, admin_keys, files), take_off_slash]
    app.add_middleware(Checks, checks=checks)
    if inner:
        app.add_middleware(AnswerFailures)
        return app
    app.add_middleware(RequestLogging, cors=cors, answered=answered)
    return app


def app_of(
    settings: Settings,
    state: ServerState,
    address: str,
    keys: ServerKeys,
    *,
    counting: Callable[[Endpoints], Answered] | None = None,
    inner: bool = False,
    first: Sequence[APIRouter] = (),
) -> FastAPI:
    """`create_app` with the settings of access. `address`: where the server listens."""
    return create_app(
        state,
        api_keys=keys.api,
        metrics_key=settings.metrics_key,
        admin_key=keys.admin,
        cors=Cors(
            settings.allowed_origins,
            settings.allowed_methods,
            settings.allowed_headers,
            settings.allow_credentials,
        ),
        hosts=hosts_of(settings.allowed_hosts, settings.host, address, keys=settings.needs_key),
        max_body_bytes=settings.max_body_bytes,
        kill_button=settings.enable_kill_button,
        counting=counting,
        inner=inner,
        first=first,
    )


def _document(dialects: tuple[Dialect, ...]) -> dict[str, Any]:
    """The OpenAPI document. What it is made of is imported on the first request for it."""
    from server.apis.description import document_of

    return document_of(dialects)
