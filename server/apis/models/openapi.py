"""Operations and answers of the served names, for /openapi.json."""

from __future__ import annotations

from server.openapi.operation import Operation
from server.openapi.schema import BOOLEAN, COUNT, NUMBER, STRING, Schema, array, closed, const, nullable, ref

_SAMPLING_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "min_p",
    "typical_p",
    "frequency_penalty",
    "presence_penalty",
)
_SAMPLING_DEFAULTS = closed(
    {},
    dict.fromkeys(_SAMPLING_NAMES, NUMBER),
    "Sampling parameters that the model's files or the operator set for requests without them. Those not named have OpenAI's "
    "defaults; `{}` if none is set.",
)
OPERATIONS: tuple[Operation, ...] = (
    Operation("get", "/v1/models", "listModels", "Models", "List the names under which the model is served", "ModelList",
        description="A request with the header `anthropic-version` gets Anthropic's form."),
    Operation(
        "get", "/v1/models/{name}", "getModel", "Models", "Describe the model of one name", "Model", (401, 403, 404, 431, 500),
        "A name may contain slashes, which need not be encoded. A request with the header `anthropic-version` gets Anthropic's "
        "form.",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {
    "Model": {"anyOf": [ref("OpenAIModel"), ref("AnthropicModel")]},
    "AnthropicModel": closed(
        {
            "type": const("model"),
            "id": STRING,
            "display_name": STRING,
            "created_at": STRING,
            "lifecycle": const("active"),
            "max_input_tokens": nullable(COUNT),
            "max_tokens": nullable(COUNT),
        },
        description="Model, for a client that sends `anthropic-version`.",
    ),
    "OpenAIModel": closed(
        {
            "id": STRING,
            "object": const("model"),
            "created": COUNT,
            "owned_by": STRING,
            "root": STRING,
            "parent": nullable(STRING),
            "max_model_len": nullable(COUNT),
            "generates": nullable(BOOLEAN),
            "sampling_defaults": nullable(_SAMPLING_DEFAULTS),
            "type": const("base"),
            "capabilities": closed(
                {"completion_chat": BOOLEAN, "function_calling": BOOLEAN, "reasoning": BOOLEAN}
            ),
        },
        {"notes": array(STRING)},
    ),
    "ModelList": {
        "anyOf": [
            closed({"object": const("list"), "data": array(ref("OpenAIModel"), minItems=1)}),
            closed(
                {
                    "data": array(ref("AnthropicModel"), minItems=1),
                    "first_id": STRING,
                    "last_id": STRING,
                    "has_more": BOOLEAN,
                }
            ),
        ]
    },
}
