"""Strict judges, one per skill: they read an answer as a client sees it."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from executors.tiny.data.sample import Sample

_CALL = re.compile(r"^<tool_call>\s*(\{.*\})\s*</tool_call>$", re.DOTALL)
_MAX_STORY_WORDS = 80


def grade(sample: Sample, text: str, finished: bool, tool_calls: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Tell whether `text` is right for `sample`.

    `finished` says that the model ended the answer by itself; an answer cut off is wrong. `tool_calls` are calls the
    server has parsed, in OpenAI form; raw calls in `text` count as well.
    """
    if not finished:
        return False
    if sample.skill in ("tools", "forced_calls"):
        return is_call(sample.check, text, tool_calls)
    return not tool_calls and _GRADERS[sample.skill](sample.check, text.strip())


def counts_to(wanted: Sequence[int], text: str) -> bool:
    """Exactly the numbers asked for, in order, and nothing that is not a separator."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return numbers == list(wanted) and re.fullmatch(r"[\d,.\s]+", text) is not None


def sums_to(wanted: int, text: str) -> bool:
    """The sum, and no other number."""
    return re.findall(r"\d+", text) == [str(wanted)]


def _exact(check: Mapping[str, Any], text: str) -> bool:
    """The expected text, letter for letter."""
    return text == check["text"]


def _capitals(check: Mapping[str, Any], text: str) -> bool:
    """A sentence that names the capital as its last words."""
    return text.startswith("The capital of ") and text.endswith(f" is {check['capital']}.")


def is_json(wanted: Mapping[str, Any], text: str) -> bool:
    """A bare JSON object equal to the expected one, types included."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and found == wanted
        and all(type(found[key]) is type(wanted[key]) for key in wanted)
    )


def is_story(hero: str, text: str) -> bool:
    """A story of the template's shape about the hero asked for."""
    sentences = [part for part in re.split(r"(?<=\.)\s", text) if part]
    shaped = (
        text.startswith("Once upon a time there was ")
        and text.endswith(" The end.")
        and 4 <= len(sentences) <= 7
    )
    return shaped and len(text.split()) <= _MAX_STORY_WORDS and hero in text.lower()


def is_call(check: Mapping[str, Any], text: str, tool_calls: Sequence[Mapping[str, Any]]) -> bool:
    """One call, of the right tool with exactly the right arguments."""
    try:
        if tool_calls:
            (call,) = tool_calls
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        else:
            match = _CALL.match(text.strip())
            call = json.loads(match.group(1)) if match else {}
            name, arguments = call.get("name"), call.get("arguments")
    except (ValueError, KeyError, TypeError):
        return False
    wanted = check["arguments"]
    same_types = isinstance(arguments, dict) and all(
        type(arguments.get(key)) is type(wanted[key]) for key in wanted
    )
    return name == check["name"] and arguments == wanted and same_types


_GRADERS: dict[str, Callable[[Mapping[str, Any], str], bool]] = {
    "greetings": _exact,
    "counting": lambda check, text: counts_to(check["numbers"], text),
    "sums": lambda check, text: sums_to(check["sum"], text),
    "reversal": _exact,
    "repetition": _exact,
    "upper_casing": _exact,
    "capitals": _capitals,
    "extraction": lambda check, text: is_json(check["object"], text),
    "stories": lambda check, text: is_story(check["hero"], text),
    "off_topic": _exact,
    "tool_results": _exact,
}
