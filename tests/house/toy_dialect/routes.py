"""POST /v2/chat."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.base.answering import AnsweredCall
from server.apis.base.common import json_response, read, state_of
from server.http.event_stream import EventStream, while_connected
from server.http.middleware import RESPONSE_ID
from server.prepare.chat import prepare_chat
from tests.house.toy_dialect.convert import chat_of
from tests.house.toy_dialect.encode import ToyForm, ToyStream, ToyWhole
from tests.house.toy_dialect.schema import ToyRequest

router = APIRouter()


@router.post("/v2/chat")
async def chat(request: Request) -> Response:
    """Answer a conversation."""
    state = state_of(request)
    body = await read(request, ToyRequest)
    model, _ = await state.find(body.model, generating=True)
    prepared = await while_connected(request.receive, prepare_chat(state, model, chat_of(body), {}))
    call = AnsweredCall(model, prepared, "messages", "max_tokens")
    request.scope[RESPONSE_ID] = call.id
    [choice] = call.choices
    if body.stream:
        return EventStream(call.stream(ToyStream(call.id, choice)), form=ToyForm())
    whole = ToyWhole(call.id, choice)
    generation = await while_connected(request.receive, call.collect(whole))
    return json_response(whole.body(generation))
