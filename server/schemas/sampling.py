"""Fields that chat and completions share. Their limits are here so that they apply before tokenization."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from engine.errors import InvalidRequest
from executors.contract import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY
from server.schemas.base import WireModel

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_TOKEN_ID = 2**31 - 1
MAX_OUTPUT_TOKENS = 2**31 - 1
MAX_TEMPERATURE = 100
MAX_TOP_K = 2**31 - 1
MAX_TOKEN_IDS = 2**20
"""Most ids in one list: several times the longest context in use."""
MAX_LOGIT_BIASES = 1024
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 64
"""Limits on bad words, which are sent to the executor with every choice of a call."""
MAX_CACHE_SALT_LENGTH = 1024
MAX_DEADLINE_MS = 86_400_000
MAX_LOGPROB_ENTRIES = 2048
"""Limit on sequences times logprobs per token: all of them are encoded for each step, while other requests wait."""
MAX_PROMPT_LOGPROB_ENTRIES = 2**19
"""Limit on prompt tokens times logprobs per token in one answer, which then has about 20 MB."""


def _integral(value: Any) -> Any:
    """Accept 1.0 as 1: languages with one kind of number write either."""
    return int(value) if type(value) is float and value.is_integer() else value


def _not_too_many(value: Any) -> Any:
    """Check the number of entries first: every wrong entry of an object is an error, while a list stops at its first."""
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIASES:
        counts = {"field_type": "Dictionary", "max_length": MAX_LOGIT_BIASES, "actual_length": len(value)}
        raise PydanticKnownError("too_long", counts)
    return value


Integer = Annotated[int, BeforeValidator(_integral)]
"""Type of single numbers; for long lists of ids a Python call per id would be slow."""
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIdKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class StreamOptions(WireModel):
    """`include_usage`: one more chunk with the totals at the end. `continuous_usage_stats`: totals so far in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TruncationFields(WireModel):
    """`truncate_prompt_tokens`: keep this many tokens of each prompt; -1 keeps as many as fit the context beside the requested
    output. The last tokens are kept, or with `truncation_side` "right" the first ones."""

    truncate_prompt_tokens: Annotated[Integer, Field(ge=-1, le=MAX_TOKEN_ID)] | None = None
    truncation_side: Literal["left", "right"] | None = None

    def check_truncation(self) -> None:
        """Raises InvalidRequest if no token would be left."""
        if self.truncate_prompt_tokens == 0:
            message = "'truncate_prompt_tokens' should be at least 1, or -1 for what fits."
            raise InvalidRequest(message, param="truncate_prompt_tokens", code="invalid_value")


class PromptSideFields(TruncationFields):
    """Processing of the prompt and reports about it. `prompt_logprobs`: that many alternatives for each of its tokens.
    `return_tokens_as_token_ids`: tokens of logprobs are written as "token_id:N"."""

    prompt_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_tokens_as_token_ids: bool | None = None

    def check_prompt_side(self, stream: bool) -> None:
        """Rules between fields. Raises InvalidRequest naming the field."""
        self.check_truncation()
        if stream and self.prompt_logprobs is not None:
            message = "'prompt_logprobs' is not available when 'stream' is true."
            raise InvalidRequest(message, param="prompt_logprobs", code="unsupported_value")

    @staticmethod
    def check_prompt_logprobs(tokens: int, alternatives: int | None, param: str) -> None:
        """Raises InvalidRequest if logprobs of `tokens` prompt tokens, over all choices, would make the answer too large."""
        if alternatives is not None and tokens * (alternatives + 1) > MAX_PROMPT_LOGPROB_ENTRIES:
            message = (
                f"Logprobs of {tokens} prompt tokens (those of all choices) with {alternatives} alternatives each are too "
                f"many for one answer: tokens times (alternatives + 1) may be at most {MAX_PROMPT_LOGPROB_ENTRIES}."
            )
            raise InvalidRequest(message, param=param, code="invalid_value")


class GenerationFields(WireModel):
    """How to generate. None means: not given, take the default (of the model, then OpenAI's).

    `deadline_ms`: the request is refused at once if the estimated queue time is longer, and dropped if it has not started by
    then (429 in both cases). `priority`: lower comes first, under `--scheduling-policy priority`. `cache_salt`: KV of a common
    prefix is shared only between requests with the same salt, so that response times do not reveal other clients' prompts.
    """

    model: Annotated[str, Field(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[Integer, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: (
        Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None
    ) = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: (
        Annotated[dict[TokenIdKey, Bias], Field(max_length=MAX_LOGIT_BIASES), BeforeValidator(_not_too_many)]
        | None
    ) = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    min_tokens: Annotated[Integer, Field(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    priority: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    deadline_ms: Annotated[Integer, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_LENGTH)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = (
        None
    )
    max_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple, whichever form the client used."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """True if the stream ends with a chunk of totals."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """True if every chunk carries the totals so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def check_generation(self) -> None:
        """Rules between fields. Raises InvalidRequest naming the field."""
        if self.stream_options is not None and not self.stream:
            message = "'stream_options' is only allowed when 'stream' is true."
            raise InvalidRequest(message, param="stream_options", code="invalid_value")

    def check_logprobs(self, sequences: int, logprobs: int | None, param: str) -> None:
        """Raises InvalidRequest if a step of all `sequences` would return too many logprobs."""
        if logprobs and sequences * (logprobs + 1) > MAX_LOGPROB_ENTRIES:
            message = (
                f"Choices times (logprobs + 1) may be at most {MAX_LOGPROB_ENTRIES}; ask for fewer of one."
            )
            raise InvalidRequest(message, param=param, code="invalid_value")

    @property
    def output_limit(self) -> int | None:
        """Most tokens to generate, or None for as many as fit."""
        return self.max_tokens

    @property
    def output_limit_name(self) -> str:
        """The client's name for that limit."""
        newer = getattr(self, "max_completion_tokens", None)
        return "max_tokens" if newer is None else "max_completion_tokens"
