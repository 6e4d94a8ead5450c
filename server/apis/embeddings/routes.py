"""POST /v1/embeddings: prompts to vectors, by the same scheduler as generation."""

from __future__ import annotations

import asyncio
import base64

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from server.answer.sse import encode, prompt_usage
from server.apis.base.common import find_model, json_response, read, state_of
from server.apis.embeddings.answers import Embedding, Embeddings
from server.http.call import Call, call_of
from server.http.disconnect import while_connected
from server.prepare.embeddings import FIELD_NAMES, prepare_embedding, shaped
from server.prepare.field_names import named
from server.prepare.prompts import place_in
from server.schemas.embeddings import EmbeddingRequest
from server.state.server_state import ServedModel, ServerState

router = APIRouter()

_NUMBERS_AT_ONCE = 16384
"""Number of entries encoded before other tasks may run: a few milliseconds."""


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    """A vector for each input."""
    state, call = state_of(request), call_of(request.scope)
    body = await read(request, EmbeddingRequest)
    body.check()
    state, model, name = await find_model(request, body.model, deadline_ms=body.deadline_ms, keep=body.ttl)
    return json_response(
        await while_connected(request.receive, _answer(state, call, model, name, body), call)
    )


async def _answer(
    state: ServerState, call: Call, model: ServedModel, name: str, body: EmbeddingRequest
) -> Embeddings:
    embedding = await prepare_embedding(state, call, model, body)
    call.response_id = embedding.context.request_id
    place = place_in("input", body.input)
    with named(FIELD_NAMES.of_body(text=place)):
        vectors, usage = await model.engine.embed(embedding)
    data: list[Embedding | msgspec.Raw] = []
    since_pause = 0
    for index, vector in enumerate(vectors):
        data.append(msgspec.Raw(_encoded(index, shaped(vector, body), body.encoding_format == "base64")))
        since_pause += len(vector)
        if since_pause > _NUMBERS_AT_ONCE:
            await asyncio.sleep(0)
            since_pause = 0
    return {
        "id": embedding.context.request_id,
        "object": "list",
        "model": name,
        "data": data,
        "usage": prompt_usage(usage),
    }


def _encoded(index: int, vector: NDArray[np.float32], as_base64: bool) -> bytes:
    """An entry of the answer's list; base64 encodes the numbers as little-endian float32."""
    value: list[float] | str
    value = base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector.tolist()
    entry: Embedding = {"object": "embedding", "index": index, "embedding": value}
    return encode(entry)
