"""Operations and answers of scores and reranking, for /openapi.json."""

from __future__ import annotations

from server.apis.scoring.answers import COMPONENTS
from server.apis.scoring.schema import RerankRequest, ScoreRequest
from server.openapi.components import derived
from server.openapi.operation import OF_WORK, Operation
from server.openapi.schema import Schema

_CAPITAL = {
    "query": "What is the capital of Peru?",
    "documents": ["Llamas live in Peru.", "Lima is its capital."],
}
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/rerank", "rerank", "Retrieval", "Order documents by their relevance to a query", "Reranked", OF_WORK,
        "The most relevant document comes first. A reranker's scores are probabilities, or logits if its files say so, "
        "those of an embedding model cosines. "
        "`index` is the document's place in the request. The form is Jina's, Cohere's and vLLM's.",
        RerankRequest, {"documents": _CAPITAL, "the best one": {**_CAPITAL, "top_n": 1, "return_documents": False}},
    ),
    Operation(
        "post", "/v2/rerank", "rerankV2", "Retrieval", "The same as /v1/rerank", "Reranked", OF_WORK, "", RerankRequest,
        {"documents": _CAPITAL},
    ),
    Operation(
        "post", "/rerank", "rerankUnversioned", "Retrieval", "The same as /v1/rerank", "Reranked", OF_WORK, "", RerankRequest,
        {"documents": _CAPITAL},
    ),
    Operation(
        "post", "/v1/score", "score", "Retrieval", "Score pairs of texts", "Scores", OF_WORK,
        "One text is paired with each text of the other side, or the texts of both sides one by one. Scores come in the order of "
        "the pairs.",
        ScoreRequest,
        {"one and several": {"text_1": "What is the capital of Peru?", "text_2": ["Lima.", "A llama."]}},
    ),
    Operation(
        "post", "/score", "scoreUnversioned", "Retrieval", "The same as /v1/score", "Scores", OF_WORK, "", ScoreRequest,
        {"a pair": {"text_1": "What is the capital of Peru?", "text_2": "Lima."}},
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = derived(COMPONENTS)
