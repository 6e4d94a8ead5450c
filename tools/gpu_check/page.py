"""Keeps what README.md and docs/gpu.md say of GPUs that of the log: `python -m tools.gpu_check.page write|check`.

Each figure is told with the card, the date and the commit of its line, and whether the code that gave it is still this tree's.
`check` fails where a page says anything else, be it because a file that a line ran has changed since.
"""

from __future__ import annotations

import functools
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import generated_page
from tools.gpu_check import log
from tools.gpu_check.history import NOW, OWN, SINCE, UNKNOWN, code, missed, numbers, shown, unusual
from tools.gpu_check.log import ROOT, Row

CURE = "python -m tools.gpu_check.page write"
_WIDTH = 140


Place = tuple[str, ...]
"""A part, the figure's name in it, of mappings with dots, and that of the share of a limit that is told beside it, if any."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A row of the table: what is measured, and `unit` behind the number. Where several `places` have it, the newest line counts.
    `of`: the figure of the same line that says how many there are."""

    what: str
    unit: str
    places: tuple[Place, ...]
    factor: float = 1.0
    of: str | None = None


_SHARE, _TOKENS = "share_of_roofline", "tokens/s"
_SERVED, _E4M3_KV, _LARGE, _LARGE_E4M3 = "served-0.6b", "served-0.6b-e4m3kv", "served-8b", "served-8b-e4m3"
HEADLINES = (
    Headline("tests that passed", "", (("tests", "passed"),), of="tests"),
    Headline("texts of a crowd equal to themselves alone", "", (("churn", "identical"),), of="finished"),
    Headline("sequences of small models equal to eager torch's", "", (("agreement", "identical"),), of="sequences"),
    Headline("largest difference of a bf16 logprob", "", (("agreement-bf16", "largest_logprob_difference"),)),
    Headline(
        "0.6B, one sequence", _TOKENS,
        (("single-0.6b", "tokens_per_s", _SHARE), (_SERVED, "single_tokens_per_s", "single_share_of_roofline")),
    ),
    Headline(
        "0.6B, 256 sequences", _TOKENS,
        (("offline-0.6b", "output_tokens_per_s", _SHARE), (_SERVED, "offline_tokens_per_s", "offline_share_of_roofline")),
    ),
    Headline(
        "0.6B, 256 sequences, KV in e4m3", _TOKENS, ((_E4M3_KV, "offline_tokens_per_s", "offline_share_of_roofline"),)
    ),
    Headline(
        "0.6B, 32 prompts of 128 tokens together", "ms", (("cohort", "together_ms"), (_SERVED, "first_tokens_ms 32 x 128"))
    ),
    Headline("0.6B, a prompt of 8,192 tokens", "ms", ((_SERVED, "first_tokens_ms 1 x 8192"),)),
    Headline("0.6B, 64 tokens behind 7,040 cached", "ms", ((_SERVED, "first_token_ms 64 behind 7040"),)),
    Headline("0.6B, 512 in, 128 out over HTTP, all at once", "requests/s", ((_SERVED, "http.at once.requests_per_s"),)),
    Headline(
        "8B, one sequence", _TOKENS,
        (("single-8b", "tokens_per_s", _SHARE), (_LARGE, "tokens_per_s_of_one", "share_of_copy_of_one")),
    ),
    Headline("8B, one sequence, e4m3", _TOKENS, ((_LARGE_E4M3, "tokens_per_s_of_one", "share_of_copy_of_one"),)),
    Headline(
        "8B, 256 sequences", _TOKENS,
        (("offline-8b", "output_tokens_per_s", _SHARE), (_LARGE, "output_tokens_per_s", _SHARE)),
    ),
    Headline("8B, 256 sequences, weights and KV in e4m3", _TOKENS, ((_LARGE_E4M3, "output_tokens_per_s", _SHARE),)),
    Headline("8B, first start, no kernel compiled yet", "s", ((_LARGE, "start_seconds"),)),
    Headline("8B, the longest pause of a stream when the executor is killed", "s", ((_LARGE, "pause_seconds"),)),
    Headline(
        "decode attention, 256 x 1,024, of a copy's bandwidth", "%",
        (("kernels-all", "decode_attention_share_of_copy"),), factor=100.0,
    ),
    Headline("idle between steps, 256 sequences", "%", (("steps", "idle_share_between_steps"),), factor=100.0),
    Headline("32 streams with eight LoRA adapters, of the speed without", "%", (("adapters", "active_share"),), factor=100.0),
)  # fmt: skip
_CODE = {NOW: "this tree's", SINCE: "changed since", UNKNOWN: "not known"}


@dataclass(frozen=True, slots=True)
class Found:
    """The newest value of a headline on a card."""

    headline: Headline
    row: Row
    value: float
    share: float | None = None

    @property
    def words(self) -> str:
        """The number with its unit and share."""
        unit, figures = self.headline.unit, self.row["figures"]
        said = shown(self.value * self.headline.factor)
        if self.headline.of in figures:
            said += f" of {shown(figures[self.headline.of])}"
        said += f" {unit}" if unit not in ("", "%") else unit
        return said if self.share is None else f"{said}, {self.share:.0%} of the limit"


def found(rows: Sequence[Row]) -> Iterator[Found]:
    """For each headline and each card that has it, in the order of the table, then of the log."""
    for headline in HEADLINES:
        newest: dict[str, Found] = {}
        for row in rows:
            # Where tests failed, how many passed is what is known of them.
            if unusual(row) or (row["state"] != "pass" and (row["part"], row["state"]) != ("tests", "fail")):
                continue
            values = dict(numbers(row["figures"]))
            for part, name, *share in headline.places:
                if part == row["part"] and name in values:
                    beside = values.get(share[0]) if share else None
                    newest[_card(row)] = Found(headline, row, values[name], beside)
        yield from newest.values()


def goal_words(figures: Mapping[str, Any]) -> list[str]:
    """Of each target that was missed."""
    return ["missed" if target == OWN else f"missed: {target}" for target in missed(figures)]


def _card(row: Mapping[str, Any]) -> str:
    return str(row.get("card") or "unknown card")


def _date(row: Mapping[str, Any]) -> str:
    return str(row.get("written") or "undated")[:10]


def _commit(row: Mapping[str, Any]) -> str:
    return str(row.get("commit") or "not recorded")


def later(rows: Sequence[Row], one: Row) -> str:
    """What became of the part on this card after that line: "" where nothing worse did."""
    after = [
        row
        for row in rows[rows.index(one) + 1 :]
        if (row["part"], row.get("card")) == (one["part"], one.get("card"))
    ]
    failed = [row for row in after if row["state"] == "fail"]
    return f"; failed on {_date(failed[-1])}" if failed else ""


def table(rows: Sequence[Row], root: Path = ROOT) -> str:
    """docs/gpu.md's."""
    if not rows:
        return "The log has no line: nothing was measured on a GPU yet."
    lines = [
        "| Qwen3 shapes, random weights | found | targets | card | date | commit | its code |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found(rows):
        figures = one.row["figures"]
        goals = "; ".join(goal_words(figures)) or ("reached" if figures.get("reached") else "none")
        state = _CODE[code(one.row, root)[0]] + later(rows, one.row)
        about = (one.words, goals, _card(one.row), _date(one.row), _commit(one.row), state)
        lines.append(f"| {one.headline.what} | {' | '.join(about)} |")
    return "\n".join(lines)


def lead(rows: Sequence[Row], root: Path = ROOT) -> str:
    """README's sentence, of the card that has the newest of its figures."""
    passed = [row for row in rows if row["state"] == "pass" and row["part"] != "device" and not unusual(row)]
    if not passed:
        return (
            "Use a CPU for production. The GPU code has never run on a GPU ([how it is tested](docs/gpu.md))."
        )
    several, one = "0.6B, 256 sequences", "0.6B, one sequence"
    known = [row for row in found(rows) if row.headline.what in ("tests that passed", several, one)]
    # A card of which only other figures are known does not take away what is known of another.
    newest = max((rows.index(row.row) for row in known), default=None)
    card = _card(passed[-1] if newest is None else rows[newest])
    told = {row.headline.what: row for row in known if _card(row.row) == card}
    stream = "one" if several in told else "one stream of Qwen3-0.6B"
    words: dict[str, Callable[[Found], str]] = {
        "tests that passed": lambda row: f"{row.words} tests passed",
        several: lambda row: f"256 streams of Qwen3-0.6B got {shown(row.value)} tokens/s",
        one: lambda row: f"{stream} got {shown(row.value)}" + ("" if several in told else " tokens/s"),
    }
    facts = [f"{say(told[what])} ({_date(told[what].row)})" for what, say in words.items() if what in told]
    latest = {row["part"]: row for row in passed if _card(row) == card}.values()
    states = {code(row, root)[0] for row in ([row.row for row in told.values()] or latest)}
    state = next((name for name in (UNKNOWN, SINCE) if name in states), NOW)
    behind = {
        UNKNOWN: "which of the files that ran have changed since is not known",
        SINCE: "files that ran there have changed since",
        NOW: "of the files that ran there none has changed since",
    }[state]
    ran = f"The GPU code ran on an {card}, with random weights: {', '.join(facts)}"
    if not facts:
        count = "1 part" if len(latest) == 1 else f"{len(latest)} parts"
        ran = f"Of the GPU check, {count} passed on an {card} ({_date(passed[-1])})"
    text = f"Use a CPU for production. {ran}; {behind} ([figures](docs/gpu.md))."
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """The command. Returns 1 where `check` finds a page stale."""
    rows = log.read(root / log.PATH.relative_to(ROOT))
    pages = {"README.md": {"gpu-lead": lead(rows, root)}, "docs/gpu.md": {"gpu-figures": table(rows, root)}}
    codes = []
    for page, parts in pages.items():
        made = functools.partial(generated_page.with_parts, parts=parts)
        codes.append(generated_page.run("gpu_check.page", argv, root / page, made, CURE))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
