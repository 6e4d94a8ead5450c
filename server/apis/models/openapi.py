"""Operations and answers of the served names, for /openapi.json."""

from __future__ import annotations

from server.apis.models.answers import (
    COMPONENTS,
    AnthropicModel,
    AnthropicModelList,
    OpenAIModel,
    OpenAIModelList,
)
from server.apis.models.schema import ModelName
from server.openapi.components import derived
from server.openapi.derive import Derivation
from server.openapi.operation import OF_BODIES, Operation
from server.openapi.schema import Schema, ref

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/models/load", "loadModel", "Models", "Load one of several models", "Success", OF_BODIES,
        "Answers once the model is loaded.", ModelName, {"A model": {"model": "cohort-tiny"}},
    ),
    Operation(
        "post", "/models/unload", "unloadModel", "Models", "Unload one of several models", "Success", OF_BODIES,
        "The model is unloaded as soon as no call uses it, and loaded again at its next call. A server of one model returns 400.",
        ModelName, {"A model": {"model": "cohort-tiny"}},
    ),
    Operation("get", "/v1/models", "listModels", "Models", "List the names under which the model is served", "ModelList",
        description="A request with the header `anthropic-version` gets Anthropic's form."),
    Operation("get", "/models", "listModelsOfRouter", "Models", "List the names under which models are served", "ModelList",
        description="The same as /v1/models, at the path of llama.cpp's server."),
    Operation(
        "get", "/v1/models/{name}", "getModel", "Models", "Describe the model of one name", "Model", (401, 403, 404, 431, 500),
        "A name may contain slashes, which need not be encoded. A request with the header `anthropic-version` gets Anthropic's "
        "form.",
    ),
)  # fmt: skip

_MODELS = Derivation({OpenAIModel: "OpenAIModel", AnthropicModel: "AnthropicModel"})
ANSWERS: dict[str, Schema] = {
    "Model": {"anyOf": [ref("OpenAIModel"), ref("AnthropicModel")]},
    **derived(COMPONENTS),
    "ModelList": {"anyOf": [_MODELS.schema(OpenAIModelList), _MODELS.schema(AnthropicModelList)]},
}
