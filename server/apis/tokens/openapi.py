"""Operations and answers of the model's tokenizer, for /openapi.json."""

from __future__ import annotations

from server.apis.tokens.answers import COMPONENTS
from server.apis.tokens.schema import DetokenizeRequest, TokenizeRequest
from server.openapi.components import derived
from server.openapi.operation import OF_BODIES, Operation
from server.openapi.schema import STRING, Schema, nullable

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/tokenize", "tokenize", "Tokens", "Turn a text or a conversation into token ids",
        "Tokenized", OF_BODIES, "The chat template renders a conversation.", TokenizeRequest,
        {"text": {"prompt": "Hello"}, "chat": {"messages": [{"role": "user", "content": "Hello"}]}},
    ),
    Operation(
        "post", "/detokenize", "detokenize", "Tokens", "Turn token ids into text",
        "Detokenized", OF_BODIES, "", DetokenizeRequest, {"ids": {"tokens": [1, 2, 3]}},
    ),
    Operation(
        "get", "/tokenizer_info", "tokenizerInfo", "Tokens", "Return the tokenizer's settings and chat template",
        "TokenizerInfo", (401, 403, 404, 431, 500, 503),
        query=(("model", {"type": "string"}, "Name of one of several models. Default: the first one."),),
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {
    **derived(COMPONENTS),
    "TokenizerInfo": {
        "type": "object",
        "description": "Contents of the model's tokenizer_config.json, and the chat template in use.",
        "properties": {"tokenizer_class": nullable(STRING), "chat_template": {}},
        "additionalProperties": True,
    },
}
