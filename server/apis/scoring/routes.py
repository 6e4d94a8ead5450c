"""POST /v1/rerank and /v1/score, also under the other paths that vLLM, Jina's and Cohere's clients use."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.text.generation import Usage
from server.answer.sse import prompt_usage
from server.apis.base.common import find_model, json_response, read, state_of
from server.apis.scoring.answers import Rank, RankedDocument, Reranked, Scores
from server.apis.scoring.convert import Pairs, PreparedScores, prepare_scores
from server.apis.scoring.schema import RerankRequest, ScoreFields, ScoreRequest
from server.http.call import call_of
from server.http.disconnect import while_connected
from server.prepare.embeddings import FIELD_NAMES
from server.prepare.engine_request import request_context
from server.prepare.field_names import named
from server.prepare.prompts import Place, place_in
from server.state.server_state import ServedModel

router = APIRouter()


@router.post("/rerank")
@router.post("/v2/rerank")
@router.post("/v1/rerank")
async def rerank(request: Request) -> Response:
    """The documents, the most relevant ones first."""
    body = await read(request, RerankRequest)
    body.check()
    pairs = Pairs([body.query], body.texts, ("query", "documents"), _places(body, "query", "documents"))
    name, prepared, scores, usage = await _scored(request, "rerank-", body, pairs)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    results: list[Rank] = []
    for index in order[: body.top_n or None]:
        if body.return_documents is False:
            results.append({"index": index, "relevance_score": scores[index]})
        else:
            document: RankedDocument = {"text": pairs.second[index]}
            results.append({"index": index, "document": document, "relevance_score": scores[index]})
    answer: Reranked = {
        "id": prepared.request.context.request_id,
        "object": "list",
        "model": name,
        "results": results,
        "usage": prompt_usage(usage),
    }
    return json_response(answer)


@router.post("/score")
@router.post("/v1/score")
async def score(request: Request) -> Response:
    """The score of each pair, in their order."""
    body = await read(request, ScoreRequest)
    body.check()
    first, second = body.sides
    pairs = Pairs(first, second, body.names, _places(body, *body.names))
    name, prepared, scores, usage = await _scored(request, "score-", body, pairs)
    answer: Scores = {
        "id": prepared.request.context.request_id,
        "object": "list",
        "created": int(time.time()),
        "model": name,
        "data": [{"index": index, "object": "score", "score": one} for index, one in enumerate(scores)],
        "usage": prompt_usage(usage),
    }
    return json_response(answer)


def _places(body: ScoreFields, first: str, second: str) -> tuple[Place, Place]:
    """The paths of the texts of these two fields."""
    return place_in(first, getattr(body, first)), place_in(second, getattr(body, second))


async def _scored(
    request: Request, prefix: str, body: ScoreFields, pairs: Pairs
) -> tuple[str, PreparedScores, list[float], Usage]:
    """The model's name, the call, its scores and its token counts. A client that goes away ends the call. Raises
    EngineError."""
    state, call = state_of(request), call_of(request.scope)
    state, model, name = await find_model(request, body.model, deadline_ms=body.deadline_ms, keep=body.ttl)
    context = request_context(call, prefix, body, model)

    async def work() -> tuple[PreparedScores, list[float], Usage]:
        prepared = await prepare_scores(state, model, body, pairs, context)
        call.response_id = context.request_id
        return prepared, *await _computed(model, prepared, pairs)

    return name, *await while_connected(request.receive, work(), call)


async def _computed(model: ServedModel, prepared: PreparedScores, pairs: Pairs) -> tuple[list[float], Usage]:

    def place(number: int) -> str:
        """The path of what a prompt was made of: of a vector's text, or of a pair's second text."""
        if number < prepared.num_first:
            return pairs.places[0](number)
        return pairs.places[1](number - prepared.num_first)

    with named(FIELD_NAMES.of_body(text=place)):
        vectors, usage = await model.engine.embed(prepared.request)
    return prepared.scores(vectors), usage
