"""A report of `cohort verify` for a person."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from server.commands.common import console
from server.commands.verify import encoder
from server.commands.verify.cases import DIFFERENT, EQUAL, NOT_THERE

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {EQUAL: "green", DIFFERENT: "bold red", NOT_THERE: "dim"}
_MOST_ROWS = 3
"""Differences of a kind that are shown; the others are counted."""
_NUMBERS = 62
"""Columns that the numbers beside a prompt take."""
_NOTHING: dict[str, Any] = {"differences": []}
"""A part that the model does not have."""
_AROUND = 24
"""Characters shown before and after the place where two texts part."""


def show(report: dict[str, Any], name: str) -> None:
    """Print it to stdout."""
    screen = console()
    screen.print()
    peft = f" and PEFT {report['peft']}" if report["peft"] else ""
    screen.print(
        Text.assemble(
            (name, "bold"), f" in {report['dtype']}, beside transformers {report['transformers']}{peft}"
        )
    )
    screen.print()
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, part, detail in _summary(report):
        table.add_row(title, Text(part["outcome"], style=_STYLES[part["outcome"]]), Text(detail, style="dim"))
    screen.print(table)
    if report["note"]:
        screen.print(f"Random ids stand for prompts: {report['note']}", style="dim")
    screen.print()
    if report.get("encoder"):
        screen.print(encoder.numbers(report))
        screen.print(encoder.tolerance(report), style="dim")
    else:
        screen.print(_numbers(report, max(12, screen.width - _NUMBERS)))
        screen.print(_tolerance(report), style="dim")
    for line in _differences(report):
        screen.print(line)
    screen.print()
    _verdict(screen, report)


def _summary(report: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any], str]]:
    if report.get("encoder"):
        yield from encoder.summary(report)
        return
    templates, ids = report["templates"], report["token_ids"]
    refused = f", of which both sides refuse {templates['refused']}" if templates["refused"] else ""
    some = f"{_share(templates)} conversations{refused}"
    yield "chat template", templates, some if templates["outcome"] != NOT_THERE else "no chat template"
    some = f"{_share(ids)} texts, {ids['ids']:,} ids"
    yield "token ids", ids, some if ids["outcome"] != NOT_THERE else "no tokenizer"
    rows = report["logits"]["prompts"]
    yield "logits", report["logits"], f"{len(rows)} prompts, {sum(row['length'] for row in rows):,} positions"
    greedy = report["greedy"]["prompts"]
    yield "greedy text", report["greedy"], f"{sum(row['of'] for row in greedy):,} tokens"


def _share(part: dict[str, Any]) -> str:
    """How many were compared, and of how many there is something to tell."""
    differ = len(part["differences"])
    return f"{differ} of {part['compared']}" if differ else str(part["compared"])


def _numbers(report: dict[str, Any], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("prompt", overflow="ellipsis", no_wrap=True, max_width=width)
    for name in ("tokens", "whole", "in chunks", "max |logit|", "greedy"):
        table.add_column(name, justify="right", no_wrap=True)
    for i, (row, greedy) in enumerate(
        zip(report["logits"]["prompts"], report["greedy"]["prompts"], strict=True)
    ):
        style = "" if row["logits_equal"] else "red"
        agreement = f"{greedy['agreed']} of {greedy['of']}"
        if greedy["equal"] and greedy["agreed"] < greedy["of"]:
            agreement += " (a tie)"
        table.add_row(
            Text(_quoted(greedy["prompt"]) if "prompt" in greedy else f"random {i + 1}"),
            f"{row['length']:,}",
            Text(_number(row["whole"]), style=style),
            Text(_number(row["chunked"]), style=style),
            f"{row['largest']:.3g}",
            Text(agreement, style="" if greedy["equal"] else "red"),
        )
    return table


def _tolerance(report: dict[str, Any]) -> str:
    allowed, own = report["tolerance"], report["own_rounding"]
    rows = report["logits"]["prompts"]
    chunks = "whole and in chunks"
    if any(row["chunked_positions"] < row["length"] for row in rows):
        chunks = "whole, and of the last position in chunks, between which layers keep a state"
    text = f"Largest difference of a logit from float64, {chunks}. Allowed: {allowed:.2g}"
    if own is None:
        return f"{text}, as given."
    own_loss = f"what transformers itself loses in {report['dtype']}"
    if allowed == 2 * own:
        return f"{text}, twice {own_loss}."
    return f"{text}, which is {allowed / report['largest']:.0e} of the largest logit; {own_loss}: {own:.2g}."


def _differences(report: dict[str, Any]) -> Iterable[Text]:
    rows = [
        (f"chat template, {one['conversation']}", _shown(one["ours"]), _shown(one["theirs"]))
        for one in report.get("templates", _NOTHING)["differences"]
    ]
    rows += [
        (f"pair of {_quoted(' | '.join(one['texts']))}", str(one["ours"]), str(one["theirs"]))
        for one in report.get("pairs", _NOTHING)["differences"]
    ]
    rows += [
        (f"token ids of {_quoted(one['text'])}", str(one["ours"]), str(one["theirs"]))
        for one in report["token_ids"]["differences"]
    ]
    for row in report["greedy"]["prompts"] if "greedy" in report else ():
        if not row["equal"]:
            at = f"greedy text after token {row['agreed']}"
            ours, theirs = row.get("ours_text", str(row["ours"])), row.get("theirs_text", str(row["theirs"]))
            rows.append((at, ours, theirs))
    for title, ours, theirs in rows[:_MOST_ROWS]:
        begin = max(0, _parting(ours, theirs) - _AROUND)
        end = begin + 2 * _AROUND
        yield Text(f"\n{title}, from character {begin}:", style="bold")
        yield Text(f"  here          {_quoted(ours[begin:end])}")
        yield Text(f"  transformers  {_quoted(theirs[begin:end])}")
    if len(rows) > _MOST_ROWS:
        yield Text(f"\nand {len(rows) - _MOST_ROWS} more: --json tells all", style="dim")


def _parting(a: str, b: str) -> int:
    """Index of the first character that differs."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _shown(side: dict[str, str]) -> str:
    return side["text"] if "text" in side else f"refused: {side['refused']}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2g}"


def _verdict(screen: Console, report: dict[str, Any]) -> None:
    if report["equal"]:
        screen.print("Equal.", style="bold green")
        return
    parts = [
        title
        for title, part, _ in _summary(report)
        if part["outcome"] == DIFFERENT
    ]  # fmt: skip
    screen.print(f"Different: {', '.join(parts)}.", style="bold red")
