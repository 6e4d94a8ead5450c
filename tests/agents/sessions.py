"""A client at work: one session of a script, from its start to its end, and everything that it sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.agents.clients import Agent
from tests.agents.scripted import CONTEXT, NOTES, SMALL_CONTEXT, Exchange, scripted_server

PROMPT = "What does note.txt say? play {script}."
WITHIN = 180.0
"""Seconds that a client may take: most of them are its own start."""


@dataclass
class Session:
    """`output`: what the client printed, on both streams. `exchanges`: all that the server was asked."""

    agent: Agent
    script: str
    folder: Path
    code: int
    output: str
    exchanges: list[Exchange]

    @property
    def asked(self) -> list[Exchange]:
        """Requests of the session itself, in order: those that offer the tools that the first of them does. Clients send others
        beside it, for a title or a memory."""
        offers = [one for one in self.exchanges if isinstance(one.body, dict) and one.body.get("tools")]
        return [one for one in offers if one.body["tools"] == offers[0].body["tools"]]


async def play(
    agent: Agent,
    script: str,
    folder: Path,
    context: int | None = None,
    started: Callable[[str], Agent] | None = None,
) -> Session:
    """Let the client ask for `script`; `folder` becomes its home, and a folder in it the place where it works. `context`: tokens
    of the model's. `started`: the client for a server at a URL, if it is to be started in another way."""
    work = folder / "project"
    work.mkdir()
    for name, text in NOTES.items():
        (work / name).write_text(text, "utf-8")
    context = context or (SMALL_CONTEXT if script == "overlong" else CONTEXT)
    async with scripted_server(lambda name: agent.reads(str(work / name)), context) as (url, exchanges):
        one = agent if started is None else started(url)
        process = await asyncio.create_subprocess_exec(
            *one.command(PROMPT.format(script=script)),
            cwd=work,
            env=one.environment(url, folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), WITHIN)
        except BaseException:
            process.kill()
            await process.wait()
            raise
    return Session(agent, script, folder, process.returncode or 0, output.decode(errors="replace"), exchanges)
