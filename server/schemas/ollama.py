"""The bodies of Ollama's API: POST /api/chat, /api/generate, /api/embed, /api/embeddings and /api/show."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, WithJsonSchema

from engine.errors import InvalidRequest
from executors.contract import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY
from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES, MAX_NAME_LENGTH, MAX_TOOL_CALLS, MAX_TOOLS, FunctionDefinition
from server.schemas.embeddings import MAX_INPUTS
from server.schemas.extras import OF_EMBEDDINGS, UNSUPPORTED, Rules
from server.schemas.sampling import (
    MAX_LOGPROBS,
    MAX_OUTPUT_TOKENS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOP_K,
    Integer,
    RequestFields,
    Stop,
)

MAX_IMAGES = 64
_OPTIONS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "num_predict", "num_ctx", "repeat_last_n",
)  # fmt: skip
_ELSEWHERE = "it belongs to /v1/chat/completions"
_REFUSED = {
    **{name: f"give it in 'options', as 'options.{name}'" for name in _OPTIONS},
    "max_tokens": "use 'options.num_predict'",
    "max_completion_tokens": "use 'options.num_predict'",
    "repetition_penalty": "use 'options.repeat_penalty'",
    "response_format": "use 'format'",
    "structured_outputs": "use 'format'",
    "reasoning_effort": "use 'think'",
    "chat_template_kwargs": "use 'think'",
    **dict.fromkeys(
        (
            "n", "prompt_logprobs", "logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "stop_token_ids",
            "ignore_eos", "include_stop_str_in_output", "stream_options", "skip_special_tokens", "return_token_ids",
            "return_tokens_as_token_ids", "truncate_prompt_tokens", "truncation_side", "add_generation_prompt",
            "continue_final_message", "add_special_tokens", "include_reasoning",
        ),
        _ELSEWHERE,
    ),
}  # fmt: skip
_NOT_OF_CHAT = {
    "prompt": "it belongs to /api/generate; a chat has 'messages'",
    "system": "give a message of role 'system'",
    "suffix": "it belongs to /api/generate",
    "raw": "it belongs to /api/generate",
    "images": "give them in a message",
}
_NOT_OF_GENERATE = {
    "messages": "they belong to /api/chat",
    "tools": "they belong to /api/chat",
}


def _rules(refused: dict[str, str], **unsupported: tuple[Any, ...]) -> Rules:
    """Rules for keys that are not fields: those of a chat, and these."""
    return Rules(
        refused={name: f"'{name}' is not supported here: {reason}." for name, reason in refused.items()},
        unsupported={name: values for name, values in UNSUPPORTED.items() if name not in refused}
        | unsupported,
    )


class OllamaOptions(WireModel):
    """Settings of generation. Settings of Ollama's own loader, such as `num_gpu` and `num_thread`, have no effect here and are
    listed in `x-cohort-ignored`."""

    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    """Ollama: Sampling temperature; 0 takes the likeliest token at each step. Default: the model's."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Ollama: Sample from the likeliest tokens whose probabilities add up to this. Default: the model's."""
    top_k: Annotated[Integer, Field(ge=-1, le=MAX_TOP_K)] | None = None
    """Ollama: Sample from this number of likeliest tokens; 0 and -1 mean all. Default: the model's."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Ollama: Exclude tokens whose probability is below this fraction of the likeliest token's. Default: the model's."""
    typical_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Ollama: Probability mass of locally typical sampling; 1 and 0 disable it. Default: the model's."""
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    """Ollama: Seed of sampling: the same request with the same seed gets the same answer. -1 means no seed. Default: random."""
    num_predict: Annotated[Integer, Field(ge=-(2**31), le=MAX_OUTPUT_TOKENS)] | None = None
    """Ollama: Maximum number of tokens to generate; 0 and less mean what fits the context. Default: -1."""
    num_ctx: Annotated[Integer, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: the context is that of `--max-model-len`."""
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    """Ollama: Texts that end the answer. They are not part of it."""
    repeat_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = (
        None
    )
    """Ollama: Divides the positive logits of tokens that occur in the prompt or the answer, and multiplies the negative ones.
    Default: the model's."""
    repeat_last_n: Annotated[Integer, Field(ge=-1, le=MAX_OUTPUT_TOKENS)] | None = None
    """Ollama: Number of last tokens that penalties count. -1 means all and 0 turns penalties off; other numbers return 400 if a
    penalty is set, since penalties count all tokens here. Default: -1."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Ollama: Subtracted from the logits of tokens that occur in the answer. Default: 0."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    """Ollama: Subtracted from the logit of a token once for each time it occurs in the answer. Default: the model's."""

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list, whichever form the client used."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def penalties(self) -> dict[str, float]:
        """The chat's fields for penalties. Raises InvalidRequest for a window of tokens that cannot be kept."""
        given = {
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        found = {name: value for name, value in given.items() if value is not None}
        if self.repeat_last_n == 0:
            return {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        neutral = {"repetition_penalty": 1.0}
        if (self.repeat_last_n or -1) > 0 and any(
            value != neutral.get(name, 0.0) for name, value in found.items()
        ):
            message = "'options.repeat_last_n' is not supported beside a penalty: penalties count all tokens, which -1 asks for."
            raise InvalidRequest(message, "options.repeat_last_n", "unsupported_value")
        return found


KeepAlive = Annotated[
    float | Annotated[str, Field(max_length=64)] | None,
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 64}, {"type": "null"}]}),
]
Think = bool | Literal["low", "medium", "high", "max"]


def _form_of_format(value: Any) -> str:
    return "a schema" if isinstance(value, dict) else "a word"


Format = Annotated[
    Annotated[Literal["", "json"], Tag("a word")] | Annotated[dict[str, Any], Tag("a schema")],
    Discriminator(_form_of_format),
]


class OllamaCallFields(RequestFields):
    """Fields of every call of a model."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    """Ollama: Name of the model, as GET /api/tags lists it, with or without `:latest`."""
    options: OllamaOptions | None = None
    """Ollama: Settings of generation."""
    keep_alive: KeepAlive = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: the model stays loaded until the server ends."""

    def without_effect(self) -> list[str]:
        """Names of fields that are given and change nothing."""
        found = ["keep_alive"] * (self.keep_alive is not None)
        return found + ["options.num_ctx"] * (self.options is not None and self.options.num_ctx is not None)


class OllamaGenerationFields(OllamaCallFields):
    """Fields that chat and generate share."""

    stream: bool | None = None
    """Ollama: Whether the answer is sent line by line, each a JSON object, while it is generated. Default: true."""
    format: Format | None = None
    """Ollama: `json` for any JSON object, or a JSON schema. A grammar enforces it. Default: free text."""
    think: Think | None = None
    """Ollama: Whether the model reasons before it answers, by the chat template's variables `enable_thinking` or `thinking`; a
    level goes to `reasoning_effort`. If the template cannot choose, the header `x-cohort-ignored` lists the parameter. Default:
    the model's."""
    logprobs: bool | None = None
    """Ollama: Whether the answer contains the log probability of each token. Default: false."""
    top_logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Ollama: Number of alternatives per token. Requires `logprobs`. Default: 0."""
    truncate: bool | None = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: a prompt that does not fit the context returns 400."""
    shift: bool | None = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: an answer that fills the context ends with `length`."""

    def check(self) -> None:
        """Rules between fields. Raises InvalidRequest naming the field."""
        if self.top_logprobs and not self.logprobs:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise InvalidRequest(message, "top_logprobs", "invalid_value")

    def without_effect(self) -> list[str]:
        """Names of fields that are given and change nothing."""
        found = [name for name in ("truncate", "shift") if getattr(self, name)]
        return super().without_effect() + found


class OllamaCalledFunction(WireModel):
    """Function that the assistant called."""

    name: Annotated[str, Field(max_length=MAX_NAME_LENGTH)]
    """Ollama: Name of the function."""
    arguments: dict[str, Any] | None = None
    """Ollama: Arguments of the call. Default: none."""


class OllamaToolCall(WireModel):
    """Call in an earlier message of the assistant."""

    id: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Ollama: Identifier of the call. Default: one of the server's own."""
    function: OllamaCalledFunction
    """Ollama: Function that the assistant called, with its arguments."""


class OllamaMessage(WireModel):
    """Message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    """Ollama: Author of the message."""
    content: str | None = None
    """Ollama: Text of the message. Default: empty."""
    thinking: str | None = None
    """Ollama: Reasoning of an earlier answer, for chat templates that read it."""
    images: Annotated[list[str], Field(max_length=MAX_IMAGES, fail_fast=True)] | None = None
    """Ollama: Images, which no model here reads: 400, unless the server runs with `--unread-parts placeholder`."""
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = (
        None
    )
    """Ollama: Calls that the assistant made in this message."""
    tool_name: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Ollama: Name of the function whose result this message of role `tool` contains."""
    tool_call_id: Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None = None
    """Ollama: Identifier of the call whose result this message of role `tool` contains. Default: that of the first call of
    `tool_name` without a result, or else of the first call without one."""


class OllamaTool(WireModel):
    """Function that the model may call."""

    rules: ClassVar[Rules] = Rules(handed_on=True)

    type: Literal["function"] | None = None
    """Ollama: Kind of the tool; functions are the only kind. Default: function."""
    function: FunctionDefinition
    """Ollama: Function that the model may call."""


class OllamaChatRequest(OllamaGenerationFields):
    """Body of a chat in Ollama's form."""

    rules: ClassVar[Rules] = _rules(_REFUSED | _NOT_OF_CHAT, tool_choice=("auto",), template=("",))

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    """Ollama: Messages of the conversation so far, oldest first. The answer continues a last message of the assistant. Without
    messages the answer only tells that the model is loaded."""
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Ollama: Functions that the model may call."""


class OllamaGenerateRequest(OllamaGenerationFields):
    """Body of a single prompt in Ollama's form."""

    rules: ClassVar[Rules] = _rules(
        _REFUSED | _NOT_OF_GENERATE, tool_choice=("auto", "none"), template=("",), context=([],)
    )

    prompt: str | None = None
    """Ollama: Message of the user, or with `raw` or `suffix` the text to continue. Without it the answer only tells that the
    model is loaded."""
    system: str | None = None
    """Ollama: System prompt, before `prompt`."""
    suffix: str | None = None
    """Ollama: Text behind the middle that is to be written, for models that fill in the middle."""
    raw: bool | None = None
    """Ollama: Whether `prompt` is continued as it is, without the chat template. Default: false."""
    images: Annotated[list[str], Field(max_length=MAX_IMAGES, fail_fast=True)] | None = None
    """Ollama: Images, which no model here reads: 400, unless the server runs with `--unread-parts placeholder`."""

    @property
    def continues(self) -> bool:
        """True if the prompt is a text to continue, and no message."""
        return bool(self.raw or self.suffix)

    def check(self) -> None:
        """Rules between fields. Raises InvalidRequest naming the field."""
        super().check()
        if not self.continues:
            return
        by = "raw" if self.raw else "suffix"
        for name in ("system", "images", "think", "suffix"):
            if getattr(self, name) and name != by:
                message = f"'{name}' and '{by}' cannot be combined: no chat template is used."
                raise InvalidRequest(message, name, "invalid_value")


_OF_VECTORS = {**OF_EMBEDDINGS, "truncate_prompt_tokens": (), "encoding_format": ("float",), "pooling": ()}


class OllamaEmbedRequest(OllamaCallFields):
    """Texts to turn into vectors, in Ollama's form."""

    rules: ClassVar[Rules] = Rules(
        unsupported={name: values for name, values in _OF_VECTORS.items() if name not in ("truncate",)}
    )

    input: Annotated[
        Annotated[str, Field(min_length=1), Tag("one text")]
        | Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True),
            Tag("several texts"),
        ],
        Discriminator(lambda value: "several texts" if isinstance(value, list) else "one text"),
    ]
    """Ollama: One text or several."""
    truncate: bool | None = None
    """Ollama: Whether the end of a text that does not fit the context is cut off. Default: true."""
    dimensions: Annotated[Integer, Field(ge=1)] | None = None
    """Ollama: Number of first dimensions to keep, for models trained for it; the shortened vector is normalised again. Default:
    all."""


class OllamaEmbeddingsRequest(OllamaCallFields):
    """Text to turn into a vector, in Ollama's older form."""

    rules: ClassVar[Rules] = Rules(
        unsupported={name: values for name, values in _OF_VECTORS.items() if name != "prompt"}
        | {"dimensions": ()}
    )

    prompt: Annotated[str, Field(min_length=1)]
    """Ollama: The text. The vector is not normalised."""


class OllamaShowRequest(WireModel):
    """Name of the model to describe."""

    model: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Ollama: Name of the model, as GET /api/tags lists it, with or without `:latest`. Required, unless `name` is given."""
    name: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Ollama: Older name of `model`."""
    verbose: bool | None = None
    """Ollama: Accepted without effect: the vocabulary is never part of the answer. Default: false."""
