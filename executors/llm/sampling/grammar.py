"""Grammars that constrain the output: compiled once by llguidance, then followed token by token.

    text  --compile (any thread)-->  LLMatcher, kept as a prototype  --copy-->  one `GrammarState` per sequence

A grammar constrains bytes: every tokenization of a text is valid. By default llguidance requires the tokenizer's own
tokenization wherever the grammar allows only one text, and that tokenization has a special token where a JSON string merely
contains its characters. `_SPELLED_FREELY` turns this off. Special tokens then occur only where a Lark grammar names one, as
<name>.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from executors.contract.batch import ItemOutput
from executors.contract.errors import InvalidInput, ItemFault, Unsupported

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_GRAMMARS = 32
"""Number of compiled grammars kept, some tens of megabytes each at worst. Sequences hold copies of their own."""
MOST_WAITING = 128
"""Number of additional compiled grammars kept for sequences that have not begun yet. Compiling them again would delay a step,
and with it every sequence."""
MOST_SOURCE_BYTES = 8 << 20
"""Largest total size of the grammars' texts, in bytes; the compiled form takes several times that."""
_MOST_LEXER_STATES = 50_000
"""Limit on lexer states, of one or two kilobytes each. They are created while the grammar is followed, and all its followers
share them: a matcher that uses them up disturbs the others, and a sequence that compiles the grammar again can continue."""
_SPELLED_FREELY = {
    "name": "cohort_spelled_freely",
    "lark_grammar": '%llguidance {"no_forcing": true}\nstart: "x"',
}
"""Grammar that no other refers to: its setting applies to all grammars compiled with it."""


class Mask(NamedTuple):
    """Ids that may come next: `ids` int64, ascending, and no others; or, if `negated`, all ids except these."""

    ids: np.ndarray
    negated: bool

    def allows(self, token: int) -> bool:
        """Return whether the id may come next."""
        place = int(np.searchsorted(self.ids, token))
        return (place < len(self.ids) and int(self.ids[place]) == token) != self.negated


class Vocabulary(NamedTuple):
    """llguidance's `tokenizer`; ids from `num_tokens` on are not tokens. `ends`: ids that look like end tokens. `special`:
    int64, ascending, all special tokens."""

    tokenizer: LLTokenizer
    num_tokens: int
    ends: tuple[int, ...]
    special: np.ndarray


class GrammarCompiler:
    """The tokenizer that grammars apply to, and the grammars compiled for it; the least recently used are dropped first.

    May be used from any thread. The tokenizer is read with the first grammar, which takes a third of a second and 80 MiB for
    150k tokens. `unsupported` says why grammars are unavailable, None if they are available.
    """

    def __init__(
        self,
        directory: Path | None,
        width: int,
        most_grammars: int = MOST_GRAMMARS,
        most_bytes: int = MOST_SOURCE_BYTES,
    ) -> None:
        """`width`: logits of a row. `directory` contains tokenizer.json; None if there is none."""
        self.width = width
        self._file = (directory or Path()) / "tokenizer.json"
        self.unsupported = "grammars need a tokenizer" if directory is None else _missing(self._file)
        self._most_grammars, self._most_bytes = most_grammars, most_bytes
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._unreadable: str | None = None
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._waiting: dict[str, int] = {}
        """Number of sequences per grammar that have not begun yet. Some never begin, so the number of grammars is limited
        regardless."""
        self._num_bytes = 0

    def __len__(self) -> int:
        """Number of grammars that are compiled or about to be."""
        return len(self._compiled)

    def compile(self, grammar: str) -> None:
        """Compile a grammar for one `begin`. Raises InvalidInput for an invalid grammar, Unsupported without a tokenizer."""
        self._prototype(grammar, waiting=1)

    def begin(self, grammar: str, ends: tuple[int, ...]) -> GrammarState:
        """Return the start state of a grammar and compile it if necessary; `ends` as in `GrammarState`. Raises as `compile`."""
        return GrammarState(self._prototype(grammar, waiting=-1), self.vocabulary(), ends, self.width)

    def discard(self, grammar: str, state: GrammarState) -> None:
        """Make the next sequence compile the grammar again, unless it has been compiled since `state` began."""
        with self._lock:
            future = self._compiled.get(grammar)
            if future is not None and future.done() and future.result() is state.prototype:
                self._drop(grammar)

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, read on first use. Raises Unsupported for a file that llguidance cannot use."""
        if self.unsupported is not None:
            raise Unsupported(self.unsupported)
        with self._reading:
            if self._vocabulary is None and self._unreadable is None:
                try:
                    self._vocabulary = _read(self._file)
                except BaseException as error:  # a panic of the library is no Exception
                    self._unreadable = f"grammars need a tokenizer: {self._file}: {_one_line(str(error))}"
            if self._vocabulary is None:
                raise Unsupported(str(self._unreadable))
            return self._vocabulary

    def _prototype(self, grammar: str, waiting: int) -> LLMatcher:
        """`waiting`: change in the number of sequences that are still to begin with the grammar."""
        tokenizer = self.vocabulary().tokenizer
        with self._lock:
            if (now := self._waiting.pop(grammar, 0) + waiting) > 0:
                self._waiting[grammar] = now
            future = self._compiled.get(grammar)
            mine = future is None
            if future is None:
                future = Future()
                self._compiled[grammar] = future
                self._num_bytes += _num_bytes(grammar)
            else:
                self._compiled.move_to_end(grammar)
            self._evict()
        if mine:
            try:
                future.set_result(_compile(tokenizer, grammar))
            except BaseException as error:
                with self._lock:
                    if self._compiled.get(grammar) is future:
                        self._drop(grammar)
                future.set_exception(error)
        return future.result()

    def _evict(self) -> None:
        """Drop grammars over the limits. Those that no sequence waits for go first; the one just requested stays."""
        while len(self._compiled) > 1:
            *others, _ = self._compiled
            idle = [one for one in others if one not in self._waiting]
            too_many = len(self._compiled) - len(self._waiting) > self._most_grammars
            if idle and (too_many or self._num_bytes > self._most_bytes):
                self._drop(idle[0])
            elif len(self._waiting) > MOST_WAITING or self._num_bytes > self._most_bytes:
                self._drop(next((one for one in others if one in self._waiting), others[0]))
            else:
                return

    def _drop(self, grammar: str) -> None:
        del self._compiled[grammar]
        self._waiting.pop(grammar, None)
        self._num_bytes -= _num_bytes(grammar)


def _missing(file: Path) -> str | None:
    """Return what grammars would need and this system lacks, None if nothing is missing."""
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        return f"grammars need llguidance: {error}"
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        return f"grammars need a tokenizer.json: {error.strerror}: {file}"
    return None


def _read(file: Path) -> Vocabulary:
    from llguidance import LLTokenizer

    tokenizer = LLTokenizer(str(file))
    if tokenizer.is_special_token(tokenizer.eos_token):
        return Vocabulary(tokenizer, tokenizer.vocab_size, tuple(tokenizer.eos_tokens), _special(tokenizer))
    # It recognised no end token and took the first id for one, which then could not stand for its text.
    fields = json.loads(file.read_bytes())
    number = tokenizer.vocab_size
    end = {
        "id": number, "content": "<|cohort_end|>", "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip
    fields["added_tokens"] = [*(fields.get("added_tokens") or ()), end]
    own = LLTokenizer(json.dumps(fields), eos_token=number)
    return Vocabulary(own, number, (), _special(own))


def _special(tokenizer: LLTokenizer) -> np.ndarray:
    return np.array([i for i in range(tokenizer.vocab_size) if tokenizer.is_special_token(i)], np.int64)


def _num_bytes(grammar: str) -> int:
    return len(grammar.encode(errors="replace"))


def _one_line(text: str) -> str:
    return " ".join(text.replace("<non-verbose/>", "").split())


def _compile(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at its start. Raises InvalidInput."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_lexer_states=_MOST_LEXER_STATES, verbose_errors=False)
    text = _freely_spelled(grammar)
    try:
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        first = matcher.deep_copy()
        first.compute_bitmask()  # much of the work is only done then, and what it makes is shared
    except BaseException as error:  # a panic of the library is no Exception
        raise InvalidInput(f"{type(error).__name__}: {_one_line(str(error))}") from None
    for one in (matcher, first):
        if one.is_error():
            raise InvalidInput(_one_line(one.get_error()))
    return matcher


def _freely_spelled(grammar: str) -> str:
    """Return the grammar as JSON with an additional grammar that carries a setting for all. Raises InvalidInput for invalid
    JSON."""
    if not grammar.lstrip().startswith("{"):
        return json.dumps({"grammars": [{"lark_grammar": grammar}, _SPELLED_FREELY]})
    try:
        whole: dict[str, Any] = json.loads(grammar)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the grammar is not valid JSON: {error}") from None
    parts = whole.get("grammars")
    if not isinstance(parts, list) or not parts:
        raise InvalidInput('the grammar has no list of "grammars"')
    return json.dumps({**whole, "grammars": [*parts, _SPELLED_FREELY]})


class GrammarState:
    """The position of one sequence's output in its grammar. May be used on one thread at a time.

        output    a  b  c  e  e        a matcher has taken the first three; e, an end token, came where the text was allowed
                        |  |           to end, and only end tokens can follow it

    - `ends`: ids that end the sequence. They are allowed wherever the grammar can end, in addition to where it contains
      them itself; if none are known, ids that look like the tokenizer's end token replace them.
    """

    def __init__(
        self, prototype: LLMatcher, vocabulary: Vocabulary, ends: tuple[int, ...], width: int
    ) -> None:
        tokenizer = vocabulary.tokenizer
        self.prototype = prototype
        self._matcher = prototype.deep_copy()
        end_ids = np.unique(np.array(ends or vocabulary.ends, np.int64))
        self._ends = end_ids[end_ids < width]
        self._end_set = frozenset(self._ends.tolist())
        self._own_ends = np.array(tokenizer.eos_tokens, np.int64)
        self._num_tokens, self._width = vocabulary.num_tokens, width
        self._special = vocabulary.special[vocabulary.special < vocabulary.num_tokens]
        self._num_words = -(-tokenizer.vocab_size // 32)
        self._words = np.zeros(max(self._num_words, -(-width // 32)), np.uint32)
        self._last: tuple[np.ndarray, Mask] | None = None
        """Last state and its mask. Within a string, for example, consecutive tokens have the same mask."""
        self._length = 0
        self._ended_after: int | None = None
        """Number of tokens that the matcher took before the first end token."""

    def __len__(self) -> int:
        """Number of output tokens taken."""
        return self._length

    def take(self, token: int) -> bool:
        """Advance by one token; return False and change nothing if the grammar forbids it."""
        if self._ended_after is not None:
            allowed = token in self._end_set
        elif token in self._end_set and self._matcher.is_accepting():
            self._ended_after = self._length
            allowed = True
        elif token in self._own_ends:
            allowed = self._take_named_end(token)
        else:
            allowed = token < self._num_tokens and self._matcher.try_consume_tokens([token]) == 1
        self._length += allowed
        return allowed

    def _take_named_end(self, token: int) -> bool:
        """Take llguidance's own end token, which a Lark grammar may name. The matcher takes it there, but does not accept it
        on trial."""
        trial = self._matcher.deep_copy()
        if token >= self._num_tokens or trial.is_accepting() or not trial.consume_token(token):
            return False
        self._matcher = trial
        return True

    def rewind(self, length: int) -> None:
        """Return to the first `length` tokens."""
        inside = self._length if self._ended_after is None else self._ended_after
        if length < inside:
            self._matcher.rollback(inside - length)
        if length <= inside:
            self._ended_after = None
        self._length = min(self._length, length)

    def mask(self) -> Mask:
        """Return the ids that may come next, limited to the logits' width."""
        if self._ended_after is not None:
            return Mask(self._ends, False)
        words = self._allowed()
        if self._last is None or not np.array_equal(words, self._last[0]):
            negated = 2 * int(np.bitwise_count(words).sum()) > self._width
            ids = _set_bits(~words if negated else words)
            self._last = words.copy(), Mask(ids[: np.searchsorted(ids, self._width)], negated)
        return self._last[1]

    def pack(self, into: np.ndarray) -> None:
        """Write the same to `into`, int32 [mask_words], a bit a token: see `row_masks.py`."""
        words = into.view(np.uint32)
        if self._ended_after is None:
            words[:] = self._allowed()[: len(words)]
        else:
            words[:] = 0
            np.bitwise_or.at(words, self._ends >> 5, _bits(self._ends))

    def _allowed(self) -> np.ndarray:
        """uint32: the ids that may come before the end, a bit each; valid until the next call."""
        words = self._words
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, 4 * self._num_words)
        words[self._num_words :] = 0
        self._refuse_special(words)
        if self._matcher.is_accepting():
            np.bitwise_and.at(words, self._own_ends >> 5, ~_bits(self._own_ends))
            np.bitwise_or.at(words, self._ends >> 5, _bits(self._ends))
        return words

    def _refuse_special(self, words: np.ndarray) -> None:
        """Remove special tokens that the mask allows and the matcher would refuse. A negated pattern such as `~/a/` allows
        their bytes like any others until one is consumed."""
        special = self._special
        for token in special[(words[special >> 5] & _bits(special)) != 0].tolist():
            if token not in self._own_ends and self._matcher.validate_tokens([token]) != 1:
                words[token >> 5] &= ~np.uint32(1 << (token & 31))

    def failure(self) -> ItemOutput | None:
        """Return the item's output if the matcher cannot continue because its limits were reached or the library failed. None
        if it can continue."""
        if not self._matcher.is_error():
            return None
        return ItemOutput.failed(ItemFault.GRAMMAR_TOO_LARGE, _one_line(self._matcher.get_error()))


def _bits(ids: np.ndarray) -> np.ndarray:
    """uint32: each id's bit within its word."""
    return np.left_shift(np.uint32(1), (ids & 31).astype(np.uint32))


def _set_bits(words: np.ndarray) -> np.ndarray:
    """int64, ascending: the positions of the set bits. Masks are nearly empty or nearly full, so most words are skipped."""
    at = np.flatnonzero(words)
    bits = np.flatnonzero(np.unpackbits(words[at].astype("<u4").view(np.uint8), bitorder="little"))
    return at[bits >> 5] * 32 + (bits & 31)
