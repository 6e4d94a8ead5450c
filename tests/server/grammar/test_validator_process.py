"""The judge's process with the real compiler and tokenizers: what it says, what it survives, what ends it."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequest
from executors import tiny
from server.grammar.compose import alone, compose
from server.grammar.forms import constraint_of
from server.grammar.messages import Setup, Validation
from server.grammar.schemas import FORMATS
from server.grammar.validator import GrammarJudge
from server.grammar.validator_process import MAX_REASON, Unusable, Validator, check_bytes, first_line
from server.schemas.structured import StructuredFields
from server.system.gc_tuning import release_when_idle
from tests.engine.text import kinds
from tests.engine.text.kinds import KINDS
from tests.executors.process.helpers import state_of

pytestmark = pytest.mark.long

WIDTH = 1024


def grammar(**outputs: Any) -> str:
    """The text for a `structured_outputs`."""
    constraint = constraint_of(StructuredFields.model_validate({"structured_outputs": outputs}))
    assert constraint is not None
    return alone(constraint)


@pytest.fixture(scope="module")
def inside() -> Validator:
    """What runs in the process, in this one, whose heap has no room left from other tests that would hide what grows."""
    release_when_idle()
    return Validator(Setup(str(tiny.weights_dir()), WIDTH))


@pytest.fixture
async def judge() -> AsyncIterator[GrammarJudge]:
    judge = GrammarJudge(tiny.weights_dir(), WIDTH)
    yield judge
    await judge.close()


@pytest.mark.parametrize(
    "outputs",
    [
        {"json": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "null"}}}},
        {"json": {"oneOf": [{"type": "string"}, {"type": "integer"}]}},
        {"json_object": True, "whitespace_pattern": r"[ \n]?"},
        {"json_object": True, "disable_any_whitespace": True},
        {"regex": r"^\d{3}-(a|b)/[^\n]*$"},
        {"regex": ""},
        {"choice": ["yes", "no", 'a"\\b\n', "", "é"]},
        {"grammar": 'start: "a" b*\nb: /[0-9]/'},
        {"grammar": 'start: <tool_call> "x"'},
    ],
)  # fmt: skip
def test_good_grammars(inside: Validator, outputs: dict[str, Any]) -> None:
    text = grammar(**outputs)
    assert inside.verdict(text) == Validation(grammar=text)


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({"json": {"not": {}}}, 'Unimplemented keys: ["not"]'),
        ({"json": {"uniqueItems": True}}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"json": {"type": "array", "contains": {}}}, "Unimplemented"),
        ({"json": {"if": {}, "then": {}}}, "Unimplemented"),
        ({"json": {"propertyNames": {"maxLength": 3}}}, "Unimplemented"),
        ({"json": {"dependentRequired": {}}}, "Unimplemented"),
        ({"json": {"unevaluatedProperties": False}}, "Unimplemented"),
        ({"json": {"$dynamicRef": "#a"}}, "Unimplemented"),
        ({"json": {"type": "strnig"}}, "strnig"),
        ({"json": {"$ref": "#/$defs/gone"}}, "gone"),
        ({"json": {"$ref": "https://example.com/schema.json"}}, "example.com"),
        ({"json": {"$ref": "#"}}, "no text can satisfy it"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "minimum"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "'anyOf'"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "[0-9"}, "unclosed character class"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"grammar": "start: other"}, 'unknown name: "other"'),
        ({"grammar": "{"}, "1(1)"),
        ({"grammar": 'root ::= ( "a"'}, "not GBNF: Expected ')'"),
        ({"grammar": 'other ::= "a"'}, "not GBNF: No 'root' rule"),
        ({"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000}, "not GBNF"),
        ({"grammar": "start: @elsewhere"}, "elsewhere"),
    ],
)
def test_what_is_wrong_with_it(inside: Validator, outputs: dict[str, Any], reason: str) -> None:
    verdict = inside.verdict(grammar(**outputs))
    assert not verdict.grammar
    assert reason in verdict.refused
    assert len(verdict.refused) <= MAX_REASON
    assert "\n" not in verdict.refused and "backtrace" not in verdict.refused


def test_reasons_end_before_the_compilers_state() -> None:
    assert first_line("too\n  big<non-verbose/>\n<state>\nTokens: 7") == "too big"
    assert first_line("panic\nstack backtrace:\n 0: x") == "panic"
    assert first_line("") and len(first_line("x" * 10_000)) == MAX_REASON


@pytest.mark.parametrize(
    ("gbnf", "good", "bad"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["maybe", ""]),
        ('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"', ["- a\n", "- a\n- b/c\n"], ["- a", "-\n"]),
        (
            'root ::= "\\u00e9" "\\x41" [\\x61-\\x63/] "\\x22" # end',
            ['éAb"', 'éA/"'],
            ['eAb"', 'éAd"', "éAb"],
        ),
        ('root ::= pair{2,3}\npair ::= ("a" | "b") [0-9]?', ["ab", "a1b2", "aab"], ["a", "abab", "a12b"]),
        ('root ::= Expr\nExpr ::= "x" | "(" Expr ")"', ["x", "((x))"], ["(x"]),
    ],
)
def test_gbnf(inside: Validator, gbnf: str, good: list[str], bad: list[str]) -> None:
    verdict = inside.verdict(grammar(grammar=gbnf))
    assert "gbnf" not in verdict.grammar, verdict
    assert [accepts(inside, verdict.grammar, text) for text in good] == [True] * len(good)
    assert [accepts(inside, verdict.grammar, text) for text in bad] == [False] * len(bad)


def accepts(inside: Validator, grammar: str, text: str) -> bool:
    """Whether the text is a whole answer."""
    matcher = inside._matcher(inside._tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = inside._tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


FORMATTED = {
    "date-time": "2024-02-29T12:00:00Z", "date": "2024-02-29", "time": "12:00:00Z", "duration": "P1D", "email": "a@b.de",
    "hostname": "example.com", "ipv4": "1.2.3.4", "ipv6": "::1", "uri": "https://example.com/a",
    "uuid": "12345678-1234-1234-1234-123456789abc",
}  # fmt: skip
NO_RULES = (
    "phone", "regex", "idn-email", "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "json-pointer",
    "relative-json-pointer", "byte", "binary", "password", "currency", "DATE", "", "color",
)  # fmt: skip


@pytest.mark.parametrize("format_", FORMATTED)
def test_formats_that_the_compiler_knows_are_kept(inside: Validator, format_: str) -> None:
    verdict = inside.verdict(grammar(json={"type": "string", "format": format_}))
    assert accepts(inside, verdict.grammar, json.dumps(FORMATTED[format_]))
    assert not accepts(inside, verdict.grammar, '"no such text!"')


def test_those_are_all_that_it_knows() -> None:
    import llguidance

    assert set(FORMATTED) == FORMATS
    for name in NO_RULES:
        text = json.dumps({"grammars": [{"json_schema": {"type": "string", "format": name}}]})
        assert "Unknown format" in llguidance.LLMatcher.validate_grammar(text)


@pytest.mark.parametrize("format_", [*NO_RULES, None])
def test_any_other_format_is_an_annotation(inside: Validator, format_: str | None) -> None:
    asked = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3, "format": format_}}}
    verdict = inside.verdict(grammar(json=asked))
    assert accepts(inside, verdict.grammar, '{"a": "555"}')
    assert not accepts(inside, verdict.grammar, '{"a": "5555"}')


ANNOTATIONS: list[dict[str, Any]] = [
    {"$comment": "c"}, {"examples": ["x"]}, {"example": {"minimum": True}}, {"deprecated": True}, {"nullable": True},
    {"readOnly": True, "writeOnly": False}, {"contentEncoding": "base64"}, {"contentMediaType": "image/png"},
    {"contentSchema": {"type": "object"}}, {"title": None, "description": None, "default": None}, {"title": "t"},
    {"x-order": 3, "x-enum-varnames": ["A"], "x-like": {"type": "string", "format": "phone"}},
    {"$schema": "http://json-schema.org/schema#"}, {"$schema": "https://example.com/mine"}, {"$schema": None}, {"$schema": ""},
    {"$schema": "https://json-schema.org/draft-07/schema#"}, {"$schema": "http://json-schema.org/draft/2020-12/schema"},
    {"$schema": "http://json-schema.org/draft-04/schema#"}, {"$id": "An answer"}, {"$id": "https://example.com/a#b"},
    {"id": "An answer"}, {"$anchor": "a"}, {"xml": {"name": "x"}}, {"externalDocs": {"url": "x"}},
    {"discriminator": {"propertyName": "a"}}, {"enumNames": ["x"]}, {"propertyOrdering": ["a"]}, {"errorMessage": "no"},
    {"ui:widget": "x"}, {"markdownDescription": "*x*"},
]  # fmt: skip


@pytest.mark.parametrize("note", ANNOTATIONS, ids=str)
def test_annotations_change_nothing(inside: Validator, note: dict[str, Any]) -> None:
    inner = {"type": "string", "maxLength": 3, **note}
    for asked in (inner, {"type": "object", "properties": {"a": inner}, "required": ["a"], **note}):
        verdict = inside.verdict(grammar(json=asked))
        assert not verdict.refused
        good, bad = ('"abc"', '"abcd"') if asked is inner else ('{"a": "abc"}', '{"a": "abcd"}')
        assert accepts(inside, verdict.grammar, good) and not accepts(inside, verdict.grammar, bad)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"a":1}', True),
        ('{"a": 1, "b": "x\\ny"}', True),
        ('{\n  "a": 1,\n  "b": "é"\n}', True),
        ('{\n\t"a":\n\t1}', True),
        ('{"a":  1}', False),
        ('{\n\n"a": 1}', False),
        ('{"a":\t1}', False),
        ("{\n" + 33 * " " + '"a": 1}', False),
        (' {"a": 1}', False),
        ('{"a": 1}\n', False),
        ('{"\\u0061": "not the integer"}', False),
        ('{"a": 1, "b": "\\u0061"}', False),
        ('{"a": 1.5}', False),
    ],
)
def test_how_json_is_written(inside: Validator, text: str, accepted: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 3}},
    }
    assert accepts(inside, grammar(json=schema), text) is accepted


@pytest.mark.parametrize(
    ("outputs", "good", "bad"),
    [
        ({"choice": ["a", "ab", "b\n"]}, ["a", "ab", "b\n"], ["abc", "", "b"]),
        ({"regex": "^(a|b)+/$"}, ["ab/"], ["ab", "/"]),
        ({"json_object": True}, ["{}", '{"a": [1, {"b": null}]}'], ["[]", "1"]),
        (
            {"json_object": True, "disable_any_whitespace": True},
            ['{"a":[1,2]}'],
            ['{"a": [1,2]}', '{"a":[1, 2]}'],
        ),
        ({"json_object": True, "whitespace_pattern": r"\s"}, ['{\t"a":1}'], ['{\u2003"a":1}', '{\t\t"a":1}']),
    ],
)
def test_what_follows_a_grammar(
    inside: Validator, outputs: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    text = grammar(**outputs)
    assert [accepts(inside, text, one) for one in good] == [True] * len(good)
    assert [accepts(inside, text, one) for one in bad] == [False] * len(bad)


def test_parts_of_a_larger_grammar(inside: Validator) -> None:
    constraint = constraint_of(
        StructuredFields.model_validate({"structured_outputs": {"json": {"const": 1}}})
    )
    assert constraint is not None
    text = compose(
        'start: "<" (@one | @two) ">"', {"one": constraint.grammar, "two": {"gbnf_grammar": 'root ::= "x"'}}
    )
    verdict = inside.verdict(text)
    assert [accepts(inside, verdict.grammar, one) for one in ("<1>", "<x>", "<y>")] == [True, True, False]


def test_a_grammar_that_takes_much_memory(inside: Validator) -> None:
    """Also when another has grown the heap before it."""
    for bomb in ("(a{1000}){1000}", "(b{999}){1000}", "(c{1000}){999}"):
        assert "too large" in inside.verdict(grammar(regex=bomb)).refused
    assert inside.verdict(grammar(regex="a")).grammar


def test_what_the_process_has_grown_by_is_not_the_grammars(inside: Validator) -> None:
    """Neither more than a grammar may take, nor as memory that is freed later, which a large grammar must not hide in."""
    other = bytearray(2 * inside.max_growth)
    other[:: mmap.PAGESIZE] = b"x" * (len(other) // mmap.PAGESIZE)
    assert inside.verdict(grammar(regex="a")).grammar
    del other
    assert inside.verdict(grammar(regex="a")).grammar
    assert "too large" in inside.verdict(grammar(regex="(a{1000}){300}")).refused


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tokenizer_is_understood_or_refused(kind: str, tmp_path: Path) -> None:
    """Those of language models are understood. Of the rest, those that the compiler reads wrongly are found out."""
    setup = Setup(str(kinds.write(kind, tmp_path)), 600)
    if kind == "sp_bpe_legacy":  # an added word takes a blank of its own there
        with pytest.raises(Unusable, match="b' two words' in texts and b'two words' to the grammar"):
            Validator(setup)
    elif "byte_level" in kind or kind.startswith("sp_bpe"):
        assert Validator(setup).verdict(grammar(json_object=True)).grammar
    elif kind == "unigram_fallback":
        with pytest.raises(Unusable, match=r"b' ' in texts and b'\\xe2\\x96\\x81' to the grammar"):
            Validator(setup)
    else:
        with pytest.raises(ValueError, match="can't determine decoder type"):
            Validator(setup)


def test_a_token_that_texts_hide(tmp_path: Path) -> None:
    """To the compiler it would be text."""
    ours = kinds.load("byte_level", tmp_path)
    hidden = ours.encode("q", add_special_tokens=False)[0]
    theirs = Validator(Setup(str(tmp_path), 600))._tokenizer
    check_bytes(ours, theirs, ours.vocab_size)
    ours._special_ids |= {hidden}
    with pytest.raises(Unusable, match=f"token {hidden} is b'' in texts and b'q'"):
        check_bytes(ours, theirs, ours.vocab_size)


async def test_bombs_hold_nobody_up() -> None:
    """While they burn, the event loop turns, and the grammars behind them are served."""
    judge = GrammarJudge(tiny.weights_dir(), WIDTH, deadline=2.0)
    bombs = [
        {"regex": ".*" * 20_000},
        {"regex": "(a{1000}){1000}"},
        {"json": {"type": "integer", "multipleOf": 1_000_003}},
        {"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000},
    ]
    tasks = [asyncio.create_task(judge.check(grammar(**bomb))) for bomb in bombs]
    tasks += [asyncio.create_task(judge.check(grammar(choice=["a", "b"])))]
    longest, last = 0.0, time.monotonic()
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.005)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    *refused, served = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, InvalidRequest) for one in refused), refused
    assert isinstance(served, str)
    assert longest < 0.5, "the event loop stood still"
    await judge.close()


async def test_killed_in_the_middle_of_its_work(judge: GrammarJudge) -> None:
    await judge.check(grammar(regex="a"))
    pid = judge.pid
    assert pid is not None
    task = asyncio.create_task(judge.check(grammar(regex="(a{1000}){500}")))
    await asyncio.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(InvalidRequest, match="too large"):
        await task
    assert judge.pid not in (None, pid)


async def test_all_memory_taken() -> None:
    """The limit is the process's own: it dies of it, and the next one has not heard of it."""
    source = "from server.grammar import validator_process as it; it.MAX_MEMORY_BYTES = 280 << 20; it.main()"
    judge = GrammarJudge(tiny.weights_dir(), WIDTH, command=[sys.executable, "-c", source])
    assert await judge.check(grammar(regex="a"))
    pid = judge.pid
    with pytest.raises(InvalidRequest, match="compiler crashed"):
        await judge.check(grammar(regex="(a{1000}){1000}"))
    assert await judge.check(grammar(regex="b"))
    assert judge.pid != pid
    await judge.close()


PARENT = """
import asyncio, sys
from executors import tiny
from server.grammar.validator import GrammarJudge

async def main():
    judge = GrammarJudge(tiny.weights_dir(), 1024)
    await judge.check('{"grammars":[{"lark_grammar":"start: /a/"}]}')
    print(judge.pid, flush=True)
    await judge.check(sys.argv[1])

asyncio.run(main())
"""


@pytest.mark.parametrize("work", [grammar(regex=".*" * 20_000), ""], ids=["at work", "idle"])
async def test_it_dies_with_the_server(work: str) -> None:
    source = PARENT if work else PARENT.replace("await judge.check(sys.argv[1])", "await asyncio.sleep(60)")
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", source, work), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    title = Path(f"/proc/{pid}/cmdline")  # of the process, as people see it
    assert title.read_bytes().rstrip(b"\0") == b"cohort: grammar"  # noqa: ASYNC240
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    for _ in range(200):
        if state_of(pid) in (None, "Z"):
            break
        await asyncio.sleep(0.01)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("it outlived the server")
    parent._transport.close()  # type: ignore[attr-defined]


async def test_no_torch_in_it(judge: GrammarJudge) -> None:
    await judge.check(grammar(json_object=True))
    maps = Path(f"/proc/{judge.pid}/maps").read_text()  # noqa: ASYNC240
    assert "llguidance" in maps
    assert "torch" not in maps


async def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    judge = GrammarJudge(tmp_path, WIDTH)
    with pytest.raises(InvalidRequest, match="tokenizer"):
        await judge.check(grammar(regex="a"))
    await judge.close()
