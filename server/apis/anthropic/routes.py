"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import ContextLengthExceeded
from server.apis.anthropic.answers import TokenCount
from server.apis.anthropic.convert import ConvertedMessages, MarkedChat, chat_of, template_variables_of
from server.apis.anthropic.encode import MessageAnswer, MessageStream, MessageWhole, error_event
from server.apis.anthropic.errors import error_object
from server.apis.anthropic.schema import CountTokensRequest, MessagesPrompt, MessagesRequest
from server.apis.base.answering import AnsweredCall
from server.apis.base.common import find_model, json_response, read, state_of
from server.apis.base.waiting import answer_once_loaded
from server.http.call import Call, Refusal, call_of
from server.http.direct_writer import DirectWriter
from server.http.disconnect import while_connected
from server.http.event_stream import EventStream, OpenAIForm, failure_of
from server.http.large_body import run_off_loop_if_large
from server.prepare.chat import PreparedChat, chat_prompt_of, prepare_chat
from server.state.server_state import ServedModel, ServerState

router = APIRouter()


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    """Answer a conversation."""
    body = await read(request, MessagesRequest)
    form = _LoadForm(call_of(request.scope).request_id)
    return await answer_once_loaded(
        request, body.model, bool(body.stream), lambda: _answer(request, body), form
    )


async def _answer(request: Request, body: MessagesRequest) -> Response:
    call = call_of(request.scope)
    state, model, name = await find_model(
        request, body.model, generating=True, deadline_ms=body.deadline_ms, keep=body.ttl
    )
    converted, variables = await _converted(call, state, model, body)

    if not model.prefixes.interval:
        call.ignore(converted.marked_names)

    async def prepare(one: MarkedChat) -> PreparedChat:
        marked = one.marked if model.prefixes.interval else ()
        return await prepare_chat(state, call, model, one.chat, variables, "msg_", marked)

    prepared = await while_connected(request.receive, converted.prepared(prepare), call)
    call.ignore(converted.names(name) or name for name in prepared.ignored)
    prepared, limited = _within_context(model, prepared, body.max_tokens)
    message_call = AnsweredCall(model, prepared, converted.names)
    call.response_id = message_call.id
    show = body.thinking is None or body.thinking.display != "omitted"
    answer = MessageAnswer(
        message_call.id, name, len(message_call.request.prompts[0]), limited, show, prepared.num_kept
    )
    [choice] = message_call.choices
    if body.stream:
        encoder, writer = MessageStream(answer, choice), DirectWriter()
        chunks = message_call.stream(encoder, writer=writer)
        return EventStream(chunks, form=_Form(encoder, call.request_id), writer=writer)
    whole = MessageWhole(answer, choice)
    generation = await while_connected(request.receive, message_call.collect(whole), call)
    return json_response(whole.body(generation))


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    state, call = state_of(request), call_of(request.scope)
    body = await read(request, CountTokensRequest)
    state, model, _ = await find_model(request, body.model, generating=True)
    converted, variables = await _converted(call, state, model, body)

    async def prepare(one: MarkedChat) -> tuple[int, ...]:
        return (await chat_prompt_of(state, call, model, one.chat, variables)).ids

    ids = await while_connected(request.receive, converted.prepared(prepare), call)
    count: TokenCount = {"input_tokens": len(ids)}
    return json_response(count)


async def _converted(
    call: Call, state: ServerState, model: ServedModel, body: MessagesPrompt
) -> tuple[ConvertedMessages, dict[str, Any]]:
    """The chat that a body means, and its variables for the template. What has no effect is listed in the response's header."""
    converted = await run_off_loop_if_large(call, state.threads, lambda: chat_of(body, state.unread_parts))
    names = frozenset[str]() if model.template is None else model.template.variables
    variables, unread = template_variables_of(body, names)
    call.ignore([*converted.ignored, *unread])
    return converted, variables


def _within_context(model: ServedModel, prepared: PreparedChat, max_tokens: int) -> tuple[PreparedChat, bool]:
    """The call with a limit on its output that fits the context, and whether that is less than `max_tokens`: agents ask for the
    longest output of a hosted model, whatever the prompt. Raises ContextLengthExceeded if nothing fits."""
    tokens, longest = len(prepared.request.prompts[0]), model.max_model_len - 1
    if tokens > longest:
        message = f"prompt is too long: {tokens} tokens > {longest} maximum"
        raise ContextLengthExceeded(message, "messages")
    room = model.max_model_len - tokens
    request = replace(prepared.request, max_tokens=min(max_tokens, room))
    return replace(prepared, request=request), room < max_tokens


class _LoadForm(OpenAIForm):
    """Comments keep a stream alive that has not begun: clients read no event before `message_start`."""

    def __init__(self, request_id: str | None) -> None:
        self._request_id = request_id

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """The error."""
        refusal, failure = failure_of(error, self._request_id)
        return refusal, error_event(error_object(failure))


class _Form:
    """Pings keep a stream alive, and an event in Anthropic's form ends a failed one."""

    def __init__(self, encoder: MessageStream, request_id: str | None) -> None:
        self._encoder = encoder
        self._request_id = request_id

    def keep_alive(self) -> bytes:
        """A ping."""
        return self._encoder.ping()

    def error(self, error: Exception) -> tuple[Refusal, bytes]:
        """The error."""
        refusal, failure = failure_of(error, self._request_id)
        return refusal, error_event(error_object(failure))
