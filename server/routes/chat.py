"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.answer.chat_encoder import ChatAnswer, ChatStream, ChatWhole
from server.http.event_stream import DONE, EventStream, while_connected
from server.http.middleware import RESPONSE_ID
from server.prepare.chat import prepare_chat
from server.routes.answering import AnsweredCall
from server.routes.common import json_response, read, state_of, tell_ignored, template_variables
from server.routes.progress import stream_form
from server.schemas.chat import ChatRequest

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    body = await read(request, ChatRequest)
    body.check()
    model, name = await state.find(body.model, generating=True)
    variables = template_variables(request, model, body)
    prepared = await while_connected(request.receive, prepare_chat(state, model, body, variables))
    tell_ignored(request, prepared.ignored)
    call = AnsweredCall(model, prepared, "messages", body.output_limit_name)
    request.scope[RESPONSE_ID] = call.id
    prompt = call.asked.prompts[0]
    answer = ChatAnswer(call.id, name, model.fingerprint, body, prompt, state.reasoning_fields)
    if body.stream:
        chunks = call.stream(ChatStream(answer, call.choices), DONE)
        return EventStream(chunks, *stream_form(request, state, call.id))
    whole = ChatWhole(answer, call.choices)
    generation = await while_connected(request.receive, call.collect(whole, body.prompt_logprobs or 0))
    return json_response(whole.body(generation))
