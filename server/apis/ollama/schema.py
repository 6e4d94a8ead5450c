"""The bodies of Ollama's API: POST /api/chat, /api/generate, /api/embed, /api/embeddings and /api/show."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag, WithJsonSchema

from engine.errors import InvalidRequest
from server.apis.ollama.durations import seconds_of
from server.apis.ollama.options import TOLERANT, OllamaOptions, OllamaSettings
from server.schemas.base import WireModel
from server.schemas.chat import MAX_MESSAGES, MAX_NAME_LENGTH, MAX_TOOL_CALLS, MAX_TOOLS, FunctionDefinition
from server.schemas.embeddings import MAX_INPUTS
from server.schemas.extras import Rules, Values
from server.schemas.sampling import MAX_LOGPROBS, Integer, RequestFields

MAX_IMAGES = 64
_EFFORTS: dict[str, bool | str] = {
    "none": False,
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
}
"""Values of OpenAI's `reasoning_effort` that `think` can express."""
_DEBUG: dict[str, Values] = {"_debug_render_only": (False,)}

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

    rules: ClassVar[Rules] = TOLERANT

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    """Ollama: Name of the model, as GET /api/tags lists it, with or without `:latest`."""
    options: OllamaOptions | None = None
    """Ollama: Settings of generation."""
    keep_alive: KeepAlive = None
    """Ollama: How long the model stays loaded after this call: seconds, or a duration such as `5m`; 0 unloads it, less than 0
    keeps it. With one model it has no effect, and `x-cohort-ignored` lists it. Default: `--idle-unload`."""

    _keeps: bool = PrivateAttr(default=False)

    def take_keep(self) -> float | None:
        """`keep_alive` in seconds, None if it is not given; it has its effect then. Raises InvalidRequest for a text that is no
        duration."""
        self._keeps = True
        return None if self.keep_alive is None else seconds_of(self.keep_alive)

    def without_effect(self) -> list[str]:
        """Names of fields that are given and change nothing."""
        names = ["keep_alive"] * (self.keep_alive is not None and not self._keeps)
        return names + ["options.num_ctx"] * (self.options is not None and self.options.num_ctx is not None)


class OllamaGenerationFields(OllamaCallFields, OllamaSettings):
    """Fields that chat and generate share. The settings of `options` may stand beside it, too: those in `options` take
    precedence."""

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
    """Ollama: Number of alternatives per token. Without `logprobs` it has no effect. Default: 0."""
    truncate: bool | None = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: a prompt that does not fit the context returns 400."""
    shift: bool | None = None
    """Ollama: Without effect, and listed in `x-cohort-ignored`: an answer that fills the context ends with `length`."""

    response_format: Any = None
    """OpenAI: Format of the answer, for clients that write it in OpenAI's form. With `format`, or in another form, it has no
    effect, and `x-cohort-ignored` lists it. Default: that of format."""
    reasoning_effort: Any = None
    """OpenAI: Level of reasoning: `none`, `low`, `medium`, `high` and `max` mean what `think` means. With `think`, or with
    another value, it has no effect, and `x-cohort-ignored` lists it. Default: that of think."""

    @property
    def settings(self) -> OllamaOptions:
        """The settings of generation, wherever the client wrote them."""
        within = self.options or OllamaOptions()
        return within.model_copy(update={name: getattr(self, name) for name in self._beside(within)})

    def _beside(self, within: OllamaOptions) -> list[str]:
        """Names of the settings beside `options` that count."""
        fields = OllamaSettings.model_fields
        return [name for name in fields if getattr(self, name) is not None and getattr(within, name) is None]

    @property
    def thinking(self) -> bool | str | None:
        """Whether and how much the model is to reason; None if the client does not say."""
        if self.think is not None or not isinstance(self.reasoning_effort, str):
            return self.think
        return _EFFORTS.get(self.reasoning_effort)

    def without_effect(self) -> list[str]:
        """Names of fields that are given and change nothing."""
        names = [name for name in ("truncate", "shift") if getattr(self, name)]
        if self.top_logprobs and not self.logprobs:
            names.append("top_logprobs")
        if self.reasoning_effort is not None and (self.think is not None or self.thinking is None):
            names.append("reasoning_effort")
        beside = self._beside(self.options or OllamaOptions())
        for name in OllamaSettings.model_fields:
            if getattr(self, name) is not None and (name == "num_ctx" or name not in beside):
                names.append(name)
        return super().without_effect() + names


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

    rules: ClassVar[Rules] = TOLERANT

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

    rules: ClassVar[Rules] = Rules(unsupported=_DEBUG, tolerant=True)

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    """Ollama: Messages of the conversation so far, oldest first. The answer continues a last message of the assistant. Without
    messages the answer only tells that the model is loaded."""
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    """Ollama: Functions that the model may call."""
    tool_choice: Any = None
    """OpenAI: Which of `tools` may or must be called, as in /v1/chat/completions. In another form, or without a tool of that
    name, it has no effect, and `x-cohort-ignored` lists it. Default: auto."""


class OllamaGenerateRequest(OllamaGenerationFields):
    """Body of a single prompt in Ollama's form."""

    rules: ClassVar[Rules] = Rules(unsupported={**_DEBUG, "template": ("",), "context": ([],)}, tolerant=True)

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
        if not self.continues:
            return
        by = "raw" if self.raw else "suffix"
        for name in ("system", "images"):
            if getattr(self, name):
                message = f"'{name}' and '{by}' cannot be combined: no chat template is used."
                raise InvalidRequest(message, name, "invalid_value")

    def without_effect(self) -> list[str]:
        """Names of fields that are given and change nothing."""
        names = super().without_effect()
        if self.continues and self.think and "think" not in names:
            names.append("think")
        return names + ["suffix"] * bool(self.raw and self.suffix)


class OllamaEmbedRequest(OllamaCallFields):
    """Texts to turn into vectors, in Ollama's form."""

    input: (
        Annotated[
            Annotated[str, Tag("one text")]
            | Annotated[list[str], Field(max_length=MAX_INPUTS, fail_fast=True), Tag("several texts")],
            Discriminator(lambda value: "several texts" if isinstance(value, list) else "one text"),
        ]
        | None
    ) = None
    """Ollama: One text or several. Without a text, `embeddings` is empty."""
    truncate: bool | None = None
    """Ollama: Whether the end of a text that does not fit the context is cut off. Default: true."""
    dimensions: Annotated[Integer, Field(ge=-(2**63), lt=2**63)] | None = None
    """Ollama: Number of first dimensions to keep, for models trained for it; the shortened vector is normalised again. 0 and
    less, and more than there are, mean all. Default: all."""


class OllamaEmbeddingsRequest(OllamaCallFields):
    """Text to turn into a vector, in Ollama's older form."""

    prompt: str | None = None
    """Ollama: The text. The vector is not normalised. Without a text, `embedding` is empty."""


class OllamaShowRequest(WireModel):
    """Name of the model to describe."""

    rules: ClassVar[Rules] = TOLERANT

    model: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Ollama: Name of the model, as GET /api/tags lists it, with or without `:latest`. Required, unless `name` is given."""
    name: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Ollama: Older name of `model`."""
    verbose: bool | None = None
    """Ollama: Accepted without effect: the vocabulary is never part of the answer. Default: false."""
