"""POST /v2/chat."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.apis.base.answering import AnsweredCall
from server.apis.base.common import json_response, read, state_of
from server.http.call import call_of
from server.http.disconnect import while_connected
from server.http.event_stream import EventStream
from server.prepare.chat import prepare_chat
from server.prepare.field_names import named
from tests.house.toy_dialect.convert import FIELD_NAMES, chat_of
from tests.house.toy_dialect.encode import ToyForm, ToyStream, ToyWhole
from tests.house.toy_dialect.schema import ToyRequest

router = APIRouter()


@router.post("/v2/chat")
async def chat(request: Request) -> Response:
    """Answer a conversation."""
    state, call = state_of(request), call_of(request.scope)
    body = await read(request, ToyRequest)
    model, _ = await state.find(body.model, generating=True)
    with named(FIELD_NAMES):
        prepared = await while_connected(request.receive, prepare_chat(state, call, model, chat_of(body), {}))
    toy_call = AnsweredCall(model, prepared, FIELD_NAMES)
    call.response_id = toy_call.id
    [choice] = toy_call.choices
    if body.stream:
        return EventStream(toy_call.stream(ToyStream(toy_call.id, choice)), form=ToyForm())
    whole = ToyWhole(toy_call.id, choice)
    generation = await while_connected(request.receive, toy_call.collect(whole))
    return json_response(whole.body(generation))
