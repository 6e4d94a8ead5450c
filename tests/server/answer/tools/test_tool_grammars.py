"""The grammars of calls, asked of llguidance itself: what they let a model write, and what not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import InvalidRequest
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place
from server.answer.tools.hermes import Hermes
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.mistral import Mistral
from server.answer.tools.notation import ToolNotation
from server.grammar.forms import Constraint, json_part
from server.prepare import chat_grammar as chat_grammar_module
from server.prepare.chat_grammar import chat_grammar
from server.schemas.tool_choice import Function, Mode, ToolChoice

NOTATION = (
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = (Function(0, "f", SCHEMA, True), Function(1, "g", None, False))
CALLS: dict[str, tuple[ToolNotation, str, str]] = {
    "hermes": (Hermes("hermes"), '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', "\n"),
    "llama3_json": (Llama3Json("llama3_json"), '{"name": "%s", "parameters": %s}', "; "),
    "lists": (Mistral("mistral"), '[TOOL_CALLS] [{"name": "%s", "arguments": %s}]', ""),
    "names": (Mistral("mistral", True), "[TOOL_CALLS]%s[ARGS]%s", ""),
    "ids": (Mistral("mistral", True, True), "[TOOL_CALLS]%s[CALL_ID]aB3456789[ARGS]%s", ""),
}
PARIS = '{"city": "Paris"}'


def byte_tokenizer(special: bool | None) -> tuple[Tokenizer, LLTokenizer, dict[str, int]]:
    """A token a byte; notation is added as special tokens, as ordinary ones, or (None) not at all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|end|>", special=True)])
    if special is not None:
        raw.add_tokens([AddedToken(one, special=special, normalized=False) for one in NOTATION])
    tokens = {token.content: i for i, token in raw.get_added_tokens_decoder().items()}
    return raw, LLTokenizer(raw.to_str(), eos_token=tokens["<|end|>"]), tokens


TOKENIZERS = {special: byte_tokenizer(special) for special in (True, False, None)}


@pytest.fixture(params=[True, False, None], ids=["special", "added", "spelled"])
def special(request: pytest.FixtureRequest) -> bool | None:
    value: bool | None = request.param
    return value


class Checker:
    """Whether a grammar takes a text. "partly": as a beginning only."""

    def __init__(
        self,
        kind: str,
        special: bool | None,
        mode: Mode,
        several: bool = True,
        constraint: Constraint | None = None,
        place: Place = Place.AFTER,
        functions: tuple[Function, ...] = FUNCTIONS,
    ) -> None:
        self._raw, self._tokenizer, added = TOKENIZERS[special]
        tokens = {one: added[one] for one in NOTATION if one in added}
        reasoning = None if place is Place.AFTER else REASONING["qwen3"]
        notation = ModelNotation(CALLS[kind][0], reasoning, tokens)
        found = chat_grammar(ToolChoice(mode, functions, several), constraint, notation, place)
        assert found is not None
        self.grammar, self.param = found
        assert not LLMatcher.validate_grammar(self.grammar, self._tokenizer)

    def __call__(self, text: str) -> str:
        matcher = LLMatcher(self._tokenizer, self.grammar)
        ids = self._raw.encode(text, add_special_tokens=False).ids
        taken = matcher.try_consume_tokens(ids)
        assert not matcher.is_error()
        if taken < len(ids):
            return "no"
        return "yes" if matcher.is_accepting() else "partly"


def calls_of(kind: str, *calls: tuple[str, str]) -> str:
    return CALLS[kind][2].join(CALLS[kind][1] % call for call in calls)


@pytest.mark.parametrize("kind", CALLS)
def test_forced_calls(kind: str, special: bool | None) -> None:
    check = Checker(kind, special, "required")
    assert check.param == "tools"
    one, two = calls_of(kind, ("f", PARIS)), calls_of(kind, ("f", PARIS), ("g", "{}"))
    assert check(one) == "yes"
    assert check(one[:-1]) in ("partly", "no")
    if kind != "lists":
        assert check(two) == "yes"
    for wrong in (
        "",
        "Hello",
        calls_of(kind, ("f", '{"city": 3}')),
        calls_of(kind, ("f", "{}")),
        calls_of(kind, ("g", PARIS)),
        calls_of(kind, ("h", "{}")),
        one + " and",
    ):
        assert check(wrong) != "yes", wrong
    single = Checker(kind, special, "named", several=False, functions=FUNCTIONS[1:])
    assert single(calls_of(kind, ("g", "{}"))) == "yes"
    assert single(two) == single(one) == single(calls_of(kind, ("g", "{}"), ("g", "{}"))) == "no"


def test_lists_of_calls(special: bool | None) -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {"city": "P"}}, {"name": "g", "arguments": {}}]'
    assert Checker("lists", special, "required")(text) == "yes"
    assert Checker("lists", special, "required", several=False)(text) == "no"


@pytest.mark.parametrize("kind", CALLS)
def test_strict_functions_in_free_text(kind: str, special: bool | None) -> None:
    check = Checker(kind, special, "auto")
    one, two = calls_of(kind, ("f", PARIS)), calls_of(kind, ("f", PARIS), ("g", '{"any": [1]}'))
    assert check("") == check("Hello,\nyou < me {[") == check(one) == "yes"
    assert check(calls_of(kind, ("g", '{"any": [1]}'))) == "yes", "it is not strict"
    assert check(two) == "yes"
    assert check(calls_of(kind, ("f", '{"city": 3}'))) == "no"
    assert check(calls_of(kind, ("h", "{}"))) == "no"
    if kind != "llama3_json":  # there a call is the whole answer
        assert check("Well.\n" + one + " Done.") == "yes"
    else:
        assert check('{"answer": 1}') == check("Well: " + one) == "yes"
        assert check('Well.\n {"name": "f"') == "no", "the parser would take it for a call"
    single = Checker(kind, special, "auto", several=False)
    assert single("Hello") == single(one) == "yes"
    assert single(two) == single(one + " Done.") == "no"


@pytest.mark.parametrize("kind", CALLS)
def test_an_answer_by_schema_or_a_call(kind: str, special: bool | None) -> None:
    asked = json_part(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "response_format"
    )
    check = Checker(kind, special, "auto", constraint=Constraint("response_format", asked))
    assert check.param == "response_format"
    assert check('{"a": 1}') == check(calls_of(kind, ("f", PARIS))) == "yes"
    assert check("Hello") == check('{"a": "x"}') == "no"


@pytest.mark.parametrize(
    ("place", "good", "bad"),
    [
        (
            Place.UNDECIDED,
            ["", "<think>\nHm, {}\n</think>\n\n", "<think></think>"],
            ["<think>", "Hm</think>", "</think>"],
        ),
        (Place.INSIDE, ["Hm.\n</think>\n\n", "</think>", "<think>a</think>"], ["", "Hm"]),
    ],
)
def test_reasoning_goes_before(place: Place, good: list[str], bad: list[str], special: bool | None) -> None:
    object_ = Constraint("response_format", json_part({"type": "object"}, "response_format"))
    answers: list[tuple[Any, str]] = [
        (Checker("hermes", special, "required", place=place), calls_of("hermes", ("f", PARIS))),
        (Checker("hermes", special, "none", constraint=object_, place=place, functions=()), '{"a": 1}'),
    ]
    for check, answer in answers:
        for text in good:
            if text.startswith("<think>") and place is Place.INSIDE and special is not None:
                continue  # a second opening tag is a token that is no text
            assert check(text + answer) == "yes", text
            assert check(text) != "yes"
        for text in bad:
            assert check(text + answer) != "yes", text


def test_llama_calls_beside_answers_that_look_alike() -> None:
    """A name in both, and references in the arguments' schema that must go on leading where they led."""
    answer = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"],
    }
    value = {"v": {"$ref": "#/$defs/v"}, "default": {"$ref": "#/$defs/v"}}
    node = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, **value},
        "$defs": {"v": {"type": "integer"}},
    }
    functions = (
        Function(0, "f", {**node, "additionalProperties": False}, True),
        Function(1, "g", SCHEMA, True),
    )
    constraint = Constraint("response_format", json_part(answer, "response_format"))
    check = Checker("llama3_json", None, "auto", constraint=constraint, functions=functions)
    assert check('{"name": "Ada", "age": 36}') == check('{"name": "f", "age": 36}') == "yes"
    f, g = ("f", '{"next": {"next": {"v": 1, "default": 2}}}'), ("g", PARIS)
    assert check(calls_of("llama3_json", f)) == check(calls_of("llama3_json", f, g)) == "yes"
    assert check(calls_of("llama3_json", g, ("f", '{"next": {"next": {"v": "x"}}}'))) == "no"


@pytest.mark.parametrize("kind", CALLS)
def test_arguments_have_the_names_that_the_schema_knows(kind: str) -> None:
    """Others are allowed where it says so. `strict` and what is forced are alike in this."""
    silent = {key: value for key, value in SCHEMA.items() if key != "additionalProperties"}
    more = '{"city": "Paris", "ooo": 1}'
    for parameters, taken in ((silent, "no"), ({**silent, "additionalProperties": True}, "yes")):
        for mode, strict in (("required", False), ("auto", True)):
            functions = (Function(0, "f", parameters, strict),)
            check = Checker(kind, None, mode, functions=functions)
            assert check(calls_of(kind, ("f", PARIS))) == "yes"
            assert check(calls_of(kind, ("f", more))) == taken


def test_schemas_are_summed_before_they_are_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"type": "object", "properties": {"a": {"type": "integer", "x": [1] * 32_000}}}
    functions = tuple(Function(place, f"f{place}", large, False) for place in range(34))
    walked = []
    monkeypatch.setattr(chat_grammar_module, "closed_by_name", lambda schema: walked.append(1) or schema)
    with pytest.raises(InvalidRequest, match="the schemas of a request") as caught:
        chat_grammar(ToolChoice("required", functions), None, ModelNotation(Hermes("hermes")), Place.AFTER)
    assert caught.value.param == "tools" and not walked


def test_free_answers_have_no_grammar() -> None:
    notation = ModelNotation(Hermes("hermes"), REASONING["qwen3"])
    assert chat_grammar(ToolChoice(), None, notation, Place.UNDECIDED) is None
    loose = (Function(0, "f", SCHEMA, False),)
    assert chat_grammar(ToolChoice("auto", loose), None, notation, Place.UNDECIDED) is None


def test_names_are_written_as_json() -> None:
    check = Checker("hermes", None, "required", functions=(Function(0, "a.b-c_1", None, False),))
    assert check(calls_of("hermes", ("a.b-c_1", "{}"))) == "yes"
    assert json.loads(check.grammar)["grammars"][0]["name"] == "start"
