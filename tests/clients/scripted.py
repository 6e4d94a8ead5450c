"""A server whose model says what is asked for: `python -m tests.clients.scripted` prints its URL and ends with its input.

The conversation names a script: "play reasoning". So clients meet what a small model does not do on demand: reasoning, two calls,
arguments that are no JSON, a silence, a failure.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable

from engine.errors import ExecutorFailed
from engine.text.generation import TextDelta, TextRequest
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from tests.server.fakes import House, Step, spells
from tests.server.http.raw_http import serving

SILENCE = 10.5
"""Seconds: a little more than the server lets a client wait for a sign of life."""
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "%s"}}</tool_call>'
TEXTS = {
    "reasoning": "<think>\nLet me see.\n</think>\n\nDone.",
    "reasoning and calls": "<think>Hm.</think>Let me look. " + CALL % "Paris" + "\n" + CALL % "Rome",
    "odd arguments": '<tool_call>{"name": "get_weather", "arguments": {"city": "Par\nis", "day": True, "x": \'y\'}}</tool_call>',
    "nothing": "",
}
_PLAY = re.compile(rb"play ([a-z ]+)\.")


def script(request: TextRequest) -> Iterable[Step]:
    """What the prompt asks for; without a word of a script, "Hello."."""
    found = _PLAY.findall(bytes(one for one in request.prompts[0] if one < 256))
    name = found[-1].decode() if found else ""
    match name:
        case "silence":
            event = asyncio.Event()
            asyncio.get_running_loop().call_later(SILENCE, event.set)
            return [event, TextDelta(0, "Here ", (1,)), TextDelta(0, "I am.", (2,), finish_reason="stop")]
        case "failure":
            return [TextDelta(0, "Well", (1,)), ExecutorFailed("the executor died")]
        case "too much":
            return [TextDelta(0, "On and on", (1,)), TextDelta(0, "", (2,), finish_reason="length")]
        case "half a call":
            return spells((CALL % "Paris").partition("ris")[0], finish="length", size=7)(request)
    return spells(TEXTS.get(name, "Hello."), size=5)(request)


async def main() -> None:
    """Serve until the input ends."""
    house = House(notation=ModelNotation(reasoning=REASONING["qwen3"]))
    house.engine.script = script
    async with serving(house) as running:
        print(running.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    house.state.threads.close()


if __name__ == "__main__":
    asyncio.run(main())
