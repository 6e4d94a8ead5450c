"""How much of the tests a run takes, beside `-m`: cases of sweeps and examples of Hypothesis (`--few`), and what `--short` and
`--full` say of tests marked `long`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")
Function = TypeVar("Function", bound=Callable[..., Any])


FEW_EXAMPLES, FEW_CASES = 4, 3
"""With `--few`, as `make test` runs, tests go through one example of so many, and sweeps through one case."""
settings.register_profile("cohort", deadline=None, derandomize=True)
settings.register_profile("few", settings.get_profile("cohort"), max_examples=100 // FEW_EXAMPLES)


def load_profile(few: bool) -> None:
    """Load Hypothesis' profile, before test files are imported: `examples` asks for it."""
    settings.load_profile("few" if few else "cohort")


def examples(number: int) -> int:
    """How many examples a test that names a number draws in this run: `@settings(max_examples=examples(1000))`."""
    return max(1, number // FEW_EXAMPLES) if settings.get_current_profile_name() == "few" else number


def sweep(every: int) -> Callable[[Function], Function]:
    """Decorate a test that is one check over many shapes, layouts or texts: a run takes each `every`-th case, the first one
    included, `--few` about a third of those, and `--sweeps` all cases."""

    def mark(function: Function) -> Function:
        function.sweep = every  # type: ignore[attr-defined]
        return function

    return mark


def chosen(
    items: Sequence[pytest.Item], sweeps: bool, short: bool, full: bool, few: bool = False
) -> list[pytest.Item]:
    """The tests of `items` that a run takes. `sweeps`: all cases of the sweeps, and nothing else. `short`: without tests marked
    `long(extended=True)`, and each n-th case of those marked `long(every=n)`. `full`: with those marked `long(full=True)`. `few`:
    fewer cases of the sweeps."""
    if sweeps:
        return [item for item in items if _sweep(item) is not None]
    taken = (item for item in items if full or not _long(item, "full"))
    rest = _every_nth((item, _few(_sweep(item)) if few else _sweep(item)) for item in taken)
    if short:
        rest = _every_nth((item, _long(item, "every")) for item in rest if not _long(item, "extended"))
    return list(rest)


_ALTERNATIVES = re.compile(r"\bor\b|[()]")
_EXCLUDED = re.compile(r"not (long|external|gpu)")
_MARK_OF_A_FILE = re.compile(r"^pytestmark = (?:\[[^\]]*?)?pytest\.mark\.(long|external|gpu)\b", re.MULTILINE)


def has_no_test(source: str, expression: str) -> bool:
    """Whether `-m EXPRESSION` deselects each test of a file, as its `pytestmark` tells: such a file need not be imported. False
    where that is not certain."""
    if _ALTERNATIVES.search(expression):
        return False
    terms = [_EXCLUDED.fullmatch(term.strip()) for term in expression.split(" and ")]
    mark = _MARK_OF_A_FILE.search(source)
    return mark is not None and any(term is not None and term[1] == mark[1] for term in terms)


def part_of(config: pytest.Config, cases: Iterable[Case], every: int) -> list[Case]:
    """Of cases that one test goes through by itself, those that a run takes: each `every`-th with `--short`, the first one
    included, and all without."""
    return list(cases)[:: every if config.getoption("short") else 1]


def _sweep(item: pytest.Item) -> int | None:
    return getattr(getattr(item, "function", None), "sweep", None)


def _few(every: int | None) -> int | None:
    """The distance of a sweep's cases with `--few`: a prime, so that no parameter is the same in all of them."""
    if every is None:
        return None
    return next(
        number
        for number in itertools.count(FEW_CASES * every)
        if all(number % divisor for divisor in range(2, number))
    )


def _long(item: pytest.Item, name: str) -> Any:
    """The argument `name` of the closest marker `long` that has it; None if none has."""
    return next((one.kwargs[name] for one in item.iter_markers("long") if name in one.kwargs), None)


def _every_nth(items: Iterable[tuple[pytest.Item, int | None]]) -> Iterator[pytest.Item]:
    """Of the cases of each function that has a number n, each n-th one; all others."""
    seen = Counter[str]()
    for item, every in items:
        if every is not None:
            function = item.nodeid.partition("[")[0]
            seen[function] += 1
            if (seen[function] - 1) % every:
                continue
        yield item
