"""Grammars compiled and followed, against brute force over small languages; what is kept of them; what is refused."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.contract.batch import SamplingParams, SequenceStart
from executors.contract.errors import InvalidInput, Unsupported
from executors.llm.sampling import grammar as grammar_module
from executors.llm.sampling.grammar import GrammarCompiler, GrammarState, Mask
from executors.llm.sampling.slot_grammars import Inputs, SlotGrammars
from tests.executors.grammar_tokenizers import LETTERS, SPECIAL, write_tokenizer
from tests.tiers import examples

TINY = Path("executors/tiny/weights")
SIZE, WIDTH = 400, 450
ENDS = (SIZE - 2, SIZE + 7)
"""<|end|>, and an id that is no token at all: a model may say that it ends with one."""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    return GrammarCompiler(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), SIZE), WIDTH)


@pytest.fixture(scope="module")
def texts(compiler: GrammarCompiler) -> list[str]:
    return [compiler.vocabulary().tokenizer.decode_str([i]) for i in range(SIZE - len(SPECIAL))]


def of_json(schema: object) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


def one_of(words: list[str]) -> str:
    return "start: " + " | ".join(json.dumps(word) for word in words)


def ids_of(mask: Mask) -> set[int]:
    return set(range(WIDTH)) - set(mask.ids.tolist()) if mask.negated else set(mask.ids.tolist())


def expected(words: list[str], text: str, texts: list[str]) -> set[int]:
    """Slowly: every token after which one of the words can still come of the text."""
    found = {i for i, more in enumerate(texts) if any(word.startswith(text + more) for word in words)}
    return found | (set(ENDS) if text in words else set())


WORDS = st.lists(st.text("etao \n\"'1", min_size=1, max_size=9), min_size=1, max_size=6, unique=True)


@settings(max_examples=examples(150), deadline=None)
@given(words=WORDS, choices=st.lists(st.integers(0, 10**6), max_size=24))
def test_masks_equal_brute_force_on_every_way_through(compiler, texts, words, choices):
    """Forwards, and back now and then."""
    state = compiler.begin(one_of(words), ENDS)
    path: list[int] = []
    for choice in choices:
        text = "".join(texts[i] for i in path if i < len(texts))
        over = bool(path) and path[-1] in ENDS
        allowed = set(ENDS) if over else expected(words, text, texts)
        assert ids_of(state.mask()) == allowed
        if choice % 5 == 0:
            path = path[: choice % (len(path) + 1)]
            state.rewind(len(path))
            continue
        token = sorted(allowed)[choice % len(allowed)]
        forbidden = next(i for i in range(WIDTH) if i not in allowed)
        assert not state.take(forbidden)
        assert state.take(token)
        path.append(token)
        assert len(state) == len(path)
    assert state.failure() is None


def walk(state: GrammarState, seed: int, most: int = 60) -> list[int]:
    """A random way to an end."""
    rng, path = np.random.default_rng(seed), []
    while len(path) < most:
        token = int(rng.choice(sorted(ids_of(state.mask()))))
        assert state.take(token)
        if token in ENDS:
            break
        path.append(token)
    return path


def test_json_cannot_spell_a_special_token_with_one(compiler, texts):
    for text in SPECIAL:
        for schema in ({"const": text}, {"enum": [text, "x"]}, {"const": f"a{text}b"}):
            state = compiler.begin(of_json(schema), ENDS)
            path = walk(state, len(text))
            assert max(path) < len(texts)
            said = json.loads("".join(texts[i] for i in path))
            assert said in schema.get("enum", [schema.get("const")])
    state = compiler.begin(of_json({"type": "string"}), ENDS)
    assert state.take(texts.index('"'))
    assert max(ids_of(state.mask())) < len(texts)


def test_lark_names_a_special_token(compiler, texts):
    tool = SIZE - 1
    state = compiler.begin('start: "a" <tool> "b" <|endoftext|>', ENDS)
    for token in (texts.index("a"), tool, texts.index("b"), SIZE - 3, ENDS[0]):
        assert ids_of(state.mask()) in ({token}, set(ENDS))
        assert state.take(token)


def test_the_end_comes_where_the_text_may_end_and_nowhere_else(compiler, texts):
    a = texts.index("a")
    state = compiler.begin('start: "a"+', ENDS)
    assert ids_of(state.mask()).isdisjoint(ENDS)
    assert not state.take(ENDS[0])
    assert state.take(a)
    assert ids_of(state.mask()) >= {a, *ENDS}
    assert SIZE - 3 not in ids_of(state.mask()), (
        "the tokenizer's own end token does not end this model's output"
    )
    assert state.take(ENDS[1])
    assert ids_of(state.mask()) == set(ENDS)
    assert not state.take(a)
    assert state.take(ENDS[0])
    state.rewind(2)
    assert ids_of(state.mask()) == set(ENDS)
    state.rewind(1)
    assert ids_of(state.mask()) >= {a, *ENDS}


def test_an_end_token_that_is_text_is_allowed_as_such(compiler, texts):
    a, b = texts.index("x"), texts.index("z")
    state = compiler.begin('start: "xz"+', (a, ENDS[0]))
    assert ids_of(state.mask()) == {a}
    assert state.take(a)
    assert ids_of(state.mask()) == {b}
    assert state.take(b)
    assert ids_of(state.mask()) == {a, ENDS[0]}
    assert state.take(a), "here it ends the text"
    assert ids_of(state.mask()) == {a, ENDS[0]}


def test_without_known_ends_the_tokenizers_own_stands_in(compiler, texts):
    state = compiler.begin('start: "a"', ())
    assert state.take(texts.index("a"))
    assert ids_of(state.mask()) == {SIZE - 3}
    assert state.take(SIZE - 3) and state.take(SIZE - 3)


def test_a_tokenizer_without_special_tokens(tmp_path):
    """llguidance would take the first token for the end."""
    compiler = GrammarCompiler(write_tokenizer(tmp_path, 300, special=()), WIDTH)
    state = compiler.begin('start: "a!!b"', (7,))
    tokenizer = compiler.vocabulary().tokenizer
    for text in "a!!b":
        (token,) = tokenizer.tokenize_str(text)
        assert ids_of(state.mask()) == {token}
        assert state.take(token)
    assert ids_of(state.mask()) == {7}
    state = compiler.begin('start: "a"', ())
    assert state.take(*tokenizer.tokenize_str("a"))
    assert ids_of(state.mask()) == set(), "nothing is known that could end it"


@pytest.mark.parametrize("width", [SIZE - 40, SIZE, SIZE + 1, SIZE + 333])
def test_logits_and_tokenizer_of_different_widths(tmp_path, width):
    compiler = GrammarCompiler(write_tokenizer(tmp_path, SIZE), width)
    state = compiler.begin(r"start: /(.|\n)+/", (3,))
    mask = state.mask()
    allowed = np.full(width, mask.negated)
    allowed[mask.ids] = not mask.negated
    assert allowed[: min(width, SIZE - 3)].all()
    assert not allowed[SIZE - 3 :].any(), "special tokens, and what is no token"
    assert not state.take(SIZE + 5)
    state = compiler.begin('start: "a"', ())
    assert state.take(*compiler.vocabulary().tokenizer.tokenize_str("a"))
    own_end = SIZE - 3
    assert state.mask().ids.tolist() == ([own_end] if own_end < width else [])
    assert state.take(own_end) == (own_end < width)
    assert state.mask().ids.tolist() == ([own_end] if own_end < width else [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no start rule"), ('start: "a', "lexer error"), ("start: <nope>", "unknown special token"), ("{", "not valid JSON"),
        ("{}", "grammars"), ('{"grammars": []}', "grammars"), ('{"grammars": [5]}', "invalid type"),
        (of_json({"type": "odd"}), "odd"), (of_json({"type": "string", "pattern": "(a"}), "regex"),
        ('{"grammars": ' + "[" * 100_000, "not valid JSON"), ("start: <[999999]>", "too large"),
        ('{"grammars": [{"lark_grammar": "start: @b"}]}', "b"),
    ],
)  # fmt: skip
def test_what_is_no_grammar_is_refused_with_the_reason(compiler, text, why):
    fresh = GrammarCompiler(compiler._file.parent, WIDTH)
    for _ in range(2):
        with pytest.raises(InvalidInput, match=why) as caught:
            fresh.compile(text)
        assert "\n" not in str(caught.value)
    assert len(fresh) == 0, "what failed is not kept"


def test_no_tokenizer_no_grammars(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text('{"model": 5}')
    for compiler, why in (
        (GrammarCompiler(None, 9), "need a tokenizer"),
        (GrammarCompiler(tmp_path, 9), "No such file"),
        (GrammarCompiler(tmp_path / "broken", 9), "error loading tokenizer"),
    ):
        for _ in range(2):
            with pytest.raises(Unsupported, match=why):
                compiler.compile('start: "a"')
        found_at_once = compiler.unsupported is not None
        assert found_at_once == ("loading" not in why)


# -- what is kept ---------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_grammars_are_dropped(compiler, monkeypatch):
    compiled: list[str] = []
    real = grammar_module._compile
    monkeypatch.setattr(
        grammar_module, "_compile", lambda tokenizer, text: compiled.append(text) or real(tokenizer, text)
    )
    few = GrammarCompiler(compiler._file.parent, WIDTH, most_grammars=3)
    a, b, c, d = (f'start: "{letter}"' for letter in "abcd")
    for text in (a, b, c, a, d, a, b):
        few.begin(text, ENDS)
    assert compiled == [a, b, c, d, b]
    assert len(few) == 3
    compiled.clear()
    small = GrammarCompiler(compiler._file.parent, WIDTH, most_bytes=25)
    followed = small.begin(a, ENDS)
    for text in (b, c, c):
        small.compile(text)
    assert compiled == [a, b, c]
    assert len(small) == 2
    small.compile("start: " + '"x" ' * 20)
    assert len(small) == 1, "one that is larger than all room is kept until the next comes"
    assert len(ids_of(followed.mask())) == 1, "whoever follows it has a copy"


def test_what_somebody_waits_to_begin_with_is_kept(compiler, monkeypatch):
    """Requests queue in the order in which their grammars came: dropping the oldest first would miss every time."""
    compiled: list[str] = []
    real = grammar_module._compile
    monkeypatch.setattr(
        grammar_module, "_compile", lambda tokenizer, text: compiled.append(text) or real(tokenizer, text)
    )
    monkeypatch.setattr(grammar_module, "MOST_WAITING", 20)
    few = GrammarCompiler(compiler._file.parent, WIDTH, most_grammars=3)
    texts = [f'start: "{letter}"' for letter in "abcdefghijklmno"]
    for text in texts:
        few.compile(text)
    few.compile(texts[0])
    assert len(few) == len(compiled) == 15
    for text in texts:
        few.begin(text, ENDS)
    assert len(compiled) == 15, "each once"
    few.begin('start: "z"', ENDS)
    assert len(few) == 1 + 3, "one that another waits for, and the last ones"
    few.begin(texts[0], ENDS)
    assert len(compiled) == 16
    for number in range(40):  # whose clients went away
        few.compile(f'start: "{number}"')
    assert len(few) == 20 + 3


def test_many_threads_compile_a_grammar_once(compiler, monkeypatch):
    compiled: list[str] = []
    both = threading.Barrier(8)
    real = grammar_module._compile
    monkeypatch.setattr(
        grammar_module, "_compile", lambda tokenizer, text: compiled.append(text) or real(tokenizer, text)
    )
    fresh = GrammarCompiler(compiler._file.parent, WIDTH)

    def begin(number: int) -> set[int]:
        both.wait(10)
        return ids_of(fresh.begin(of_json({"type": "integer"}), ENDS).mask())

    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(begin, range(8)))
    assert all(ids == first[0] for ids in first)
    assert len(compiled) == 1


def test_threads_with_a_bad_grammar_all_hear_of_it(compiler):
    def refused(number: int) -> str:
        with pytest.raises(InvalidInput) as caught:
            compiler.compile('start: "broken')
        return str(caught.value)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(refused, range(16)))) == 1


def test_a_panic_of_the_library_is_a_refusal(compiler, monkeypatch):
    class Panic(BaseException):
        pass

    def panics(*args: object, **kwargs: object) -> None:
        raise Panic("index out\nof bounds")

    compiler.vocabulary()
    monkeypatch.setattr("llguidance.LLMatcher", panics)
    with pytest.raises(InvalidInput, match="Panic: index out of bounds"):
        compiler.compile('start: "never seen before"')


# -- followed by slot -----------------------------------------------------------------------------------------------------

HUNGRY = "start: /[et]*e[et]{14}x/"
"""Its lexer has a state for every set of places that an e stood at: 2 ** 14 of them."""


def follower(compiler: GrammarCompiler, grammar: str, output: list[int]) -> SlotGrammars:
    slots = SlotGrammars(compiler)
    ids = (np.array([1, 2], np.int32), np.array(output, np.int32))
    slots.begin(SequenceStart(5, 0, *ids, SamplingParams(stop_token_ids=ENDS), grammar=grammar))
    return slots


def test_used_up_lexer_states_cost_a_compilation_and_no_sequence(compiler, texts, monkeypatch):
    monkeypatch.setattr(grammar_module, "_MOST_LEXER_STATES", 2000)
    fresh = GrammarCompiler(compiler._file.parent, WIDTH)
    letters = [texts.index(text) for text in LETTERS[:3] if text in "et"]
    rng = np.random.default_rng(1)
    greedy = fresh.begin(HUNGRY, ENDS)
    while greedy.failure() is None:
        greedy.mask()
        greedy.take(int(rng.choice(letters)))
    output = rng.choice(letters, 40).tolist()
    for _ in range(2):
        slots = follower(fresh, HUNGRY, output)
        try:
            masks = slots.start({0: (0, Inputs(2, output, None, 0))}).result()[0]
        finally:
            slots.close()
        assert masks.failed is None
        assert masks.masks[0] is not None and set(letters) <= ids_of(masks.masks[0])


def test_output_that_is_not_of_the_grammar_fails_the_item(compiler, texts):
    slots = follower(compiler, 'start: "ab"', [texts.index("b")])
    try:
        found = slots.start({3: (0, Inputs(2, [texts.index("b")], None, 0))}).result()[3]
        assert found.failed is not None and "token 0 of the output" in str(found.failed.error)
        with pytest.raises(InvalidInput, match="knows"):
            slots.start({3: (0, Inputs(9, [4], None, 0))}).result()
    finally:
        slots.close()


def test_rows_behind_a_forbidden_draft_have_no_mask(compiler, texts):
    a, b, c = (texts.index(text) for text in "xzq")
    slots = follower(compiler, 'start: "xzq" | "xq"', [])
    try:
        found = slots.start({0: (0, Inputs(1, [2, a, c, b], None, 3))}).result()[0]
        again = slots.start({0: (0, Inputs(1, [2, a, b, c], None, 3))}).result()[0]
    finally:
        slots.close()
    assert [mask and ids_of(mask) for mask in found.masks] == [{a}, {b, c}, set(ENDS), None]
    assert [mask and ids_of(mask) for mask in again.masks] == [{a}, {b, c}, {c}, set(ENDS)]


@pytest.mark.parametrize("pattern", ["~/a/", "~/x.*/", "~/[0-9]+/"])
def test_a_negated_pattern_allows_no_token_that_is_not_taken(pattern: str) -> None:
    """Special tokens look like any other bytes to it, until one is consumed."""
    compiler = GrammarCompiler(TINY, 1024)
    state = compiler.begin(f"start: A\nA: {pattern}", (2,))
    for _ in range(3):
        mask = state.mask()
        allowed = set(range(1024)) - set(mask.ids.tolist()) if mask.negated else set(mask.ids.tolist())
        assert allowed
        for token in sorted(allowed):
            length = len(state)
            assert state.take(token), token
            state.rewind(length)
        assert state.take(max(allowed - {2}))
