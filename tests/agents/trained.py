"""One session of each client with a trained model, as `cohort launch` starts it: whether the protocol holds, not whether the
model is able. Gemma 3 270M is too small to do what an agent asks. Its package has no chat template; gemma.jinja writes its turns.

    python -m tests.agents.trained codex claude

writes `recorded/trained.json`: of each request its status, tokens and how it ended. Two cores need one to three minutes for a
client.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clients.launch.clients import CLIENTS, Target
from tests.agents.clients import AGENTS
from tests.agents.first_prompts import as_launched
from tests.agents.recording import RECORDED
from tests.agents.scripted import NOTES
from tests.e2e.server_process import ServerProcess
from tools.real_models import gguf_file

RECORD = RECORDED / "trained.json"
TEMPLATE = Path(__file__).with_name("gemma.jinja")
MODEL = "gemma-3-270m"
CONTEXT = 32_768
OUTPUT = 256
"""Tokens of an answer, for the clients that limit it: a small model may not come to an end by itself. Penalties help it there."""
PROMPT = "Read the file note.txt and tell me which bird it names."
WITHIN = 1_500.0
SERVED = (
    "--served-model-name", MODEL, "--max-model-len", str(CONTEXT), "--log-format", "json", "--unread-parts", "placeholder",
    "--override-generation-config", '{"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.5}',
    "--chat-template", str(TEMPLATE),
)  # fmt: skip
_GENERATES = re.compile(r"/v1/(messages|responses|chat/completions)$")
_KEPT = ("status", "prompt_tokens", "cached_tokens", "output_tokens", "finish")


async def play(name: str) -> dict[str, Any]:
    """The client's exit code, how much it printed, and its requests. Raises TimeoutError."""
    agent = AGENTS[name]
    agent.ensure()
    with tempfile.TemporaryDirectory() as place:
        folder, home = Path(place) / "server", Path(place) / "home"
        work = home / "project"
        folder.mkdir()
        work.mkdir(parents=True)
        for note, text in NOTES.items():
            (work / note).write_text(text, "utf-8")
        with ServerProcess([str(gguf_file("gemma3")), *SERVED], folder, ready_within=300) as server:
            started = time.monotonic()
            target = Target(server.url, None, MODEL, CONTEXT, OUTPUT)
            one = as_launched(agent, CLIENTS[name].launch(target))
            process = await asyncio.create_subprocess_exec(
                *one.command(PROMPT),
                cwd=work,
                env=one.environment(server.url, home),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                output, _ = await asyncio.wait_for(process.communicate(), WITHIN)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            seconds = time.monotonic() - started
            log = server.log()
    return {
        "version": agent.version,
        "exit_code": process.returncode,
        "seconds": round(seconds),
        "requests": requests(log),
        "printed_characters": len(output.decode(errors="replace").strip()),
    }


def requests(log: str) -> list[dict[str, Any]]:
    """What the access log tells of each request that generated."""
    found = []
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        _, _, path = str(entry.get("event", "")).partition(" ")
        if _GENERATES.search(path):
            seconds = round(float(entry.get("ms", 0)) / 1000, 1)
            found.append(
                {"path": path, **{name: entry[name] for name in _KEPT if name in entry}, "seconds": seconds}
            )
    return found


async def main(names: list[str]) -> None:
    for name in names:
        result = await play(name)
        record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
        record.update(model="Gemma 3 270M, Q4_K_M, by GGUF file", context=CONTEXT, question=PROMPT)
        record.setdefault("sessions", {})[name] = result
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        print(name, json.dumps(result, indent=1))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(AGENTS)))
