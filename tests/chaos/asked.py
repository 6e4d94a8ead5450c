"""What is asked of the server while its executor dies: a request of each kind whose state must come back, and mixtures."""

from __future__ import annotations

import random
from typing import Any

TOKENS = 40
AGES = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 9}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "ages": AGES},
    "required": ["name", "ages"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
TOOL = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer"}, "label": {"type": "string", "maxLength": 40}},
            "required": ["minutes", "label"],
            "additionalProperties": False,
        },
    },
}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "set_timer"}}}
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": 0.4}
EDITS = {"logit_bias": {"32": 4, "101": -100}, "min_tokens": 25, "bad_words": [" the", "fox"]}


def asks(text: str, **settings: Any) -> dict[str, Any]:
    """A chat."""
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": TOKENS, "ignore_eos": True, **settings}


def goes_on(text: str, **settings: Any) -> dict[str, Any]:
    """A completion."""
    return {"prompt": text, "max_tokens": TOKENS, "ignore_eos": True, **settings}


def kinds() -> dict[str, dict[str, Any]]:
    """One of each, told apart by their seeds. None ends by itself but those under a grammar. What they have in common is not
    shared, so that those who come together begin in one step."""
    found = {
        "greedy": asks("Tell me a story about a fox.", temperature=0),
        "seeded": asks("Tell me a story about a river.", temperature=1.3),
        "JSON schema": asks(
            "Anna is 31 years old and lives in Rome. Give me JSON.",
            temperature=1.0,
            ignore_eos=False,
            response_format=JSON_SCHEMA,
        ),
        "n=3": asks("Count from 1 to 15.", temperature=1.2, n=3),
        "stop string": asks("Tell me a story about a king.", temperature=1.0, stop=["qzx", "the end of all"]),
        "logprobs": asks("What is 47 + 25?", temperature=1.0, logprobs=True, top_logprobs=4),
        "penalties": asks("Tell me a story about a fox and a fox.", temperature=1.0, **PENALTIES),
        "edits": asks("Tell me a story about the fox.", temperature=1.0, ignore_eos=False, **EDITS),
        "forced tool": asks("Set a timer for 12 minutes.", temperature=1.1, ignore_eos=False, **FORCED),
        "prompt logprobs": goes_on(
            "Once upon a time there was", temperature=1.0, stream=False, logprobs=2, prompt_logprobs=2
        ),
        "echo": goes_on("The river was", temperature=1.0, stream=False, logprobs=1, echo=True),
        "best_of": goes_on("The king said", temperature=1.2, stream=False, n=2, best_of=4, logprobs=1),
    }
    return {
        name: {"seed": seed, "cache_salt": name, **body}
        for seed, (name, body) in enumerate(found.items(), 1000)
    }


def stopped(body: dict[str, Any], text: str) -> dict[str, Any]:
    """The same, to be ended by a stop string of a dozen characters that its answer `text` has first at 60% of it."""
    for begin in range(len(text) * 3 // 5, len(text) - 12):
        if text.find(text[begin : begin + 12]) == begin:
            return {**body, "stop": [text[begin : begin + 12]]}
    raise AssertionError(f"nothing to stop at in {text!r}")


def mixed(rng: random.Random, count: int, lengths: tuple[int, int], long: int = 0) -> list[dict[str, Any]]:
    """Requests of all kinds, with prompts, seeds and lengths of their own, every fifth not streamed, some ending by
    themselves. The first of each 20 is as long as `long`, if that is given, so that streams last."""
    made = []
    every = list(kinds().values())
    for i in range(count):
        body = {**rng.choice(every), "seed": rng.randrange(2**32), "max_tokens": rng.randrange(*lengths)}
        if i % 20 == 0 and long:
            body = asks("", temperature=1.0, seed=i, max_tokens=long)
        elif "response_format" not in body and "tools" not in body:
            body["ignore_eos"] = rng.random() < 0.8
        if "best_of" not in body and "prompt_logprobs" not in body and not body.get("echo"):
            body["stream"] = rng.random() < 0.8
        if "prompt" in body:
            body["prompt"] = f"Story number {i}: once upon a time"
        else:
            body["messages"] = [{"role": "user", "content": f"Tell me a story about number {i}."}]
        made.append(body)
    return made
