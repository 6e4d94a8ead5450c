"""`cohort launch`: find the server and its model, then become the client."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import typer

from server.commands.common import fail
from server.commands.options import DEFAULT_URL, Text, flag

if TYPE_CHECKING:
    from clients.chat.client import ChatClient
    from clients.launch.clients import Client, Target

_OURS = "cohort"
"""`owned_by` of this server's models."""


def launch(
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="claude, codex, opencode or qwen.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Arguments for the client, behind --.", show_default=False),
    ] = None,
    url: Annotated[Text, flag(f"Address of the running server [{DEFAULT_URL}].", "--url")] = None,
    model: Annotated[Text, flag("Name of the model [the first that the server lists].", "--model")] = None,
    api_key: Annotated[Text, flag("The server's key [COHORT_API_KEY].", "--api-key")] = None,
    force: Annotated[
        bool, flag("Start it also where its first prompt leaves no room to work.", "--force")
    ] = False,
) -> None:
    """Start an agent against a running server.

    The agent's first prompt is counted against the model's context, and limits are set so that prompts and answers fit it.

    The client gets the server's address and model by its environment, and Codex by -c. Its configuration files stay as they
    are."""
    from clients.launch.clients import CLIENTS
    from server.settings.foreign.keys import client_key

    if client not in CLIENTS:
        names = list(CLIENTS)
        fail(f"there is no client {client!r}: it is one of {', '.join(names[:-1])} and {names[-1]}")
    chosen = CLIENTS[client]
    path = shutil.which(chosen.name)
    if path is None:
        fail(f"{chosen.name} is not installed: npm install -g {chosen.package}", 1)
    key = api_key or client_key(os.environ)
    target, warning = _target(chosen, url or DEFAULT_URL, key, model, force)
    if warning:
        print(f"cohort: warning: {warning}", file=sys.stderr)
    _become(path, chosen, target, arguments or ())


def _target(client: Client, url: str, key: str | None, model: str | None, force: bool) -> tuple[Target, str]:
    """The model that is asked for, or the server's first, with limits for the client, and a warning or "". Ends the process with
    one line if the model cannot serve the client."""
    from clients.chat.client import ChatClient, ServerFault
    from clients.launch.clients import Target
    from clients.launch.room import NoRoom, prompt_tokens, with_limits

    try:
        server = ChatClient(url, key, model, {})
        card = _card(server, model)
        name = str(card["id"])
        if card.get("generates") is False:
            fail(f"{name} generates no tokens: it makes embeddings only", 1)
        if card.get("owned_by") == _OURS:  # another server does not tell
            _check_tools(server, client, name)
        context = card.get("max_model_len")
        target = Target(server.address, key, name, context if isinstance(context, int) else None)
        return with_limits(client, target, prompt_tokens(server, client, name), force=force)
    except ConnectionRefusedError:
        fail(
            f"no server answers at {url}: start one with cohort serve MODEL, or give its address with --url",
            1,
        )
    except (ServerFault, NoRoom) as error:
        fail(str(error), 1)


def _card(server: ChatClient, model: str | None) -> Mapping[str, Any]:
    """The server's description of the model. Raises ServerFault and ConnectionRefusedError."""
    from clients.chat.client import ServerFault

    if model is not None:
        try:
            card = server.get(f"/v1/models/{quote(model)}")
        except ServerFault:  # vLLM and llama.cpp have the list alone
            card = next((one for one in _cards(server) if one.get("id") == model), None)
            if card is None:
                raise
    else:
        card = next(iter(_cards(server)), None)
    if not isinstance(card, dict) or not isinstance(card.get("id"), str):
        raise server.unlike_openai()
    return card


def _cards(server: ChatClient) -> list[Mapping[str, Any]]:
    """All that the server lists. Raises ServerFault and ConnectionRefusedError."""
    listed = server.get("/v1/models")
    cards = listed.get("data") if isinstance(listed, dict) else None
    return [one for one in cards if isinstance(one, dict)] if isinstance(cards, list) else []


def _check_tools(server: ChatClient, client: Client, model: str) -> None:
    """Ends the process with one line if calls of tools would stay text. Raises ServerFault and ConnectionRefusedError."""
    match server.get("/v1/executors"):
        case {"data": [{"notation": {"tool_calls_stay_text": True}}, *_]}:
            pass
        case _:
            return
    fail(
        f"{model} has no tool format that the server knows, so {client.name} could not work with it: start the server with "
        "--tool-call-parser NAME, or serve another model",
        1,
    )


def _become(path: str, client: Client, target: Target, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the client."""
    from server.settings.foreign.keys import server_secrets

    launched = client.launch(target)
    # Agents run commands that a model writes: they get the key in use, and no other one of the server.
    removed = {*launched.removed, "COHORT_API_KEY", "COHORT_ADMIN_KEY", "COHORT_METRICS_KEY"}
    removed |= set(server_secrets(os.environ))
    environment = {name: value for name, value in os.environ.items() if name not in removed}
    if target.key is not None:
        environment["COHORT_API_KEY"] = target.key
    print(f"cohort: {client.name} with {target.model} at {target.url}", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execve(path, [client.name, *launched.words(arguments)], {**environment, **launched.variables})
    except OSError as error:
        fail(f"{path} does not start: {error.strerror or error}", 1)
