"""POST /v1/responses and the paths of stored responses, in the form of OpenAI's Responses API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.text.generation import Generation
from server.apis.base.answering import AnsweredCall
from server.apis.base.common import READ, find_model, json_response, query_number, read, state_of
from server.apis.base.waiting import answer_once_loaded
from server.apis.responses.answers import DeletedResponse, InputItemList, InputTokenCount
from server.apis.responses.convert import ConvertedResponse, Placed, converted
from server.apis.responses.encode import ResponseAnswer, ResponseStream, ResponseWhole, new_id
from server.apis.responses.schema import ENCRYPTED_REASONING, InputItem, ResponsesRequest, ResponsesTool
from server.http.call import Call, Refusal, call_of
from server.http.direct_writer import DirectWriter
from server.http.disconnect import while_connected
from server.http.event_stream import EventStream, refusal_of
from server.http.large_body import run_off_loop_if_large
from server.http.media import check_media
from server.prepare.chat import PreparedChat, chat_prompt_of, prepare_chat
from server.schemas.answers import response_items as items
from server.schemas.chat import MAX_MESSAGES, ChatRequest
from server.state.responses.errors import ResponseNotFound, StoreFull
from server.state.responses.run import BackgroundRun
from server.state.responses.store import Item, ResponseStore, SharedResponseStore, StoredResponse
from server.state.server_state import ServedModel, ServerState

router = APIRouter()

_PREFIX = "resp_"
_ITEM_IDS = {
    "message": "msg_", "reasoning": "rs_", "function_call": "fc_", "function_call_output": "fco_", "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}  # fmt: skip
_DEFAULT_PAGE, _LARGEST_PAGE = 20, 100
_MOST_STORED_BYTES = 16 * 2**20
"""Size of the stored items that one request may refer to: that of a body."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a response goes at its end. `inputs`: the items that it is made of."""

    state: ServerState
    tenant: str
    inputs: Sequence[Item]

    async def put(self, response: items.Response) -> items.Response:
        """Store a response that has ended, if it is to be stored. Returns it as the client gets it: one that is larger than the
        whole store is not stored, and says so."""
        if response["store"]:
            try:
                await self.state.responses.put(self.entry(response))
            except StoreFull:
                return {**response, "store": False}
        return response

    def entry(self, response: items.Response) -> StoredResponse:
        """The response for the store."""
        return StoredResponse(
            response["id"], self.tenant, self.inputs, msgspec.json.encode(response), _outputs(response)
        )


@router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    body = await read(request, ResponsesRequest)
    body.check()
    if body.background and state.elsewhere is not None:
        # It outlives its client, and with it the worker that the client happened to meet.
        return state.elsewhere.response(request, await request.body())
    return await answer_once_loaded(request, body.model, bool(body.stream), lambda: _answer(request, body))


async def _answer(request: Request, body: ResponsesRequest) -> Response:
    call = call_of(request.scope)
    state, model, name = await find_model(
        request, body.model, generating=True, deadline_ms=body.deadline_ms, keep=body.ttl
    )
    inputs, placed = await _conversation(state, call, body)
    conversion = await run_off_loop_if_large(
        call, state.threads, lambda: converted(body, placed, state.unread_parts, model.max_model_len)
    )
    prepared = await _prepared(request, call, state, model, body, conversion)
    response_call = AnsweredCall(model, prepared, conversion.names)
    call.response_id = response_call.id
    stores = state.responses.enabled and body.store is not False
    if body.background and not stores:
        message = "'background' needs the store of responses, which this server runs without."
        raise InvalidRequest(message, "background", "unsupported_value")
    if body.store and not stores:
        call.ignore(["store"])
    answer = ResponseAnswer(
        response_call.id,
        name,
        _echo(body, prepared, stores),
        conversion.tools.called,
        ENCRYPTED_REASONING in (body.include or ()),
    )
    keeper = _Kept(state, call.tenant, inputs)
    if body.background:
        return await _background(response_call, answer, keeper, bool(body.stream))
    [choice] = response_call.choices
    if body.stream:
        encoder = ResponseStream(answer, choice)
        form, writer = _Form(encoder), DirectWriter()
        return EventStream(_stream(response_call, encoder, form, keeper, writer), form=form, writer=writer)
    whole = ResponseWhole(answer, choice)
    generation = await while_connected(request.receive, response_call.collect(whole), call)
    return json_response(await keeper.put(whole.body(generation)))


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    state, call = state_of(request), call_of(request.scope)
    body = await read(request, ResponsesRequest)
    body.check()
    state, model, _ = await find_model(
        request, body.model, generating=True, deadline_ms=body.deadline_ms, keep=body.ttl
    )
    _, placed = await _conversation(state, call, body)
    conversion = await run_off_loop_if_large(
        call, state.threads, lambda: converted(body, placed, state.unread_parts, model.max_model_len)
    )
    variables = _variables(call, model, body, conversion)

    async def prompt(chat: ChatRequest) -> tuple[int, ...]:
        return (await chat_prompt_of(state, call, model, chat, variables)).ids

    count = await while_connected(request.receive, conversion.num_tokens(prompt), call)
    answer: InputTokenCount = {"object": "response.input_tokens", "input_tokens": count}
    return json_response(answer)


async def _prepared(
    request: Request,
    call: Call,
    state: ServerState,
    model: ServedModel,
    body: ResponsesRequest,
    conversion: ConvertedResponse,
) -> PreparedChat:
    """The prepared call."""
    variables = _variables(call, model, body, conversion)

    async def prepare(chat: ChatRequest) -> PreparedChat:
        return await prepare_chat(state, call, model, chat, variables, _PREFIX)

    prepared = await while_connected(request.receive, conversion.prepared(prepare), call)
    call.ignore(conversion.names(name) or name for name in prepared.ignored)
    return prepared


def _variables(
    call: Call, model: ServedModel, body: ResponsesRequest, conversion: ConvertedResponse
) -> dict[str, Any]:
    """The body's variables for the template. What has no effect is listed in the response's header."""
    names_read = frozenset[str]() if model.template is None else model.template.variables
    variables, unread = body.variables(names_read)
    call.ignore([*conversion.ignored, *unread, *body.without_effect()])
    return variables


class _Form:
    """The stream's own events keep it alive and end it. One writer: the task that streams."""

    def __init__(self, encoder: ResponseStream) -> None:
        self._encoder = encoder
        self._failed: tuple[Refusal, bytes] | None = None

    def keep_alive(self) -> bytes:
        """`response.in_progress`, again."""
        return self._encoder.keep_alive()

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """`response.failed`, always the same."""
        if self._failed is None:
            refusal, failure = _failure(error)
            self._failed = refusal, self._encoder.stopped("failed", failure)
        return self._failed


async def _stream(
    call: AnsweredCall, encoder: ResponseStream, form: _Form, keeper: _Kept, writer: DirectWriter
) -> AsyncGenerator[bytes, None]:
    """The events. The response is stored before its last event is sent: clients go on from there at once."""
    try:
        async for chunk in call.stream(encoder, writer=writer):
            if encoder.final is not None:
                await keeper.put(encoder.final)
            yield chunk
    except Exception as error:
        if encoder.has_begun:
            form.error(error)
            await keeper.put(encoder.snapshot())
        raise


def _failure(error: Exception) -> tuple[Refusal, items.ResponseFailure]:
    """The facts of an error, and the error of a failed response. Clients retry by its code: those of refusals are the
    server's own."""
    refusal, message, _ = refusal_of(error)
    if refusal.status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "server_error" if refusal.status >= 500 else refusal.code
    return refusal, {"code": code, "message": message}


async def _background(call: AnsweredCall, answer: ResponseAnswer, keeper: _Kept, stream: bool) -> Response:
    """Begin a response that goes on without its client. Raises EngineError if the engine or the store does not take it."""
    store = keeper.state.responses
    encoder = ResponseStream(answer, call.choices[0], queued=True)
    stack = contextlib.AsyncExitStack()
    generation = await stack.enter_async_context(call.start())
    run = BackgroundRun(encoder, _chunks(stack, generation, encoder), lambda error: _failure(error)[1])
    entry = StoredResponse(call.id, keeper.tenant, keeper.inputs, run=run)

    async def grown() -> None:
        if await store.get(entry.tenant, entry.id) is not entry:
            return  # deleted meanwhile
        if run.done:
            response = run.snapshot()
            entry.body, entry.outputs = msgspec.json.encode(response), _outputs(response)
        await store.put(entry)

    try:
        await store.put(entry)
    except BaseException:
        await stack.aclose()
        raise
    queued = run.snapshot()
    await run.start(grown)
    return EventStream(run.events()) if stream else json_response(queued)


async def _chunks(
    stack: contextlib.AsyncExitStack, generation: Generation, encoder: ResponseStream
) -> AsyncGenerator[bytes, None]:
    async with stack:
        encoder.begin(generation)
        async for delta in generation:
            if out := encoder.delta(delta):
                yield out
    yield encoder.end()


@router.api_route("/v1/responses/{response_id}", methods=READ)
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response; with `stream` its events, of which those up to `starting_after` are left out."""
    response = await _found(request, response_id)
    if _flag(request, "stream"):
        if response.run is None:
            message = "Only responses created with 'background' can be streamed once more."
            raise InvalidRequest(message, "stream", "unsupported_value")
        after = query_number(request, "starting_after", -1, least=0)
        return EventStream(response.run.events(after))
    if response.in_progress and response.run is not None:
        return json_response(response.run.snapshot())
    return Response(response.body, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a response. One that is in progress ends."""
    store = state_of(request).responses
    assert isinstance(store, ResponseStore), "API workers pass this path on"
    response = await store.delete(call_of(request.scope).tenant, response_id)
    if response is None:
        raise _unknown(response_id)
    if response.run is not None:
        await response.run.cancel()
    answer: DeletedResponse = {"id": response.id, "object": "response", "deleted": True}
    return json_response(answer)


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a background response; one that has ended stays as it is."""
    check_media(request.scope, request.app.state.cors)  # no page of another origin ends it
    response = await _found(request, response_id)
    if response.run is None:
        message = "Only responses created with 'background' can be cancelled."
        raise InvalidRequest(message, "response_id", "invalid_value")
    await response.run.cancel()
    return json_response(response.run.snapshot())


@router.api_route("/v1/responses/{response_id}/input_items", methods=READ)
async def list_input_items(request: Request, response_id: str) -> Response:
    """The items that a response was made of, those of the responses before it included; the newest first."""
    response = await _found(request, response_id)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("'order' should be 'asc' or 'desc'.", "order", "invalid_value")
    limit = query_number(request, "limit", _DEFAULT_PAGE, least=1, most=_LARGEST_PAGE)
    items = list(response.inputs) if order == "asc" else list(reversed(response.inputs))
    if (after := request.query_params.get("after")) is not None:
        at = next((number for number, (item_id, _) in enumerate(items) if item_id == after), None)
        if at is None:
            raise InvalidRequest("'after' is no item of this response.", "after", "invalid_value")
        items = items[at + 1 :]
    page = items[:limit]
    listed: InputItemList = {
        "object": "list",
        "data": [msgspec.Raw(item) for _, item in page],
        "first_id": page[0][0] if page else None,
        "last_id": page[-1][0] if page else None,
        "has_more": len(items) > limit,
    }
    return json_response(listed)


async def _found(request: Request, response_id: str) -> StoredResponse:
    response = await state_of(request).responses.get(call_of(request.scope).tenant, response_id)
    if response is None:
        raise _unknown(response_id)
    return response


def _unknown(response_id: str) -> ResponseNotFound:
    return ResponseNotFound(f"Response with id '{response_id[:100]}' not found.", "response_id")


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"'{name}' should be 'true' or 'false'.", name, "invalid_value")
    return value in ("true", "1")


async def _conversation(
    state: ServerState, call: Call, body: ResponsesRequest
) -> tuple[list[Item], list[Placed]]:
    """All items of the conversation, for the store and for the prompt. Raises ResponseNotFound for what is not stored, and
    InvalidRequest for more than one body could contain."""
    store, tenant = state.responses, call.tenant
    earlier = await _earlier(store, tenant, body.previous_response_id)
    own = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input or []
    size = sum(len(item) for _, item in earlier)
    referred: dict[str, bytes] = {}
    for number, item in enumerate(own):
        if item.type == "item_reference":
            name = item.id or ""
            if (stored_item := await store.item(tenant, name)) is None:
                message = f"Item with id '{name[:100]}' not found: it is unknown, deleted or expired."
                raise ResponseNotFound(message, f"input.{number}.id", "item_not_found")
            referred[name] = stored_item
            size += len(stored_item)
    if len(earlier) + len(own) > MAX_MESSAGES or size > _MOST_STORED_BYTES:
        message = f"With what is stored, the conversation has more than {MAX_MESSAGES} items or 16 MiB: begin a new one."
        raise ContextLengthExceeded(message, "input")
    call.size += size
    return await run_off_loop_if_large(call, state.threads, lambda: _items(earlier, own, referred))


async def _earlier(store: SharedResponseStore, tenant: str, previous: str | None) -> list[Item]:
    """The items of a stored response, and of those before it."""
    if previous is None:
        return []
    response = await store.get(tenant, previous)
    if response is None:
        message = (
            f"Previous response with id '{previous[:100]}' not found: it is unknown, deleted or expired."
        )
        raise ResponseNotFound(message, "previous_response_id", "previous_response_not_found")
    if response.in_progress:
        message = "'previous_response_id' is a response that is still in progress."
        raise InvalidRequest(message, "previous_response_id", "invalid_value")
    return [*response.inputs, *response.outputs]


def _items(
    earlier: Sequence[Item], own: Sequence[InputItem], referred: Mapping[str, bytes]
) -> tuple[list[Item], list[Placed]]:
    """All items, as they are stored and as they are read. `referred`: stored items that references name."""
    items = list(earlier)
    placed = [("previous_response_id", InputItem.model_validate_json(item)) for _, item in items]
    for number, item in enumerate(own):
        stored, read_as = _stored_item(item), item
        if item.type == "item_reference" and item.id is not None:
            stored = item.id, referred[item.id]
            read_as = InputItem.model_validate_json(referred[item.id])
        items.append(stored)
        placed.append((f"input.{number}", read_as))
    return items, placed


def _stored_item(item: InputItem) -> Item:
    """An input item as it is listed: with an identifier, its content in parts, and arguments as text."""
    kind = item.type or "message"
    members = item.model_dump(exclude_none=True) | {"type": kind}
    members["id"] = item_id = item.id or new_id(_ITEM_IDS.get(kind, "item_"))
    if kind == "message" and isinstance(item.content, str):
        part = "output_text" if item.role == "assistant" else "input_text"
        members["content"] = [{"type": part, "text": item.content}]
    if isinstance(item.arguments, dict):
        members["arguments"] = msgspec.json.encode(item.arguments).decode()
    if kind in _ITEM_IDS:
        members.setdefault("status", "completed")
    return item_id, msgspec.json.encode(members)


def _outputs(response: items.Response) -> list[Item]:
    return [(item["id"], msgspec.json.encode(item)) for item in response["output"]]


def _echo(body: ResponsesRequest, prepared: PreparedChat, stores: bool) -> items.ResponseEcho:
    """The members of a response that repeat the request, with the values that count."""
    sampling, text, reasoning = prepared.request.sampling, body.text, body.reasoning
    form: dict[str, Any] = {"type": "text"}
    if text is not None and text.format is not None:
        form = text.format.model_dump(by_alias=True, exclude_none=True)
    settings: items.TextSettings = {"format": form}
    if text is not None and text.verbosity is not None:
        settings["verbosity"] = text.verbosity
    return {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": stores,
        "temperature": sampling.temperature,
        "text": settings,
        "tool_choice": body.tool_choice or "auto",
        "tools": [_told_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def _told_tool(tool: ResponsesTool) -> dict[str, Any]:
    """A tool as the client gave it, a function with all its members."""
    fields = tool.model_dump(exclude_unset=True)
    return (
        {"description": None, "parameters": None, "strict": False, **fields}
        if tool.type == "function"
        else fields
    )
