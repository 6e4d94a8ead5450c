"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from server.schemas.completions import TokenIds, input_form
from server.schemas.extras import OF_EMBEDDINGS, Rules
from server.schemas.sampling import Integer, RequestFields, TruncationFields

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


class EmbeddingRequest(TruncationFields, RequestFields):
    """Texts or token ids to turn into vectors.

    `pooling` selects the hidden states: those of the "last" token, or the "mean" over all; the default is the model's own.
    Vectors have length 1 unless `use_activation` is false. `dimensions` keeps that many first numbers of each vector and
    normalises it again, which is useful for models trained for it. `priority`, `deadline_ms` and `cache_salt` are those of
    completions.
    """

    rules: ClassVar[Rules] = Rules(unsupported=OF_EMBEDDINGS)

    input: Input
    """OpenAI: One input or several, as text or as token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """OpenAI: float: a list of numbers; base64: little-endian float32. Default: float."""
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    """OpenAI: Keep so many first dimensions, at length 1 again. Default: all."""
    pooling: Literal["last", "mean"] | None = None
    """Cohort: last: the last token's state; mean: the mean of all. Default: the model's, else last."""
    use_activation: bool | None = None
    """vLLM: Whether vectors are made to have length 1. Default: true."""
    add_special_tokens: bool | None = None
    """vLLM: Whether the tokenizer adds its own, such as BOS, to a text. Default: true."""

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
