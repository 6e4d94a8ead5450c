"""What a client sent, as a fixture: nothing of the machine that recorded it, and no prose of others.

    python -m tests.agents.recording codex claude

plays the recorded scripts with the clients and writes `recorded/NAME.json`. A long text becomes its length and a digest, so that
texts that were equal stay equal; names and schemas of tools stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.agents.clients import AGENTS, Agent
from tests.agents.scripted import NOTES
from tests.agents.sessions import Session, play

RECORDED = Path(__file__).with_name("recorded")
SCRIPTS = ("text", "call", "parallel calls", "reasoning", "error")
TOOLS = "the tools of every session"
"""Stands in a body for `tools` of the recording."""
KEPT = ("accept", "content-type", "anthropic-version", "anthropic-beta")
"""Headers by which a server could answer differently."""
PLACE = "/place"
_LONGEST = 120
"""Characters of a text that is kept, whatever it is: those of the scripts and of calls are shorter."""
_NUMBERED = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<=[a-z]_)[0-9a-f]{24,32}\b|\b[0-9a-f]{64}\b"
)
"""Identifiers, which become numbers in the order in which they come: what was equal stays equal."""
_REPLACED = (
    (re.compile(r"\b20\d\d-\d\d-\d\d(T[\d:.]+Z?)?"), "2026-01-01"),
    (re.compile(r"Chunk ID: [0-9a-f]+"), "Chunk ID: 000000"),
    (re.compile(r"Wall time: [\d.]+"), "Wall time: 0.0"),
    (re.compile(r"(started_at_unix_ms\W+)\d+"), r"\g<1>0"),
)


def recording(agent: Agent, sessions: list[Session]) -> dict[str, Any]:
    """The fixture of a client."""
    tools = sessions[0].asked[0].body["tools"]
    found: dict[str, Any] = {
        "client": agent.package,
        "version": agent.version,
        "tools": shortened(tools),
        "sessions": {},
    }
    for session in sessions:
        numbers: dict[str, str] = {}
        requests = []
        for one in session.exchanges:
            if one.path.partition("?")[0] != agent.path:
                continue
            body = {**one.body, "tools": TOOLS} if one.body.get("tools") == tools else one.body
            request = {
                "path": one.path,
                "headers": {name: one.headers[name] for name in KEPT if name in one.headers},
                "ignored": one.ignored,
                "body": neutral(shortened(body), str(session.folder), numbers),
            }
            requests.append(request)
        found["sessions"][session.script] = requests
    return found


def shortened(value: Any) -> Any:
    """The same with a placeholder in place of each long text of others."""
    if isinstance(value, dict):
        return {name: shortened(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shortened(one) for one in value]
    if isinstance(value, str) and len(value) > _LONGEST and not _kept(value):
        return f"[{len(value)} characters, {hashlib.sha256(value.encode()).hexdigest()[:8]}]"
    return value


def _kept(text: str) -> bool:
    """Whether a long text is no prose: JSON, reasoning that the server encoded, the result of a call."""
    return text.startswith(("{", "cohort.1.")) or any(note.strip() in text for note in NOTES.values())


def neutral(value: Any, folder: str, numbers: dict[str, str]) -> Any:
    """The same without the folder, identifiers and dates; `numbers` are those that identifiers have got."""
    text = json.dumps(value).replace(folder, PLACE).replace(folder.replace("/", "-"), PLACE.replace("/", "-"))

    def number(found: re.Match[str]) -> str:
        digits = numbers.setdefault(
            found[0], format(len(numbers) + 1, f"0{sum(map(str.isalnum, found[0]))}x")
        )
        taken = iter(digits)
        return "".join("-" if one == "-" else next(taken) for one in found[0])

    text = _NUMBERED.sub(number, text)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return json.loads(text)


async def record(agent: Agent) -> None:
    """Play the sessions and write the fixture."""
    sessions = []
    for script in SCRIPTS:
        with tempfile.TemporaryDirectory() as folder:
            sessions.append(await play(agent, script, Path(folder)))
    RECORDED.mkdir(exist_ok=True)
    text = json.dumps(recording(agent, sessions), indent=1) + "\n"
    (RECORDED / f"{agent.name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or AGENTS:
        asyncio.run(record(AGENTS[name]))
