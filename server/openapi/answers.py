"""JSON schemas of the server's answers. Tests validate real answers against them.

Objects are closed, so that a test fails if an answer has a member that is missing here. Most are derived from the types that the
encoders fill; the others are written here.
"""

from __future__ import annotations

from server.openapi.components import DERIVED
from server.openapi.ollama import OLLAMA
from server.openapi.responses import RESPONSES
from server.openapi.schema import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    array,
    closed,
    const,
    nullable,
    one_of,
    ref,
)
from server.openapi.steps import STEPS
from server.openapi.stories import STORIES

_ENVELOPE = {
    "created": COUNT,
    "model": STRING,
    "system_fingerprint": STRING,
    "seed": {
        **INTEGER,
        "description": "Seed that was used. The same request with this seed gets the same answer.",
    },
}
_TOKEN = {"token": STRING, "logprob": NUMBER, "bytes": nullable(array(COUNT))}
_STOP_REASON = {
    "anyOf": [STRING, INTEGER, {"type": "null"}],
    "description": "Stop string or stop token id that ended the choice, or null.",
}
_FINISH = nullable(one_of("stop", "length", "tool_calls", "content_filter"))
_COMPLETION_FINISH = nullable(one_of("stop", "length", "content_filter"))
_REASONING = {"reasoning": nullable(STRING), "reasoning_content": nullable(STRING)}
_IDS = array(COUNT)
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
_MESSAGE_END: Schema = {
    "stop_reason": nullable(
        one_of(
            "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
        )
    ),
    "stop_sequence": nullable(STRING),
}

ANSWERS: dict[str, Schema] = {
    "Error": closed(
        {
            "error": closed(
                {
                    "message": {**STRING, "minLength": 1},
                    "type": one_of(
                        "invalid_request_error",
                        "authentication_error",
                        "permission_error",
                        "rate_limit_error",
                        "service_unavailable",
                        "server_error",
                        "executor_error",
                        "internal_error",
                    ),
                    "param": nullable(STRING),
                    "code": STRING,
                }
            )
        },
        description="Body of every answer that is not a success, and the event that ends a failed stream.",
    ),
    "Usage": DERIVED["Usage"],
    "Timings": DERIVED["Timings"],
    "PromptLogprobs": DERIVED["PromptLogprobs"],
    "ChatLogprobs": DERIVED["ChatLogprobs"],
    "CompletionLogprobs": DERIVED["CompletionLogprobs"],
    "AnsweredToolCall": DERIVED["AnsweredToolCall"],
    "ToolCallDelta": DERIVED["ToolCallDelta"],
    "AnsweredMessage": DERIVED["AnsweredMessage"],
    "ChatCompletion": DERIVED["ChatCompletion"],
    "ChatCompletionChunk": DERIVED["ChatCompletionChunk"],
    "Completion": DERIVED["Completion"],
    "CompletionChunk": DERIVED["CompletionChunk"],
    "MessagesError": DERIVED["MessagesError"],
    "MessagesUsage": DERIVED["MessagesUsage"],
    "AnsweredBlock": DERIVED["AnsweredBlock"],
    "Message": DERIVED["Message"],
    "MessageEvent": DERIVED["MessageEvent"],
    "TokenCount": DERIVED["TokenCount"],
    **OLLAMA,
    "InputTokenCount": closed({"object": const("response.input_tokens"), "input_tokens": COUNT}),
    **RESPONSES,
    "Reranked": DERIVED["Reranked"],
    "Scores": DERIVED["Scores"],
    "PromptUsage": DERIVED["PromptUsage"],
    **STORIES,
    "Embeddings": DERIVED["Embeddings"],
    "Model": {"anyOf": [ref("OpenAIModel"), ref("AnthropicModel")]},
    "AnthropicModel": DERIVED["AnthropicModel"],
    "OpenAIModel": DERIVED["OpenAIModel"],
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
    "Tokenized": DERIVED["Tokenized"],
    "Detokenized": DERIVED["Detokenized"],
    "TokenizerInfo": {
        "type": "object",
        "description": "Contents of the model's tokenizer_config.json, and the chat template in use.",
        "properties": {"tokenizer_class": nullable(STRING), "chat_template": {}},
        "additionalProperties": True,
    },
    "ExecutorList": closed(
        {
            "object": const("list"),
            "data": array(
                closed(
                    {
                        "id": STRING,
                        "object": const("executor"),
                        "mode": nullable(STRING),
                        "pid": nullable(INTEGER),
                        "snapshot_age_s": nullable(NUMBER),
                        "info": {"type": "object"},
                        "notation": closed(
                            {
                                "tool_calls": STRING,
                                "tool_calls_stay_text": {"type": "boolean"},
                                "reasoning": STRING,
                            }
                        ),
                        "capabilities": {"type": "object"},
                        "status": {"type": "object"},
                        "metrics": {"type": "object"},
                        "cache": {"type": ["object", "null"]},
                        "lora": {"type": ["object", "null"]},
                        "kv_layout": {"type": "object"},
                        "kv_capacity": nullable(COUNT),
                    },
                    description="Executor, described by the records of the executor interface.",
                )
            ),
            "registered": array(STRING),
        }
    ),
    "Live": closed({"status": const("live")}),
    "Settings": closed(
        {
            "object": const("settings"),
            "version": STRING,
            "settings": {
                "type": "object",
                "additionalProperties": closed({"value": {}, "given": {"type": "boolean"}}, {"set": {"type": "boolean"}}),
            },
            "in_force": {"type": ["object", "null"]},
        },
        description="Settings by name. The value of a secret is null; `set` says whether there is one.",
    ),
    "Stage": closed(
        {"status": one_of("loading", "ready", "recovering", "draining", "failed", "stopped")},
        {"detail": STRING, "phase": STRING, "done": INTEGER, "total": INTEGER},
        description="Stage of the server. While it loads, `done` and `total` tell the progress, in the unit of the phase.",
    ),
    "Version": closed({"version": STRING}),
    **STEPS,
    "Description": {"type": "object", "required": ["openapi", "paths"]},
}  # fmt: skip
