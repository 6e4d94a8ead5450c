"""`cohort run`: Ollama's verb for a conversation, or for one answer."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated, Any

import typer

from clients.chat.command import SAMPLING, Wishes, chat, talk
from server.commands.common import take_interrupts
from server.commands.options import Text

_OF_CHAT_ALONE = ("target", "url", "model")

Model = Annotated[
    Text,
    typer.Argument(
        metavar="[MODEL]",
        help="A model, as `cohort serve` takes it; one of the hub is fetched if it is not here [the server that runs, else the "
        "best model on this disk].",
        show_default=False,
    ),
]
Prompt = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PROMPT]...",
        help="Answer this and end [a conversation in the terminal].",
        show_default=False,
    ),
]


def run(model: Model = None, prompt: Prompt = None, **flags: Any) -> None:
    """Chat with a model, or answer one prompt.

    Like `ollama run`: fetches a model of the hub if it is not here, serves it for the conversation, or uses a server on this
    machine that serves it already. With PROMPT, or with piped input, which comes before PROMPT, prints one answer and ends."""
    take_interrupts()
    words = list(prompt or ())
    if not sys.stdin.isatty() and words:
        piped = sys.stdin.read()
        words = [piped, *words] if piped.strip() else words
    sampling = {name: flags.pop(name) for name in SAMPLING}
    wishes = Wishes(
        None, flags.pop("system"), flags.pop("api_key"), sampling, " ".join(words) if words else None
    )
    settings = {name: value for name, value in flags.items() if value is not None}
    url = None if model is None or settings else _address_of(model)
    talk(None if url else model, url, wishes, settings)


def _address_of(model: str) -> str | None:
    """The address of a server of this user that serves the model already, so that it is not loaded twice."""
    from server.running.registry import running

    plain = (one for one in running(os.environ) if one.url is not None and one.url.startswith("http://"))
    return next((one.url for one in plain if model in one.models), None)


run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # Typer reads it: the flags are those of `chat`
    [
        *(
            one
            for one in inspect.signature(run, eval_str=True).parameters.values()
            if one.kind is not one.VAR_KEYWORD
        ),
        *(
            one.replace(kind=one.KEYWORD_ONLY)
            for one in inspect.signature(chat, eval_str=True).parameters.values()
            if one.name not in _OF_CHAT_ALONE
        ),
    ]
)
