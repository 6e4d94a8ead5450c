"""A command line that may have flags of other servers: what changes nothing is left out with a warning, and one line names
all others. Standard library only, so that `cohort --help` stays fast."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from server.settings.foreign import llama_cpp, others, vllm
from server.settings.foreign.rows import NOT_YET, Kind, Row, Values, by_name

ROWS: tuple[Row, ...] = (
    *vllm.ROWS, *llama_cpp.ROWS, *others.SGLANG, *others.HABIT, *others.IGNORED, *others.REFUSED,
)  # fmt: skip
_NUMBER = re.compile(r"-(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_SWITCH_WORDS = frozenset({"true", "false"})
"""vLLM's older switches take one of them."""


@dataclass(slots=True)
class Reading:
    """What was found in a command line."""

    argv: list[str] = field(default_factory=list)
    """The words without flags that change nothing."""
    warnings: list[str] = field(default_factory=list)
    """A line for each of these flags."""
    unknown: list[tuple[str, str]] = field(default_factory=list)
    """Flags that do not exist here, each with advice."""

    @property
    def complaint(self) -> str | None:
        """One line that names all unknown flags, None if there are none."""
        if not self.unknown:
            return None
        if len(self.unknown) == 1:
            [(flag, advice)] = self.unknown
            return f"unknown flag {flag}{_joint(advice)}{advice}"
        parts = "; ".join(f"{flag} ({advice})" for flag, advice in self.unknown)
        return f"{len(self.unknown)} unknown flags: {parts}"


def _joint(advice: str) -> str:
    return "; " if advice.startswith(("did you mean", "see ")) else ": "


def read_flags(argv: Sequence[str], options: Mapping[str, bool]) -> Reading:
    """Read what follows the verb. `options` are the existing flags, each with whether it takes a value."""
    reading, rows, words = Reading(), by_name(ROWS), list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            reading.argv += [word, *words]
            break
        flag, has_value, value = word.partition("=")
        if not word.startswith("-") or word == "-" or _NUMBER.fullmatch(word):
            reading.argv.append(word)
        elif flag in options:
            reading.argv.append(word)
            if options[flag] and not has_value and words:
                reading.argv.append(words.pop(0))
        else:
            _read_unknown(flag, value if has_value else None, words, reading, rows, options)
    return reading


def _read_unknown(
    flag: str,
    value: str | None,
    words: list[str],
    reading: Reading,
    rows: Mapping[str, Row],
    options: Mapping[str, bool],
) -> None:
    """Record one flag. Takes its values from `words` if the flag is left out."""
    name = f"--{flag[2:].replace('_', '-')}" if flag.startswith("--") else flag
    # vLLM sets a key of a configuration by `--flag.key`.
    row = rows.get(name) or rows.get(name.partition(".")[0]) or _negated(name, rows)
    if row is None or name in options:
        reading.unknown.append((flag if name in options else name, _advice(name, options)))
        return
    following = value if value is not None else _value(words)
    if row.kind is Kind.IGNORED or (following is not None and following in row.harmless):
        if value is None:
            _drop_values(row, words)
        why = row.answer if row.kind is Kind.IGNORED else "the server does so anyway"
        reading.warnings.append(f"{name} is ignored: {why}")
    elif row.kind is Kind.USE:
        reading.unknown.append((name, f"use {row.advice(following)}"))
    else:
        reading.unknown.append(
            (name, row.answer if row.answer == NOT_YET else f"not supported; {row.answer}")
        )


def _negated(flag: str, rows: Mapping[str, Row]) -> Row | None:
    """A row for `--no-X`, where `--X` is a switch that changes nothing or is not here: it asks for what the server does."""
    row = rows.get("--" + flag.removeprefix("--no-")) if flag.startswith("--no-") else None
    if row is None or row.kind is Kind.USE or row.values is not Values.NONE:
        return None
    why = row.answer if row.kind is Kind.IGNORED else "the server does so anyway"
    return Row((flag,), Kind.IGNORED, why)


def _value(words: Sequence[str]) -> str | None:
    """The word that follows, if it is no flag."""
    is_value = bool(words) and (not words[0].startswith("-") or _NUMBER.fullmatch(words[0]) is not None)
    return words[0] if is_value else None


def _drop_values(row: Row, words: list[str]) -> None:
    """Take the values of an ignored flag from what follows it."""
    if row.values is Values.NONE:
        if words and words[0].lower() in _SWITCH_WORDS:
            del words[0]
        return
    if _value(words) is not None:
        del words[0]
    while row.values is Values.MANY and _value(words) is not None:
        del words[0]


def _advice(flag: str, options: Iterable[str]) -> str:
    names = sorted(options)
    if flag in names:
        return f"use {flag}"
    # Without the dashes, which all have in common.
    bare = {name.lstrip("-"): name for name in names}
    near = difflib.get_close_matches(flag.lstrip("-"), bare, n=1, cutoff=0.7)
    return f"did you mean {bare[near[0]]}?" if near else "see cohort serve --help"
