"""`cohort chat`: a conversation in the terminal.

command.py      which server: one that is named, one that runs already, or one of its own
serving.py      a server of its own on a thread beside the conversation
session.py      what happens in the conversation; client.py: what is sent and received; answer.py: one answer and its figures
parameters.py   how answers are sampled; set_command.py: /set and /show
screen.py       what is shown; wrapping.py: lines that break at words; keyboard.py: keys typed during an answer
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.commands.common import INTERRUPTED, fail, lost_output, take_interrupts
from server.commands.options import DEFAULT_URL, Text, flag, with_settings
from server.settings.table import TABLE

if TYPE_CHECKING:
    from clients.chat.client import ChatClient

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "stop",
)  # fmt: skip
"""Flags of `chat` that are fields of each request, by name."""

Real = float | None
Target = Annotated[
    Text,
    typer.Argument(
        metavar="[MODEL|URL]",
        help="A model to serve for this conversation, or the address of a running server "
        f"[the server at {DEFAULT_URL} if there is one, else the default model].",
        show_default=False,
    ),
]


@with_settings(("max_model_len", "dtype", "quantization", "device"), short={"quantization": "-q"})
def chat(
    target: Target = None,
    url: Annotated[Text, flag("Address of a running server; the same as the argument URL.", "--url")] = None,
    model: Annotated[
        Text, flag("Name of the model on a running server [the first in its list].", "--model")
    ] = None,
    system: Annotated[Text, flag("System prompt.", "--system", metavar="TEXT")] = None,
    api_key: Annotated[Text, flag("The server's key [COHORT_API_KEY].", "--api-key")] = None,
    temperature: Annotated[Real, flag("Sampling temperature [the model's].", "--temperature")] = None,
    top_p: Annotated[
        Real,
        flag("Sample from the likeliest tokens whose probabilities add up to this [the model's].", "--top-p"),
    ] = None,
    top_k: Annotated[
        int | None, flag("Sample from this number of likeliest tokens [the model's].", "--top-k")
    ] = None,
    min_p: Annotated[
        Real,
        flag(
            "Exclude tokens whose probability is below this fraction of the likeliest token's [the model's].",
            "--min-p",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, flag("Maximum number of tokens in an answer [what fits the context].", "--max-tokens")
    ] = None,
    seed: Annotated[int | None, flag("Seed of sampling [random].", "--seed")] = None,
    repetition_penalty: Annotated[
        Real, flag("Penalty of tokens in prompt and answer [the model's].", "--repetition-penalty")
    ] = None,
    presence_penalty: Annotated[
        Real, flag("Penalty of tokens that the answer has [the model's].", "--presence-penalty")
    ] = None,
    frequency_penalty: Annotated[
        Real,
        flag("Penalty of tokens for each time the answer has them [the model's].", "--frequency-penalty"),
    ] = None,
    stop: Annotated[
        list[str] | None, flag("String that ends an answer; may be repeated.", "--stop", metavar="TEXT")
    ] = None,
    **serving: Any,
) -> None:
    """Chat with a model or with a running server.

    In a terminal, /help lists the commands, /set changes the parameters, Ctrl-C stops an answer, and Ctrl-D ends the
    conversation. Piped input is one message; only its answer is printed. A server that was started for the conversation ends
    with it; --max-model-len, --dtype, --quantization and --device are settings of that server."""
    values = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "max_tokens": max_tokens,
        "seed": seed, "repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty, "stop": stop,
    }  # fmt: skip
    talk(target, url, Wishes(model, system, api_key, values), serving)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a conversation is to be like. `model`: its name on a server that runs already; `sampling`: by field of the API, None
    for the model's own; `prompt`: the only message of a conversation of one answer, None: those that are typed or piped."""

    model: str | None
    system: str | None
    api_key: str | None
    sampling: Mapping[str, Any]
    prompt: str | None = None


def talk(target: str | None, url: str | None, wishes: Wishes, serving: Mapping[str, Any]) -> None:
    """Have a conversation with the server or the model that is named. `serving`: settings of a server that is started for it.

    Ends the process with one line for what is wrong."""
    from clients.chat.keyboard import restore_at_signals
    from server.settings.foreign.keys import client_key

    key = wishes.api_key or client_key(os.environ)
    options = _checked({name: value for name, value in wishes.sampling.items() if value not in (None, [])})
    arguments = [
        part for name, words in serving.items() if words is not None for part in (TABLE[name].flag, words)
    ]
    take_interrupts()
    restore_at_signals()
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with _ended_in_one_line(target if url is None else url):
        _converse(
            target,
            url,
            arguments,
            wishes,
            lambda address, own: _client(address, own, key, wishes.model, options),
        )


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The same; ends the process with one line for a number that no server would take."""
    from clients.chat.parameters import PARAMETERS

    for name, value in options.items():
        try:
            if not isinstance(value, list):
                PARAMETERS[name].parse(str(value))
        except ValueError as error:
            fail(f"--{name.replace('_', '-')}: {error}")
    return options


Connect = Callable[[str, bool], "ChatClient"]
"""From a server's address, and whether the server is this conversation's own, to a client that has chosen a model."""


def _client(
    address: str, own: bool, key: str | None, model: str | None, options: dict[str, Any]
) -> ChatClient:
    from clients.chat.client import ChatClient

    client = ChatClient(address, None if own else key, model, options)
    client.choose_model()
    return client


def _converse(
    target: str | None, url: str | None, arguments: list[str], wishes: Wishes, connect: Connect
) -> None:
    """Raises ServerFault, OwnServerFault, ConnectionRefusedError and what the terminal raises."""
    if url is not None and target is not None:
        fail("give a server's address or a model, not both")
    address = url or (target if target is not None and _is_url(target) else None)
    if address is not None:
        if arguments:
            fail(f"{arguments[0]} is for a server that this command starts; {address} runs already")
        return _talk(connect(address, False), wishes)
    if target is None and not arguments:
        with contextlib.suppress(ConnectionRefusedError):
            return _talk(connect(DEFAULT_URL, False), wishes)
    from clients.chat.serving import own_server

    with own_server([*([target] if target else []), *arguments]) as own:
        _talk(connect(own, True), wishes)


def _talk(client: ChatClient, wishes: Wishes) -> None:
    from clients.chat.session import Session, answer_once

    if wishes.prompt is not None:
        answer_once(client, wishes.system, wishes.prompt)
    elif sys.stdin.isatty():
        Session(client, wishes.system).run()
    else:
        answer_once(client, wishes.system, sys.stdin.read())


def _is_url(text: str) -> bool:
    """True for an address with its scheme, unless it links to a model on the hub, and for HOST:PORT; `llama3.2:1b` is a model."""
    from server.hub import hub_name

    if hub_name(text) is not None:
        return False
    port = text.rpartition(":")[2].partition("/")[0]
    return text.startswith(("http://", "https://")) or (
        port.isdigit() and port != text and not Path(text).exists()
    )


@contextlib.contextmanager
def _ended_in_one_line(address: str | None) -> Iterator[None]:
    """Turn what ends a conversation into one line and an exit code."""
    from clients.chat.client import ServerFault
    from clients.own_server import OwnServerFault, Unserved

    try:
        yield
    except ConnectionRefusedError:
        fail(f"no server answers at {address}: check the address, or name a model to start one", 1)
    except Unserved as error:
        fail(str(error))
    except (ServerFault, OwnServerFault) as error:
        fail(str(error), 1)
    except OSError as error:  # of stdout: what the network does is a ServerFault
        lost_output(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
