"""The grammars of calls in every format, asked of llguidance itself: what they let a model write, and what not."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import InvalidRequest
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place, ReasoningNotation
from server.answer.tools.registry import TOOL_PARSERS, tool_notation
from server.answer.tools.tagged import MAX_COUNTED
from server.grammar.forms import Constraint, json_part
from server.prepare.chat_grammar import chat_grammar
from server.schemas.tool_choice import Function, Mode, ToolChoice
from tests.server.answer.tools.formats import ARGUMENTS, SCHEMA, WRITTEN
from tests.server.answer.tools.test_formats import decoded
from tests.tiers import examples, sweep

CLOSED = {**SCHEMA, "additionalProperties": False}
WEATHER, PING = Function(0, "get_weather", CLOSED, True), Function(1, "ping", None, True)
MORE = {"k": None, "n": [1, False]}
PLAIN = {**ARGUMENTS, "city": "Rome", "more": MORE}


@cache
def byte_tokenizer(literals: tuple[str, ...]) -> tuple[Tokenizer, LLTokenizer, dict[str, int]]:
    """A token a byte, and one for each of these literals."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|eos|>", special=True)])
    raw.add_tokens([AddedToken(one, special=True, normalized=False) for one in literals])
    tokens = {token.content: i for i, token in raw.get_added_tokens_decoder().items()}
    return raw, LLTokenizer(raw.to_str(), eos_token=tokens["<|eos|>"]), tokens


class Checker:
    """Whether a grammar takes a text; "partly": as a beginning only. `as_tokens`: each literal of the format is one token."""

    def __init__(
        self,
        kind: str,
        mode: Mode,
        functions: tuple[Function, ...] = (WEATHER, PING),
        *,
        as_tokens: bool = True,
        several: bool = True,
        reasoning: ReasoningNotation | None = None,
        place: Place = Place.AFTER,
        constraint: Constraint | None = None,
    ) -> None:
        tools = tool_notation(kind, "[ARGS]")
        literals = (*tools.literals, *(reasoning.literals if reasoning else ()))
        self._raw, self._tokenizer, added = byte_tokenizer(
            tuple(dict.fromkeys(literals)) if as_tokens else ()
        )
        tokens = {one: added[one] for one in literals if one in added}
        found = chat_grammar(
            ToolChoice(mode, functions, several), constraint, ModelNotation(tools, reasoning, tokens), place
        )
        assert found is not None
        self.grammar = found[0]
        assert not LLMatcher.validate_grammar(self.grammar, self._tokenizer), self.grammar

    def __call__(self, *pieces: str) -> str:
        """A literal that two pieces share is spelled, even if it is a token."""
        matcher = LLMatcher(self._tokenizer, self.grammar)
        ids = [one for piece in pieces for one in self._raw.encode(piece, add_special_tokens=False).ids]
        taken = matcher.try_consume_tokens(ids)
        assert not matcher.is_error(), matcher.get_error()
        if taken < len(ids):
            return "no"
        return "yes" if matcher.is_accepting() else "partly"


@pytest.fixture(params=[True, False], ids=["tokens", "spelled"])
def as_tokens(request: pytest.FixtureRequest) -> bool:
    value: bool = request.param
    return value


def write(kind: str, *calls: tuple[str, dict[str, Any]]) -> str:
    text = tool_notation(kind, "[ARGS]").written(calls)
    # The answer ends with the call, and the token that says so is not generated.
    return text.removesuffix("<|call|>") if kind == "openai" else text


@sweep(every=3)
@pytest.mark.parametrize("kind", TOOL_PARSERS)
def test_forced_calls(kind: str, as_tokens: bool) -> None:
    check = Checker(kind, "required", as_tokens=as_tokens)
    one = write(kind, ("get_weather", PLAIN))
    assert decoded(kind, one) == ("", [("get_weather", PLAIN)])
    assert check(one) == "yes"
    assert check(write(kind, ("ping", {}))) == "yes"
    if kind != "openai":  # a message is one call
        assert check(write(kind, ("get_weather", PLAIN), ("ping", {}))) == "yes"
    for wrong in (
        "", "Hello", one + " and", "Well. " + one, write(kind, ("other", {})),
        write(kind, ("get_weather", {})), write(kind, ("get_weather", {**PLAIN, "days": "x"})),
        write(kind, ("get_weather", {**PLAIN, "fast": 1})), write(kind, ("get_weather", {**PLAIN, "zzz": 1})),
        write(kind, ("get_weather", {**PLAIN, "tags": 5})),
        write(kind, ("ping", {"x": 1})),
    ):  # fmt: skip
        assert check(wrong) != "yes", wrong
    assert check(one[:-2]) in ("partly", "no")


@pytest.mark.parametrize("kind", TOOL_PARSERS)
def test_a_named_call_is_one_call(kind: str, as_tokens: bool) -> None:
    check = Checker(kind, "named", (PING,), several=False, as_tokens=as_tokens)
    assert check(write(kind, ("ping", {}))) == "yes"
    assert check(write(kind, ("ping", {}), ("ping", {}))) == "no"
    assert check(write(kind, ("get_weather", PLAIN))) == "no"


@sweep(every=3)
@pytest.mark.parametrize("kind", TOOL_PARSERS)
def test_strict_functions_in_free_text(kind: str, as_tokens: bool) -> None:
    """`openai`'s answers are on channels."""
    final = "<|channel|>final<|message|>" if kind == "openai" else ""
    check = Checker(kind, "auto", as_tokens=as_tokens)
    one = write(kind, ("get_weather", PLAIN))
    assert check(final + "Hello,\nyou < me {[") == check(one) == "yes"
    wrong = write(kind, ("get_weather", {**PLAIN, "days": "x"}))
    assert check(wrong) == "no"
    if kind not in ("llama3_json", "pythonic", "openai"):  # there a call is the whole answer
        assert check("Well.\n" + one) == "yes"
        assert check("Well.\n" + wrong) == "no"
    single = Checker(kind, "auto", several=False, as_tokens=as_tokens)
    assert single(final + "Hello") == single(one) == "yes"
    assert single(one + " Done.") == "no"


@pytest.mark.parametrize("kind", TOOL_PARSERS)
def test_an_answer_by_schema_or_a_call(kind: str) -> None:
    asked = json_part(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "response_format"
    )
    reasoning = REASONING["openai_gptoss"] if kind == "openai" else None
    place = Place.UNDECIDED if reasoning else Place.AFTER
    check = Checker(
        kind, "auto", reasoning=reasoning, place=place, constraint=Constraint("response_format", asked)
    )
    final = "<|channel|>final<|message|>" if kind == "openai" else ""
    assert check(final + '{"a": 1}') == check(write(kind, ("ping", {}))) == "yes"
    assert check(final + "Hello") == check(final + '{"a": "x"}') == "no"


def test_harmony_thinks_first(as_tokens: bool) -> None:
    reasoning = REASONING["openai_gptoss"]
    call = write("openai", ("ping", {}))
    thought = "<|channel|>analysis<|message|>Hm, {} <b>.<|end|><|start|>assistant"
    check = Checker("openai", "required", as_tokens=as_tokens, reasoning=reasoning, place=Place.UNDECIDED)
    assert check(call) == check(thought + call) == "yes"
    assert check(thought) != "yes" and check("Hm." + call) == "no"
    inside = Checker("openai", "required", as_tokens=as_tokens, reasoning=reasoning, place=Place.INSIDE)
    assert inside("Hm.<|end|><|start|>assistant" + call) == "yes"
    auto = Checker("openai", "auto", as_tokens=as_tokens, reasoning=reasoning, place=Place.UNDECIDED)
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    assert auto(thought + preamble + call) == auto(thought + "<|channel|>final<|message|>Hi.") == "yes"
    assert check(thought + thought + call) == auto(thought * 3 + call) == "yes", (
        "reasoning in several messages"
    )
    behind = " to=functions.ping<|channel|>commentary json<|message|>{}"
    assert check(behind) == check(thought + behind) == auto(preamble + behind) == "yes", (
        "as the template writes it"
    )
    assert check(thought.removesuffix("<|start|>assistant") + behind) == "no"


def test_spelled_notation_ends_no_thought_of_harmony() -> None:
    """Where the end is a token, grammar and parser agree that the same signs are text."""
    reasoning = REASONING["openai_gptoss"]
    check = Checker("openai", "required", reasoning=reasoning, place=Place.UNDECIDED)
    call = write("openai", ("ping", {}))
    thought = ("<|channel|>analysis<|message|>It writes <|e", "nd|><|st", "art|>assistant")
    assert check(*thought, call) != "yes"
    assert check(*thought, ".<|end|><|start|>assistant" + call) == "yes"
    auto = Checker("openai", "auto", reasoning=reasoning, place=Place.UNDECIDED)
    assert auto("<|channel|>final<|message|>It writes <|cha", "nnel|>analysis.") == "yes"


BARE = ("qwen3_coder", "seed_oss", "minimax_m2", "glm45", "deepseek_v32", "deepseek_v4")


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize("kind", [*BARE, "pythonic", "lfm2", "gemma4", "hermes", "deepseek_v31"])
def test_parameters_of_every_form(kind: str) -> None:
    """Optional ones, enums, references, null."""
    parameters = {
        **schema(
            unit={"enum": ["C", "F", 5]},
            point={"$ref": "#/$defs/point"},
            note={"type": ["string", "null"]},
            constant={"const": "x y"},
            again={"type": "array", "items": {"$ref": "#/properties/point"}},
        ),
        "$defs": {
            "point": {"type": "array", "items": {"$ref": "#/$defs/number"}},
            "number": {"type": "integer"},
        },
        "required": ["unit"],
    }
    check = Checker(kind, "required", (Function(0, "f", parameters, True),))
    for good in (
        {"unit": "C"}, {"unit": 5}, {"unit": "F", "point": [1, 2]}, {"unit": "C", "note": "Hi."}, {"unit": "C", "note": None},
        {"unit": "C", "again": [[1], []]}, {"unit": "C", "point": [], "note": "a", "constant": "x y"},
        {"unit": "C", "constant": "x y"},
    ):  # fmt: skip
        text = write(kind, ("f", good))
        assert check(text) == "yes", text
        assert decoded(kind, text, functions={"f": parameters}) == ("", [("f", good)])
    for bad in (
        {},
        {"unit": "K"},
        {"unit": "C", "point": ["x"]},
        {"unit": "C", "constant": "z"},
        {"unit": "C", "again": [1]},
        {"point": [1]},
    ):
        assert check(write(kind, ("f", bad))) != "yes", bad


@pytest.mark.parametrize("kind", TOOL_PARSERS)
def test_functions_that_take_anything(kind: str) -> None:
    """Those that are not strict, beside a strict one."""
    functions = (Function(0, "f", {"type": "object", "properties": {"x": {"type": "integer"}}}, False), PING)
    check = Checker(kind, "auto", functions)
    assert check(write(kind, ("f", {"any": "text"}))) == "yes"
    assert check(write(kind, ("f", {}))) == "yes"
    if kind != "openai":
        assert check(write(kind, ("f", {"x": 1, "any": "a"}), ("ping", {}))) == "yes"


@pytest.mark.parametrize("kind", [*BARE, "gemma4"])
@pytest.mark.parametrize("keyword", [{"pattern": "^a"}, {"minLength": 1}, {"format": "date"}])
def test_what_bare_text_cannot_be_held_to_is_refused(kind: str, keyword: dict[str, Any]) -> None:
    parameters = schema(x={"type": "string", **keyword})
    with pytest.raises(InvalidRequest, match="cannot be enforced") as caught:
        Checker(kind, "auto", (Function(2, "f", parameters, True),))
    assert caught.value.param == "tools.2.function.parameters"
    assert (
        Checker(kind, "required", (Function(0, "f", parameters, False),))(write(kind, ("f", {"x": "b"})))
        == "yes"
    )
    with pytest.raises(InvalidRequest, match="cannot be enforced"):
        Checker(kind, "auto", (Function(0, "f", {**schema(x={}), "anyOf": [{"required": ["x"]}]}, True),))


@pytest.mark.parametrize("kind", [*BARE, "gemma4"])
def test_bare_text_keeps_to_its_greatest_length(kind: str, as_tokens: bool) -> None:
    for strict in (True, False):
        functions = (Function(0, "f", schema(x={"type": "string", "maxLength": 3}), strict),)
        check = Checker(kind, "required", functions, as_tokens=as_tokens)
        for text in ("", "abc", "é€\U0001f600"):
            assert check(write(kind, ("f", {"x": text}))) == "yes", text
        assert check(write(kind, ("f", {"x": "abcd"}))) == "no"
    long = schema(x={"type": "string", "maxLength": MAX_COUNTED})
    check = Checker(kind, "required", (Function(0, "f", long, True),), as_tokens=as_tokens)
    assert check(write(kind, ("f", {"x": "a" * MAX_COUNTED}))) == "yes"
    assert check(write(kind, ("f", {"x": "a" * (MAX_COUNTED + 1)}))) == "no"
    longer = schema(x={"type": "string", "maxLength": MAX_COUNTED + 1})
    with pytest.raises(InvalidRequest, match="counts to"):
        Checker(kind, "auto", (Function(0, "f", longer, True),))
    free = Checker(kind, "required", (Function(0, "f", longer, False),), as_tokens=as_tokens)
    assert free(write(kind, ("f", {"x": "a" * (MAX_COUNTED + 2)}))) == "yes"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("qwen3_coder", "a>b"), ("minimax_m2", 'a"b'), ("pythonic", "a-b"), ("gemma4", "a:b"), ("glm45", "a<b")],
)
def test_names_that_a_format_cannot_write(kind: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written"):
        Checker(kind, "required", (Function(0, "f", schema(**{name: {"type": "string"}}), False),))


REFERENCES = [{"$ref": "#/$defs/a"} for _ in range(40)]


@pytest.mark.parametrize("kind", ["qwen3_coder", "pythonic", "gemma4"])
def test_references_in_circles_and_many_of_them(kind: str) -> None:
    """They take neither time nor memory without bound; what is too large for a grammar is refused."""
    circle = {**schema(x={"$ref": "#/$defs/a"}), "$defs": {"a": {"anyOf": REFERENCES}}}
    assert decoded(kind, write(kind, ("f", {"x": "a"})), functions={"f": circle}) == ("", [("f", {"x": "a"})])
    assert (
        Checker(kind, "required", (Function(0, "f", circle, False),))(write(kind, ("f", {"x": "a"}))) == "yes"
    )
    tree = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/t"} for n in range(9)}}
    with pytest.raises(InvalidRequest) if kind != "qwen3_coder" else nullcontext():
        Checker(kind, "required", (Function(0, "f", {**tree, "$defs": {"t": tree}}, True),))
    integer = {"type": "integer"}
    wide = schema(p0=integer, **{f"p{n}": {"$ref": "#/properties/p0"} for n in range(1, 900)})
    with pytest.raises(InvalidRequest, match="at most") as caught:
        Checker(kind, "required", (Function(0, "f", wide, False),))
    assert caught.value.param == "tools"


@pytest.mark.parametrize("kind", BARE)
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text("ab</parmet>\n \"'\\", max_size=12))
def test_a_text_argument_is_what_the_grammar_let_through(kind: str, text: str) -> None:
    """Every string that does not hold the closing tag."""
    if kind == "qwen3_coder" and text.strip("\n") != text:
        return
    check = Checker(
        kind, "required", (Function(0, "f", {**schema(x={"type": "string"}), "required": ["x"]}, True),)
    )
    written = write(kind, ("f", {"x": text}))
    assert check(written) == "yes"
    assert decoded(kind, written, functions={"f": schema(x={"type": "string"})}) == ("", [("f", {"x": text})])


def test_every_format_is_written_here() -> None:
    assert set(WRITTEN) == set(TOOL_PARSERS)
