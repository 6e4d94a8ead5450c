"""The first prompt of each client as `cohort launch` starts it, in characters and in tokens of two models.

    python -m tests.agents.first_prompts

writes `recorded/first_prompts.json`, by which `cohort launch` counts. A client's prompt depends on how it is started: Claude Code
sends half as much to a model whose name it does not know. Needs the models of tools/real_models.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from clients.launch.clients import CLIENTS, Launch, Target, output_limit
from clients.launch.sample import SAMPLE
from engine.text.tokenizer import Tokenizer
from tests.agents.clients import AGENTS, Agent
from tests.agents.recording import RECORDED
from tests.agents.scripted import CONTEXT
from tests.agents.sessions import Session, play
from tools.real_models import directory

RECORD = RECORDED / "first_prompts.json"
MODEL = "scripted"
LARGE = 400_000


_PRINTS = {
    "claude": ("-p", "{prompt}", "--allowedTools", "Read"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{prompt}"),
    "opencode": ("run", "{prompt}"),
    "qwen": ("-y", "{prompt}"),
}
"""What has each client answer one prompt and end."""


def as_launched(agent: Agent, launch: Launch) -> Agent:
    """The same client with the environment and arguments of `cohort launch` in place of those of the tests."""
    own = {
        name: value
        for name, value in agent.variables.items()
        if "{url}" not in value and "OPENAI" not in name
    }
    own.pop("QWEN_CODE_MAX_OUTPUT_TOKENS", None)
    variables = {name: _literal(value) for name, value in launch.variables.items()}
    words = tuple(map(_literal, launch.words(())))
    return replace(
        agent,
        arguments=(*words, *_PRINTS[agent.name]),
        variables={**own, **variables},
        files=_quiet_files(agent),
    )


def _literal(text: str) -> str:
    """For str.format, which fills in a test's own."""
    return text.replace("{", "{{").replace("}", "}}")


def _quiet_files(agent: Agent) -> Any:
    """What keeps a client from asking for other addresses and for permissions; its provider comes from the launch."""

    def files(url: str) -> dict[str, str]:
        if agent.name == "opencode":
            return {".config/opencode/opencode.json": json.dumps({"permission": "allow"})}
        if agent.name == "codex":
            text = "check_for_update_on_startup = false\n[analytics]\nenabled = false\n[feedback]\nenabled = false\n"
            return {".codex/config.toml": text}
        return agent.files(url)

    return files


def launch_of(name: str, url: str, context: int, room: int) -> Launch:
    """What `cohort launch` gives a client whose prompt leaves `room` of the context."""
    return CLIENTS[name].launch(Target(url, None, MODEL, context, output_limit(room)))


async def session(name: str, script: str, context: int = CONTEXT, room: int = LARGE) -> Session:
    """A session of a client that is started as `cohort launch` starts it."""
    agent = AGENTS[name]
    with tempfile.TemporaryDirectory() as folder:
        return await play(
            agent,
            script,
            Path(folder),
            context,
            lambda url: as_launched(agent, launch_of(name, url, context, room)),
        )


async def main(names: list[str]) -> None:
    tokenizers = {one: Tokenizer.load(directory(one)) for one in ("smollm2", "gemma3")}

    def count(text: str) -> dict[str, int]:
        return {one: len(tokenizer.encode(text)) for one, tokenizer in tokenizers.items()}

    prompts: dict[str, Any] = json.loads(RECORD.read_text("utf-8"))["prompts"] if RECORD.exists() else {}
    for name in names:
        agent = AGENTS[name]
        played = await session(name, "text")
        prompt = played.asked[0].prompt or ""
        prompts[name] = {"version": agent.version, "characters": len(prompt), "tokens": count(prompt)}
        if name == "claude":
            with tempfile.TemporaryDirectory() as folder:
                known = (await play(agent, "text", Path(folder))).asked[0].prompt or ""
            prompts[name]["known_name"] = {"characters": len(known), "tokens": count(known)}
        print(name, prompts[name])
    record = {"sample": {"characters": len(SAMPLE), "tokens": count(SAMPLE)}, "prompts": prompts}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(AGENTS)))
