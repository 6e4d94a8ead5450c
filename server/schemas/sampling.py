"""Fields that chat and completions share. Their limits are here so that they apply before tokenization."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticKnownError

from engine.errors import FIELD, InvalidRequest, field
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
Seed = Annotated[Integer, Field(ge=-(2**63), lt=2**64)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIdKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class StreamOptions(WireModel):
    """Additional contents of a stream."""

    include_usage: bool | None = None
    """OpenAI: Whether the last chunk, which has no choices, contains the token counts. Default: false."""
    continuous_usage_stats: bool | None = None
    """vLLM: Whether every chunk contains the token counts so far. Default: false."""


class TruncationFields(WireModel):
    """Truncation of prompts that are too long."""

    truncate_prompt_tokens: Annotated[
        Annotated[Integer, Field(ge=-1, le=MAX_TOKEN_ID)] | None,
        WithJsonSchema(
            {
                "anyOf": [
                    {"const": -1},
                    {"type": "integer", "minimum": 1, "maximum": MAX_TOKEN_ID},
                    {"type": "null"},
                ]
            }
        ),
    ] = None
    """vLLM: Number of tokens of each prompt to keep; the others are cut off. -1 keeps as many as fit the context beside the
    requested output."""
    truncation_side: Literal["left", "right"] | None = None
    """vLLM: Side on which `truncate_prompt_tokens` cuts off tokens. Default: left."""

    def check_truncation(self) -> None:
        """Raises InvalidRequest if no token would be left."""
        if self.truncate_prompt_tokens == 0:
            message = f"'{FIELD}' should be at least 1, or -1 for what fits."
            raise InvalidRequest(message, param="truncate_prompt_tokens", code="invalid_value")


class PromptSideFields(TruncationFields):
    """Processing of the prompt, and reports about it."""

    prompt_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """vLLM: Number of alternatives per token of the prompt. If given, the answer contains the prompt's log probabilities."""
    return_tokens_as_token_ids: bool | None = None
    """vLLM: Whether log probabilities name tokens as `token_id:N` instead of by their text. Default: false."""

    def check_prompt_side(self, stream: bool) -> None:
        """Rules between fields. Raises InvalidRequest naming the field."""
        self.check_truncation()
        if stream and self.prompt_logprobs is not None:
            message = f"'{FIELD}' is not available when 'stream' is true."
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


class RequestFields(WireModel):
    """Fields of every request that waits in the queue."""

    model: Annotated[str, Field(max_length=1024)] | None = None
    """OpenAI: Name of the model, as GET /v1/models lists it. Default: the served model."""
    priority: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    """vLLM: Requests with lower values are scheduled first. Without `--scheduling-policy priority`, values other than 0 are an
    error. Default: 0."""
    deadline_ms: Annotated[Integer, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None
    """Cohort: Milliseconds within which the request must start. A request is refused with 429 if its estimated queue time is
    longer, or if it has not started by then."""
    ttl: Annotated[Integer, Field(ge=0, le=2**31)] | None = None
    """LM Studio: Seconds without a further call after which the model is unloaded. With one model it has no effect, and
    `x-cohort-ignored` lists it. Default: `--idle-unload`."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_LENGTH)] | None = None
    """vLLM: Only requests with the same salt share the KV cache of a common prefix, so that response times do not reveal other
    clients' prompts."""


class GenerationFields(RequestFields):
    """How to generate. None means: not given, take the default (of the model, then OpenAI's)."""

    n: Annotated[Integer, Field(ge=1, le=MAX_CHOICES)] | None = None
    """OpenAI: Number of choices per prompt. Default: 1."""
    max_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """OpenAI: Maximum number of tokens to generate. Default: what fits the context."""
    max_completion_tokens: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """OpenAI: Newer name of `max_tokens`; it takes precedence. Default: that of max_tokens."""
    min_tokens: Annotated[Integer, Field(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    """vLLM: Number of tokens to generate before an end token or a stop string may end the answer. Default: 0."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    """OpenAI: Strings that end the answer, also within tool calls. They are not part of the answer."""
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = (
        None
    )
    """vLLM: Token ids that end the answer."""
    include_stop_str_in_output: bool | None = None
    """vLLM: Whether the answer includes the stop string. Default: false."""
    ignore_eos: bool | None = None
    """vLLM: Whether generation continues past the model's end tokens. Default: false."""
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """OpenAI: Sampling temperature; 0 takes the likeliest token at each step. Default: the model's."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """OpenAI: Sample from the likeliest tokens whose probabilities add up to this. Default: the model's."""
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOP_K)] | None = None
    """vLLM: Sample from this number of likeliest tokens; 0 and -1 mean all. Default: the model's."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """vLLM: Exclude tokens whose probability is below this fraction of the likeliest token's. Default: the model's."""
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Cohort: Probability mass of locally typical sampling; 1 and 0 disable it. Default: the model's."""
    repetition_penalty: (
        Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None
    ) = None
    """vLLM: Divides the positive logits of tokens that occur in the prompt or the answer, and multiplies the negative ones.
    Default: the model's."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """OpenAI: Subtracted from the logits of tokens that occur in the answer. Default: 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """OpenAI: Subtracted from the logit of a token once for each time it occurs in the answer. Default: the
    model's."""
    logit_bias: (
        Annotated[dict[TokenIdKey, Bias], Field(max_length=MAX_LOGIT_BIASES), BeforeValidator(_not_too_many)]
        | None
    ) = None
    """OpenAI: Numbers added to the logits of tokens, by token id."""
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = None
    """vLLM: Words that are not generated at the beginning of a text or after a space. Other tokens may contain them."""
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    """vLLM: The only token ids that may be generated. Default: all."""
    seed: Seed | None = None
    """OpenAI: Seed of sampling: the same request with the same seed gets the same answer if the same requests run
    beside it, or with `--deterministic`. Equal prompts in one request get different answers. -1 means no seed. The answer
    contains the seed that was used. Default: random."""
    random_seed: Seed | None = None
    """Mistral: Another name for `seed`. Two different values are an error."""
    speculative: bool | None = None
    """Cohort: Whether drafts may speed up the answer, which they do not change. false makes none for this request; true is an
    error on a server without drafts. Default: what the server was started with."""
    stream: bool | None = None
    """OpenAI: Whether the answer is sent as server-sent events while it is generated. Default: false."""
    stream_options: StreamOptions | None = None
    """OpenAI: Additional contents of a stream. Requires `stream`."""
    skip_special_tokens: bool | None = None
    """vLLM: Whether special tokens are left out of the text. Default: true."""
    return_token_ids: bool | None = None
    """vLLM: Whether the answer contains the token ids of prompt and answer. Default: false."""
    timings: bool | None = None
    """Cohort: Whether the answer contains `timings`: how long the request waited, and how long its prompt and its output took. A
    stream has them in a last chunk without choices. Default: false."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple, whichever form the client used."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling_seed(self) -> int | None:
        """The seed, whichever name the client used."""
        return self.random_seed if self.seed is None else self.seed

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
            message = f"'{FIELD}' is only allowed when 'stream' is true."
            raise InvalidRequest(message, param="stream_options", code="invalid_value")
        if self.random_seed is not None and self.seed not in (None, self.random_seed):
            message = f"'{FIELD}' is {self.random_seed} and '{field('seed')}' is {self.seed}: send only one of the two names."
            raise InvalidRequest(message, param="random_seed", code="invalid_value")

    def check_logprobs(self, sequences: int, logprobs: int | None, param: str) -> None:
        """Raises InvalidRequest if a step of all `sequences` would return too many logprobs."""
        if logprobs and sequences * (logprobs + 1) > MAX_LOGPROB_ENTRIES:
            message = (
                f"Choices times (logprobs + 1) may be at most {MAX_LOGPROB_ENTRIES}; ask for fewer of one."
            )
            raise InvalidRequest(message, param=param, code="invalid_value")

    @property
    def output_limit(self) -> int | None:
        """The limit on output tokens, or None for as many as fit; the newer name takes precedence if both are sent."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def output_limit_name(self) -> str:
        """The client's name for that limit."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
