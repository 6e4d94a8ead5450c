"""Operations and answers of the served names, for /openapi.json."""

from __future__ import annotations

from server.apis.models.answers import (
    COMPONENTS,
    AnthropicModel,
    AnthropicModelList,
    OpenAIModel,
    OpenAIModelList,
)
from server.openapi.components import derived
from server.openapi.derive import Derivation
from server.openapi.operation import Operation
from server.openapi.schema import Schema, ref

OPERATIONS: tuple[Operation, ...] = (
    Operation("get", "/v1/models", "listModels", "Models", "List the names under which the model is served", "ModelList",
        description="A request with the header `anthropic-version` gets Anthropic's form."),
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
