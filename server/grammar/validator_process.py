"""The process that compiles grammars with the model's own tokenizer and says what is wrong with them.

messages.py has its messages. A grammar that takes too long, or all memory, ends this process and nothing else: the server starts
another.

There is no torch here, and no settings of the server either.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import setproctitle

from server.grammar.messages import HEADER, Check, Hello, Setup, Validation, frame

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from engine.text.tokenizer import Tokenizer

TITLE = "cohort: grammar"
MAX_MEMORY_BYTES = 3 * 2**30
"""Of address space. A tokenizer of 150 thousand tokens takes some 300 MB of it."""
MAX_GROWTH = 32 * 2**20
"""Bytes that one compiled grammar may take: the executor keeps some of them. Ordinary ones take less than one MiB."""
MAX_REASON = 500
"""Characters of a reason; the rest is the compiler's own state."""
_PR_SET_PDEATHSIG = 1


class Validator:
    """The compiler with the tokenizer. Raises Unusable (a sentence) if the two do not fit."""

    max_growth = MAX_GROWTH

    def __init__(self, setup: Setup) -> None:
        import llguidance

        from engine.text.tokenizer import Tokenizer

        directory = Path(setup.tokenizer)
        ours = Tokenizer.load(directory)
        text = (directory / "tokenizer.json").read_text("utf-8")
        end = min(ours.eos_token_ids, default=None)
        self._matcher = llguidance.LLMatcher
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        self._tokenizer = llguidance.LLTokenizer(text, n_vocab=setup.logits_width, eos_token=end)
        check_bytes(ours, self._tokenizer, setup.logits_width)
        self._least = resident_bytes()
        """The fewest bytes that the process has had without a grammar."""

    def verdict(self, grammar: str) -> Validation:
        """Compile, and compute the first mask: much of the work is only done then."""
        at_rest = self._settle()
        try:
            return self._verdict(grammar, at_rest)
        finally:
            self._settle()

    def _settle(self) -> int:
        """Return freed memory to the system, or the next large grammar would find room and seem small. Returns what stays, in
        bytes: a process that has grown for other reasons must not refuse every grammar."""
        if resident_bytes() > self._least + self.max_growth // 4:
            with contextlib.suppress(AttributeError):  # only glibc has it
                ctypes.CDLL(None).malloc_trim(0)
        resident = resident_bytes()
        self._least = min(self._least, resident)
        return resident

    def _verdict(self, grammar: str, at_rest: int) -> Validation:
        try:
            grammar = without_gbnf(grammar)
        except Exception as error:  # the converter raises bare Exception, and whatever odd input runs it into
            return Validation(refused=first_line(f"not GBNF: {error or type(error).__name__}"))
        matcher = self._matcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            warnings = matcher.get_grammar_warnings()
            if warnings:
                return Validation(refused=first_line(warnings[0]))
            matcher.compute_bitmask()
            if matcher.is_stopped() and not matcher.is_accepting():
                return Validation(refused="no text can satisfy it")
            grown = resident_bytes() - at_rest
            if grown > self.max_growth:
                reason = f"it is too large: compiled it takes {grown // 2**20} MiB, the limit is {self.max_growth // 2**20}"
                return Validation(refused=reason)
        if matcher.is_error():
            return Validation(refused=first_line(matcher.get_error()))
        return Validation(grammar=grammar)


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()


class Unusable(Exception):
    """No grammar can be kept with this tokenizer."""


def check_bytes(ours: Tokenizer, theirs: LLTokenizer, count: int) -> None:
    """Raises Unusable if the compiler takes an ordinary token, of the first `count`, for other bytes than the text has: what
    it allows would then come out as something else, or, where texts hide it, not at all. What the compiler itself takes
    for special is never in a text: grammars have to name it."""
    for token in range(count):
        if theirs.is_special_token(token) or not ours.token_string(token):
            continue
        text_bytes = b"" if ours.is_special(token) else ours.token_bytes(token)
        compiler_bytes = theirs.decode_bytes([token])
        if compiler_bytes != text_bytes:
            raise Unusable(
                f"structured output is not supported with this model's tokenizer: token {token} is {text_bytes!r} in texts "
                f"and {compiler_bytes!r} to the grammar compiler"
            )


def without_gbnf(grammar: str) -> str:
    """The grammar with GBNF parts as Lark. Raises Exception."""
    if '"gbnf_grammar"' not in grammar:
        return grammar
    from server.grammar.gbnf import to_lark

    whole = json.loads(grammar)
    for part in whole["grammars"]:
        if "gbnf_grammar" in part:
            part["lark_grammar"] = to_lark(part.pop("gbnf_grammar"))
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


def first_line(reason: str) -> str:
    """What a client is told: the first lines that say something, without the compiler's view of its own state."""
    text = reason.partition("\n<state>")[0].partition("stack backtrace")[0]
    line = " ".join(text.replace("<non-verbose/>", "").split())
    if "oneOf" in line and "coerce_one_of" in line:
        line = "'oneOf' is only supported where its options exclude each other visibly; use 'anyOf'"
    return line[:MAX_REASON] or "it was refused"


def main() -> None:
    """Read, answer, until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _prepare_process()
    requests = sys.stdin.buffer
    setup = _read(requests, Setup)
    if setup is None:
        return
    try:
        judge = Validator(setup)
    except Unusable as error:
        _say(answers, Hello(str(error)))
        return
    except Exception as error:  # a file that is not there, or a tokenizer that the compiler cannot read
        _say(answers, Hello(first_line(f"structured output is not supported with this tokenizer: {error}")))
        return
    _say(answers, Hello())
    while (check := _read(requests, Check)) is not None:
        _say(answers, judge.verdict(check.grammar))


def _prepare_process() -> None:
    # Ctrl-C in the terminal goes to every process of the server; how this one ends is the server's to say.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        print(f"grammar: no PDEATHSIG: {os.strerror(ctypes.get_errno())}", file=sys.stderr, flush=True)
    if os.getppid() != parent:  # it died in between
        os._exit(0)
    setproctitle.setproctitle(TITLE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    os.nice(5)  # a bomb must not take a core from the streams
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")  # the first to go if memory runs out
    except OSError:
        pass


def _read(stream: BinaryIO, kind: type[Any]) -> Any:
    """The next message, None at the end."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    body = stream.read(HEADER.unpack(header)[0])
    return msgspec.msgpack.decode(body, type=kind)


def _say(stream: BinaryIO, message: msgspec.Struct) -> None:
    stream.write(frame(message))
    stream.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # no destructor of a large tokenizer holds it up
