"""docs/agents.md: its versions are the pinned ones, and its prompts and sessions are those that were recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.agents.clients import AGENTS
from tests.agents.recording import RECORDED

PAGE = (Path(__file__).parents[2] / "docs/agents.md").read_text("utf-8")
NAMES = {"claude": "Claude Code", "codex": "Codex", "opencode": "OpenCode", "qwen": "Qwen Code"}


@pytest.mark.parametrize("name", AGENTS)
def test_versions_are_those_that_are_tried(name: str) -> None:
    versions = re.findall(rf"{NAMES[name]} (\d+\.\d+\.\d+)", PAGE)
    assert versions and set(versions) == {AGENTS[name].version}


@pytest.mark.parametrize("name", AGENTS)
def test_prompts_are_those_that_were_measured(name: str) -> None:
    record = json.loads((RECORDED / "first_prompts.json").read_text("utf-8"))["prompts"][name]
    record = record.get("known_name", record)
    row = re.search(rf"^\| {NAMES[name]} [\d.]+ \| [^|]+\| \d+ \| ([\d,]+), ([\d,]+) \|", PAGE, re.MULTILINE)
    assert row is not None
    characters, tokens = (int(one.replace(",", "")) for one in row.groups())
    assert (characters, tokens) == (round(record["characters"], -2), round(record["tokens"]["smollm2"], -2))


@pytest.mark.parametrize("name", AGENTS)
def test_sessions_with_a_trained_model_are_those_that_were_recorded(name: str) -> None:
    session = json.loads((RECORDED / "trained.json").read_text("utf-8"))["sessions"][name]
    last = session["requests"][-1]
    row = (
        f"| {NAMES[name]} {session['version']} | {len(session['requests'])} | {last['prompt_tokens']:,} | "
        f"{last['output_tokens']} | `{last['finish']}` | {session['seconds']} |"
    )
    assert row in PAGE, row
