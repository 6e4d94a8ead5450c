"""The files of an adapter: found below a root without leaving it, and copied by what was opened, not by name.

An adapter is a folder in PEFT's format, a GGUF file, or a folder with one GGUF file and nothing in PEFT's format.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

from engine.errors import FIELD, InvalidRequest, ModelNotFound
from executors.contract import ConfigError
from server.model_files.prepared import is_gguf

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
GGUF = "adapter.gguf"
"""Name of the copy of a GGUF file."""
TEXT_FILES = ("chat_template.jinja", "tokenizer_config.json")
"""Files that may hold the adapter's own chat template."""
MOST_TEXT = 4 << 20
"""Bytes that a configuration or a template may have."""
_PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")


def below(root: Path, path: str, param: str = "lora_path") -> Path:
    """Return the folder or GGUF file that a client means: a path relative to `root`, or one below it.

    Raises InvalidRequest for a path that leads out of the root, by its name or by a link, and ModelNotFound if there is no
    such folder or file.
    """
    outside = InvalidRequest(f"'{FIELD}' must name a folder below the server's --lora-root.", param)
    if "\0" in path or not path.strip():
        raise outside
    base = Path(os.path.realpath(root))
    folder = Path(os.path.realpath(base / path))
    if folder == base or not folder.is_relative_to(base):
        raise outside
    if not (folder.is_dir() or is_gguf(folder)):
        raise ModelNotFound(f"There is no adapter at '{path[:200]}' below the server's --lora-root.", param)
    return folder


def copy_files(folder: Path, target: Path, most_bytes: int, root: Path | None) -> None:
    """Copy an adapter's files to the new folder `target`. Nothing else of the folder is read. `folder` may be a GGUF file.

    `root`: the files have to lie below it, whatever links the folder holds; None: they may lie anywhere. A file is opened once,
    and where it lies is asked of what was opened: a link put in its place meanwhile changes nothing. `most_bytes`: of weights.
    Raises InvalidRequest naming the file, OSError if the target cannot be written.
    """
    target.mkdir(mode=0o700)
    if is_gguf(file := weights_file(folder)):
        if not _copy(file, target / GGUF, most_bytes, root):
            raise InvalidRequest(f"The adapter has no {file.name}.", "lora_path")
        return
    check_present(folder)
    for name, most in ((CONFIG, MOST_TEXT), (WEIGHTS, most_bytes)):
        if not _copy(folder / name, target / name, most, root):
            raise InvalidRequest(f"The adapter has no {name}.", "lora_path")
    for name in TEXT_FILES:
        _copy(folder / name, target / name, MOST_TEXT, root)


def check_present(folder: Path) -> None:
    """Raises InvalidRequest for a folder that lacks one of PEFT's two files."""
    pickled = next((name for name in _PICKLES if (folder / name).exists()), None)
    if pickled is not None and not (folder / WEIGHTS).exists():
        raise InvalidRequest(
            f"{pickled}: pickled weights are not read; save the adapter as {WEIGHTS} "
            "(save_pretrained of PEFT, with safe_serialization left at True).",
            "lora_path",
        )
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).exists():
            raise InvalidRequest(f"The adapter has no {name}.", "lora_path")


def weights_file(folder: Path) -> Path:
    """Return the file with an adapter's weights: `folder` itself if it is a GGUF file. Raises InvalidRequest for a folder with
    several GGUF files and nothing else to load."""
    if is_gguf(folder):
        return folder
    files = sorted(folder.glob("*.gguf"))
    if not files or (folder / CONFIG).exists() or (folder / WEIGHTS).exists():
        return folder / WEIGHTS
    if len(files) > 1:
        listed = ", ".join(one.name for one in files[:8])
        raise InvalidRequest(f"The folder has {len(files)} GGUF files: name one of {listed}.", "lora_path")
    return files[0]


def shown_name(label: str, folder: Path, file: Path) -> str:
    """The name of an adapter's `file` in messages, where its `folder` is called `label`."""
    return label if file == folder else f"{label.rstrip('/')}/{file.name}"


def _copy(source: Path, target: Path, most: int, root: Path | None) -> bool:
    """Copy one file; False if there is none."""
    try:
        # Without O_NONBLOCK a FIFO would wait for its writer.
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InvalidRequest(f"{source.name}: it cannot be read: {error.strerror}.", "lora_path") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidRequest(f"{source.name} is not a file.", "lora_path")
    with os.fdopen(descriptor, "rb") as opened:
        where = Path(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        if root is not None and not where.is_relative_to(os.path.realpath(root)):
            raise InvalidRequest(f"{source.name} lies outside of the server's --lora-root.", "lora_path")
        if status.st_size > most:
            raise InvalidRequest(
                f"{source.name} has {status.st_size} bytes, more than the {most} that are read.", "lora_path"
            )
        with target.open("xb") as copy:
            shutil.copyfileobj(opened, copy, 1 << 20)
    return True


def own_template(folder: Path) -> str | None:
    """Return the source of the chat template that an adapter brings, None if it brings none. Raises ConfigError."""
    try:
        return (folder / TEXT_FILES[0]).read_text("utf-8")
    except FileNotFoundError:
        pass
    except ValueError:
        raise ConfigError(f"{TEXT_FILES[0]} is not text") from None
    try:
        config = json.loads((folder / TEXT_FILES[1]).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        raise ConfigError(f"{TEXT_FILES[1]} is not JSON") from None
    template = config.get("chat_template") if isinstance(config, dict) else None
    return template if isinstance(template, str) else None
