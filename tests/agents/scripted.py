"""A server whose model follows a script, for clients that are programs of their own, and a record of what they sent.

The user's text names the script: "play call.". The model's answer to each request of a session is the next line of the script: a
request is as far in the script as there are answers behind the user's text. A request without tools is an errand of the client,
such as a title for the session, and is answered with a few words.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import FIELD, ContextLengthExceeded, ExecutorFailed
from engine.text.generation import TextDelta, TextRequest
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from server.answer.tools.hermes import Hermes
from tests.server.fakes import FakeTextEngine, House, Step, spells
from tests.server.http.raw_http import serving

CONTEXT = 400_000
"""Tokens, which are bytes: the largest first prompt of the clients has 150,000."""
SMALL_CONTEXT = 4_000
"""Less than the first prompt of any client."""
TEMPLATE = (
    "{% if tools %}[tools]{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}[/tools]{% endif %}"
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}[/{{ m.role }}]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)
NOTES = {"note.txt": "The bird is a blue heron.\n", "other.txt": "The tree is a grey alder.\n"}
"""The files in the folder in which a client works. What they say is in no script: a client that writes it has read it."""
ANSWER = "Both turns are done."
ERRAND = "A short title"
_PLAY = re.compile(r"play ([a-z ]+)\.")

Call = Callable[[str], dict[str, Any]]
"""The call of a client's own tool that reads one of NOTES: {"name", "arguments"}."""


def scripts(reads: Call) -> dict[str, list[str]]:
    """What the model says to each request of a session, by the name of the script."""

    def call(name: str) -> str:
        return f"<tool_call>{json.dumps(reads(name))}</tool_call>"

    note, other = NOTES
    return {
        "text": [ANSWER],
        "call": [f"I read the note first. {call(note)}", ANSWER],
        "parallel calls": [f"I read both. {call(note)}\n{call(other)}", ANSWER],
        "reasoning": [
            f"<think>The note will tell.</think>I read it. {call(note)}",
            f"<think>I know it now.</think>{ANSWER}",
        ],
        "error": [f"I read the note first. {call(note)}", ANSWER],
        "overlong": [ANSWER],
    }


@dataclass
class Exchange:
    """A request and how the server answered it: `prompt` is what the model was shown, None if it was not asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0
    ignored: str = ""
    prompt: str | None = None


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""The one that is being answered. The task that generates begins within it."""


@dataclass
class Model:
    """Plays the scripts. In the script "error" the first answer to the result of the call fails after its first word."""

    scripts: dict[str, list[str]]
    failures: int = 0

    def __call__(self, request: TextRequest) -> Iterable[Step]:
        prompt = bytes(request.prompts[0]).decode()
        if (exchange := _current.get()) is not None:
            exchange.prompt = prompt
        found = list(_PLAY.finditer(prompt))
        if not found or "[tools]" not in prompt:
            return spells(ERRAND, size=5)(request)
        name, behind = found[-1][1], prompt[found[-1].end() :]
        turn = behind.count("[/assistant]")
        if name == "error" and turn and not self.failures:
            self.failures += 1
            return [TextDelta(0, "Well", (1,)), ExecutorFailed("the executor died")]
        script = self.scripts[name]
        return spells(script[min(turn, len(script) - 1)], size=5)(request)


class _Engine(FakeTextEngine):
    """Refuses what is longer than `context`, as the engine's admission does."""

    def __init__(self, context: int, script: Model) -> None:
        super().__init__(script)
        self.context = context

    def start(self, request: TextRequest) -> Any:
        length, output = len(request.prompts[0]), request.max_tokens or 1
        if length + output > self.context:
            said = f"this model's maximum context length is {self.context} tokens: {length} and {FIELD} is {output}"
            raise ContextLengthExceeded(said, "max_tokens")
        return super().start(request)


class Recorder:
    """ASGI middleware: keeps each exchange with the body that came."""

    def __init__(self, app: Any, exchanges: list[Exchange]) -> None:
        self.app, self.exchanges = app, exchanges

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        exchange = Exchange(scope["method"], path, headers, None)
        self.exchanges.append(exchange)
        came = bytearray()
        _current.set(exchange)

        async def heard() -> Any:
            message = await receive()
            came.extend(message.get("body", b""))
            return message

        async def said(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                answered = {name.decode().lower(): value.decode() for name, value in message["headers"]}
                exchange.ignored = answered.get("x-cohort-ignored", "")
            await send(message)

        try:
            await self.app(scope, heard, said)
        finally:
            exchange.body = json.loads(came) if came else None


def scripted_house(reads: Call, context: int = CONTEXT) -> House:
    """A server over a model that plays the scripts, under any name that begins with "claude-" too."""
    house = House(
        engine=_Engine(context, Model(scripts(reads))),
        template=TEMPLATE,
        notation=ModelNotation(Hermes("hermes"), REASONING["qwen3"]),
        names=("scripted",),
    )
    assert house.state.model is not None
    house.state.model = replace(house.state.model, max_model_len=context)
    house.state.aliases = (("claude-*", "scripted"),)
    house.state.unread_parts = "placeholder"
    return house


def shared_prefix(first: str, second: str) -> int:
    """Characters that both begin with: what a prefix cache finds of a prompt that came after another."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(first), len(second)))


@asynccontextmanager
async def scripted_server(reads: Call, context: int = CONTEXT) -> AsyncIterator[tuple[str, list[Exchange]]]:
    """The URL of such a server, and what it is sent."""
    house = scripted_house(reads, context)
    exchanges: list[Exchange] = []
    house.app.add_middleware(Recorder, exchanges=exchanges)
    async with serving(house) as running:
        yield running.url, exchanges
    house.state.threads.close()
