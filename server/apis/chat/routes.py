"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.base.answering import AnsweredCall
from server.apis.base.common import find_model, json_response, read, template_variables
from server.apis.base.progress import stream_form
from server.apis.base.waiting import answer_once_loaded
from server.apis.chat.encode import ChatAnswer, ChatStream, ChatWhole
from server.http.call import call_of
from server.http.direct_writer import DirectWriter
from server.http.disconnect import while_connected
from server.http.event_stream import DONE, EventStream
from server.prepare.chat import FIELD_NAMES, prepare_chat
from server.prepare.field_names import named
from server.schemas.chat import ChatRequest

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    body = await read(request, ChatRequest)
    body.check()
    return await answer_once_loaded(request, body.model, bool(body.stream), lambda: _answer(request, body))


async def _answer(request: Request, body: ChatRequest) -> Response:
    call = call_of(request.scope)
    state, model, name = await find_model(
        request, body.model, generating=True, deadline_ms=body.deadline_ms, keep=body.ttl
    )
    variables = template_variables(call, model, body)
    names = FIELD_NAMES.of_body(limit=body.output_limit_name)
    with named(names):
        prepared = await while_connected(
            request.receive, prepare_chat(state, call, model, body, variables), call
        )
    call.ignore(prepared.ignored)
    chat_call = AnsweredCall(model, prepared, names)
    call.response_id = chat_call.id
    prompt = chat_call.request.prompts[0]
    answer = ChatAnswer(chat_call.id, name, model.fingerprint, body, prompt, state.reasoning_fields)
    if body.stream:
        writer = DirectWriter()
        chunks = chat_call.stream(ChatStream(answer, chat_call.choices), DONE, writer=writer)
        return EventStream(chunks, *stream_form(request, state, chat_call.id), writer=writer)
    whole = ChatWhole(answer, chat_call.choices)
    generation = await while_connected(
        request.receive, chat_call.collect(whole, body.prompt_logprobs or 0), call
    )
    return json_response(whole.body(generation))
