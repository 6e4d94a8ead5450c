"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from engine.errors import FIELD, InvalidRequest, field
from server.schemas.extras import Rules
from server.schemas.sampling import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_OUTPUT_TOKENS,
    MAX_TOKEN_IDS,
    GenerationFields,
    Integer,
    PromptSideFields,
    TokenId,
)
from server.schemas.structured import StructuredFields

MAX_PROMPTS = 1024
MAX_SEQUENCES = 1024
"""Limit on prompts times choices of one call."""
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default number of output tokens, for this endpoint only."""

TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)]


def input_form(prompt: Any) -> str:
    """Which of the four forms is meant, by the first element: an error then describes only that form.

    The tags have spaces, which distinguishes them from names of fields (see `base.py`)."""
    if not isinstance(prompt, list):
        return "one text"
    if prompt and isinstance(prompt[0], int | float):
        return "one list of ids"
    return "lists of ids" if prompt and isinstance(prompt[0], list) else "several texts"


Prompt = Annotated[
    Annotated[str, Tag("one text")]
    | Annotated[TokenIds, Tag("one list of ids")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("several texts")]
    | Annotated[
        list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("lists of ids")
    ],
    Discriminator(input_form),
]


class CompletionRequest(PromptSideFields, StructuredFields, GenerationFields):
    """Body of a completion: one prompt or several, as text or as token ids."""

    rules: ClassVar[Rules] = Rules(
        refused={
            "messages": "'messages' belongs to /v1/chat/completions; a completion has 'prompt'.",
            "top_logprobs": "'top_logprobs' belongs to /v1/chat/completions; a completion has 'logprobs': N.",
            "tools": "'tools' are not supported for completions; use /v1/chat/completions.",
        }
    )

    prompt: Prompt
    """OpenAI: One prompt or several, as text or as token ids."""
    max_tokens: Annotated[Integer, Field(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    """OpenAI: Maximum number of tokens to generate. With 0, `echo` or `prompt_logprobs` reports on the prompt alone. Default:
    16."""
    logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """OpenAI: Number of alternatives per token. If given, the answer contains log probabilities."""
    add_special_tokens: bool | None = None
    """vLLM: Whether the tokenizer adds its special tokens, such as BOS, to a prompt given as text. Default: true."""
    echo: bool | None = None
    """OpenAI: Whether the answer begins with the prompt; its `logprobs` then include those of the prompt. Default: false."""
    best_of: Annotated[Integer, Field(ge=1, le=MAX_CHOICES)] | None = None
    """OpenAI: Number of choices to generate per prompt. The `n` with the highest mean log probability per token are returned,
    best first. Default: n."""
    suffix: str | None = None
    """OpenAI: Text that follows the completion. Requires a model trained to fill in the middle."""

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one by one, whichever of the four forms the client used."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # one prompt in token ids
        return list(self.prompt)

    @property
    def num_generated(self) -> int:
        """Number of choices to generate for each prompt; `n` of them are returned."""
        return max(self.n or 1, self.best_of or 1)

    @property
    def ranks(self) -> bool:
        """True if more choices are generated than returned."""
        return self.num_generated > (self.n or 1)

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per generated token, or None; choices are ranked by the tokens' own logprobs."""
        return 0 if self.ranks and self.logprobs is None else self.logprobs

    @property
    def echoed_logprobs(self) -> int | None:
        """Alternatives per prompt token among the answer's `logprobs`, or None."""
        return self.logprobs if self.echo else None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Alternatives per prompt token that the engine reports, or None."""
        return max((k for k in (self.echoed_logprobs, self.prompt_logprobs) if k is not None), default=None)

    def check(self) -> None:
        """Check the rules that types alone do not express. Raises InvalidRequest naming the field."""
        self.check_generation()
        self.check_prompt_side(bool(self.stream))
        if len(self.prompts) * self.num_generated > MAX_SEQUENCES:
            name = "best_of" if self.ranks else "n"
            message = f"Prompts times '{FIELD}' may be at most {MAX_SEQUENCES}."
            if self.num_generated == 1:  # there are too many prompts by themselves
                name, message = "prompt", f"'prompt' may hold at most {MAX_SEQUENCES} prompts."
            raise InvalidRequest(message, param=name, code="invalid_value")
        self.check_logprobs(len(self.prompts) * self.num_generated, self.logprobs, "logprobs")
        self._check_best_of()
        self._check_suffix()
        self._check_nothing()

    def check_answer(self, prompt_tokens: int) -> None:
        """Raises InvalidRequest if the answer would be too large for this number of tokens of all prompts."""
        repeats = prompt_tokens * (self.n or 1)
        self.check_prompt_logprobs(repeats, self.echoed_logprobs, "logprobs")
        self.check_prompt_logprobs(repeats, self.prompt_logprobs, "prompt_logprobs")

    def _check_best_of(self) -> None:
        if self.best_of is None:
            return
        if self.best_of < (self.n or 1):
            message = f"'{FIELD}' is {self.best_of}, fewer than the {self.n} choices of 'n'."
            raise InvalidRequest(message, param="best_of", code="invalid_value")
        if self.stream and self.ranks:
            message = (
                f"'{FIELD}' greater than 'n' is not available when 'stream' is true: which choices are the best is "
                "known when all have ended."
            )
            raise InvalidRequest(message, param="best_of", code="unsupported_value")

    def _check_suffix(self) -> None:
        if not self.suffix:
            return
        for name, is_set in (
            ("truncate_prompt_tokens", self.truncate_prompt_tokens is not None),
            ("logprobs", self.echoed_logprobs is not None),
        ):
            if is_set:
                what = f"'{name}' with 'echo'" if name == "logprobs" else f"'{name}'"
                message = f"{what} is not supported with 'suffix', which stands inside the prompt."
                raise InvalidRequest(message, param=name, code="unsupported_value")

    def _check_nothing(self) -> None:
        """Check the rules of `max_tokens` 0."""
        if self.output_limit != 0:
            return
        if not self.echo and self.prompt_logprobs is None:
            message = f"'{FIELD}' should be at least 1, unless 'echo' or 'prompt_logprobs' ask about the prompt alone."
            raise InvalidRequest(message, param="max_tokens", code="invalid_value")
        if self.min_tokens:
            message = f"'{FIELD}' is {self.min_tokens}, more than the 0 tokens to generate at most."
            raise InvalidRequest(message, param="min_tokens", code="invalid_value")
        if self.ranks:
            message = f"'{FIELD}' has nothing to choose by with '{field('max_tokens')}' 0."
            raise InvalidRequest(message, param="best_of", code="invalid_value")
