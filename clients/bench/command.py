"""`cohort bench`: how fast is a server with an OpenAI-compatible API?

workloads.py   what is asked for
prompts.py     what is sent
http.py        the connection; stream.py: what one answer says
load.py        one run; figures.py: its figures; session.py: all runs of all workloads
report.py      the JSON, and its schema; view.py and plot.py for people
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from server.commands.common import INTERRUPTED, fail, print_json, take_interrupts
from server.commands.options import DEFAULT_URL, Number, Text, flag

if TYPE_CHECKING:
    from clients.bench.session import BenchRun

STDOUT = "-"


class BenchCommand(TyperCommand):
    """Lets `--json` stand without a file, which then is stdout: Typer has no options with a value that may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = []
        for i, word in enumerate(args):
            words.append(word)
            after = args[i + 1] if i + 1 < len(args) else None
            # What looks like an address is the server's.
            if word == "--json" and (after is None or after.startswith("--") or "://" in after):
                words.append(STDOUT)
        return super().parse_args(ctx, words)


COMMAND_CLASS = BenchCommand


def bench(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help=f"Address of the server [default: {DEFAULT_URL}]", show_default=False
        ),
    ] = DEFAULT_URL,
    model: Annotated[Text, flag("Name of the model [the first that the server lists].", "--model")] = None,
    workload: Annotated[
        list[str] | None,
        flag(
            "Workload to run; several with commas or with several flags. --list shows them [steady].",
            "--workload",
            metavar="NAME",
        ),
    ] = None,
    requests: Annotated[Number, flag("Requests per run [the workload's].", "--requests")] = None,
    concurrency: Annotated[Number, flag("Concurrent requests [the workload's].", "--concurrency")] = None,
    prompt_tokens: Annotated[
        Number, flag("Tokens per prompt after the shared beginning [the workload's].", "--prompt-tokens")
    ] = None,
    output_tokens: Annotated[Number, flag("Tokens per answer [the workload's].", "--output-tokens")] = None,
    repeat: Annotated[
        int, flag("Runs per workload. If there are several, the first is a warm-up [3].", "--repeat")
    ] = 3,
    seed: Annotated[
        Number, flag("Seed of the prompts; the same prompts may be in the prefix cache [random].", "--seed")
    ] = None,
    vocab_size: Annotated[
        Number, flag("Size of the vocabulary, if the server does not tell it.", "--vocab-size")
    ] = None,
    api_key: Annotated[Text, flag("The server's key [COHORT_API_KEY, OPENAI_API_KEY].", "--api-key")] = None,
    json_file: Annotated[
        Text, flag("Write the report as JSON to FILE, without FILE to stdout.", "--json", metavar="[FILE]")
    ] = None,
    plot: Annotated[
        Text, flag("Draw throughput against latency. Needs the extra [bench].", "--plot", metavar="FILE.png")
    ] = None,
    list_: Annotated[bool, flag("List the workloads.", "--list")] = False,
) -> None:
    """Measure the speed of a server.

    Runs named workloads against any server with an OpenAI-compatible API and reports throughput, time to the first token and
    time between tokens. Exit code 1: there was nothing to measure, or requests failed.
    """
    import random

    from clients.bench import plot as plotting
    from clients.bench import view
    from clients.bench.session import BenchRun
    from clients.bench.workloads import choose

    if list_:
        return view.show_workloads()
    changes = {
        "requests": requests, "concurrency": concurrency, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens,
    }  # fmt: skip
    try:
        workloads = choose(workload or (), changes)
    except ValueError as error:
        fail(str(error))
    if repeat < 1:
        fail(f"--repeat {repeat}: at least 1 is needed")
    if vocab_size is not None and vocab_size < 16:
        fail(f"--vocab-size {vocab_size}: no model has so few")
    if plot is not None:
        plotting.require()
    for name, file in (("--json", json_file), ("--plot", plot)):
        if file is not None and file != STDOUT:
            _check_place(name, file)
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 31)
    take_interrupts()
    job = BenchRun(tuple(workloads), model, repeat, seed, vocab_size, quiet=json_file == STDOUT)
    report = _measure(url, _key(api_key), job)
    _write(report, json_file, plot)
    if any(run["failed"] for entry in report["workloads"] for run in entry["runs"]):
        sys.exit(1)


def _measure(url: str, key: str | None, job: BenchRun) -> dict[str, Any]:
    """The report. Ends the process with what went wrong."""
    import asyncio

    import uvloop

    from clients.bench.session import measure
    from clients.http import BenchFault, Broken, Client, Refused, reason

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure(Client(url, key), job))
    except ConnectionRefusedError:
        fail(f"no server answers at {url}: start one with `cohort serve`, or give its address", 1)
    except BenchFault as error:
        fail(str(error), 1)
    except (Refused, Broken, OSError) as error:
        fail(f"{url}: {reason(error)}", 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _key(option: str | None) -> str | None:
    """The first of several that a variable may have, as `cohort serve` takes them."""
    from server.settings.foreign.keys import client_key

    for value in (option, *(os.environ.get(name) for name in ("COHORT_API_KEY", "OPENAI_API_KEY"))):
        if value and (first := value if value is option else value.partition(",")[0].strip()):
            return first
    return client_key(os.environ)


def _check_place(name: str, file: str) -> None:
    """Ends the process where the file could not be written: better now than when all is measured."""
    path = Path(file).expanduser()
    if (
        path.is_dir()
        or not path.parent.is_dir()
        or not os.access(path if path.exists() else path.parent, os.W_OK)
    ):
        fail(f"{name} {file}: this file cannot be written")


def _write(report: dict[str, Any], json_file: str | None, plot: str | None) -> None:
    import json

    from clients.bench import plot as plotting

    if json_file == STDOUT:
        print_json(report)
    try:
        if json_file not in (None, STDOUT):
            text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
            Path(str(json_file)).expanduser().write_text(f"{text}\n", "utf-8")
        if plot is not None:
            plotting.draw(report, Path(plot).expanduser())
    except OSError as error:
        fail(f"{error.filename or 'the report'}: {error.strerror or error}", 1)
