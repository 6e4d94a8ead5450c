"""All that `cohort bench` does with a server, from its first question to the report."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clients.bench import load, report, view
from clients.bench import prompts as bench_prompts
from clients.bench.figures import figures
from clients.bench.prompts import Prompts
from clients.bench.workloads import Workload
from clients.http import BenchFault, Broken, Client, Refused


@dataclass(frozen=True, slots=True)
class BenchRun:
    """What is to be measured. `model` None: the first that the server has. `quiet`: stdout is for the JSON."""

    workloads: tuple[Workload, ...]
    model: str | None = None
    repeat: int = 3
    seed: int = 0
    vocab_size: int | None = None
    quiet: bool = False

    @property
    def warm_up(self) -> int:
        """Runs that are thrown away: caches, threads and compiled shapes settle in the first. A single run counts."""
        return 1 if self.repeat > 1 else 0


async def measure(client: Client, job: BenchRun) -> dict[str, Any]:
    """The whole report, see report.py.

    Raises BenchFault, Refused, Broken and OSError where there is nothing to measure.
    """
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = report.client_facts()
    model, context = await _model(client, job.model)
    for workload in job.workloads:
        if context is not None and workload.context > context:
            raise BenchFault(
                f"{workload.name} takes {workload.context} tokens of context, and {model} has {context}: "
                "give --prompt-tokens or --output-tokens"
            )
    server = await _server_facts(client)
    vocab_size = server["model"]["vocab_size"] if server["model"] else None
    prompts = await bench_prompts.find(client, model, job.vocab_size, vocab_size)
    if not job.quiet:
        view.show_head(client.url, model, prompts.about)
    entries = []
    for workload in job.workloads:
        entries.append(await _measure(client, model, prompts, job, workload))
        if not job.quiet:
            view.show(entries[-1])
    config = {
        "url": client.url, "model": model, "repeat": job.repeat, "warm_up": job.warm_up, "seed": job.seed,
        "prompts": prompts.about,
    }  # fmt: skip
    return {
        "schema": report.SCHEMA, "when": when, "config": config, "client": facts, "server": server,
        "workloads": entries,
    }  # fmt: skip


async def _measure(
    client: Client, model: str, prompts: Prompts, job: BenchRun, workload: Workload
) -> dict[str, Any]:
    """All runs of one workload. Raises BenchFault where none of the requests of a run is served: the next would be no
    better."""
    runs = []
    for number in range(job.repeat):
        requests = bench_prompts.requests(client, model, prompts, workload, job.seed, number)
        counted = number - job.warm_up
        about = f"run {counted + 1} of {job.repeat - job.warm_up}" if counted >= 0 else "warming up"
        with view.progress(len(requests), f"{workload.name}, {about}") as step:
            run = await _run(client, requests, workload, step)
        runs.append(figures(workload, run))
    return report.of_workload(workload, runs[: job.warm_up], runs[job.warm_up :])


async def _run(
    client: Client, requests: list[bytes], workload: Workload, step: Callable[[], None]
) -> load.Run:
    run = await load.run(client, requests, workload.concurrency, step)
    if not run.served:
        raise BenchFault(f"{workload.name}: all requests failed, the first with: {run.failures[0]}")
    return run


async def _model(client: Client, name: str | None) -> tuple[str, int | None]:
    """The model's name, and its context length where the server tells it. Raises BenchFault, Broken and OSError."""
    try:
        answer = await client.ask("GET", "/v1/models")
        cards = {str(card["id"]): card.get("max_model_len") for card in answer["data"]}
    except Refused as refused:
        if name is not None and refused.status not in (401, 403):
            return name, None
        hint = "; give the key with --api-key" if refused.status == 401 else ""
        raise BenchFault(f"{client.url} says {refused}{hint}") from None
    except (KeyError, TypeError, AttributeError):
        raise BenchFault(f"{client.url} is no server with an OpenAI-compatible API") from None
    if not cards and name is None:
        raise BenchFault(f"{client.url} serves no model")
    chosen = name if name is not None else next(iter(cards))
    context = cards.get(chosen)
    return chosen, context if isinstance(context, int) else None


async def _server_facts(client: Client) -> dict[str, Any]:
    """What it says of itself. Both routes are extensions, which others may not have."""
    answers: list[Any] = []
    for path in ("/version", "/v1/executors"):
        try:
            answers.append(await client.ask("GET", path))
        except (Refused, Broken):
            answers.append(None)
    version, executors = answers
    try:
        info = executors["data"][0]["info"]
        is_usable = isinstance(info["vocab_size"], int) and info["vocab_size"] >= 16
    except (KeyError, IndexError, TypeError):
        is_usable = False
    return {"version": version, "model": info if is_usable else None}
