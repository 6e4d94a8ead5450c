"""Models in the folders below a directory that holds none itself, for a message that names them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from executors.contract import ConfigError
from executors.gguf.not_whole import put_together
from executors.weight_files import has_weights
from server.model_files.candidates import candidates
from server.model_files.ollama import listed

_MAX_DEPTH = 3
_MOST_FOLDERS = 500
_MOST_NAMED = 12
_ADAPTER = "adapter_config.json"
_MISTRALS_CONFIG = "params.json"


def why_no_model(path: Path, name: str) -> str:
    """Return the sentence that refuses a file, given as `name`, which is no GGUF file."""
    return f"{name}: this is a file and no GGUF file{put_together(path.name)}; a model is a GGUF file or a directory"


def refuse_without_model(directory: Path, name: str) -> None:
    """Raise ConfigError for a directory without a model, given as `name`, that has models in its folders, is a LoRA adapter or
    has another layout."""
    if (directory / _ADAPTER).is_file() and not (directory / "config.json").is_file():
        raise ConfigError(
            f"{name}: a LoRA adapter ({_ADAPTER}), no model; serve the model that it was trained for, with --lora-modules "
            f"NAME={name}"
        )
    if (directory / _MISTRALS_CONFIG).is_file() and not (directory / "config.json").is_file():
        raise ConfigError(
            f"{name}: a model in Mistral's own layout ({_MISTRALS_CONFIG}); take the checkpoint in Hugging Face's layout "
            "(config.json)"
        )
    for path in listed(directory):
        if cure := put_together(path.name):
            raise ConfigError(f"{name.rstrip('/')}/{path.name}: no GGUF file{cure}")
    paths_below = sorted(models_below(directory))
    if not paths_below:
        return
    more = f" and {len(paths_below) - _MOST_NAMED} more" if len(paths_below) > _MOST_NAMED else ""
    paths = ", ".join(f"{name.rstrip('/')}/{path}" for path in paths_below[:_MOST_NAMED])
    raise ConfigError(
        f"{name}: no model lies in the directory itself; name one of those below it: {paths}{more}"
    )


def models_below(directory: Path) -> Iterator[str]:
    """Yield the paths, relative to the directory, of GGUF models and of checkpoints in its folders, hidden ones left out. Looks
    through a limited number of folders."""
    folders = [(directory, 0)]
    for number, (folder, depth) in enumerate(folders):
        if number > _MOST_FOLDERS:
            return
        entries = listed(folder)
        if depth:
            names = {path.name: path for path in entries if path.is_file()}
            relative = folder.relative_to(directory)
            if "config.json" in names and has_weights(names):
                yield relative.as_posix()
            sizes = {name: path.stat().st_size for name, path in names.items()}
            yield from ((relative / one.name).as_posix() for one in candidates(sizes))
        if depth < _MAX_DEPTH:
            below = (path for path in entries if path.is_dir() and not path.name.startswith("."))
            folders.extend((path, depth + 1) for path in below)
