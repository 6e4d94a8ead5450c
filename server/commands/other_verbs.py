"""Verbs that other servers have and Cohort has not: one line says what does it instead."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

_INSTEAD = {
    "help": "--help lists the commands, and behind one of them its flags, as in `cohort serve --help`",
    "show": "`cohort info MODEL` shows a model's size, context and memory",
    "ls": "`cohort list` lists the models on this disk",
    "models": "`cohort list` lists the models on this disk",
    "start": "`cohort serve [MODEL]` starts a server",
    "server": "`cohort serve [MODEL]` starts a server",
    "up": "`cohort serve [MODEL]` starts a server",
    "down": "`cohort stop [MODEL]` ends a server",
    "kill": "`cohort stop [MODEL]` ends a server",
    "status": "`cohort ps` lists the servers that run",
    "download": "`cohort pull MODEL` fetches a model",
    "fetch": "`cohort pull MODEL` fetches a model",
    "complete": "`cohort run MODEL PROMPT` answers one prompt",
    "generate": "`cohort run MODEL PROMPT` answers one prompt",
    "create": "flags of `cohort serve` say what a Modelfile does, such as --chat-template and "
    "--override-generation-config; `cohort serve NAME` serves what `ollama create` made",
    "cp": "models have no copies: `cohort serve MODEL --served-model-name NAME` gives one another name",
    "push": "nothing is published from here: `hf upload` or `ollama push` does that",
    "signin": "there are no accounts; HF_TOKEN is the token for models of the hub that need one",
    "login": "there are no accounts; HF_TOKEN is the token for models of the hub that need one",
    "logout": "there are no accounts",
    "signout": "there are no accounts",
    "benchmark": "`cohort bench` measures a server",
    "uninstall": "`pip uninstall cohort-server` removes the program, and `cohort list --caches` shows what else it wrote",
    "update": "pip or git brings another version; `cohort pull MODEL` brings what is missing of a model",
    "upgrade": "pip or git brings another version; `cohort pull MODEL` brings what is missing of a model",
}  # fmt: skip
_REMOVE = ("rm", "remove", "delete")


def instead_of(words: list[str], verbs_known: Iterable[str]) -> str:
    """Return what is said to a command line whose first word is no verb."""
    verb = words[0]
    if verb in _REMOVE:
        return f"cohort {verb}: Cohort deletes no models; {_how_to_remove(words[1:])}"
    if (text := _INSTEAD.get(verb)) is not None:
        return f"cohort {verb}: {text}"
    if "/" in verb or verb.endswith(".gguf"):
        return (
            f"{verb} is no command; `cohort serve {shlex.quote(verb)}` or `cohort run {shlex.quote(verb)}`?"
        )
    small, verbs = verb.lower(), list(verbs_known)
    near = [
        *difflib.get_close_matches(small, verbs, n=1, cutoff=0.6),
        *difflib.get_close_matches(small, [*_INSTEAD, *_REMOVE], n=1, cutoff=0.6),
    ]
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"no such command {verb!r}{hint}; see cohort --help"


def _how_to_remove(words: list[str]) -> str:
    names = [word for word in words if not word.startswith("-")]
    if not names:
        return "`cohort list --json` shows their paths"
    return "; ".join(map(_removal, names))


def _removal(name: str) -> str:
    """How one model is removed, by the program whose folder it is in."""
    from server.model_files.folders import Found
    from server.model_files.short_names import folder_index

    models = folder_index(os.environ.get("COHORT_DOWNLOAD_DIR")).named(name)
    if not models:
        return f"no model on this disk is called {name}: `cohort list` shows names"

    def one(model: Found) -> str:
        if model.source == "Ollama":
            return f"`ollama rm {model.name}` does, or delete it in Ollama's store"
        return f"delete {name} by: rm -r {shlex.quote(str(_removable(model.path)))}"

    return " or ".join(map(one, models))


def _removable(path: Path) -> Path:
    """The folder of a repository in a cache of the hub, whose snapshots are links to its blobs; else the path itself."""
    return next((parent for parent in (path, *path.parents) if parent.name.startswith("models--")), path)
