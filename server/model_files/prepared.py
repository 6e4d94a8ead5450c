"""The directory that a GGUF file is served from: its tokenizer's files, and `gguf.json`, which says where the weights are.

    <cache>/gguf/<digest>/    tokenizer.json  tokenizer_config.json  generation_config.json  gguf.json  [ollama.json]

The digest is that of the file's header, the places and sizes of its parts, what Ollama's manifest names beside it, and the code
that reads tokenizers: a file that was changed, cut or moved gets a directory of its own. A directory appears complete or not at
all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import structlog

import engine.text.gguf
from engine.text import gguf_tokenizer
from executors.contract import ConfigError
from executors.gguf.file import GgufFile, read_gguf
from server.model_files.ollama_package import FILE as package_file
from server.model_files.ollama_package import Package
from server.model_files.private_cache import private_folder

log = structlog.get_logger("server")

SOURCE = "gguf.json"
_FOLDER = "gguf"


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a file that should be read as GGUF: by its name, or by its first bytes."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(4) == b"GGUF"
    return False


def model_directory(path: Path, own_tokenizer: bool = True, package: Package | None = None) -> Path:
    """Return the directory to serve `path` from: itself, or for a GGUF file the prepared one, made if necessary. `package`: what
    is served with a GGUF file of Ollama's store.

    Without `own_tokenizer`, which another directory replaces, a tokenizer that cannot be read is left out. Raises ConfigError,
    one line that names the file and the field.
    """
    if not is_gguf(path):
        return path
    path = path.parent.resolve() / path.name  # a link keeps its name, by which the other parts are found
    index = read_gguf(path, arrays=False)
    header = _header_digest(index)
    folder = private_folder(_FOLDER)
    extra = {} if package is None else {package_file: package.to_json()}
    more = [hashlib.sha256(content).hexdigest() for content in extra.values()]
    directory = _existing(folder / _digest(index, header, *more))
    if directory is not None:
        return directory
    try:
        files = gguf_tokenizer.tokenizer_files(read_gguf(path).metadata)
    except ConfigError as error:
        _refuse_other_types(path, index)
        if own_tokenizer:
            raise ConfigError(f"{path}: {error}; or name another tokenizer with --tokenizer") from None
        log.warning(f"{path}: {error}")
        files = {}
    name = _digest(index, header, *more, *([] if files else ["without tokenizer"]))
    _forget_gone(folder)
    return _made(folder / name, {**files, **extra, SOURCE: _source(index, header)})


def _refuse_other_types(path: Path, gguf: GgufFile) -> None:
    """Raise ConfigError for a file that is no model by `general.type`: that it has no tokenizer is no fault of it."""
    kind = gguf.metadata.get("general.type", "model")
    if kind == "adapter":
        raise ConfigError(
            f"{path}: a LoRA adapter, no model; serve the model that it was trained for, with --lora-modules NAME={path}"
        )
    if kind != "model":
        raise ConfigError(
            f"{path}: general.type {str(kind)[:60]!r}: no model; name the model's own file, which lies beside it"
        )


def write_source(path: Path, directory: Path) -> Path:
    """Make `directory` for the weights of a GGUF file alone, as the executor's tools take it, and return it.

    Raises ConfigError."""
    path = path.parent.resolve() / path.name
    index = read_gguf(path, arrays=False)
    directory.mkdir(parents=True)
    (directory / SOURCE).write_bytes(_source(index, _header_digest(index)))
    return directory


def pooling_type(directory: Path) -> int | None:
    """Return `ARCH.pooling_type` of the GGUF file that a prepared directory serves; None if it has none, and for any other
    directory. Raises ConfigError for a file that cannot be read."""
    path = model_file(directory)
    if path is None:
        return None
    source = json.loads((directory / SOURCE).read_bytes())
    if "pooling" not in source:  # made by an earlier version
        return _pooling_type(read_gguf(path, arrays=False))
    value = source["pooling"]
    return value if isinstance(value, int) else None


def _pooling_type(gguf: GgufFile) -> int | None:
    key = f"{gguf.metadata.get('general.architecture')}.pooling_type"
    value = gguf.metadata.get(key)
    if value is not None and type(value) is not int:
        raise ConfigError(
            f"{gguf.path}: {key} is {str(value)[:40]!r}; a number is needed, such as 1 (mean) or 3 (last)"
        )
    return value


def model_file(directory: Path) -> Path | None:
    """Return the GGUF file that a prepared directory serves; None for any other directory."""
    try:
        return Path(json.loads((directory / SOURCE).read_bytes())["files"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def context_length(path: Path) -> int | None:
    """Return the context of a GGUF model in tokens, None if the file does not say it. Raises ConfigError."""
    metadata = read_gguf(path, arrays=False).metadata
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return length if isinstance(length, int) else None


def _source(gguf: GgufFile, header: str) -> bytes:
    files = [str(part) for part in gguf.parts]
    return json.dumps({"files": files, "header": header, "pooling": _pooling_type(gguf)}).encode()


def _existing(directory: Path) -> Path | None:
    return directory if (directory / SOURCE).is_file() else None


def _made(target: Path, files: dict[str, bytes]) -> Path:
    """Write the files to `target` in one step. Of two processes that do so at once, the first one's stay."""
    try:
        building = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
        try:
            for name, content in files.items():
                (building / name).write_bytes(content)
            building.rename(target)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        if _existing(target) is None:
            raise ConfigError(
                f"{target}: the model's tokenizer cannot be written there ({error.strerror}); XDG_CACHE_HOME names another place"
            ) from None
    return target


def _forget_gone(folder: Path) -> None:
    """Delete directories whose model is no longer there: no server could start from them."""
    for directory in folder.iterdir():
        model = model_file(directory)
        if model is not None and not model.exists():
            shutil.rmtree(directory, ignore_errors=True)


def _digest(gguf: GgufFile, header: str, *more: str) -> str:
    sizes = [(str(part), part.stat().st_size) for part in gguf.parts]
    return hashlib.sha256(repr((header, sizes, _code(), more)).encode()).hexdigest()[:32]


def _header_digest(gguf: GgufFile) -> str:
    """The sha256 that executors compare: of the first part's bytes before the data of its tensors."""
    with gguf.path.open("rb") as file:
        return hashlib.sha256(file.read(gguf.data_offset)).hexdigest()


@lru_cache
def _code() -> str:
    """Identify the version of what makes the tokenizer's files."""
    sources = [
        Path(gguf_tokenizer.__file__),
        *sorted(Path(engine.text.gguf.__file__).parent.glob("*.py")),
    ]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
