"""The directory with a tokenizer.json for a model that has none, and whose tokenizer is made of another vocabulary file.

    <cache>/tokenizers/<digest>/    tokenizer.json  tokenizer_config.json  generation_config.json

Grammars need a tokenizer.json. The digest is that of the files that the tokenizer is made of, and of the code that makes it;
nothing is written into the model's own directory.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import lru_cache
from pathlib import Path

import engine.text
from engine.text.tokenizer import Tokenizer
from engine.text.vocabulary_files import vocabulary_file
from executors.contract import ConfigError
from server.model_files.private_cache import private_folder

_FOLDER = "tokenizers"
_BESIDE = (
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "config.json",
)


def tokenizer_directory(directory: Path) -> Path:
    """Return the directory with the tokenizer.json of a model: its own, or one made of its vocabulary file.

    A directory whose tokenizer cannot be made stays: reading it says why.
    """
    if (directory / "tokenizer.json").is_file():
        return directory
    try:
        source = vocabulary_file(directory)
        if source is None:
            return directory
        target = private_folder(_FOLDER) / _digest(source)
        if not target.is_dir():
            _write(target, _files(directory))
        return target
    except (ConfigError, OSError):
        return directory


def _write(target: Path, files: dict[str, bytes]) -> None:
    """Make the folder in one step. Of two processes that do so at once, the first one's stays. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=target.parent) as building:
        directory = Path(building) / target.name
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_bytes(content)
        try:
            directory.rename(target)
        except OSError:
            if not target.is_dir():
                raise


def _files(directory: Path) -> dict[str, bytes]:
    tokenizer = Tokenizer.load(directory)
    config = {
        key: value for key, value in tokenizer.config.items() if not key.startswith(("add_bos", "add_eos"))
    }
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}}
    contents = {
        "tokenizer_config.json": config,
        "generation_config.json": {"eos_token_id": sorted(tokenizer.eos_token_ids)},
    }
    files = {name: json.dumps(content, ensure_ascii=False).encode() for name, content in contents.items()}
    return {"tokenizer.json": tokenizer.raw.to_str().encode(), **files}


def _digest(source: Path) -> str:
    paths = [source, *(source.with_name(name) for name in _BESIDE)]
    parts = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths if path.is_file()]
    return hashlib.sha256(repr((parts, _code())).encode()).hexdigest()[:32]


@lru_cache
def _code() -> str:
    """Identify the version of what makes tokenizers."""
    sources = sorted(Path(engine.text.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
