"""Answers of reranking and scoring."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from server.schemas.answers.common import Components, Count, PromptUsage


class RankedDocument(TypedDict):
    """The text of a document."""

    text: str


class Rank(TypedDict):
    """A document's place in the request, and its score."""

    index: Count
    relevance_score: float
    document: NotRequired[RankedDocument]


class Reranked(TypedDict):
    """Documents, the most relevant one first."""

    id: str
    object: Literal["list"]
    model: str
    results: list[Rank]
    usage: PromptUsage


class Score(TypedDict):
    """The score of a pair."""

    index: Count
    object: Literal["score"]
    score: float


class Scores(TypedDict):
    """The scores of pairs."""

    id: str
    object: Literal["list"]
    created: Count
    model: str
    data: list[Score]
    usage: PromptUsage


COMPONENTS: Components = {
    "Reranked": (Reranked, ""),
    "Scores": (Scores, ""),
}
