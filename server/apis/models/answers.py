"""Answers about models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from server.schemas.answers.common import Components, Count


class SamplingDefaults(TypedDict, total=False):
    """Sampling parameters that requests without them have."""

    temperature: NotRequired[float]
    top_p: NotRequired[float]
    top_k: NotRequired[float]
    repetition_penalty: NotRequired[float]
    min_p: NotRequired[float]
    typical_p: NotRequired[float]
    frequency_penalty: NotRequired[float]
    presence_penalty: NotRequired[float]


class ModelCapabilities(TypedDict):
    """What a model can do, in Mistral's words."""

    completion_chat: bool
    function_calling: bool
    reasoning: bool


class ModelStatus(TypedDict):
    """State of one of several models. `reason`: why it failed."""

    value: Literal["loaded", "loading", "unloaded", "failed"]
    reason: NotRequired[str]


class Success(TypedDict):
    """A model is loaded, or will be unloaded."""

    success: Literal[True]


class OpenAIModel(TypedDict):
    """A model in OpenAI's form."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    root: str
    parent: str | None
    max_model_len: Count | None
    generates: bool | None
    scores: Annotated[
        Literal["reranker", "embedding"] | None,
        Meta(
            description="How /v1/rerank and /v1/score judge pairs: by a score of each, or by the embeddings of both texts."
        ),
    ]
    sampling_defaults: (
        Annotated[
            SamplingDefaults,
            Meta(
                description="Sampling parameters that the model's files or the operator set for requests without them. Those not "
                "named have OpenAI's defaults; `{}` if none is set."
            ),
        ]
        | None
    )
    type: Literal["base"]
    capabilities: ModelCapabilities
    status: NotRequired[ModelStatus]
    aliases: NotRequired[list[str]]
    memory: NotRequired[Annotated[Count, Meta(description="Bytes that the model needs while it is loaded.")]]
    notes: NotRequired[list[str]]


class AnthropicModel(TypedDict):
    """A model in Anthropic's form."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: Count | None
    max_tokens: Count | None


class ModelMemory(TypedDict):
    """Memory of a server of several models, in bytes: what all that are loaded may need together."""

    budget: Count


class OpenAIModelList(TypedDict):
    """All names, in OpenAI's form."""

    object: Literal["list"]
    data: Sequence[OpenAIModel]
    memory: NotRequired[ModelMemory]


class AnthropicModelList(TypedDict):
    """All names, in Anthropic's form."""

    data: Sequence[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


Names = Mapping[str, float]

COMPONENTS: Components = {
    "AnthropicModel": (AnthropicModel, "Model, for a client that sends `anthropic-version`."),
    "OpenAIModel": (OpenAIModel, ""),
    "Success": (Success, ""),
}
