"""Short names of the models on this disk: what a person types in place of a path.

    Qwen3-4B-Q4_K_M          a GGUF file, by its name without the ending, or with it, in any of the folders
    Qwen3-4B-MLX             a checkpoint in LM Studio's folders, by the name of its own folder
    llama3.2, llama3.2:1b    Ollama's names
    ORG/NAME                 a checkpoint in a cache of the hub

A name that several models have names none of them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from server.model_files import ollama
from server.model_files.candidates import model_stem
from server.model_files.folders import Found, find, roots


def names_of(model: Found) -> tuple[str, ...]:
    """Return the names of a model, the shortest first. The last is its name in `cohort list --json`."""
    if model.source == "Ollama":
        official = "/" not in model.name  # others without a tag are names of the hub
        short = model.name.removesuffix(f":{ollama.LATEST}") if official else model.name
        return (short, model.name)
    if model.is_gguf:
        return (model_stem(model.path.name), model.path.name, model.name)
    if Path(model.name).is_absolute():
        return (model.path.name, model.name)
    return (model.name,)


class FolderIndex:
    """Models on this disk by name."""

    def __init__(self, models: Iterable[Found]) -> None:
        self._by_name: dict[str, list[Found]] = defaultdict(list)
        for one in models:
            for name in dict.fromkeys(names_of(one)):
                self._by_name[name].append(one)

    def named(self, name: str) -> Sequence[Found]:
        """Return the models of this name."""
        return self._by_name.get(name, ())


def folder_index(download_dir: str | None) -> FolderIndex:
    """Look through the folders of this user. `download_dir`: Cohort's own, where there is one."""
    return FolderIndex(models_on_disk(download_dir))


def models_on_disk(download_dir: str | None) -> Iterable[Found]:
    """Find the models in the folders of this user, lazily; see folders.py."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home directory
        return ()
    folders = roots(os.environ, home)
    if download_dir is not None:
        folders["Cohort"] = [Path(download_dir).expanduser()]
    return find(folders)
