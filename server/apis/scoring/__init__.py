"""Scores and reranking, in the forms of vLLM, Jina and Cohere."""

from __future__ import annotations

from server.apis.base.dialect import Dialect
from server.apis.scoring.routes import router

DIALECT = Dialect(
    package=__name__,
    routers=(router,),
    # The conventions have no name for these two, and allow others.
    spans={
        **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), "rerank"),
        **dict.fromkeys(("/v1/score", "/score"), "score"),
    },
)
