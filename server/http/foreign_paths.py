"""Paths that clients use with other servers or with a wrong base URL, and the endpoint to call instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

Tails = Mapping[str, str]
"""Endpoints of this server, by their paths without the prefix /v1."""

MAX_PATH_TOLD = 200
"""Number of characters of a path that a message repeats; the client may have sent thousands."""

_CHAT = "POST /v1/chat/completions"
_TEXT = "POST /v1/completions"
_VECTORS = "POST /v1/embeddings"
_MODELS = "GET /v1/models"

# Each row: paths without a version in front, whose they are, and what serves the purpose here (None: nothing does).
# A path below one of them (`/responses/ID`) belongs to it as well.
_ROWS: tuple[tuple[str, str, str | None], ...] = (
    ("/conversations", "OpenAI's stored conversations", "POST /v1/responses with 'previous_response_id'"),
    ("/responses/compact", "compaction of conversations; its result is read by OpenAI's models only",
     "'truncation': 'auto' of POST /v1/responses"),
    ("/assistants /threads", "OpenAI's Assistants API", _CHAT),
    ("/images /videos", "image and video generation of the OpenAI API", None),
    ("/audio /realtime", "speech of the OpenAI API", None),
    ("/files /uploads /vector_stores /containers", "file storage of the OpenAI API", None),
    ("/batches", "the OpenAI API's batches", f"{_CHAT}, as many calls at once as you like"),
    ("/moderations", "moderation of the OpenAI API", None),
    ("/fine_tuning /fine-tunes /evals /chatkit /organization", "training and administration of the OpenAI API", None),
    ("/edits", "an old endpoint of the OpenAI API", _CHAT),
    ("/engines", "an old endpoint of the OpenAI API", _MODELS),
    ("/messages/batches", "Anthropic's message batches", "POST /v1/messages, as many calls at once as you like"),
    ("/complete", "Anthropic's old text API", _TEXT),
    ("/pooling /encode", "vLLM's and SGLang's pooling", _VECTORS),
    ("/embed /embed_all /embed_sparse /embedding", "an embedding endpoint of llama.cpp or Text Embeddings Inference", _VECTORS),
    ("/reranking", "llama.cpp's reranking", "POST /v1/rerank"),
    ("/similarity", "similarity of Text Embeddings Inference", "POST /v1/score"),
    ("/classify /predict", "classification", None),
    ("/invocations", "Amazon SageMaker's endpoint", _CHAT),
    ("/ping /health_generate", "a health check of other servers", "GET /health"),
    ("/lora-adapters", "llama.cpp's LoRA endpoint", "POST /v1/load_lora_adapter"),
    ("/sleep /wake_up /is_sleeping /reset_prefix_cache /reset_mm_cache /flush_cache /collective_rpc /scale_elastic_ep "
     "/is_scaling_elastic_ep /start_profile /stop_profile /abort_request /update_weights /update_weights_from_disk "
     "/release_memory_occupation /resume_memory_occupation /pause /resume /open_session /close_session",
     "administration of vLLM or SGLang", None),
    ("/load /get_load /slots /server_info /get_server_info", "the state of vLLM, SGLang or llama.cpp",
     "GET /metrics and GET /v1/executors"),
    ("/props /info /get_model_info /model_info", "model information of llama.cpp, SGLang or TGI",
     f"{_MODELS} and GET /v1/executors"),
    ("/completion", "llama.cpp's own endpoint", _TEXT),
    ("/infill /fim/completions", "fill-in-the-middle of llama.cpp or Mistral", f"{_TEXT} with 'suffix'"),
    ("/apply-template", "llama.cpp's template endpoint", "POST /tokenize with 'messages'"),
    ("/chat/completions/render /completions/render /render", "vLLM's rendering", "POST /tokenize with 'messages'"),
    ("/chat_tokenize", "TGI's endpoint", "POST /tokenize with 'messages'"),
    ("/generate /generate_stream /inference", "the own endpoint of TGI, SGLang or vLLM", f"{_TEXT} or {_CHAT}"),
    ("/chat", "Cohere's API", _CHAT),
    ("/chat/completions", "stored answers of the OpenAI API", None),
    ("/v1beta", "Google's API", _CHAT),
    ("/redoc", "ReDoc", "GET /docs in a browser, or GET /openapi.json"),
)  # fmt: skip
WHERE_THE_API_IS = f"The API is below /v1: {_MODELS} lists the models, and {_CHAT} answers a conversation."
FOREIGN = tuple((tuple(paths.split()), whose, instead) for paths, whose, instead in _ROWS)
"""Paths, whose they are, and what to use here (None: nothing does): `tools/migrate_docs.py` makes a table of them."""
_ELSEWHERE = {path: (whose, instead) for paths, whose, instead in FOREIGN for path in paths}
_MANAGING = frozenset({"pull", "push", "create", "copy", "delete", "blobs"})
"""Parts below /api of Ollama's paths that change its store of models."""
_ONE_MODEL = "This server does not pull, create, copy, push or delete models: it serves the one that it was started with."
_ALONE = frozenset({"/chat"})
"""Foreign paths whose subpaths do not belong to the foreign server."""
_VERSIONS = ("/v1", "/v2", "/api/v1", "/api/v0", "/v1beta")
_PROXY = " A proxy that serves this server below a path has to take that path off."
_CUTOFF = 0.85
"""Similarity from which a path is taken for a misspelt endpoint."""


def no_such_path(method: str, path: str, endpoints: Sequence[str]) -> str:
    """The message of a 404. It names the endpoint that was most likely meant, or the one to use in place of another server's.
    `endpoints` are the paths of this server, as templates."""
    sentence = f"There is no {method} {path[:MAX_PATH_TOLD]} here."
    if len(path) > MAX_PATH_TOLD:
        return sentence
    plain = _plain(path)
    if plain.startswith("/api/") and plain.split("/")[2] in _MANAGING:
        return _ONE_MODEL
    if plain in ("/", "/v1"):
        return f"{sentence} {WHERE_THE_API_IS}"
    tails = {endpoint.removeprefix("/v1"): endpoint for endpoint in endpoints if "{" not in endpoint}
    advice = (
        _exactly(plain, tails) or _ending(plain, tails) or _below(plain, endpoints) or _like(plain, tails)
    )
    return f"{sentence} {advice}" if advice else sentence


def is_foreign(path: str, endpoints: Sequence[str]) -> bool:
    """Whether a path is listed as another server's and is no endpoint here, though a template of ours may match it."""
    plain = _plain(path)
    return plain not in endpoints and any(one in _ELSEWHERE for one in _spellings(plain))


def _plain(path: str) -> str:
    """The path in lower case, without doubled or trailing slashes."""
    return "/" + "/".join(part for part in path.lower().split("/") if part)


def _spellings(path: str) -> list[str]:
    """The path itself, and the part after its version."""
    return [path, *(path.removeprefix(version) for version in _VERSIONS if path.startswith(f"{version}/"))]


def _exactly(path: str, tails: Tails) -> str | None:
    """The hint for a path of another server, unless one of our paths has the same ending."""
    elsewhere = (one for one in _spellings(path) if one in _ELSEWHERE and one not in tails)
    return next((_instead(*_ELSEWHERE[one]) for one in elsewhere), None)


def _ending(path: str, tails: Tails) -> str | None:
    """The hint for one of our paths with a missing or wrong prefix: the base URL is wrong."""
    tail = next((one for one in sorted(tails, key=len, reverse=True) if path.endswith(one)), None)
    if tail is not None:
        endpoint = tails[tail]
        return _did_you_mean(endpoint) + (
            _PROXY if path.removesuffix(endpoint) not in (path, *_VERSIONS) else ""
        )
    return _did_you_mean("/v1/models/{name}") if path.startswith("/models/") else None


def _below(path: str, endpoints: Sequence[str]) -> str | None:
    """The hint for a path below one of another server, unless an endpoint of ours is below that one, too."""
    for spelling in _spellings(path):
        parts = spelling.split("/")
        heads = ("/".join(parts[:end]) for end in range(len(parts) - 1, 1, -1))
        for head in heads:
            served = any(endpoint.startswith(f"{head}/") for endpoint in endpoints)
            if head in _ELSEWHERE and head not in _ALONE and not served:
                return _instead(*_ELSEWHERE[head])
    return None


def _like(path: str, tails: Tails) -> str | None:
    """The hint for a misspelt path of ours."""
    near = difflib.get_close_matches(path.removeprefix("/v1"), list(tails), n=1, cutoff=_CUTOFF)
    return _did_you_mean(tails[near[0]]) if near else None


def _did_you_mean(endpoint: str) -> str:
    base = " The base URL of this API is http://HOST:PORT/v1." if endpoint.startswith("/v1/") else ""
    return f"Did you mean {endpoint}?{base}"


def _instead(whose: str, instead: str | None) -> str:
    return f"This server does not serve {whose}{f'; use {instead}' if instead else ''}."
