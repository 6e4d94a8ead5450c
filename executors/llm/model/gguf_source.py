"""A directory whose model is a GGUF file: it holds `gguf.json`, the tokenizer's files, and neither config.json nor weights.

    {"files": ["/models/m-00001-of-00002.gguf", "/models/m-00002-of-00002.gguf"], "header": "<sha256>"}

`files` are the absolute paths of the parts in order; `header` is the sha256 of the first part's bytes before the data of its
tensors, in hexadecimal. No torch here.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile, read_gguf
from executors.llm.model.fields import read_json

NAME = "gguf.json"


def is_gguf(directory: Path) -> bool:
    """Return whether the directory's model is a GGUF file."""
    return (directory / NAME).is_file()


def read_source(directory: Path) -> GgufFile:
    """Read the header of the GGUF file that the directory names. Raises ConfigError, also for a file whose header has changed
    since the directory was made: its tokenizer would be another's."""
    path = directory / NAME
    values = read_json(path)
    files, header = values.get("files"), values.get("header")
    if not isinstance(files, list) or not files or not all(isinstance(one, str) for one in files):
        raise ConfigError(f"{path}: field files is missing or not a list of paths")
    gguf = read_gguf(Path(files[0]), arrays=False)
    if [str(part) for part in gguf.parts] != files:
        raise ConfigError(
            f"{path}: field files names {len(files)} files; {files[0]} has {len(gguf.parts)} parts beside it"
        )
    if header_digest(gguf) != header:
        raise ConfigError(
            f"{path}: field header does not fit {files[0]}, which has changed since; serve the file anew"
        )
    return gguf


def header_digest(gguf: GgufFile) -> str:
    """Return the sha256 of the first part's bytes before the data of its tensors, in hexadecimal."""
    with gguf.path.open("rb") as file:
        return hashlib.sha256(file.read(gguf.data_offset)).hexdigest()


def config_path(directory: Path) -> Path:
    """Return the file that the configuration of the directory's model stands in, for messages."""
    return model_path(directory) if is_gguf(directory) else directory / "config.json"


def model_path(directory: Path) -> Path:
    """Return what holds the directory's model, for messages: the GGUF file that it names, or the directory itself."""
    if not is_gguf(directory):
        return directory
    files = read_json(directory / NAME).get("files")
    return (
        Path(files[0])
        if isinstance(files, list) and files and isinstance(files[0], str)
        else directory / NAME
    )
