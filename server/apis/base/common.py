"""Steps shared by all routes with a body."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response
from starlette.types import Scope

from engine.errors import InvalidRequest
from engine.text.generation import Generation, TextRequest
from server.http.call import Call, call_of
from server.http.disconnect import while_connected
from server.http.large_body import INLINE_BODY_BYTES, run_off_loop_if_large
from server.http.media import check_media
from server.http.middleware import client_request_id
from server.prepare.field_names import FieldNames, named
from server.schemas.base import Model, parse
from server.schemas.chat import TemplateVariables
from server.schemas.extras import screen
from server.schemas.sampling import RequestFields
from server.schemas.volume import check_volume
from server.state.server_state import ModelsLike, ServedModel, ServerState
from server.system.gc_tuning import collector_pause
from server.telemetry.stories.record import CallStory

GRAMMAR = "grammar"
"""The engine's name of a field that has other names in bodies."""
READ = ["GET", "HEAD"]
"""Methods of a read-only route. FastAPI does not add HEAD to a GET, and load balancers probe with HEAD."""
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context: version, trace id, parent id, flags."""
_DIGITS = 10
"""Most digits of a number in a query."""


def state_of(request: Request) -> ServerState:
    """The server's state, as a dependency."""
    state: ServerState = request.app.state.server
    return state


def models_of(request: Request) -> ModelsLike | None:
    """The models that the client may know, of several; None where one is served."""
    return _known_models(state_of(request), call_of(request.scope))


def _known_models(state: ServerState, call: Call) -> ModelsLike | None:
    models, limit = state.models, call.models
    return models if models is None or limit is None else models.only(limit)


async def read(request: Request, model: type[Model]) -> Model:
    """The validated body; a large one is parsed on a thread. The `Call` gets its arrival, its size, the names of parameters
    without effect and, if it is for the model, its story. Raises InvalidRequest, also for unsupported parameters that would have
    an effect, and HTTPException for a body that is not JSON."""
    check_media(request.scope, request.app.state.cors)
    body = await request.body()
    state, call = state_of(request), call_of(request.scope)
    call.receive(body)
    call.story = story = (
        _begin_story(state, request.scope, call) if issubclass(model, RequestFields) else None
    )
    if len(body) <= INLINE_BODY_BYTES:
        parsed, call.ignored = _parse(model, body)
    else:
        with collector_pause():
            # It would go through millions of new objects again and again and find nothing: that is most of the time, and the
            # parser holds up every other thread meanwhile.
            parsed, call.ignored = await run_off_loop_if_large(
                call, state.threads, lambda: _parse_large(model, body)
            )
    if story is not None and isinstance(parsed, RequestFields):
        story.model = parsed.model or _first_name(state, call)
        story.stream = bool(getattr(parsed, "stream", False))
    return parsed


def _first_name(state: ServerState, call: Call) -> str:
    """The name of the model that a call without one means."""
    models = _known_models(state, call)
    rows = None if models is None else models.rows()
    return rows[0].name if rows else state.names[0]


def _begin_story(state: ServerState, scope: Scope, call: Call) -> CallStory:
    """The story of a call whose body is there."""
    story = state.stories.begin(
        call.arrival_time, call.request_id, scope["path"], call.key_name, client_request_id(scope)
    )
    headers = [one for one in scope["headers"] if one[0] in _TRACE_HEADERS]
    for name, value in headers:
        story.trace_headers.setdefault(name.decode(), value.decode("latin-1"))
    if headers and (match := _TRACEPARENT.fullmatch(story.trace_headers.get("traceparent", ""))) is not None:
        story.trace_id = match[1]
    return story


async def find_model(
    request: Request,
    name: str | None,
    *,
    generating: bool = False,
    deadline_ms: int | None = None,
    keep: float | None = None,
) -> tuple[ServerState, ServedModel, str]:
    """The state of the model that a request names, the model, and the name to answer with. Where several models are served, the
    call waits until its model is loaded, at most `deadline_ms` milliseconds, and holds it until its answer has been sent; without
    a call for `keep` seconds the model is unloaded. Raises EngineError, and ClientDisconnected."""
    state, call = state_of(request), call_of(request.scope)
    if (models := _known_models(state, call)) is not None:
        deadline = None if deadline_ms is None else call.arrival_time + deadline_ms / 1000
        row = await while_connected(
            request.receive, models.hold(name, call, keep=keep, deadline=deadline), call
        )
        if call.story is not None:  # its metrics are the model's, whichever of its names was called
            call.story.model = row.name
        lora = row.lora_of(name)
        model, _ = await row.state.find(lora, generating=generating)
        return row.state, model if lora is not None else row.served(name, model), name or row.name
    if keep is not None:
        call.ignore(["ttl"])
    model, name = await state.find(name, generating=generating)
    return state, model, name


def template_variables(call: Call, model: ServedModel, body: TemplateVariables) -> dict[str, Any]:
    """The body's variables for the chat template. Those that the template does not read are listed as ignored."""
    read = frozenset[str]() if model.template is None else model.template.variables
    variables, unread = body.variables(read)
    call.ignore(unread)
    return variables


def _parse(model: type[Model], body: bytes) -> tuple[Model, list[str]]:
    parsed = parse(model, body)
    return parsed, screen(parsed)


def _parse_large(model: type[Model], body: bytes) -> tuple[Model, list[str]]:
    check_volume(body)
    return _parse(model, body)


def query_number(request: Request, name: str, default: int, least: int, most: int = 2**31 - 1) -> int:
    """A number of the query. Raises InvalidRequest."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS and least <= int(value) <= most):
        message = f"'{name}' should be a whole number from {least} to {most}."
        raise InvalidRequest(message, name, "invalid_value")
    return int(value)


def json_response(data: Any, status: int = 200) -> Response:
    """Plain data as a JSON response."""
    return Response(msgspec.json.encode(data), status, media_type="application/json")


@contextlib.asynccontextmanager
async def generation_of(
    model: ServedModel, text_request: TextRequest, names: FieldNames, grammar: str | None
) -> AsyncIterator[Generation]:
    """The call, queued and in progress. The engine's refusals, before or during the computation, name the field at fault by the
    client's name. `grammar`: the role of the field that requires the grammar."""
    with named(names):
        try:
            async with model.engine.start(text_request) as generation:
                yield generation
        except InvalidRequest as error:
            if error.param == GRAMMAR:
                error.rename(grammar)
            raise
