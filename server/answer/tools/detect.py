"""The notation of tool calls that a chat template shows. It is found by rendering calls and reading them back, never guessed.

    shown in history    the template writes a known call; the one parser that reads exactly this call back names the notation
    shown in prose      no call is written, but the prompt with tools describes the form of a call, which is compared
    neither             tokens that only one notation has; else unknown

If a template writes calls in a form that no parser here reads, its notation is unknown, even if it mentions a known tag:
`<tool_call>` alone is no evidence: Hermes, Qwen3-Coder, GLM and Hunyuan each put other content inside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from typing import Any

from engine.errors import InvalidRequest
from server.answer.harmony.marks import CONSTRAIN
from server.answer.tools import deepseek, json_lists, kimi_k2, llama3_json, mistral, pythonic, registry
from server.answer.tools.events import CallArguments, CallBegun
from server.templates.message_forms import TOOL
from server.templates.template import ChatTemplate

_NAME = "cohort_call"
"""Function name that no offered function has: its place in a prompt shows a written call."""
_IDS = ("call00001", f"functions.{_NAME}:0")
_ARGUMENTS = {"city": "Rome"}
_TEXT = "\u2603 cohortprobe"
"""Text of a plain answer. Its first character begins no notation."""
_PHI_CLOSE = json_lists.TAGS["phi4_mini_json"][1]
_KEY = r"""\{\s*\\?["']%s\\?["']\s*:"""
_PROSE: Mapping[str, re.Pattern[str]] = {
    "mistral": re.compile(
        r"\[TOOL_CALLS\]\s*(?:\[\s*" + _KEY % "(?:name|arguments)" + r"|[^\s\[\]]+\[ARGS\])"
    ),
    "hermes": re.compile(r"<tool_call>\s*" + _KEY % "(?:name|arguments)"),
    "llama3_json": re.compile(_KEY % "name" + r"""[^{}"']*,\s*\\?["']parameters\\?["']\s*:[^{}"']*\}"""),
    "qwen3_coder": re.compile(r"<tool_call>\s*<function=[^>]*>\s*<parameter="),
    "seed_oss": re.compile(r"<seed:tool_call>\s*<function="),
    "minimax_m2": re.compile(r"<minimax:tool_call>\s*<invoke name="),
    "glm45": re.compile(r"<tool_call>[^<]*<arg_key>"),
    "granite": re.compile(r"<\|tool_call\|>(?:\s*\[\s*" + _KEY % "name" + "| followed by a JSON list)"),
    "deepseek_v3": re.compile(r"<｜tool▁call▁begin｜>[^<]*<｜tool▁sep｜>[^<]*```json"),
    "deepseek_v31": re.compile(r"<｜tool▁call▁begin｜>[^<]*<｜tool▁sep｜>[^<`]*<｜tool▁call▁end｜>"),
    "olmo3": re.compile(r"<function_calls>\s*</function_calls>"),
    "pythonic": re.compile(r"\[func(?:tion)?_name\d*\(\w+=\w"),
}
"""Forms in which prompts describe a call: `<tool_call>` `{"name": <function-name>, ...`, `{"name": function name, ...}`."""
_TOKENS: Mapping[str, str] = {
    mistral.OPEN: "mistral",
    _PHI_CLOSE: "phi4_mini_json",
    pythonic.FORMS["lfm2"].opening: "lfm2",
    kimi_k2.SECTION: "kimi_k2",
    CONSTRAIN: "openai",
}
"""Tokens that only one notation has."""
_REASONING = re.compile(
    r"\s*(?:<(\w*:?(?:think|thinking|thought))>.*?</\1>|\[THINK\].*?\[/THINK\]|<\|START_THINKING\|>.*?<\|END_THINKING\|>"
    r"|<\|channel>thought.*?<channel\|>|<\|channel\|>analysis<\|message\|>.*?<\|end\|>)",
    re.DOTALL,
)


def detected(template: ChatTemplate, tokens: Container[str]) -> str | None:
    """The name of the notation, None if it is unknown. `tokens`: those added to the tokenizer's vocabulary. Rendering may take
    long: call it on a fenced thread."""
    if examples := _shown_calls(template):
        names = (name for name in registry.TOOL_PARSERS if any(_reads_back(name, one) for one in examples))
        return _with_tokens(next(names, None), tokens)
    prompt = _rendered(template, [_user()], [TOOL]) or ""
    if matches := [name for name, form in _PROSE.items() if form.search(prompt)]:
        return _with_tokens(matches[0], tokens) if len(matches) == 1 else None
    by_token = {name for token, name in _TOKENS.items() if token in tokens}
    return by_token.pop() if len(by_token) == 1 else None


def _with_tokens(name: str | None, tokens: Container[str]) -> str | None:
    """The notation of a model with these tokens: Llama 4's templates write lists, and the model may put its tags around them."""
    tagged = "llama4_pythonic"
    return tagged if name == "pythonic" and pythonic.FORMS[tagged].opening in tokens else name


def writes(template: ChatTemplate, name: str) -> bool:
    """Whether the template writes calls in this notation. Rendering may take long, as for `detected`."""
    return any(_reads_back(name, one) for one in _shown_calls(template))


def shows_calls(template: ChatTemplate) -> bool:
    """Whether the template shows calls of earlier messages, in any form. Rendering may take long, as for `detected`."""
    return bool(_shown_calls(template))


def _shown_calls(template: ChatTemplate) -> list[str]:
    """The calls that the template writes, from the beginning of the answer, with an offered function and without; empty if it
    writes none. The first id that shows the function's name is taken: Mistral's templates require nine letters and digits, some
    write the id alone. The answer begins where a text answer does; some templates write none, others end every prompt alike."""
    return next(filter(None, (_shown_with(template, call_id) for call_id in _IDS)), [])


def _shown_with(template: ChatTemplate, call_id: str) -> list[str]:
    examples = []
    result, call_message = _result(call_id), _call(call_id)
    for tools in ([TOOL], None):
        for after_text, after_call in (([], []), ([_user()], [result, _user()]), ([_user()], [result])):
            call = _rendered(template, [_user(), call_message, *after_call], tools)
            if call is None or _NAME not in call:
                continue
            text = (
                _rendered(template, [_user(), {"role": "assistant", "content": _TEXT}, *after_text], tools)
                or ""
            )
            befores = [text[: text.index(_TEXT)]] if _TEXT in text else []
            befores += [_rendered(template, [_user()], tools, begins) or "" for begins in (True, False)]
            examples += [call[_beginning(before, call) :] for before in befores if before]
    return [one for one in examples if _NAME in one]


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


def _reads_back(name: str, example: str) -> bool:
    """Whether this notation's parser finds the call and leaves no text before it."""
    parser = registry.tool_notation(name, "").parser({_NAME: None}, frozenset())
    events = [
        *parser.push(_REASONING.sub("", example, count=1) if _REASONING.match(example) else example),
        *parser.finish(),
    ]
    call_at = next((place for place, event in enumerate(events) if isinstance(event, CallBegun)), None)
    if call_at is None or any(str(event).strip() for event in events[:call_at]):
        return False
    if name in _VARIANTS and not _VARIANTS[name](example):
        return False
    arguments = "".join(
        event.text for event in events if isinstance(event, CallArguments) and event.index == 0
    )
    first = events[call_at]
    return isinstance(first, CallBegun) and first.name == _NAME and _decoded(arguments) == _ARGUMENTS


def _marked_as_llama(example: str) -> bool:
    """Whether a bare object is a Llama call: it has Llama's key or tag. Other models write bare objects with "arguments"."""
    return '"parameters"' in example or llama3_json.TAG in example


def _is_list(name: str, example: str) -> bool:
    """Whether a list stands behind the opening tag: a parser takes a single object too, but no more than one."""
    return re.search(re.escape(json_lists.TAGS[name][0]) + r"\s*\[", example) is not None


_VARIANTS: Mapping[str, Callable[[str], bool]] = {
    "llama3_json": _marked_as_llama,
    "granite": lambda example: _is_list("granite", example) and _PHI_CLOSE not in example,
    "phi4_mini_json": lambda example: _is_list("phi4_mini_json", example) and _PHI_CLOSE in example,
    "jamba": lambda example: _is_list("jamba", example),
    "nemotron_json": lambda example: _is_list("nemotron_json", example),
    "deepseek_v3": lambda example: "```" in example,
    "deepseek_v31": lambda example: "```" not in example and deepseek.SEPARATOR in example,
}
"""What tells notations apart that one parser reads."""


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


def _call(call_id: str) -> dict[str, Any]:
    function = {"name": _NAME, "arguments": json.dumps(_ARGUMENTS)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": "Sunny.", "name": _NAME, "tool_call_id": call_id}
