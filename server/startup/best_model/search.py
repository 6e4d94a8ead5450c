"""Chooses the model of a start without one: see rule.py. Reads names and headers, never weights, for some seconds at most."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from executors.contract import ConfigError, ModelInfo
from server.model_files.candidates import NO_BOUND, cpu_threads, free_memory
from server.model_files.folders import Found
from server.model_files.headers import Header, read_header
from server.model_files.prepared import model_directory, write_source
from server.model_files.short_names import models_on_disk
from server.settings.table import Settings
from server.startup.best_model import rule
from server.startup.best_model.memory import Remembered, key_of, recall, remember
from server.startup.core_configs import executor_config
from server.startup.model_source import LocalModel, in_folders
from server.startup.text_side import read_text_side, retrieval_side
from server.system.executor_tool import ToolError, ask

ANOTHER = "cohort serve NAME, with a name that `cohort list` shows"
"""How to choose another model."""
LIMIT_S = 6.0
"""Seconds that a search may take."""
_LISTING_S = 1.5
"""Seconds of them for looking through folders."""
_AT_ONCE = 6
"""Models that one process of the executor's tool looks at: it takes longer to start than for one of them."""
_MARGIN = 1.2
_RUNTIME_BYTES = 800 << 20
"""What a model takes beside its file, where the executor cannot be asked: a share of it, and the processes with some KV."""
_OF_ONE_MODEL = frozenset(
    {"revision", "tokenizer", "chat_template", "classifier_from_token", "tool_call_parser", "reasoning_parser",
     "speculative_config", "lora_modules", "lora_root"}
)  # fmt: skip
"""Settings that are made for one model: with them, no model means the default one."""

Say = Callable[[str], None]
"""Takes a sentence for the operator."""
Facts = Mapping[tuple[Path, str], Mapping[str, Any]]
"""Rows of the executor's tool `fits`, by path and package of the model."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`model`: what to serve; None: the default model. `why`: one sentence, empty where there was nothing to choose from."""

    model: LocalModel | None
    why: str = ""
    entry: Found | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    entry: Found
    header: Header

    def key(self, parameters: float) -> tuple[float, ...]:
        return rule.order(parameters, self.header.experts, self.entry.size, self.header.changed)


def choose(
    settings: Settings,
    say: Say = lambda sentence: None,
    listing: Iterable[Found] | None = None,
    facts: Facts | None = None,
) -> Choice:
    """Return what a server with these settings, which name no model, serves. `say` gets a sentence before a search that takes
    long. `listing`: the models on this disk, and `facts`: the executor's facts of them, if they are known.

    The default model is served, without a search, by executors other than LlmExecutor and with settings that are made for one
    model.
    """
    if settings.model is not None or settings.executor != "llm" or settings.load_format == "dummy":
        return Choice(None)
    if _OF_ONE_MODEL & settings.explicit:
        return Choice(None)
    ends = time.monotonic() + LIMIT_S
    models = list(
        _until(
            time.monotonic() + _LISTING_S,
            models_on_disk(settings.download_dir) if listing is None else listing,
        )
    )
    memory = free_memory(settings.device)
    reasons: dict[str, str] = {}
    candidates = []
    for one in models:
        reason = rule.excluded_by_name(one, memory)
        if reason is None:
            candidates.append(one)
        else:
            reasons[one.name] = reason
    if not candidates:
        return Choice(None, _none_will_do(reasons))
    key = key_of(models, executor_config(settings, Path("model")))
    if (
        facts is None
        and (last := recall(key, memory)) is not None
        and (again := _again(last, candidates)) is not None
    ):
        return again
    say(f"no model is named: looking for the best of {len(models)} on this disk")
    candidates.sort(key=_guessed_key)
    search = _Search(settings, reasons, ends, facts)
    chosen = search.first(candidates)
    choice = (
        Choice(None, _none_will_do(reasons))
        if chosen is None
        else _choice(chosen[0], _why(*chosen, len(models)))
    )
    if facts is None and not search.is_a_guess:
        entry = choice.entry
        where = ("", "") if entry is None else (str(entry.path), entry.package)
        remember(key, memory, Remembered(*where, choice.why))
    return choice


def _choice(entry: Found, why: str) -> Choice:
    return Choice(replace(in_folders(entry), why=why), why, entry)


def _again(last: Remembered, candidates: Iterable[Found]) -> Choice | None:
    """The last choice, if its model can still be chosen."""
    if not last.path:
        return Choice(None, last.why)
    same = (one for one in candidates if (str(one.path), one.package) == (last.path, last.package))
    return next((_choice(one, last.why) for one in same), None)


def _none_will_do(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    problems = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:2])
    more = f"; and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return f"the default model is served: no other one on this disk will do unasked ({problems}{more})"


def _until(ends: float, models: Iterable[Found]) -> Iterator[Found]:
    for one in models:
        yield one
        if time.monotonic() > ends:
            return


def _guessed_key(one: Found) -> tuple[float, ...]:
    return rule.order(rule.guessed_parameters(one), None, one.size, 0.0)


def _why(entry: Found, parameters: float, rate: float | None, count: int) -> str:
    number = f"{parameters / 1e9:.1f}" if parameters >= 1e9 else f"{parameters / 1e9:.2f}"
    of = f"of {count} models on this disk the largest" if count > 1 else "the one model on this disk"
    speed = f", about {rate:.0f} tokens per second on this CPU" if rate else ""
    return f"{of} that chats and fits into memory ({number}B parameters{speed}; from {entry.source})"


Ranked = tuple[Found, float, float | None]
"""A model, its parameters, and its tokens per second on a CPU, None on a GPU."""


class _Search:
    """One search. `reasons`: why models are not chosen, by name; `ends`: when it ends, of `time.monotonic`."""

    def __init__(self, settings: Settings, reasons: dict[str, str], ends: float, facts: Facts | None) -> None:
        self._settings, self._reasons, self._ends, self._facts = settings, reasons, ends, facts
        self.is_a_guess = False
        """Whether sizes decided, because the executor could not answer in time."""

    def first(self, models: list[Found]) -> Ranked | None:
        """Return the best of `models`, which are in the order of a guess."""
        readable = self._with_headers(models)
        while batch := list(islice(readable, _AT_ONCE)):
            for ranked, info in self._fitting(batch):
                problem = _text_problem(self._settings, ranked[0], info)
                if problem is None:
                    return ranked
                self._reasons[ranked[0].name] = problem
            if self._is_over():
                break
        return None

    def _is_over(self) -> bool:
        return time.monotonic() > self._ends

    def _with_headers(self, models: list[Found]) -> Iterator[_Candidate]:
        for one in models:
            if self._is_over():
                return
            try:
                header = read_header(one.path)
            except ConfigError as error:
                self._reasons[one.name] = str(error)
                continue
            if header.other_use is not None:
                self._reasons[one.name] = header.other_use
            elif not header.chat_template:
                self._reasons[one.name] = "it has no chat template"
            else:
                yield _Candidate(one, header)

    def _fitting(self, batch: list[_Candidate]) -> Iterator[tuple[Ranked, ModelInfo | None]]:
        """Yield what can be served of the batch, the best first."""
        rows = self._rows(batch)
        if rows is None:
            self.is_a_guess = True
            yield from self._guessed(batch)
            return
        usable = []
        for one, row in zip(batch, rows, strict=True):
            reason = rule.excluded_by_facts(row, one.header.experts)
            if reason is None:
                usable.append((one, row))
            else:
                self._reasons[one.entry.name] = reason
        for one, row in sorted(usable, key=lambda pair: pair[0].key(pair[1]["parameters"])):
            rate = None
            if row["device"] == "cpu":
                rate = rule.tokens_per_second(row["loaded_bytes"], one.header.experts, row["threads"])
            yield (one.entry, row["parameters"], rate), ModelInfo(**row["info"])

    def _rows(self, batch: list[_Candidate]) -> Sequence[Mapping[str, Any]] | None:
        """Ask the executor; None where it cannot answer in time."""
        if self._facts is not None:
            return [self._facts[one.entry.path, one.entry.package] for one in batch]
        with TemporaryDirectory(prefix="cohort-choice-") as scratch:
            configs = []
            for number, one in enumerate(batch):
                path = one.entry.path
                directory = write_source(path, Path(scratch) / str(number)) if one.entry.is_gguf else path
                configs.append(asdict(executor_config(self._settings, directory)))
            seconds = max(1.0, self._ends - time.monotonic())
            with contextlib.suppress(ToolError):
                rows: list[dict[str, Any]] | None = ask(
                    "fits", {"configs": configs, "compile": False}, timeout=seconds
                )
                return rows
        return None

    def _guessed(self, batch: list[_Candidate]) -> Iterator[tuple[Ranked, None]]:
        """`_fitting` without the executor, which cannot answer in time: before CPU kernels are compiled for the first time."""
        memory, threads = free_memory(self._settings.device), cpu_threads()
        if memory == NO_BOUND:  # of the card, whose memory is not known here
            self._reasons |= {
                one.entry.name: "the executor did not say in time whether it fits" for one in batch
            }
            return

        def parameters(one: _Candidate) -> float:
            return rule.guessed_parameters(one.entry)

        for one in sorted(batch, key=lambda one: one.key(parameters(one))):
            size = one.entry.size
            rate = rule.tokens_per_second(size, one.header.experts, threads)
            if _MARGIN * size + _RUNTIME_BYTES > memory:
                self._reasons[one.entry.name] = "its weights do not fit into memory with a context"
            elif rate < rule.LEAST_RATE:
                self._reasons[one.entry.name] = f"about {rate:.1f} tokens per second on this CPU"
            else:
                yield (one.entry, parameters(one), rate), None


def _text_problem(settings: Settings, entry: Found, info: ModelInfo | None) -> str | None:
    """Why the model's tokenizer, template or pooling would end a start, or make it no model for chats."""
    model = in_folders(entry)
    try:
        directory = model_directory(model.path, package=model.package)
        text = read_text_side(settings, directory, False)
        if text.template is None:
            return "it has no chat template"
        if info is not None:
            _, _, scoring = retrieval_side(settings, text.tokenizer, info, directory, (model.name,))
            if scoring.kind:
                return f"it is used as {scoring.kind}"
    except (ConfigError, OSError) as error:
        return str(error)
    return None
