"""The bodies of POST /v1/rerank and /v1/score, in vLLM's shape; the first is also Jina's and Cohere's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Discriminator, Field, Tag

from engine.errors import InvalidRequest
from server.schemas.base import WireModel
from server.schemas.embeddings import MAX_INPUTS, MAX_INSTRUCTION_LENGTH
from server.schemas.extras import OF_SCORES, Rules
from server.schemas.sampling import Integer, RequestFields, TruncationFields

MAX_TOTAL_CHARACTERS = 16 * 2**20
"""Limit on the characters of all prompts of a call, a query counted with each document: a body of any size allowed may have
that many, but a long query times many documents would be gigabytes."""
_MAX_TOP_N = 2**31 - 1
_FORMS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
"""Names of a score's two sides."""


class TextDocument(WireModel):
    """A document as an object, in Jina's and Cohere's form."""

    text: str
    """Jina: Text of the document."""


def _form(value: Any) -> str:
    """Which form of a document is meant: an error then describes only that form."""
    return "a text" if isinstance(value, str) else "an object"


def _side_form(value: Any) -> str:
    return "several texts" if isinstance(value, list) else "one text"


Document = Annotated[
    Annotated[str, Tag("a text")] | Annotated[TextDocument, Tag("an object")], Discriminator(_form)
]
Documents = Annotated[list[Document], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True)]
Side = Annotated[
    Annotated[str, Tag("one text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("several texts")],
    Discriminator(_side_form),
]


class ScoreFields(TruncationFields, RequestFields):
    """Fields of both endpoints."""

    rules: ClassVar[Rules] = Rules(unsupported=OF_SCORES)

    instruction: Annotated[str, Field(min_length=1, max_length=MAX_INSTRUCTION_LENGTH)] | None = None
    """Cohort: Task that the model judges by, in one sentence. Default: the model's, for Qwen3-Reranker web search."""
    use_activation: bool | None = None
    """vLLM: Whether a reranker's scores are probabilities, 0 to 1, unless its files make them logits; otherwise they are logits.
    Default: true."""

    def check(self) -> None:
        """Check the rules that types alone do not express. Raises InvalidRequest naming the field."""
        self.check_truncation()
        if self.truncation_side == "left":
            message = (
                "'truncation_side' cannot be 'left': it would cut off the query; documents lose their ends."
            )
            raise InvalidRequest(message, param="truncation_side", code="unsupported_value")


class RerankRequest(ScoreFields):
    """A query, and documents to order by their relevance to it."""

    query: Annotated[str, Field(min_length=1)]
    """Jina: Query that the documents are compared with."""
    documents: Documents
    """Jina: Documents, as texts or as objects with a `text`."""
    top_n: Annotated[Integer, Field(ge=0, le=_MAX_TOP_N)] | None = None
    """Jina: Number of documents in the answer, the most relevant ones; 0 means all. Default: all."""
    return_documents: bool | None = None
    """Jina: Whether the answer contains the documents' texts. Default: true."""

    @property
    def texts(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class ScoreRequest(ScoreFields):
    """Pairs of texts to score: one with one, one with several, or several one by one."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "properties": {
                        name: {"type": ["string", "array"] if name in pair else "null"}
                        for name in sorted({name for names in _FORMS for name in names})
                    },
                    "required": list(pair),
                }
                for pair in _FORMS
            ]
        }
    )

    text_1: Side | None = None
    """vLLM: First text of each pair, such as a query; one text is paired with every text of the other side."""
    text_2: Side | None = None
    """vLLM: Second text of each pair, such as a document."""
    queries: Side | None = None
    """vLLM: Another name of `text_1`, beside `documents` or `items`."""
    documents: Side | None = None
    """vLLM: Another name of `text_2`, beside `queries`."""
    items: Side | None = None
    """vLLM: Another name of `text_2`, beside `queries`."""
    data_1: Side | None = None
    """vLLM: Another name of `text_1`, beside `data_2`."""
    data_2: Side | None = None
    """vLLM: Another name of `text_2`, beside `data_1`."""

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two fields that hold the texts; `check` has passed."""
        return next(pair for pair in _FORMS if None not in (getattr(self, pair[0]), getattr(self, pair[1])))

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The texts of both sides, of equal length unless the first has one text."""
        first, second = (getattr(self, name) for name in self.names)
        return [first] if isinstance(first, str) else first, [second] if isinstance(second, str) else second

    def check(self) -> None:
        """See `ScoreFields`."""
        super().check()
        names = {name for pair in _FORMS for name in pair if getattr(self, name) is not None}
        forms = " or ".join(f"'{one}' and '{other}'" for one, other in _FORMS)
        if not any(names.issuperset(pair) for pair in _FORMS):
            missing = "text_2" if "text_1" in names else "text_1"
            raise InvalidRequest(f"Give {forms}.", param=missing, code="missing_required_parameter")
        if len(names) > 2:
            param = min(names.difference(self.names))
            raise InvalidRequest(f"Give only one of {forms}.", param=param, code="invalid_value")
        for name, texts in zip(self.names, self.sides, strict=True):
            if not all(texts):
                raise InvalidRequest(f"'{name}' holds an empty text.", param=name, code="invalid_value")
        first, second = map(len, self.sides)
        if first not in (1, second):
            message = (
                f"'{self.names[0]}' has {first} texts and '{self.names[1]}' {second}: give one text and several, or as many on "
                "both sides."
            )
            raise InvalidRequest(message, param=self.names[0], code="invalid_value")
