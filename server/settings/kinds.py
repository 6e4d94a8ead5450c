"""Rows of the settings table, and a constructor for each kind of setting.

A constructor (`integer`, `text`, `switch`, ...) makes a dataclass field that carries its row. The declared type of the
constructor is the type of the value, so that mypy compares the kind of a row with the annotation of its field. Standard library
only: `--help` reads the table and has to be quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

from server.settings.readers import (
    Scalar,
    Unfit,
    parse_bytes,
    read_aliases,
    read_integer,
    read_json_object,
    read_key,
    read_keys,
    read_modules,
    read_names,
    read_number,
    read_pairs,
    read_string,
    read_switch,
    read_text,
)

C = TypeVar("C", bound=str)
D = TypeVar("D")
N = TypeVar("N", int, float)

ENV_PREFIX = "COHORT_"
_ROW = "row"
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table: all that flags, environment, YAML, `--help` and the docs page say about a setting."""

    name: str = ""
    """Key in a YAML file. The flag and the environment name derive from it."""
    kind: str
    """Type and range in words, for the docs page."""
    read: Callable[[Any], Any]
    """Turns what a flag, a variable or a file says into the value of the setting. Raises Unfit."""
    default: Any
    """Value where neither flag nor environment nor file has one. None: decided by the model or the machine."""
    wording: str = "{}"
    """Default in words; `{}` stands for the default itself. Empty: not said."""
    help: str
    """What the setting does, in a sentence or two, without the default."""
    metavar: str
    """Placeholder of the value in `--help`."""
    several: bool = False
    """True where the flag may be given several times."""
    secret: bool = False
    """True where error sentences must not repeat the value."""
    opens: str = ""
    """Heading of the section of the docs page that begins with this row."""

    @property
    def is_switch(self) -> bool:
        """True for a flag that takes no value and has a `--no-` form."""
        return self.read is read_switch

    @property
    def flag(self) -> str:
        """Such as --max-num-seqs."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def switch_flags(self) -> str:
        """Both flags of a switch, such as --deterministic/--no-deterministic."""
        return f"{self.flag}/--no-{self.flag.removeprefix('--')}"

    @property
    def variable(self) -> str:
        """Such as COHORT_MAX_NUM_SEQS."""
        return f"{ENV_PREFIX}{self.name.upper()}"

    @property
    def default_text(self) -> str:
        """Default as `--help` and the docs page show it; empty where there is nothing to say."""
        return self.wording.replace("{}", self._plain_default())

    @property
    def help_line(self) -> str:
        """Help text with the default in square brackets."""
        default = self.default_text
        return f"{self.help.removesuffix('.')} [{default}]." if default else self.help

    def value_of(self, value: Any) -> Any:
        """The value for what a flag, a variable or a file says. Raises Unfit."""
        if value is None and self.default is None:
            return None
        if isinstance(value, bool) and not self.is_switch:
            # YAML's `true` (and `yes`, and `on`) would be the number 1 for a setting that is a number.
            raise Unfit("it should not be true or false", value)
        return self.read(value)

    def _plain_default(self) -> str:
        value = self.default
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.metavar == "BYTES":
            return next(f"{value // step}{unit}" for unit, step in _SIZES if value % step == 0)
        if isinstance(value, tuple):
            return ", ".join(value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def row_of(of: Field[Any]) -> Setting | None:
    """The row that a field of a dataclass carries, named as the field is; None for a field that is no setting."""
    row: Setting | None = of.metadata.get(_ROW)
    return None if row is None else replace(row, name=of.name)


def _carrying(row: Setting, default: D) -> D:
    """A dataclass field with that default, which carries the row."""
    if isinstance(default, dict):
        # Dataclasses want a new one for each object.
        return cast(D, field(default_factory=default.copy, metadata={_ROW: row}))
    return field(default=default, metadata={_ROW: row})


# -- constructors, one for each kind ---------------------------------------------------------------------------------------


def integer(
    default: D,
    help_: str,
    *,
    low: int | None = None,
    high: int | None = None,
    below: int | None = None,
    wording: str = "{}",
    opens: str = "",
) -> int | D:
    """A whole number: at least `low`, at most `high`, less than `below`."""

    def read(value: Any) -> int:
        return _within(read_integer(value), value, low=low, high=high, below=below)

    kind = f"integer{_range(low=low, high=high, below=below)}"
    row = Setting(
        kind=kind,
        read=read,
        default=default,
        wording=wording,
        help=help_,
        metavar="<int>",
        opens=opens,
    )
    return _carrying(row, default)


def number(
    default: D,
    help_: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    may_be_infinite: bool = False,
    wording: str = "{}",
    opens: str = "",
) -> float | D:
    """A number: at least `low`, greater than `above`, at most `high`."""

    def read(value: Any) -> float:
        number = read_number(value)
        if not may_be_infinite and not math.isfinite(number):
            raise Unfit("it should be a finite number", value)
        return _within(number, value, low=low, above=above, high=high)

    kind = f"number{_range(low=low, above=above, high=high)}"
    row = Setting(
        kind=kind,
        read=read,
        default=default,
        wording=wording,
        help=help_,
        metavar="<float>",
        opens=opens,
    )
    return _carrying(row, default)


def byte_size(default: D, help_: str, *, wording: str = "{}", opens: str = "") -> int | D:
    """A number of bytes above 0, with or without a unit: 4GiB, 512M, 1000000."""
    kind = "bytes, such as `4GiB` or `1000000`"
    row = Setting(
        kind=kind,
        read=read_size,
        default=default,
        wording=wording,
        help=help_,
        metavar="BYTES",
        opens=opens,
    )
    return _carrying(row, default)


def read_size(value: Any) -> int:
    """A number of bytes above 0. Raises Unfit."""
    return _within(read_integer(parse_bytes(value)), value, above=0)


def text(
    default: D,
    help_: str,
    *,
    metavar: str = "<str>",
    may_be_empty: bool = False,
    wording: str = "{}",
    opens: str = "",
) -> str | D:
    """A string, of at least one character unless `may_be_empty`."""
    read = read_string if may_be_empty else read_text
    row = Setting(
        kind="string",
        read=read,
        default=default,
        wording=wording,
        help=help_,
        metavar=metavar,
        opens=opens,
    )
    return _carrying(row, default)


def choice(default: D, help_: str, values: tuple[C, ...], *, wording: str = "{}", opens: str = "") -> C | D:
    """One of `values`."""
    quoted = [f"'{value}'" for value in values]
    expected = f"it should be {', '.join(quoted[:-1])} or {quoted[-1]}"

    def read(value: Any) -> C:
        for allowed in values:
            if allowed == value:
                return allowed
        raise Unfit(expected, value)

    kind = ", ".join(f"`{value}`" for value in values)
    row = Setting(
        kind=kind,
        read=read,
        default=default,
        wording=wording,
        help=help_,
        metavar="<str>",
        opens=opens,
    )
    return _carrying(row, default)


def switch(default: bool, help_: str, *, opens: str = "") -> bool:
    """On or off."""
    kind = "`true` or `false`"
    row = Setting(kind=kind, read=read_switch, default=default, help=help_, metavar="", opens=opens)
    return _carrying(row, default)


def key(default: D, help_: str, *, wording: str = "{}") -> str | D:
    """A secret."""
    row = Setting(
        kind="string",
        read=read_key,
        default=default,
        wording=wording,
        help=help_,
        metavar="<str>",
        secret=True,
    )
    return _carrying(row, default)


def keys(help_: str, *, wording: str, opens: str = "") -> tuple[str, ...]:
    """Secrets, none by default."""
    row = Setting(
        kind="strings", read=read_keys, default=(), wording=wording, help=help_, metavar="<list[str]>",
        several=True, secret=True, opens=opens,
    )  # fmt: skip
    return _carrying(row, ())


def names(
    default: tuple[str, ...],
    help_: str,
    *,
    commas_in_items: bool = False,
    json_lists: bool = False,
    wording: str = "{}",
    opens: str = "",
) -> tuple[str, ...]:
    """Strings of at least one character each; see `read_names` for how they are written."""
    read = partial(read_names, commas_in_items=commas_in_items, json_lists=json_lists)
    row = Setting(
        kind="strings", read=read, default=default, wording=wording, help=help_, metavar="<list[str]>", several=True, opens=opens
    )  # fmt: skip
    return _carrying(row, default)


def aliases(help_: str, *, wording: str, opens: str = "") -> tuple[str, ...]:
    """Patterns and names, none by default; see `read_aliases`."""
    row = Setting(
        kind="strings `PATTERN=NAME`", read=read_aliases, default=(), wording=wording, help=help_,
        metavar="PATTERN=NAME", several=True, opens=opens,
    )  # fmt: skip
    return _carrying(row, ())


def modules(help_: str, *, wording: str, opens: str = "") -> tuple[str, ...]:
    """Names and paths, none by default; see `read_modules`."""
    row = Setting(
        kind="strings; `NAME=PATH`, or JSON objects", read=read_modules, default=(), wording=wording, help=help_,
        metavar="NAME=PATH", several=True, opens=opens,
    )  # fmt: skip
    return _carrying(row, ())


def pairs(help_: str, *, wording: str, opens: str = "") -> Mapping[str, Scalar]:
    """Names and values, none by default."""
    default: dict[str, Scalar] = {}
    row = Setting(
        kind="mapping; `NAME=VALUE` outside of YAML", read=read_pairs, default=default, wording=wording, help=help_,
        metavar="NAME=VALUE", several=True, opens=opens,
    )  # fmt: skip
    return _carrying(row, default)


def json_object(help_: str, *, wording: str, opens: str = "") -> Mapping[str, Any]:
    """A JSON object, empty by default."""
    default: dict[str, Any] = {}
    row = Setting(
        kind="mapping; a JSON object outside of YAML", read=read_json_object, default=default, wording=wording, help=help_,
        metavar="JSON", opens=opens,
    )  # fmt: skip
    return _carrying(row, default)


def _within(
    number: N,
    value: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
) -> N:
    """`number`, if it is inside of the bounds. Not-a-number is inside of none. Raises Unfit."""
    if high is not None and not number <= high:
        raise Unfit(f"it should be less than or equal to {high:g}", value)
    if below is not None and not number < below:
        raise Unfit(f"it should be less than {below}", value)
    if low is not None and not number >= low:
        raise Unfit(f"it should be greater than or equal to {low:g}", value)
    if above is not None and not number > above:
        raise Unfit(f"it should be greater than {above:g}", value)
    return number


def _range(
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: int | None = None,
) -> str:
    """`, 1 to 1024`, `, at least 1`, `, above 0, at most 1`; empty where there are no bounds."""
    top = f"{high:g}" if high is not None else str(below - 1) if below is not None else None
    if above is not None:
        return f", above {above:g}" + (f", at most {top}" if top else "")
    if low is not None:
        return f", {low:g} to {top}" if top else f", at least {low:g}"
    return f", at most {top}" if top else ""
