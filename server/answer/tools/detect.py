"""Which notation of tool calls a chat template shows: found by rendering calls and reading them back, never guessed.

    shown in history    the template writes a known call; the one parser that reads exactly this call back names the notation
    shown in prose      no call is written, but the prompt with tools on offer says how one is to be: the form is compared
    neither             a token that one notation alone has; else unknown

A template that writes calls in a form that no parser here reads is unknown, whatever else it mentions: `<tool_call>` alone is
no evidence, since Qwen3-Coder, GLM and Hunyuan put other things inside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from typing import Any

from engine.errors import InvalidRequest
from server.answer.tools import llama3_json, mistral
from server.answer.tools.events import CallArguments, CallBegun
from server.answer.tools.hermes import HermesParser
from server.answer.tools.llama3_json import Llama3JsonParser
from server.answer.tools.mistral import MistralParser
from server.answer.tools.parser import ToolParser
from server.templates.message_forms import TOOL
from server.templates.template import ChatTemplate

_NAME = "cohort_call"
"""No function on offer has it: where it stands, a call is written."""
_ARGUMENTS = {"city": "Rome"}
_TEXT = "\u2603 cohortprobe"
"""An answer of text. Its first character begins no notation."""
_PARSERS: Mapping[str, type[ToolParser]] = {
    "mistral": MistralParser,
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
}
_KEY = r"""\{\s*\\?["']%s\\?["']\s*:"""
_PROSE: Mapping[str, re.Pattern[str]] = {
    "mistral": re.compile(
        r"\[TOOL_CALLS\]\s*(?:\[\s*" + _KEY % "(?:name|arguments)" + r"|[^\s\[\]]+\[ARGS\])"
    ),
    "hermes": re.compile(r"<tool_call>\s*" + _KEY % "(?:name|arguments)"),
    "llama3_json": re.compile(_KEY % "name" + r"""[^{}"']*,\s*\\?["']parameters\\?["']\s*:[^{}"']*\}"""),
}
"""How prompts say it, such as `<tool_call>` `{"name": <function-name>, ...` or `{"name": function name, "parameters": ...}`."""
_REASONING = re.compile(r"\s*(?:<think>.*?</think>|\[THINK\].*?\[/THINK\])", re.DOTALL)


def detected(template: ChatTemplate, tokens: Container[str]) -> str | None:
    """The name of the notation, None if it is unknown. `tokens`: those added to the tokenizer's vocabulary. May take long, as
    any template may: call it behind a fence."""
    if shown := _shown_calls(template):
        return next((name for name in _PARSERS if any(_reads_back(name, one) for one in shown)), None)
    prompt = _rendered(template, [_user()], [TOOL]) or ""
    if found := [name for name, form in _PROSE.items() if form.search(prompt)]:
        return found[0] if len(found) == 1 else None
    return "mistral" if mistral.OPEN in tokens else None


def _shown_calls(template: ChatTemplate) -> list[str]:
    """What the template writes of a call, from where an answer begins, with a function on offer and without; nothing where it
    writes none. An answer begins where one of text does; some templates write none, and others end a prompt in the same way."""
    shown = []
    for tools in ([TOOL], None):
        for after_text, after_call in (([], []), ([_user()], [_result(), _user()]), ([_user()], [_result()])):
            call = _rendered(template, [_user(), _call(), *after_call], tools)
            if call is None or _NAME not in call:
                continue
            text = (
                _rendered(template, [_user(), {"role": "assistant", "content": _TEXT}, *after_text], tools)
                or ""
            )
            befores = [text[: text.index(_TEXT)]] if _TEXT in text else []
            befores += [_rendered(template, [_user()], tools, begins) or "" for begins in (True, False)]
            shown += [call[_beginning(before, call) :] for before in befores if before]
    return [one for one in shown if _NAME in one]


def _beginning(before: str, call: str) -> int:
    """Where the answer begins in a prompt with a call, given what stands before an answer of text. Where the two differ
    sooner, by a block of reasoning for one, no tag is cut."""
    common = next(
        (at for at, (one, other) in enumerate(zip(before, call, strict=False)) if one != other), len(before)
    )
    if common == len(before):
        return common
    opened = max(call.rfind(one, 0, common) for one in "<[")
    closed = max(call.rfind(one, 0, common) for one in ">]")
    return opened if opened > closed else common


def _reads_back(name: str, shown: str) -> bool:
    """Whether this notation's parser finds the call, and nothing that it would leave in the text before it."""
    parser = _PARSERS[name](frozenset({_NAME}))
    events = [
        *parser.push(_REASONING.sub("", shown, count=1) if _REASONING.match(shown) else shown),
        *parser.finish(),
    ]
    begun = next((place for place, event in enumerate(events) if isinstance(event, CallBegun)), None)
    if begun is None or any(str(event).strip() for event in events[:begun]):
        return False
    if name == "llama3_json" and not _marked_as_llama(shown):
        return False
    arguments = "".join(
        event.text for event in events if isinstance(event, CallArguments) and event.index == 0
    )
    first = events[begun]
    return isinstance(first, CallBegun) and first.name == _NAME and _decoded(arguments) == _ARGUMENTS


def _marked_as_llama(shown: str) -> bool:
    """A bare object is a call of Llama's if it has Llama's key, or its tag: with "arguments", others write one too."""
    return '"parameters"' in shown or llama3_json.TAG in shown


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _rendered(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    begins: bool = False,
) -> str | None:
    """The prompt, at whose end an answer `begins`; None where the template refuses it."""
    try:
        return template.prompt(messages, tools, add_generation_prompt=begins)
    except InvalidRequest:
        return None


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "Hi"}


def _call() -> dict[str, Any]:
    function = {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _result() -> dict[str, Any]:
    return {"role": "tool", "content": "Sunny.", "name": _NAME, "tool_call_id": "call00001"}
