"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from server.schemas.completions import TokenIds, input_form
from server.schemas.extras import OF_EMBEDDINGS, Rules
from server.schemas.sampling import MAX_CACHE_SALT_LENGTH, MAX_DEADLINE_MS, Integer, TruncationFields

MAX_INPUTS = 2048
"""OpenAI's."""

Text = Annotated[str, Field(min_length=1)]
Input = Annotated[
    Annotated[Text, Tag("one text")]
    | Annotated[TokenIds, Tag("one list of ids")]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("several texts")]
    | Annotated[
        list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("lists of ids")
    ],
    Discriminator(input_form),
]


class EmbeddingRequest(TruncationFields):
    """Texts or token ids to turn into vectors.

    `pooling` selects the hidden states: those of the "last" token, or the "mean" over all; the default is the model's own.
    Vectors have length 1 unless `use_activation` is false. `dimensions` keeps that many first numbers of each vector and
    normalises it again, which is useful for models trained for it. `priority`, `deadline_ms` and `cache_salt` are those of
    completions.
    """

    rules: ClassVar[Rules] = Rules(unsupported=OF_EMBEDDINGS)

    model: Annotated[str, Field(max_length=1024)] | None = None
    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    pooling: Literal["last", "mean"] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    deadline_ms: Annotated[Integer, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_LENGTH)] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs, one by one, whichever of the four forms the client used."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [self.input]  # one input in token ids
        return list(self.input)

    def check(self) -> None:
        """Check the rules that types alone do not express. Raises InvalidRequest naming the field."""
        self.check_truncation()
