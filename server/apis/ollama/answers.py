"""Answers of Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta, Raw

from server.schemas.answers.common import Components, Count

Nanoseconds = Annotated[Count, Meta(description="Nanoseconds.")]
DoneReason = Literal["stop", "length", "load", "unload"]
Capability = Literal["completion", "tools", "thinking", "insert", "embedding"]


class OllamaError(TypedDict):
    """An error."""

    error: Annotated[str, Meta(min_length=1)]


class CalledFunction(TypedDict):
    """A function, and its arguments as an object."""

    index: Count
    name: str
    arguments: dict[str, Any] | Raw


class ToolCall(TypedDict):
    """A call."""

    id: str
    function: CalledFunction


class AnsweredMessage(TypedDict):
    """A message, or a part of one."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class Token(TypedDict):
    """A token and its logprob."""

    token: str
    logprob: float
    bytes: list[Count]


class ChosenToken(TypedDict):
    """A token of the answer with its most likely alternatives."""

    token: str
    logprob: float
    bytes: list[Count]
    top_logprobs: list[Token]


class LineHead(TypedDict):
    """The first members of a line."""

    model: str
    created_at: str


class Ending(TypedDict):
    """The last members of the last line."""

    done: bool
    done_reason: DoneReason
    total_duration: Count
    load_duration: Count
    prompt_eval_count: Count
    prompt_eval_duration: Count
    eval_count: Count
    eval_duration: Count


class NotDone(TypedDict):
    """The last member of other lines."""

    done: Literal[False]


class Loaded(TypedDict):
    """The last members where only the model was loaded."""

    done: Literal[True]
    done_reason: Literal["load", "unload"]


class OllamaChat(TypedDict):
    """A whole answer, or a line of a stream."""

    model: str
    created_at: str
    message: AnsweredMessage
    done: bool
    logprobs: NotRequired[list[ChosenToken] | Raw]
    done_reason: NotRequired[DoneReason]
    total_duration: NotRequired[Nanoseconds]
    load_duration: NotRequired[
        Annotated[Count, Meta(description="Nanoseconds until the prompt was made and queued.")]
    ]
    prompt_eval_count: NotRequired[
        Annotated[Count, Meta(description="Tokens of the prompt, with those read from the cache.")]
    ]
    prompt_eval_duration: NotRequired[
        Annotated[Count, Meta(description="Nanoseconds until the first token, in the queue too.")]
    ]
    eval_count: NotRequired[Annotated[Count, Meta(description="Generated tokens.")]]
    eval_duration: NotRequired[Nanoseconds]


class OllamaGeneration(TypedDict):
    """A whole text, or a line of a stream."""

    model: str
    created_at: str
    response: str
    done: bool
    thinking: NotRequired[str]
    logprobs: NotRequired[list[ChosenToken] | Raw]
    done_reason: NotRequired[DoneReason]
    total_duration: NotRequired[Nanoseconds]
    load_duration: NotRequired[
        Annotated[Count, Meta(description="Nanoseconds until the prompt was made and queued.")]
    ]
    prompt_eval_count: NotRequired[
        Annotated[Count, Meta(description="Tokens of the prompt, with those read from the cache.")]
    ]
    prompt_eval_duration: NotRequired[
        Annotated[Count, Meta(description="Nanoseconds until the first token, in the queue too.")]
    ]
    eval_count: NotRequired[Annotated[Count, Meta(description="Generated tokens.")]]
    eval_duration: NotRequired[Nanoseconds]


class OllamaEmbeddings(TypedDict):
    """Vectors of `/api/embed`."""

    model: str
    embeddings: Sequence[list[float] | Raw]
    total_duration: Nanoseconds
    load_duration: Nanoseconds
    prompt_eval_count: Count


class OllamaEmbedding(TypedDict):
    """The vector of `/api/embeddings`."""

    embedding: list[float] | Raw


class Details(TypedDict):
    """What a model is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class TagCard(TypedDict):
    """A model that can be served."""

    name: str
    model: str
    size: Count
    digest: Digest
    details: Details
    modified_at: str


class OllamaTags(TypedDict):
    """All names."""

    models: list[TagCard]


class ProcessCard(TypedDict):
    """A loaded model."""

    name: str
    model: str
    size: Count
    digest: Digest
    details: Details
    expires_at: str
    size_vram: Count
    context_length: Count


class OllamaProcesses(TypedDict):
    """All loaded models."""

    models: list[ProcessCard]


class PackagedMessage(TypedDict):
    """A message of a model's package."""

    role: Literal["system", "user", "assistant"]
    content: str


class Package(TypedDict, total=False):
    """What a model's package brings."""

    system: NotRequired[str]
    messages: NotRequired[list[PackagedMessage]]
    license: NotRequired[str]
    adapter: NotRequired[str]


class OllamaModel(TypedDict):
    """A model described."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: Sequence[Capability]
    modified_at: str
    system: NotRequired[str]
    messages: NotRequired[list[PackagedMessage]]
    license: NotRequired[str]
    adapter: NotRequired[str]


_LINE = "Whole answer, or a line of a stream, whose last is `done`."
COMPONENTS: Components = {
    "OllamaError": (OllamaError, "Error of Ollama's API; it ends a failed stream."),
    "OllamaMessageOut": (AnsweredMessage, ""),
    "OllamaChat": (OllamaChat, _LINE),
    "OllamaGeneration": (OllamaGeneration, _LINE),
    "OllamaEmbeddings": (OllamaEmbeddings, ""),
    "OllamaEmbedding": (OllamaEmbedding, ""),
    "OllamaTags": (OllamaTags, ""),
    "OllamaProcesses": (OllamaProcesses, ""),
    "OllamaModel": (OllamaModel, ""),
}
