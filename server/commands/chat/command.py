"""`cohort chat`: a conversation in the terminal with a running server. See session.py for what happens in it."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

from server.commands.common import INTERRUPTED, fail, lost_output, take_interrupts
from server.commands.options import DEFAULT_URL, Text, flag

Real = float | None


def chat(
    url: Annotated[Text, flag(f"The server's address [{DEFAULT_URL}].", "--url")] = None,
    model: Annotated[Text, flag("Name of the model [the first that the server has].", "--model")] = None,
    system: Annotated[Text, flag("System prompt.", "--system", metavar="TEXT")] = None,
    api_key: Annotated[Text, flag("The server's key [COHORT_API_KEY].", "--api-key")] = None,
    temperature: Annotated[Real, flag("Sampling temperature [the model's].", "--temperature")] = None,
    top_p: Annotated[Real, flag("Nucleus sampling [the model's].", "--top-p")] = None,
    top_k: Annotated[
        int | None, flag("Sample from the so many likeliest tokens [the model's].", "--top-k")
    ] = None,
    min_p: Annotated[
        Real, flag("Leave out tokens less likely than this part of the likeliest [the model's].", "--min-p")
    ] = None,
    max_tokens: Annotated[
        int | None, flag("Tokens an answer may have [what the context leaves].", "--max-tokens")
    ] = None,
    seed: Annotated[int | None, flag("Seed of sampling [random].", "--seed")] = None,
) -> None:
    """Chat with a running server. Piped text is one message, whose answer alone is printed.

    In a terminal: /help tells the commands, Ctrl-C stops an answer, Ctrl-D leaves."""
    from server.commands.chat.client import ChatClient, ServerFault
    from server.commands.chat.session import Session, answer_once

    key = api_key or os.environ.get("COHORT_API_KEY", "").partition(",")[0].strip() or None
    values = {
        "temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "max_tokens": max_tokens,
        "seed": seed,
    }  # fmt: skip
    options = {name: value for name, value in values.items() if value is not None}
    take_interrupts()
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        client = ChatClient(url or DEFAULT_URL, key, model, options)
        client.choose_model()
        if sys.stdin.isatty():
            Session(client, system).run()
        else:
            answer_once(client, system, sys.stdin.read())
    except ConnectionRefusedError:
        where = url or DEFAULT_URL
        advice = "check --url" if url else "start one with `cohort serve`, or give its address with --url"
        fail(f"no server answers at {where}: {advice}", 1)
    except ServerFault as error:
        fail(str(error), 1)
    except OSError as error:  # of stdout: what the network does is a ServerFault
        lost_output(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
