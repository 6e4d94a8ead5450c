"""What `cohort bench` shows in a terminal: what is running, and a table per workload."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from clients.bench.workloads import WORKLOADS, Workload
from server.commands.common import console

_ROWS = (
    ("output tokens/s", "output_tokens_per_s"),
    ("total tokens/s", "total_tokens_per_s"),
    ("requests/s", "requests_per_s"),
    ("TTFT ms, p50", "ttft_p50_ms"),
    ("          p90", "ttft_p90_ms"),
    ("          p99", "ttft_p99_ms"),
    ("ITL ms, p50", "itl_p50_ms"),
    ("         p90", "itl_p90_ms"),
    ("         p99", "itl_p99_ms"),
    ("end to end ms, p50", "e2e_p50_ms"),
    ("                p99", "e2e_p99_ms"),
)
_REFRESHES = 4
"""Per second. Drawing takes a core from the server; ten, as is usual, would be seen in the figures."""

Step = Callable[[], None]


@contextmanager
def progress(total: int, title: str) -> Iterator[Step]:
    """A bar on stderr while requests run; nothing where that is no terminal. Gives what to call for each request."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=screen, refresh_per_second=_REFRESHES, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def show_head(url: str, model: str, prompts: dict[str, Any]) -> None:
    """What is measured."""
    screen = console()
    screen.print()
    screen.print(f"{model} at {url}", style="bold")
    form = prompts["form"]
    if "low" in prompts:
        form += f" from {prompts['low']:,} to {prompts['high']:,}"
    elif "ids" in prompts:
        form += f", {prompts['ids']} different ones that /tokenize gave"
    else:
        form += f" of random words, about {prompts['tokens_per_word']:.2f} tokens each"
    screen.print(f"Prompts are {form}.", style="dim")


def show(entry: dict[str, Any]) -> None:
    """One workload's figures."""
    workload, runs, figures = Workload(**entry["workload"]), entry["runs"], entry["summary"]
    screen = console()
    screen.print()
    screen.print(f"{workload.name}: {describe(workload)}", style="bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("median", "min", "max", "spread"):
        table.add_column(name, justify="right")
    for title, name in _ROWS:
        if figures[name] is not None:
            middle, least, most = (figures[name][part] for part in ("median", "min", "max"))
            spread = f"{100 * (most - least) / middle:.0f}%" if middle else "0%"
            table.add_row(title, *map(_number, (middle, least, most)), spread)
    screen.print(table)
    again = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
    if entry["warm_up"]:
        again += ", after one to warm up"
    screen.print(f"{again}.", style="dim")
    for line in notes(workload, runs, entry["warm_up"]):
        screen.print(line, style="yellow")


def describe(workload: Workload) -> str:
    """Its numbers in words."""
    shared = f"{workload.shared_tokens} shared + " if workload.shared_tokens else ""
    plural = "s" if workload.requests != 1 else ""
    return (
        f"{workload.requests} request{plural}, {workload.concurrency} at a time, "
        f"{shared}{workload.prompt_tokens} tokens in, {workload.output_tokens} out"
    )


def notes(workload: Workload, runs: list[dict[str, Any]], warm_up: list[dict[str, Any]]) -> Iterator[str]:
    """What whoever reads the figures should know, a line each."""
    for run in warm_up:
        if run["failed"]:
            yield f"{run['failed']} requests failed while warming up, the first with: {run['first_error']}"
    failed, total = sum(run["failed"] for run in runs), sum(run["requests"] for run in runs)
    if failed:
        first = next(run["first_error"] for run in runs if run["first_error"])
        yield f"{failed} of {total} requests failed, the first with: {first}"
    if short := sum(run["cut_short"] for run in runs):
        yield f"{short} answers were shorter than asked for: this server may not know `ignore_eos`."
    if not all(run["counted_by_server"] for run in runs):
        yield "The server does not count tokens (stream_options.include_usage): each event counts as one."
    merged = [run["tokens_per_event"] for run in runs if run["tokens_per_event"]]
    if merged and max(merged) > 1.1:
        yield (
            f"Up to {max(merged):.2f} tokens came in one event: ITL is the time between events; per token see tpot_p50_ms "
            "in the JSON."
        )
    prompt = [run["prompt_tokens"] / max(1, run["requests"] - run["failed"]) for run in runs]
    expected = workload.shared_tokens + workload.prompt_tokens
    if prompt and any(abs(one - expected) > 0.1 * expected for one in prompt if one):
        yield f"Prompts have {prompt[0]:.0f} tokens by the server's count, not {expected}."


def show_workloads() -> None:
    """All that there are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("workload", "requests", "at a time", "tokens in", "out"):
        table.add_column(name, justify="left" if name == "workload" else "right", no_wrap=True)
    table.add_column("")
    for one in WORKLOADS.values():
        prompt = (
            f"{one.shared_tokens} + {one.prompt_tokens}" if one.shared_tokens else f"{one.prompt_tokens:,}"
        )
        table.add_row(
            one.name, f"{one.requests:,}", str(one.concurrency), prompt, str(one.output_tokens), one.about
        )
    console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"
