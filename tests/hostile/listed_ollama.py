"""Of the fixed list, what is sent to Ollama's paths."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.case import Hostile, call, raw
from tests.hostile.fields import (
    MODEL,
    OLLAMA_CHAT,
    OLLAMA_EMBED,
    OLLAMA_EMBEDDINGS,
    OLLAMA_GENERATE,
    OLLAMA_SHOW,
    TOOL,
    USER,
    bad,
)

GENERATING = (OLLAMA_CHAT, OLLAMA_GENERATE)


def ollama(context: int) -> Iterator[Hostile]:
    """For a model with so many tokens of context."""
    yield from _options()
    yield from _conversations()
    for path in (*GENERATING, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_SHOW):
        yield bad("prompts", path, "model", model="no-such-model")
        yield bad("prompts", path, "model", model="no-such-model:latest")
        yield bad("prompts", path, "model", model="x" * 10**6)
    for path in GENERATING:
        for name in ("temperature", "max_tokens", "max_output_tokens", "seed", "repetition_penalty"):
            yield bad("options", path, name, **{name: [5]})
        for schema in (
            {"type": "string", "pattern": "("},
            {"$ref": "file:///etc/passwd"},
            {"enum": ["x" * 300_000]},
        ):
            yield bad("constraints", path, "format", format=schema)
    long = "word " * (20 * context)
    yield bad("prompts", OLLAMA_CHAT, "messages", messages=[{"role": "user", "content": long}])
    yield bad("prompts", OLLAMA_GENERATE, "prompt", prompt=long)
    yield bad("prompts", OLLAMA_GENERATE, "prompt", prompt=long, raw=True)
    yield bad("prompts", OLLAMA_GENERATE, "context", context=[1, 2, 3])
    yield bad("prompts", OLLAMA_GENERATE, "template", template="{{ cycler.__init__ }}")
    yield bad("prompts", OLLAMA_GENERATE, "system", system="x", raw=True)
    yield bad("prompts", OLLAMA_EMBED, "input", input=long, truncate=False)
    yield bad("prompts", OLLAMA_EMBED, "input", input=["x"] * 100_000)
    yield bad("numbers", OLLAMA_EMBED, "dimensions", dimensions=raw("1" * 4000))
    for name in ("pull", "push", "create", "copy", "delete", "blobs/sha256:../../x"):
        yield call("models", f"/api/{name}", {"model": MODEL, "name": "../../etc/passwd"})


def _options() -> Iterator[Hostile]:
    for path in GENERATING:
        for text in ("NaN", "Infinity", "1e400", "9" * 400):
            for name in ("num_predict", "temperature", "top_p", "top_k", "repeat_penalty"):
                yield bad("numbers", path, "options", options={name: raw(text)})
        for name, value in (
            ("stop", ["x"] * 10_000), ("stop", "x" * 10**6), ("stop", [""]), ("max_tokens", "x"), ("n_predict", 0.5),
        ):  # fmt: skip
            yield bad("options", path, "options", options={name: value})
        yield bad("options", path, "options", options={"repeat_last_n": 64, "repeat_penalty": 1.3})


def _conversations() -> Iterator[Hostile]:
    kind = "messages"
    for message in (
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": "x", "images": ["http://169.254.169.254/x"]},
        {"role": "user", "content": "x", "images": ["A"] * 5000},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 5000},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]},
        {"role": "tool", "content": "x", "tool_name": "x" * 5000},
        {"role": "wizard", "content": "x"}, {"content": "x"}, 5, None,
    ):  # fmt: skip
        yield bad(kind, OLLAMA_CHAT, "messages", messages=[USER, message])
    yield bad(kind, OLLAMA_CHAT, "messages", messages=[USER] * 10_000)
    for tools in (
        [TOOL] * 2,
        [TOOL] * 5000,
        [{"type": "function"}],
        [{"type": "web", "function": {"name": "f"}}],
        "x",
        [5],
    ):
        yield bad("tools", OLLAMA_CHAT, "tools", tools=tools)
