"""The body of POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from engine.errors import InvalidRequest
from server.schemas.completions import TokenIds, input_form
from server.schemas.extras import OF_EMBEDDINGS, Rules
from server.schemas.sampling import Integer, RequestFields, TruncationFields

MAX_INPUTS = 2048
"""OpenAI's."""

MAX_INSTRUCTION_LENGTH = 4096

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
    """Texts or token ids to turn into vectors."""

    rules: ClassVar[Rules] = Rules(unsupported=OF_EMBEDDINGS)

    input: Input
    """OpenAI: One input or several, as text or as token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    """OpenAI: Form of the vectors: `float` (lists of numbers) or `base64` (of little-endian float32). Default: float."""
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    """OpenAI: Number of first dimensions to keep, for models trained for it; the shortened vector is normalised again. Default:
    all."""
    pooling: Literal["last", "mean", "cls"] | None = None
    """Cohort: Hidden states that make the vector: `last` (that of the last token), `mean` (the mean of all) or, of encoders,
    `cls` (that of the first token). Default: the model's, else `last`, of encoders `cls`."""
    prompt_name: Annotated[str, Field(max_length=256)] | None = None
    """Cohort: Name of a prompt in the model's config_sentence_transformers.json, such as `query`, that is put before each input;
    "" for none. Default: that of its `default_prompt_name`, else none."""
    instruction: Annotated[str, Field(min_length=1, max_length=MAX_INSTRUCTION_LENGTH)] | None = None
    """Cohort: Task in one sentence, put before each input in the model's own form of a query, for models trained for it."""
    use_activation: bool | None = None
    """vLLM: Whether vectors are normalised to length 1. Default: true."""
    add_special_tokens: bool | None = None
    """vLLM: Whether the tokenizer adds its special tokens, such as BOS, to an input given as text. Default: true."""

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
        if self.prompt_name is not None and self.instruction is not None:
            message = "Give either 'prompt_name' or 'instruction'."
            raise InvalidRequest(message, param="instruction", code="invalid_value")
