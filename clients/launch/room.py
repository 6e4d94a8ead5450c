"""Whether an agent fits a model's context: its first prompt, counted in the model's own tokens, and an answer behind it."""

from __future__ import annotations

from dataclasses import replace

from clients.chat.client import ChatClient, ServerFault
from clients.launch.clients import Client, Target, output_limit
from clients.launch.sample import SAMPLE, SAMPLE_TOKENS

_ROUND = 4096
"""Contexts that are proposed are multiples of this."""
_COMFORT = 16_384
"""Tokens behind the first prompt below which a session is short: a few files, their changes and the answers."""
_LEAST = 2_048
"""Tokens that a conversation needs between the first prompt and the length at which the client shortens it: with less it would
shorten it for ever."""


class NoRoom(Exception):
    """The agent could never finish anything. One sentence with the numbers and what to do."""


def prompt_tokens(server: ChatClient, client: Client, model: str) -> int:
    """Tokens of the client's first prompt, for this model: those of a sample, by which the count for SmolLM2 is scaled. Without a
    count, from servers that have none, it is SmolLM2's. Raises ConnectionRefusedError."""
    body = {"model": model, "prompt": SAMPLE, "add_special_tokens": False}
    try:
        count = server.post("/tokenize", body)["count"]
    except (ServerFault, KeyError, TypeError):
        count = SAMPLE_TOKENS
    tokens = client.first_prompt(model)
    return round(tokens * count / SAMPLE_TOKENS) if isinstance(count, int) and count > 0 else tokens


def with_limits(client: Client, target: Target, prompt: int, *, force: bool) -> tuple[Target, str]:
    """The target with a limit for answers, and a warning or "". `prompt`: tokens of the client's first prompt.

    Raises NoRoom for a context in which the client could not work, unless `force`."""
    if target.context is None:
        return target, "the server does not tell how long its context is, so no limits are set"
    room = target.context - prompt
    output = output_limit(room)
    facts = f"{client.name} begins with about {prompt:,} tokens, and {target.model} has {target.context:,} tokens of context"
    cure = (
        f"start the server with --max-model-len {_rounded(prompt + _COMFORT)} or more, or serve another model"
    )
    if client.compacts_at(target.context, output) - prompt < _LEAST:
        short = f"{facts}, too few for its prompt, files and answers"
        if not force:
            raise NoRoom(f"{short}: {cure}; --force starts it anyway")
        return replace(target, output=max(output, target.context // 16)), short
    warning = f"{facts}, so the session will be short: {cure}" if room < _COMFORT else ""
    return replace(target, output=output), warning


def _rounded(tokens: int) -> int:
    return -(-tokens // _ROUND) * _ROUND
