"""Requests of ordinary clients, whose answers are known: every one is a function of its body alone (`--deterministic`)."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"

_NEARLY = 1e-5
"""Of vectors of length 1."""

Ask = tuple[str, dict[str, Any]]

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip


def _chat(text: str, **settings: Any) -> Ask:
    return CHAT, {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 60,
        "temperature": 0,
        **settings,
    }


def _all() -> list[Ask]:
    story = "Tell me a story about a {}."
    long = {"max_tokens": 160, "ignore_eos": True}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}}
    return [
        *(_chat(f"What is {a} + {b}?") for a, b in ((3, 4), (47, 25), (12, 80))),
        *(_chat(story.format(animal), **long) for animal in ("fox", "king", "river")),
        *(_chat(story.format("cat"), temperature=1.1, seed=seed, **long) for seed in (1, 2)),
        _chat("Count from 3 to 12.", logprobs=True, top_logprobs=3),
        _chat("Count from 1 to 15.", n=3, temperature=0.9, seed=5),
        _chat("Hello!", n=4, temperature=1.3, seed=6, logprobs=True, top_logprobs=5, max_tokens=30),
        _chat("Anna is 31 years old. Give me JSON.", response_format=schema, temperature=0.8, seed=9),
        _chat("Yes or no?", structured_outputs={"choice": ["yes", "no", "perhaps"]}),
        _chat("A number.", structured_outputs={"regex": "[0-9]{3}-[0-9]{4}"}, temperature=1.0, seed=4),
        _chat("Any object.", response_format={"type": "json_object"}, max_tokens=40, temperature=0.7, seed=3),
        _chat("Repeat: one two three", stop=["three"], repetition_penalty=1.1),
        _chat("Say something. " * 25, max_tokens=20),
        (COMPLETION, {"prompt": "Once upon a time", "temperature": 0, **long}),
        (COMPLETION, {"prompt": ["The fox", "The king"], "temperature": 1.0, "seed": 8, "n": 2, "max_tokens": 40}),
        (COMPLETION, {"prompt": list(range(5, 300)), "temperature": 0, "max_tokens": 8}),
        (EMBEDDINGS, {"input": ["a fox", "a river and a king"]}),
        (EMBEDDINGS, {"input": list(range(5, 200)), "pooling": "mean"}),
    ]  # fmt: skip


ASKS = _all()


async def answer(client: httpx.AsyncClient, ask: Ask, stream: bool) -> tuple[int, Any, str]:
    """Status; what was said, the same for streams and whole answers; and the text of an error, or what Retry-After says."""
    path, body = ask
    if path == EMBEDDINGS:
        response = await client.post(path, json=body)
        said = (
            [entry["embedding"] for entry in response.json()["data"]] if response.status_code == 200 else None
        )
        return response.status_code, said, _why(response)
    asked = {**body, "return_token_ids": True}
    if not stream:
        response = await client.post(path, json=asked)
        if response.status_code != 200:
            return response.status_code, None, _why(response)
        return 200, _said(response.json()["choices"], {}), ""
    heard: dict[int, list[Any]] = {}
    async with client.stream("POST", path, json={**asked, "stream": True}) as response:
        if response.status_code != 200:
            await response.aread()
            return response.status_code, None, _why(response)
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return 500, None, json.dumps(event["error"])
                _said(event["choices"], heard)
            elif line == "data: [DONE]":
                return 200, _said([], heard), ""
    return 500, None, "the stream ended without [DONE]"


def same(said: Any, known: Any) -> bool:
    """Bit for bit, but for vectors: a mean over a prompt is summed in another order where it is computed in other chunks."""
    if said and isinstance(said[0][0], float):
        return all(
            abs(one - other) < _NEARLY
            for vector, expected in zip(said, known, strict=True)
            for one, other in zip(vector, expected, strict=True)
        )
    return bool(said == known)


def _why(response: httpx.Response) -> str:
    return response.headers.get("retry-after", "") if response.status_code == 429 else response.text[:300]


def _said(choices: list[dict[str, Any]], heard: dict[int, list[Any]]) -> Any:
    """Text, token ids, logprobs and finish reason of each choice, `heard` before included, which is added to."""
    for choice in choices:
        one = heard.setdefault(choice["index"], ["", [], [], None])
        message = choice.get("message") or choice.get("delta") or {}
        one[0] += choice.get("text") or message.get("content") or ""
        one[1] += choice.get("token_ids") or []
        one[2] += (choice.get("logprobs") or {}).get("content") or []
        one[3] = choice.get("finish_reason") or one[3]
    return sorted(heard.items())
