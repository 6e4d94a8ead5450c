"""The notation of tool calls that a chat template shows. It is found by rendering calls and reading them back, never guessed.

    shown in history    the template writes a known call; the one parser that reads exactly this call back names the notation
    shown in prose      no call is written, but the prompt with tools describes the form of a call, which is compared
    neither             a token that only one notation has; else unknown

If a template writes calls in a form that no parser here reads, its notation is unknown, even if it mentions a known tag:
`<tool_call>` alone is no evidence, since Qwen3-Coder, GLM and Hunyuan put other content inside it.
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
"""Function name that no offered function has: its place in a prompt shows a written call."""
_ARGUMENTS = {"city": "Rome"}
_TEXT = "\u2603 cohortprobe"
"""Text of a plain answer. Its first character begins no notation."""
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
"""Forms in which prompts describe a call: `<tool_call>` `{"name": <function-name>, ...`, `{"name": function name, ...}`."""
_REASONING = re.compile(r"\s*(?:<think>.*?</think>|\[THINK\].*?\[/THINK\])", re.DOTALL)


def detected(template: ChatTemplate, tokens: Container[str]) -> str | None:
    """The name of the notation, None if it is unknown. `tokens`: those added to the tokenizer's vocabulary. Rendering may take
    long: call it on a fenced thread."""
    if shown := _shown_calls(template):
        return next((name for name in _PARSERS if any(_reads_back(name, one) for one in shown)), None)
    prompt = _rendered(template, [_user()], [TOOL]) or ""
    if found := [name for name, form in _PROSE.items() if form.search(prompt)]:
        return found[0] if len(found) == 1 else None
    return "mistral" if mistral.OPEN in tokens else None


def _shown_calls(template: ChatTemplate) -> list[str]:
    """The calls that the template writes, from the beginning of the answer, with an offered function and without; empty if it
    writes none. The answer begins where a text answer does; some templates write none, and others end every prompt alike."""
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
    """Index where the answer begins in a prompt with a call, given the prompt before a text answer. If the two differ earlier,
    for example by a block of reasoning, no tag is cut in two."""
    common = next(
        (at for at, (one, other) in enumerate(zip(before, call, strict=False)) if one != other), len(before)
    )
    if common == len(before):
        return common
    opened = max(call.rfind(one, 0, common) for one in "<[")
    closed = max(call.rfind(one, 0, common) for one in ">]")
    return opened if opened > closed else common


def _reads_back(name: str, shown: str) -> bool:
    """Whether this notation's parser finds the call and leaves no text before it."""
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
    """Whether a bare object is a Llama call: it has Llama's key or tag. Other models write bare objects with "arguments"."""
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
    """The prompt, which ends where an answer `begins`; None if the template refuses it."""
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
