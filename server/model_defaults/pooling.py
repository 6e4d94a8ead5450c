"""The default pooling: which of a prompt's hidden states make its embedding if the request does not say.

Models of sentence-transformers declare it: modules.json lists their steps, and config.json in the folder of the step Pooling
names its kind, in `pooling_mode` or in a switch for each kind. GGUF files declare it in `ARCH.pooling_type`. A model without
these uses its last token's state, which has attended to all the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from executors.contract import POOLINGS, ConfigError, ModelInfo
from server.model_files.gguf_pooling import RANK, gguf_pooling

_KINDS = {
    "mean_tokens": "mean", "mean": "mean", "lasttoken": "last", "last": "last", "cls_token": "cls", "cls": "cls",
}  # fmt: skip
_SWITCH = "pooling_mode"
_DEFAULT_MODE = "mean"
"""Of sentence-transformers, where the step's configuration names no kind."""
_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Steps of a model that are supported, by the last part of their types. Dropout changes nothing outside of training."""
_DENSE = "Dense"
"""A step that is supported where the executor computes it (`ModelInfo.vector_layers`)."""
_FOLDER = "1_Pooling"
"""Where the step's configuration lies if modules.json does not name a folder."""


@dataclass(frozen=True, slots=True)
class DefaultPooling:
    """`kind` is "last", "mean" or "cls"; None if the model's own kind is not supported, and then `reason` says why."""

    kind: str | None = "last"
    reason: str = ""
    declared: bool = False
    """Whether the model's files name it an embedding model."""
    includes_prompt: bool = True
    """Whether the hidden states of a prompt before the text count in the mean."""
    lower_case: bool = False
    """Whether texts are put in lower case before they are tokenized."""


def default_pooling(
    directory: Path, poolings: Sequence[str] = POOLINGS, vector_layers: Sequence[int] = ()
) -> DefaultPooling:
    """The pooling that a model directory declares, else the first of `poolings`, those that the model has. `poolings` and
    `vector_layers` of `ModelInfo`. Raises ConfigError, naming the file, if a file cannot be read."""
    if (kind := gguf_pooling(directory)) is not None:
        return _of_gguf(kind, poolings)
    steps = modules(directory)
    supported = (*_MODULES, _DENSE) if vector_layers else _MODULES
    if other := [name for name in steps if name not in supported]:
        return DefaultPooling(None, f"the model ends with a module '{other[0]}'")
    declared = "Pooling" in steps
    folder = steps.get("Pooling") or _FOLDER
    config = read_file(directory / folder / "config.json", dict)
    if config is None:
        missing = f"{folder}/config.json, which modules.json names, is missing"
        return DefaultPooling(None, missing, declared) if declared else DefaultPooling(poolings[0])
    texts = read_file(directory / steps.get("Transformer", "") / "sentence_bert_config.json", dict) or {}
    lower_case = texts.get("do_lower_case") is True
    kinds = _kinds(config)
    if len(kinds) == 1 and _KINDS.get(kinds[0]) in poolings:
        included = config.get("include_prompt") is not False
        return DefaultPooling(_KINDS[kinds[0]], "", declared, included, lower_case)
    return DefaultPooling(None, f"the model's own pooling is {' and '.join(kinds)}", declared)


def length_notes(directory: Path, info: ModelInfo) -> tuple[str, ...]:
    """A note on the length at which sentence-transformers cuts texts, where it is not applied; () if the model names none, and
    for an encoder, whose context it is. Raises ConfigError, naming the file, if a file cannot be read."""
    steps = modules(directory)
    if "Pooling" not in steps or info.token_types:
        return ()
    path = directory / steps.get("Transformer", "") / "sentence_bert_config.json"
    longest = (read_file(path, dict) or {}).get("max_seq_length")
    if longest is None:
        return ()
    return (f"{path.name}: max_seq_length {longest} is not applied: longer texts are embedded whole",)


def _of_gguf(kind: str, poolings: Sequence[str]) -> DefaultPooling:
    if _KINDS.get(kind) in poolings:
        return DefaultPooling(_KINDS[kind], "", declared=True)
    reason = (
        "its GGUF file names rank, a reranker's" if kind == RANK else f"the model's own pooling is {kind}"
    )
    return DefaultPooling(None, reason, declared=kind not in (RANK, "none"))


def _kinds(config: dict[str, Any]) -> list[str]:
    """The kinds of pooling in a step's configuration, whose vectors sentence-transformers puts side by side."""
    modes = config.get(_SWITCH)
    if isinstance(modes, str | list) and modes:
        return [modes] if isinstance(modes, str) else [str(one) for one in modes]
    prefix = f"{_SWITCH}_"
    switched = [
        name.removeprefix(prefix) for name, on in config.items() if on is True and name.startswith(prefix)
    ]
    return switched or [_DEFAULT_MODE]


def modules(directory: Path) -> dict[str, str]:
    """The steps of a model of sentence-transformers, by the last part of their types, each with the folder of its files; empty
    for other models. Raises ConfigError, also for a step that is there twice or whose folder lies elsewhere."""
    path = directory / "modules.json"
    folders: dict[str, str] = {}
    for one in read_file(path, list) or ():
        if not isinstance(one, dict):
            continue
        name, folder = str(one.get("type")).rpartition(".")[2], str(one.get("path") or "")
        if name in folders and name in _MODULES:
            raise ConfigError(f"{path}: two modules '{name}' are not supported")
        if folder.startswith("/") or ".." in PurePosixPath(folder).parts:
            raise ConfigError(f"{path}: module '{name}' has path {folder!r}; a folder of the model is needed")
        folders[name] = folder
    return folders


def read_file(path: Path, kind: type) -> Any:
    """The JSON value in a file, None if there is no such file. Raises ConfigError unless it is of this `kind`, dict or list."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(value, kind):
        raise ConfigError(f"{path}: not a JSON {'object' if kind is dict else 'list'}")
    return value
