"""Every operation of the API: its name, its request, its answer, and one or two examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from server.apis.anthropic.schema import CountTokensRequest, MessagesRequest
from server.apis.lora.schema import LoadAdapterRequest, UnloadAdapterRequest
from server.apis.ollama.schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from server.apis.responses.schema import ResponsesRequest
from server.apis.scoring.schema import RerankRequest, ScoreRequest
from server.apis.tokens.schema import DetokenizeRequest, TokenizeRequest
from server.schemas.base import WireModel
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.telemetry.stories.ring import OUTCOMES, SORTS

TAGS = {
    "Generation": "Chat, completions and embeddings in OpenAI's form, and messages in Anthropic's.",
    "Retrieval": "Scores of queries and documents, in the form of vLLM, Jina and Cohere.",
    "Ollama": "Chat, generation and embeddings in Ollama's form.",
    "Models": "The served model and its executors.",
    "Tokens": "The model's tokenizer, in vLLM's form.",
    "Operation": "Health, metrics and version, for operators.",
}


@dataclass(frozen=True)
class Operation:
    """One method of one path. `answer` names a component of answers.py, None for text; `chunk` names the component that the
    events of its stream contain; `errors` lists the other statuses that an answer may have."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    answer: str | None
    errors: tuple[int, ...] = (401, 403, 431, 500)
    description: str = ""
    request: type[WireModel] | None = None
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    chunk: str | None = None
    media: tuple[str, ...] = ("text/plain",)
    """Media types of an answer that is no JSON; none for one that is only a stream."""
    keyless: bool = False
    own_key: bool = False
    """True if the path needs no key unless it has one of its own."""
    not_ready: bool = False
    """True if a 503 has the same body as the 200."""
    error: str = "Error"
    """Component of errors."""
    query: tuple[tuple[str, dict[str, Any], str], ...] = ()
    """Parameters of the query: names, schemas and descriptions."""

    @property
    def as_anthropic(self) -> bool:
        """True if errors and events have Anthropic's form."""
        return self.error == "MessagesError"

    @property
    def typed_events(self) -> bool:
        """True if each event of a stream has a line with its type."""
        return self.chunk in ("MessageEvent", "ResponseEvent", "StepsFrame")

    @property
    def lines(self) -> bool:
        """True if a stream consists of lines of JSON."""
        return self.error == "OllamaError"


_OF_BODIES = (400, 401, 403, 404, 408, 413, 415, 431, 500, 503)
_OF_WORK = (*_OF_BODIES, 429)
_PAGE = ("text/html", "text/plain")
_OF_STORED = (400, 401, 403, 404, 431, 500)
_WHOLE = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_HELLO = {"model": "cohort-tiny", "messages": [{"role": "user", "content": "Count from 3 to 9."}]}
_WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_WEATHER_TOOL = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": _WEATHER["function"]["parameters"],
}
_CAPITAL = {
    "query": "What is the capital of Peru?",
    "documents": ["Llamas live in Peru.", "Lima is its capital."],
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/chat/completions", "createChatCompletion", "Generation", "Answer a conversation",
        "ChatCompletion", _OF_WORK,
        "A stream begins with a chunk that contains the role. Then come deltas, a chunk with `finish_reason` for each choice, "
        "the token counts if `stream_options.include_usage` is set, and `[DONE]`. A failure within a stream is an event with "
        "an `error`.",
        ChatRequest,
        {
            "simple": _HELLO,
            "streamed": {**_HELLO, "stream": True, "stream_options": {"include_usage": True}, "seed": 1},
            "tools": {
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [_WEATHER],
                "tool_choice": "auto",
            },
        },
        chunk="ChatCompletionChunk",
    ),
    Operation(
        "post", "/v1/completions", "createCompletion", "Generation", "Continue one prompt or several",
        "Completion", _OF_WORK,
        "Choices are ordered by prompt: those of the first prompt come first.",
        CompletionRequest,
        {
            "text": {"model": "cohort-tiny", "prompt": "Once upon a time", "max_tokens": 20},
            "token ids": {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 1, "logprobs": 1, "temperature": 0},
        },
        chunk="CompletionChunk",
    ),
    Operation(
        "post", "/v1/messages", "createMessage", "Generation", "Answer a conversation in Anthropic's form",
        "Message", _OF_WORK,
        "A stream consists of the events `message_start`, then for each block of the answer `content_block_start`, "
        "`content_block_delta` and `content_block_stop`, then `message_delta` with the stop reason and the token counts, and "
        "`message_stop`. A `ping` comes after 10 s of silence. Errors have Anthropic's form.",
        MessagesRequest,
        {
            "simple": {**_HELLO, "max_tokens": 100},
            "streamed": {**_HELLO, "max_tokens": 100, "stream": True, "system": "Be brief."},
            "tools": {
                "model": "cohort-tiny", "max_tokens": 100, "tools": [_WEATHER_TOOL], "tool_choice": {"type": "auto"},
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
            },
        },
        chunk="MessageEvent", error="MessagesError",
    ),
    Operation(
        "post", "/v1/messages/count_tokens", "countMessageTokens", "Generation", "Count the tokens of a conversation's prompt",
        "TokenCount", _OF_BODIES,
        "The number equals the `input_tokens` and `cache_read_input_tokens` of an answer to the same conversation together.",
        CountTokensRequest, {"simple": _HELLO}, error="MessagesError",
    ),
    Operation(
        "post", "/v1/responses", "createResponse", "Generation", "Answer a conversation in the form of OpenAI's Responses API",
        "Response", _OF_WORK,
        "A stream consists of the events `response.created`, `response.in_progress`, then for each item of the answer "
        "`response.output_item.added`, its deltas and `response.output_item.done`, and last `response.completed`, "
        "`response.incomplete` or `response.failed`; there is no `[DONE]`. After 10 s of silence `response.in_progress` comes "
        "again. With `background` the response begins with status `queued` and goes on without its client.",
        ResponsesRequest,
        {
            "simple": {"model": "cohort-tiny", "input": "Count from 3 to 9."},
            "streamed": {"model": "cohort-tiny", "input": "Count from 3 to 9.", "stream": True, "instructions": "Be brief."},
            "tools": {
                "model": "cohort-tiny", "input": [{"role": "user", "content": "What is the weather in Rome?"}],
                "tools": [{"type": "function", **_WEATHER["function"]}], "tool_choice": "auto",
            },
        },
        chunk="ResponseEvent",
    ),
    Operation(
        "post", "/v1/responses/input_tokens", "countResponseTokens", "Generation", "Count the tokens of a response's prompt",
        "InputTokenCount", _OF_BODIES,
        "The body is that of /v1/responses, and the number its response's `input_tokens`. Nothing is generated or stored.",
        ResponsesRequest, {"simple": {"model": "cohort-tiny", "input": "Count from 3 to 9."}},
    ),
    Operation(
        "get", "/v1/responses/{response_id}", "getResponse", "Generation", "Return a stored response", "Response", _OF_STORED,
        "With `stream`, the events of a background response so far and to come, each with its `sequence_number`.",
        chunk="ResponseEvent",
        query=(
            ("stream", {"type": "boolean"}, "Whether the events of a background response are sent."),
            ("starting_after", _WHOLE, "Sequence number behind which the events begin. Default: all are sent."),
        ),
    ),
    Operation(
        "delete", "/v1/responses/{response_id}", "deleteResponse", "Generation",
        "Forget a response, and end one in progress", "DeletedResponse", _OF_STORED,
    ),
    Operation(
        "post", "/v1/responses/{response_id}/cancel", "cancelResponse", "Generation", "End a background response", "Response",
        (*_OF_STORED, 415), "A response that has ended stays as it is.",
    ),
    Operation(
        "get", "/v1/responses/{response_id}/input_items", "listInputItems", "Generation",
        "List the items that a stored response was made of", "InputItemList", _OF_STORED,
        "Those of the responses before it are included.",
        query=(
            ("limit", {"type": "integer", "minimum": 1, "maximum": 100}, "Most items of a page. Default: 20."),
            ("order", {"enum": ["asc", "desc"]}, "`asc` begins with the oldest. Default: desc."),
            ("after", {"type": "string"}, "Identifier of the item behind which the page begins."),
        ),
    ),
    Operation(
        "post", "/v1/embeddings", "createEmbedding", "Generation", "Turn texts into vectors",
        "Embeddings", _OF_WORK,
        "Vectors have length 1 unless `use_activation` is false. They come in the order of the inputs.",
        EmbeddingRequest,
        {"texts": {"input": ["Hello", "Good morning"]}, "base64": {"input": "Hello", "encoding_format": "base64"}},
    ),
    Operation(
        "post", "/v1/rerank", "rerank", "Retrieval", "Order documents by their relevance to a query", "Reranked", _OF_WORK,
        "The most relevant document comes first. A reranker's scores are probabilities, those of an embedding model cosines. "
        "`index` is the document's place in the request. The form is Jina's, Cohere's and vLLM's.",
        RerankRequest, {"documents": _CAPITAL, "the best one": {**_CAPITAL, "top_n": 1, "return_documents": False}},
    ),
    Operation(
        "post", "/v2/rerank", "rerankV2", "Retrieval", "The same as /v1/rerank", "Reranked", _OF_WORK, "", RerankRequest,
        {"documents": _CAPITAL},
    ),
    Operation(
        "post", "/rerank", "rerankUnversioned", "Retrieval", "The same as /v1/rerank", "Reranked", _OF_WORK, "", RerankRequest,
        {"documents": _CAPITAL},
    ),
    Operation(
        "post", "/v1/score", "score", "Retrieval", "Score pairs of texts", "Scores", _OF_WORK,
        "One text is paired with each text of the other side, or the texts of both sides one by one. Scores come in the order of "
        "the pairs.",
        ScoreRequest,
        {"one and several": {"text_1": "What is the capital of Peru?", "text_2": ["Lima.", "A llama."]}},
    ),
    Operation(
        "post", "/score", "scoreUnversioned", "Retrieval", "The same as /v1/score", "Scores", _OF_WORK, "", ScoreRequest,
        {"a pair": {"text_1": "What is the capital of Peru?", "text_2": "Lima."}},
    ),
    Operation(
        "post", "/api/chat", "ollamaChat", "Ollama", "Answer a conversation in Ollama's form", "OllamaChat", _OF_WORK,
        "The answer is a stream of lines unless `stream` is false. A call comes in one line, once it is complete. The last line "
        "has `done_reason`, the durations in nanoseconds and the counts. A failure within a stream is a line with an `error`.",
        OllamaChatRequest,
        {
            "simple": _HELLO,
            "whole": {**_HELLO, "stream": False, "options": {"temperature": 0, "num_predict": 20}, "format": "json"},
            "tools": {
                "model": "cohort-tiny", "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
                "tools": [_WEATHER],
            },
        },
        chunk="OllamaChat", error="OllamaError",
    ),
    Operation(
        "post", "/api/generate", "ollamaGenerate", "Ollama", "Answer a prompt in Ollama's form, or continue a text",
        "OllamaGeneration", _OF_WORK,
        "With `raw` or `suffix` the text is continued as with /v1/completions. `context` of earlier answers is not supported.",
        OllamaGenerateRequest,
        {
            "simple": {"model": "cohort-tiny", "prompt": "Count from 3 to 9."},
            "raw": {"model": "cohort-tiny", "prompt": "Once upon a time", "raw": True, "stream": False},
        },
        chunk="OllamaGeneration", error="OllamaError",
    ),
    Operation(
        "post", "/api/embed", "ollamaEmbed", "Ollama", "Turn texts into vectors in Ollama's form", "OllamaEmbeddings", _OF_WORK,
        "Vectors have length 1 and come in the order of the inputs.",
        OllamaEmbedRequest, {"texts": {"model": "cohort-tiny", "input": ["Hello", "Good morning"]}}, error="OllamaError",
    ),
    Operation(
        "post", "/api/embeddings", "ollamaEmbeddings", "Ollama", "Turn a text into a vector in Ollama's older form",
        "OllamaEmbedding", _OF_WORK, "", OllamaEmbeddingsRequest,
        {"text": {"model": "cohort-tiny", "prompt": "Hello"}}, error="OllamaError",
    ),
    Operation(
        "post", "/api/show", "ollamaShow", "Ollama", "Describe a model in Ollama's form", "OllamaModel", _OF_BODIES,
        "`capabilities` has `completion`, `tools`, `thinking` and `insert`, or `embedding`. `template` is one of Jinja.",
        OllamaShowRequest, {"model": {"model": "cohort-tiny"}}, error="OllamaError",
    ),
    Operation(
        "get", "/api/tags", "ollamaTags", "Ollama", "List the served names in Ollama's form", "OllamaTags",
        description="`size` counts the bytes of the weights in memory. `digest` identifies the name and its model.",
        error="OllamaError",
    ),
    Operation(
        "get", "/api/ps", "ollamaPs", "Ollama", "List the loaded models in Ollama's form", "OllamaProcesses",
        description="`expires_at` is far away: a model stays loaded until the server ends.", error="OllamaError",
    ),
    Operation(
        "get", "/api/version", "ollamaVersion", "Ollama", "Return the version of Ollama whose API this is", "Version",
        error="OllamaError",
    ),
    Operation(
        "post", "/tokenize", "tokenize", "Tokens", "Turn a text or a conversation into token ids",
        "Tokenized", _OF_BODIES, "The chat template renders a conversation.", TokenizeRequest,
        {"text": {"prompt": "Hello"}, "chat": {"messages": [{"role": "user", "content": "Hello"}]}},
    ),
    Operation(
        "post", "/detokenize", "detokenize", "Tokens", "Turn token ids into text",
        "Detokenized", _OF_BODIES, "", DetokenizeRequest, {"ids": {"tokens": [1, 2, 3]}},
    ),
    Operation(
        "get", "/tokenizer_info", "tokenizerInfo", "Tokens", "Return the tokenizer's settings and chat template",
        "TokenizerInfo", (401, 403, 431, 500, 503),
    ),
    Operation("get", "/v1/models", "listModels", "Models", "List the names under which the model is served", "ModelList",
        description="A request with the header `anthropic-version` gets Anthropic's form."),
    Operation(
        "get", "/v1/models/{name}", "getModel", "Models", "Describe the model of one name", "Model", (401, 403, 404, 431, 500),
        "A name may contain slashes, which need not be encoded. A request with the header `anthropic-version` gets Anthropic's "
        "form.",
    ),
    Operation(
        "post", "/v1/load_lora_adapter", "loadLoraAdapter", "Models", "Load a LoRA adapter from below --lora-root", None,
        _OF_BODIES, "Requires the admin key. Under a used name the new adapter takes the place of the old one; streams that have "
        "begun keep the old one.",
        LoadAdapterRequest, {"A folder below the root": {"lora_name": "sql", "lora_path": "team/sql-v2"}},
    ),
    Operation(
        "post", "/v1/unload_lora_adapter", "unloadLoraAdapter", "Models", "Unload a LoRA adapter", None, _OF_BODIES,
        "Requires the admin key. Streams that have begun with the adapter go on.", UnloadAdapterRequest,
        {"By its name": {"lora_name": "sql"}},
    ),
    Operation(
        "get", "/v1/executors", "listExecutors", "Models", "List the executors, with their properties and status",
        "ExecutorList", (401, 403, 431, 500, 503),
    ),
    Operation(
        "get", "/v1/requests", "listRequests", "Operation", "List the calls under way and the last ones that ended",
        "RequestStoryList", (400, 401, 403, 404, 431, 500), "Requires the admin key. `--stories` sets how many are kept.",
        query=(
            ("sort", {"enum": list(SORTS)}, "What the list is sorted by. Default: received."),
            ("order", {"enum": ["desc", "asc"]}, "`desc` begins with the largest or latest. Default: desc."),
            ("outcome", {"type": "string"}, f"Outcomes, separated by commas: {', '.join(OUTCOMES)}. Default: all."),
            ("key", {"type": "string"}, "Name of the API key. Default: all."),
            ("model", {"type": "string"}, "Name of the model. Default: all."),
            ("client_request_id", {"type": "string"}, "The `x-request-id` that the client sent. Default: all."),
            ("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most calls that are listed. Default: 100."),
        ),
    ),
    Operation(
        "get", "/v1/requests/{request_id}", "getRequest", "Operation", "Tell the story of one call", "RequestStory",
        (401, 403, 404, 431, 500),
        "Requires the admin key. The identifier is that of the answer, its `x-request-id`, or the `x-request-id` that the client "
        "sent: of several calls the latest one is told.",
    ),
    Operation(
        "get", "/v1/settings", "getSettings", "Operation", "Return the server's settings, without secrets", "Settings",
        (401, 403, 404, 431, 500),
        "Requires the admin key. `given` is true for what flags, the environment or a file have set; `in_force` is null while "
        "the model loads.",
    ),
    Operation(
        "get", "/live", "live", "Operation", "Report whether the server process responds", "Live", (403, 431, 500), keyless=True,
        description="The only path for liveness probes: status 200 also while the server loads, recovers and drains.",
    ),
    Operation(
        "get", "/ready", "ready", "Operation", "Report whether the server accepts new requests", "Stage", (403, 431, 500),
        description="The path for readiness probes: status 200 only while load balancers should send requests here.",
        keyless=True, not_ready=True,
    ),
    Operation(
        "get", "/health", "health", "Operation", "Report whether the server works or is recovering", "Stage", (403, 431, 500),
        description="Status 503 while the server loads, if a recovery takes too long, and if the engine has failed.",
        keyless=True, not_ready=True,
    ),
    Operation("get", "/version", "version", "Operation", "Return the server's version", "Version", (403, 431, 500), keyless=True),
    Operation(
        "get", "/metrics", "metrics", "Operation", "Return metrics as Prometheus text", None,
        description="Needs no key, unless the server was started with `--metrics-key`; then it needs that key.",
        own_key=True,
    ),
    Operation(
        "post", "/v1/kill_executor", "killExecutor", "Operation", "Kill the executor's process with SIGKILL", "Killed",
        (400, 401, 403, 404, 415, 431, 500, 503),
        "For demonstrations: a new executor takes over, and every stream goes on. Requires `--enable-kill-button` and the admin "
        "key; has no body.",
    ),
    Operation(
        "get", "/v1/steps", "watchSteps", "Operation", "Watch every step, the sequences and the KV blocks", None,
        (401, 403, 404, 429, 431, 500),
        "A stream of frames, five a second while anything runs, until the client leaves; the console draws it. The first frame "
        "has `server`. A step without `seq_ids` has the items of the step before it. Where clients have API keys, it requires "
        "the admin key.",
        chunk="StepsFrame", media=(),
    ),
    Operation(
        "get", "/", "console", "Operation", "Return the console for browsers, and a few lines of text for other clients", None,
        (403, 431, 500), keyless=True, media=_PAGE,
    ),
    Operation(
        "get", "/docs", "reference", "Operation", "Return the API reference for browsers", None, (403, 431, 500), keyless=True,
        media=_PAGE,
    ),
    Operation(
        "get", "/console/{path}", "consoleFile", "Operation", "Return a file of the console", None, (403, 404, 431, 500),
        keyless=True, media=("text/javascript", "text/css", "text/html", "image/svg+xml"),
    ),
    Operation(
        "get", "/openapi.json", "openapi", "Operation", "Return this description", "Description",
    ),
)  # fmt: skip
